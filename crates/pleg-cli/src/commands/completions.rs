//! `pleg completions`: for the shells.

use std::process::ExitCode;

use crate::args::{self, Completions};
use crate::output;

pub(crate) fn run(args: &Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "pleg", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
