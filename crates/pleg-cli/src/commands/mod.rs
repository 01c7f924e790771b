//! One file a command.

pub(crate) mod bench;
mod completions;
mod containers;
mod debug;
mod demo;
mod doctor;
mod health;
mod inspect;
mod lookback;
mod man;
pub(crate) mod node;
mod pods;
mod report;
mod run;
pub(crate) mod sim;
mod top;
mod version;
mod watch;

use std::process::ExitCode;

use crate::args::{Bench, BenchWhat, Cli, Command};
use crate::signals;

/// What a shell calls a command that Ctrl-C ended before it had an answer.
const INTERRUPTED: u8 = 130;

/// A witness has an open file for each container, and uses half of what is allowed: as much as may be allowed is.
fn raise_open_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // Without it fewer containers are watched, which is reported.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Runs the command.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let signals = signals::listen()?;
    let shutdown = signals.stop.clone();
    let global = cli.global;
    raise_open_files();
    // These stay until told to stop, so being told is how they end well.
    match cli.command {
        Command::Run(args) => run::run(&global, args, shutdown).await,
        Command::Node(args) if args.stays() => Box::pin(node::run(&global, *args, signals)).await,
        // What it made goes with it.
        Command::Bench(Bench {
            what: Some(BenchWhat::Node(args)),
            ..
        }) => bench::node::run(&global, args, shutdown).await,
        Command::Watch(args) => Box::pin(watch::run(&global, args, shutdown)).await,
        Command::Top(args) => Box::pin(top::run(&global, args, shutdown)).await,
        Command::Demo(args) => Box::pin(demo::run(args, shutdown)).await,
        Command::History(args) => Box::pin(lookback::history(&global, args, shutdown)).await,
        Command::Pods(args) if args.watch => Box::pin(pods::watch(&global, args, shutdown)).await,
        Command::Sim(args) => sim::run(args).await,
        command => {
            let once = async {
                match command {
                    Command::Pods(args) => pods::run(&global, args).await,
                    Command::Inspect(args) => inspect::run(&global, args).await,
                    Command::Containers(args) => containers::run(&global, args).await,
                    Command::Why(args) => lookback::why(&global, args).await,
                    Command::Report(args) => lookback::report(&global, args).await,
                    Command::Health(args) => health::run(&global, args).await,
                    Command::Doctor(args) => doctor::run(&global, args).await,
                    Command::Bench(args) => bench::run(&global, args).await,
                    Command::Version(args) => version::run(&global, args).await,
                    Command::Debug(args) => debug::run(&global, args).await,
                    Command::Cluster(args) => report::cluster(args).await,
                    Command::Completions(args) => completions::run(&args),
                    Command::Man(args) => man::run(&args),
                    Command::Node(args) => node::once(&global, *args).await,
                    Command::Run(_)
                    | Command::Watch(_)
                    | Command::Top(_)
                    | Command::History(_)
                    | Command::Demo(_)
                    | Command::Sim(_) => Ok(ExitCode::SUCCESS),
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => Ok(ExitCode::from(INTERRUPTED)),
                ended = once => ended,
            }
        }
    }
}
