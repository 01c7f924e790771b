//! The command line. The conventions are crictl's and kubectl's.
//!
//! This module has the commands and the rules that hold for all of them; each module below has the flags of one group of commands.

#![expect(clippy::doc_markdown, reason = "these comments are what --help prints")]

mod about;
mod bench;
mod debug;
mod demo;
mod formats;
mod global;
mod health;
mod history_file;
mod lookback;
mod observe;
mod pods;
mod report;
mod run;
mod top;
mod watch;

use clap::{CommandFactory as _, Parser, Subcommand};

pub(crate) use about::{Completions, Man, Version};
pub(crate) use bench::{Bench, BenchWhat};
pub(crate) use debug::{Bundle, Debug, Replay};
pub(crate) use demo::Demo;
pub(crate) use formats::{Format, LineFormat, PlainFormat, TextFormat};
pub(crate) use global::{Global, LogFormat, LogLevel};
pub(crate) use health::{Doctor, FailOn, Health};
pub(crate) use history_file::{HistoryFileArgs, default_history_file};
pub(crate) use lookback::{DayFormat, DayReport, History, HistoryFormat, HistorySource, Why, WhyFormat};
pub(crate) use observe::{Observe, default_socket};
pub(crate) use pods::{Containers, Inspect, ListFormat, Pods, SortBy};
pub(crate) use report::{Cluster, ClusterWhat, Forget, ReportArgs};
pub(crate) use run::{GeneratorArgs, ModeArg, Run, WitnessArg};
pub(crate) use top::Top;
pub(crate) use watch::{Watch, one_namespace};

use crate::Usage;

/// Shows every lifecycle event of a node's pods, and which call for which container is stuck.
#[derive(Debug, Parser)]
#[command(
    name = "pleg",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  pleg demo                                  A demonstration, without a container runtime
  pleg watch                                 Events of this node, live
  pleg top                                   Troubles, pods and events on the whole terminal
  pleg health                                Is the runtime answering? If not: which call, which pod
  pleg doctor                                What is wrong with this runtime, and what to type next
  pleg run                                   The daemon: HTTP API, metrics, readiness, history
  pleg why web-0                             Why did this pod restart
  pleg report --html day.html                What the node did today, as one file
  pleg node --manifests DIR                  Run pods from manifests, without a kubelet
  pleg -r unix:///run/crio/crio.sock pods    Pods, from a runtime of your choice

The runtime is the one given by --runtime-endpoint, else by $CONTAINER_RUNTIME_ENDPOINT, else by
/etc/crictl.yaml, else the first of the usual sockets. Only `pleg node` changes a runtime.
Exit codes: 0 ok, 1 unhealthy or failed, 2 wrong usage."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Those of them that are about whom to ask.
const ASKING: [&str; 3] = ["runtime_endpoint", "timeout", "verbose"];

/// Commands that ask nobody, so that these flags would mean nothing to them.
const ASK_NOBODY: [&[&str]; 7] = [
    &["cluster"],
    &["demo"],
    &["sim"],
    &["completions"],
    &["man"],
    &["debug", "replay"],
    &["node", "check"],
];

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon: watch the runtime, serve events, pods, health and metrics over HTTP
    Run(Run),
    /// Run the pods of a set of manifests on this machine, without a kubelet
    Node(Box<crate::commands::node::NodeArgs>),
    /// Show lifecycle events as they happen
    Watch(Watch),
    /// Show pods, troubles and events on the whole terminal, live
    Top(Top),
    /// List pods
    Pods(Pods),
    /// Show everything known about one pod
    Inspect(Inspect),
    /// List containers
    #[command(visible_alias = "ps")]
    Containers(Containers),
    /// Show what happened: events, health and changes that the daemon has kept
    History(History),
    /// Explain why a pod's containers died
    Why(Why),
    /// Report on the node's day: events, worst pods, troubles, latencies; also as HTML
    Report(DayReport),
    /// Show the health and, if it is not good, the call, pod or container that causes it
    Health(Health),
    /// Remove what --report-to-cluster wrote
    Cluster(Cluster),
    /// Collect and replay data for a bug report
    #[command(subcommand)]
    Debug(Debug),
    /// Examine the runtime: what is wrong, which object causes it, what to type next
    Doctor(Doctor),
    /// Show a simulated node with changing pods, one of which gets stuck
    Demo(Demo),
    /// Measure the cost of a relist, compared with only moving its bytes
    Bench(Bench),
    Sim(crate::commands::sim::SimArgs),
    /// Show the versions of pleg and of the runtime
    Version(Version),
    /// Print the completion script for a shell
    Completions(Completions),
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man(Man),
}

/// The definition of the command line. Commands that ask nobody do not offer the flags that say whom to ask.
pub(crate) fn command() -> clap::Command {
    let mut root = Cli::command();
    let asking = root
        .get_arguments()
        .filter(|arg| ASKING.contains(&arg.get_id().as_str()));
    // An argument of a subcommand's own takes the place of the global one of the same name.
    let hidden: Vec<clap::Arg> = asking.map(|arg| arg.clone().hide(true)).collect();
    for path in ASK_NOBODY {
        root = hide(root, path, &hidden);
    }
    root
}

fn hide(command: clap::Command, path: &[&'static str], hidden: &[clap::Arg]) -> clap::Command {
    match path {
        [] => command.args(hidden),
        [name, rest @ ..] => command.mut_subcommand(name, |command| hide(command, rest, hidden)),
    }
}

/// Refuses flags that the command cannot use.
pub(crate) fn check(cli: &Cli, matches: &clap::ArgMatches) -> Result<(), Usage> {
    let mut typed = Vec::new();
    let mut below = matches;
    while let Some((name, matches)) = below.subcommand() {
        typed.push(name);
        below = matches;
    }
    let Some(path) = ASK_NOBODY.iter().find(|path| typed.starts_with(path)) else {
        return Ok(());
    };
    let global = &cli.global;
    let set = [
        (global.runtime_endpoint.is_some(), "--runtime-endpoint"),
        (global.timeout.is_some(), "--timeout"),
        (global.verbose, "--verbose"),
    ];
    match set.iter().find(|(set, _)| *set) {
        Some((_, flag)) => Err(Usage(format!(
            "{flag} cannot be used with pleg {}: it contacts no runtime and no daemon",
            path.join(" ")
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in command().get_subcommands() {
            let help = command
                .get_after_long_help()
                .or(command.get_after_help())
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }
}
