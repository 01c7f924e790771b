//! The binary `pleg`: arguments, output, the HTTP server, and the wiring between them and the generator.
//!
//! | module | job |
//! |---|---|
//! | [`about`] | versions, settings and calls in flight, for bug reports |
//! | [`address`] | addresses of a daemon |
//! | [`args`] | the command line |
//! | [`bundle`] | the archive for a bug report |
//! | [`commands`] | one file or folder per command |
//! | [`connect`] | chooses a daemon or a runtime, and connects |
//! | [`listen`] | the sockets of the daemons and their permissions |
//! | [`one_pod`] | one pod, without a generator |
//! | [`local`] | a generator in this process |
//! | [`http`] | the daemon's API, and its client |
//! | [`output`] | the only place that writes to stdout, but for the screen of `pleg top` |
//! | [`wire`] | the JSON of the API, as a reader sees it |
//! | [`kube`] | the same of a node's pods, which have the shape of Kubernetes |
//! | [`filter`] | filters for events and pods |
//! | [`signals`] | when to stop |
//! | [`stale_socket`] | a runtime's socket that was replaced |
//! | [`systemd`] | notifications to systemd |
//! | [`telemetry`] | OpenTelemetry, if the environment asks for it |
//!
//! It must not contain logic that a library user would want.

mod about;
mod address;
mod args;
mod bundle;
mod commands;
mod connect;
mod filter;
mod history_task;
mod http;
mod listen;
mod local;
mod log;
mod node_pod;
mod one_pod;
mod output;
mod signals;
mod since;
mod stale_socket;
mod systemd;
mod telemetry;
mod text;
mod waiting;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::args::Cli;

/// An invalid argument that clap cannot detect. The exit code is 2, as for clap's own errors.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn main() -> ExitCode {
    let matches = args::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if cli.global.utc {
        text::use_utc();
    }
    if cli.global.no_color {
        anstream::ColorChoice::Never.write_global();
    }
    log::init(&cli);
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            args::check(&cli, &matches)?;
            let ended = runtime.block_on(commands::run(cli));
            // A blocked stdout must not delay the exit.
            runtime.shutdown_background();
            ended
        });
    match ended {
        Ok(code) => code,
        // A closed stdout is a normal end, as with `| head`.
        Err(error) if error.is::<output::Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(anstream::stderr(), "Error: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}
