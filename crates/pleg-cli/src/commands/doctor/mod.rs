//! `pleg doctor`: what is wrong with this runtime, which object causes it, and what to type next.
//!
//! | part | job |
//! |---|---|
//! | `examine`, `ask`, `events`, `known`, `host` | read-only calls to the runtime and this machine, within a budget |
//! | `facts`, `inventory` | the result |
//! | `judge`, `finding`, `kubelet` | what it means: pure |
//! | `report`, `render` | what is printed |

mod ask;
mod events;
mod examine;
mod facts;
mod finding;
mod host;
mod inventory;
mod judge;
mod known;
mod kubelet;
mod processes;
mod render;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use crate::address::DaemonAddress;
use crate::args::{Doctor, Format, Global};
use crate::{connect, output, waiting};
use examine::{Plan, Progress};
use finding::Severity;

/// Deadline of a list: thousands of containers are listed within a second.
const LIST: Duration = Duration::from_secs(5);
/// Deadline of a status call: a container is inspected within milliseconds.
const INSPECT: Duration = Duration::from_secs(2);

pub(crate) async fn run(global: &Global, args: Doctor) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let endpoint = connect::told_endpoint(global)?;
    // Connecting, the first answer and the lists each get a share, so that none uses up the whole budget.
    let most = args.budget / 4;
    let plan = Plan {
        endpoint,
        budget: args.budget,
        list: global.timeout.unwrap_or(LIST).min(most),
        inspect: global.timeout.unwrap_or(INSPECT).min(most),
        events: args.events,
        daemon: match args.daemon {
            Some(address) => Some(address),
            None => DaemonAddress::from_environment()?,
        },
    };
    let progress = Progress::default();
    let examination = Box::pin(examine::examine(&plan, &progress));
    let facts = waiting::told(|| Some(progress.told()), examination).await?;

    let kubelet = kubelet::forecast(&facts);
    let findings = judge::judge(&facts, &kubelet);
    let report = report::report(facts, kubelet, findings, start.elapsed(), plan.budget);
    match args.output {
        Format::Table => output::print(&render::text(&report, false))?,
        Format::Wide => output::print(&render::text(&report, true))?,
        Format::Json => output::print_json(&report)?,
        Format::Yaml => output::print_yaml(&report)?,
    }
    Ok(ExitCode::from(u8::from(report.severity == Some(Severity::Critical))))
}
