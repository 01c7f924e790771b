//! `pleg health`: is everything seen?

use std::process::ExitCode;

use crate::args::{FailOn, Global, Health, TextFormat};
use crate::connect::{Observed, Stay};
use crate::output;
use crate::wire::Report;

pub(crate) async fn run(global: &Global, args: Health) -> anyhow::Result<ExitCode> {
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let report = observed.health().await?;
    match args.output {
        TextFormat::Text => output::print(&output::health::text(&report))?,
        TextFormat::Json => output::print_json(&report)?,
        TextFormat::Yaml => output::print_yaml(&report)?,
    }
    let failed = args.fail_on.iter().any(|state| is(&report, *state));
    Ok(ExitCode::from(u8::from(failed)))
}

fn is(report: &Report, state: FailOn) -> bool {
    match state {
        FailOn::Unhealthy => report.level == "Unhealthy",
        FailOn::Degraded => report.level != "Healthy",
        FailOn::NotReady => !report
            .conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status),
    }
}
