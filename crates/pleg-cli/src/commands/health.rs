//! `pleg health`: is everything seen?

use std::process::ExitCode;

use crate::args::{Global, Health, TextFormat};
use crate::connect::{Observed, Stay};
use crate::output;

pub(crate) async fn run(global: &Global, args: Health) -> anyhow::Result<ExitCode> {
    let observed = Observed::find(global, &args.observe, Stay::Once).await?;
    let report = observed.health().await?;
    match args.output {
        TextFormat::Text => output::print(&output::health::text(&report))?,
        TextFormat::Json => output::print_json(&report)?,
        TextFormat::Yaml => output::print_yaml(&report)?,
    }
    Ok(ExitCode::from(u8::from(report.level == "Unhealthy")))
}
