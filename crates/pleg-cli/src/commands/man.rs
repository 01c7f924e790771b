//! `pleg man`: the manual pages, for packages. One page for each command, from the definition that `--help` prints.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::args::{self, Man};

pub(crate) fn run(args: &Man) -> anyhow::Result<ExitCode> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
    clap_mangen::generate_to(args::command().disable_help_subcommand(true), dir)
        .with_context(|| format!("cannot write the manual pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
