//! `pleg pods`: the pods of the node.

use std::process::ExitCode;

use jiff::Timestamp;

use crate::args::{Format, Global, Pods};
use crate::connect::{Observed, Stay};
use crate::output;

pub(crate) async fn run(global: &Global, args: Pods) -> anyhow::Result<ExitCode> {
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let wanted = args.namespace.as_deref();
    let pods = observed
        .pods(|namespace, _, _| wanted.is_none_or(|wanted| wanted == namespace))
        .await?;
    match args.output {
        Format::Table => output::print(&output::pod::table(&pods, false, Timestamp::now()))?,
        Format::Wide => output::print(&output::pod::table(&pods, true, Timestamp::now()))?,
        Format::Json => output::print_json(&pods)?,
        Format::Yaml => output::print_yaml(&pods)?,
    }
    Ok(ExitCode::SUCCESS)
}
