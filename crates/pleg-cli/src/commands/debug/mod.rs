//! `pleg debug`: what a bug report needs.

mod bundle;
mod replay;

use std::process::ExitCode;

use crate::args::{Debug, Global};

pub(crate) async fn run(global: &Global, args: Debug) -> anyhow::Result<ExitCode> {
    match args {
        Debug::Bundle(args) => bundle::run(global, args).await,
        Debug::Replay(args) => replay::run(args).await,
    }
}
