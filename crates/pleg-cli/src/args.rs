//! The command line. The conventions are crictl's and kubectl's.

#![expect(clippy::doc_markdown, reason = "these comments are what --help prints")]

mod pods;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use pleg::{EventType, Mode};
use pleg_cri::Endpoint;

pub(crate) use pods::{Containers, Inspect, ListFormat, Pods, SortBy};

use crate::Usage;
use crate::address::DaemonAddress;
use crate::filter::{Filter, PodName};
use crate::listen::ListenArgs;
use crate::since::Since;
use crate::text::parse_duration;

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
  pleg health                                Is the runtime answering? If not: which call, which pod
  pleg doctor                                What is wrong with this runtime, and what to type next
  pleg run                                   The daemon: HTTP API, metrics, readiness
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

/// Where the flags stand that more than one command takes.
const GLOBAL: &str = "Global options";
/// Those of them that are about whom to ask.
const ASKING: [&str; 3] = ["runtime_endpoint", "timeout", "verbose"];
/// Commands that ask nobody, so that these flags would mean nothing to them.
const ASK_NOBODY: [&[&str]; 5] = [
    &["demo"],
    &["sim"],
    &["completions"],
    &["debug", "replay"],
    &["node", "check"],
];

/// What every command takes, but for those that ask nobody: see [`ASK_NOBODY`].
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The runtime's socket, as in unix:///run/containerd/containerd.sock
    #[arg(short, long, global = true, help_heading = GLOBAL, value_name = "ENDPOINT", value_parser = Endpoint::parse)]
    pub(crate) runtime_endpoint: Option<Endpoint>,
    /// Deadline of one call to the runtime or the daemon, as in 400ms, 5s, 2m
    #[arg(short, long, global = true, help_heading = GLOBAL, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Show on stderr which runtime or daemon is used
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) verbose: bool,
    /// Log level, on stderr
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Log format
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Show times in UTC instead of the local zone
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) utc: bool,
    /// Disable colours, as $NO_COLOR does
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) no_color: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon: watch the runtime, serve events, pods, health and metrics over HTTP
    Run(Run),
    /// Run the pods of a set of manifests on this machine, without a kubelet
    Node(crate::commands::node::NodeArgs),
    /// Show lifecycle events as they happen
    Watch(Watch),
    /// List pods
    Pods(Pods),
    /// Show everything known about one pod
    Inspect(Inspect),
    /// List containers
    #[command(visible_alias = "ps")]
    Containers(Containers),
    /// Show the health, and which call, pod or container is the cause if it is not good
    Health(Health),
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
}

/// Where the observing commands look.
#[derive(Debug, Clone, Args)]
pub(crate) struct Observe {
    /// Ask the daemon at this socket, or at http://HOST:PORT [default: $PLEG_DAEMON, else /run/pleg/pleg.sock or
    /// $XDG_RUNTIME_DIR/pleg.sock, if one answers there; else the runtime itself]
    #[arg(long, value_name = "ADDRESS", value_parser = DaemonAddress::parse, conflicts_with = "runtime_endpoint")]
    pub(crate) daemon: Option<DaemonAddress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
}

/// For what has no columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextFormat {
    Text,
    Json,
    Yaml,
}

/// For what comes line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineFormat {
    Table,
    Wide,
    Json,
    /// As the kubelet's own PLEG would have sent them, in the words of its log
    Kubelet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlainFormat {
    Table,
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg run
  pleg run -r unix:///run/crio/crio.sock --listen-tcp localhost:10255
  pleg run --listen-group adm
  curl --unix-socket /run/pleg/pleg.sock http://localhost/readyz?verbose
  curl -N --unix-socket /run/pleg/pleg.sock 'http://localhost/api/v1/events?follow'")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) generator: GeneratorArgs,
}

/// How changes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Generic,
    Evented,
    Auto,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Generic => Self::Generic,
            ModeArg::Evented => Self::Evented,
            ModeArg::Auto => Self::Auto,
        }
    }
}

/// How the generator behaves.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generator")]
pub(crate) struct GeneratorArgs {
    /// How changes are found: by relisting (generic), by the runtime's events and occasional full relists (evented), or by
    /// events if the runtime has them and no kubelet on the node would lose any (auto)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: ModeArg,
    /// Pause from the end of one full relist to the start of the next; with events, the shortest such pause
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) period: Duration,
    /// Longest pause between full relists while the event stream is trusted: at most 5m, and half of --threshold [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_period: Option<Duration>,
    /// Report Unhealthy without a complete relist for this long
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = parse_duration)]
    pub(crate) threshold: Duration,
    /// Deadline of a list [default: 2m, or --timeout]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) list_timeout: Option<Duration>,
    /// Deadline of the status of one container or sandbox [default: 10s, or --timeout]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) inspect_timeout: Option<Duration>,
    /// After this long without an answer to a list, inspect known objects by id meanwhile
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) list_patience: Duration,
    /// Probe the shim and one container of every pod once in this time, at most four pods per second; 0s: never
    #[arg(long, value_name = "DURATION", default_value = "45s", value_parser = parse_duration_or_zero)]
    pub(crate) probe_round: Duration,
    /// Number of events kept for readers that fall behind or reconnect
    #[arg(long, value_name = "EVENTS", default_value_t = 16_384, value_parser = parse_capacity)]
    pub(crate) feed_capacity: usize,
    /// How far back the flight recorder reaches, for `pleg debug bundle`
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) recorder_window: Duration,
    /// Memory limit of the flight recorder in MiB; 0 disables it
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = parse_mib)]
    pub(crate) recorder_mib: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg watch                                      Everything, first what is there already
  pleg watch --no-initial --type ContainerDied    Deaths, from now on
  pleg watch -n kube-system -o json | jq .        One JSON object per line
  pleg watch -o kubelet                           What a kubelet would have seen, to compare with its log
  pleg watch --pod default/web --for 1m
  pleg watch --since 10m                          From a daemon: the last ten minutes, then what is new
  pleg watch --since 5f0c2a9be1d34c77-1200        From a daemon: what came after this event

From a daemon, watch shows new events only, unless --since is given. A cursor is INSTANCE-SEQ, from the fields
of an event in -o json. If the daemon has restarted since, a gap is printed and then the current state. If the
daemon stops or does not answer, watch says so on stderr, reconnects and resumes.
Types: ContainerCreated, ContainerStarted (or ContainerRunning), ContainerStopped, ContainerDied,
ContainerRemoved, ContainerChanged, PodSandboxChanged, PodRemoved, PodSync, PlegHealthy, PlegNotHealthy,
PlegDegraded, TroubleStarted, TroubleEnded.

TroubleStarted and TroubleEnded say what cannot be seen, and why: a quarantine, a hung shim, a hung list, a lost
event stream. With -n or --pod, only those of these pods.")]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) observe: Observe,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// How changes are found without a daemon: by relisting once a second (generic), by the runtime's events (evented), or by
    /// events if no kubelet on the node would lose any (auto)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: ModeArg,
    /// Exit after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Start this long ago (10m), at this time (2026-11-16T18:00), or after the event with this cursor, INSTANCE-SEQ; 0 for the oldest
    /// that is still held (daemon only). A number alone refers to the running daemon, which is wrong if it has restarted
    #[arg(long, value_name = "WHEN", conflicts_with = "runtime_endpoint")]
    pub(crate) since: Option<Since>,
    /// Omit the events of the first relist
    #[arg(long)]
    pub(crate) no_initial: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: LineFormat,
}

/// Which events.
#[derive(Debug, Clone, Args)]
pub(crate) struct FilterArgs {
    /// Only these types of events, case-insensitive
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = parse_type)]
    pub(crate) types: Vec<EventType>,
    /// Only this pod
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_parser = PodName::parse)]
    pub(crate) pod: Option<PodName>,
    /// Only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> Result<Filter, Usage> {
        if let Some(pod) = &self.pod {
            one_namespace(pod, self.namespace.as_deref())?;
        }
        Ok(Filter {
            types: self.types.clone(),
            pod: self.pod.clone(),
            namespace: self.namespace.clone(),
        })
    }
}

/// A pod whose namespace is named twice is nobody's, unless both are the same.
pub(crate) fn one_namespace(pod: &PodName, namespace: Option<&str>) -> Result<(), Usage> {
    match (&pod.namespace, namespace) {
        (Some(own), Some(other)) if own != other => Err(Usage(format!(
            "-n {other} and pod {pod} name different namespaces: omit one of them"
        ))),
        _ => Ok(()),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg health
  pleg health -o json | jq -r .level
  pleg health -r unix:///run/containerd/containerd.sock -t 2s || echo the node is unhealthy
  pleg health --fail-on degraded,not-ready

The exit code is 1 if unhealthy, or in a state named by --fail-on. For Degraded (a pod in quarantine) it
is 0 by default: the node works.")]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Exit with 1 in this state: unhealthy, degraded (or worse), not-ready; separate several by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',', default_value = "unhealthy")]
    pub(crate) fail_on: Vec<FailOn>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

/// What makes `pleg health` end with 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    Unhealthy,
    Degraded,
    NotReady,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  pleg debug bundle                        What the daemon has seen, in one file
  pleg debug replay pleg-bundle-….tar.gz   Do its lists give the same events again?")]
pub(crate) enum Debug {
    /// Write the data for a bug report into one tar.gz
    Bundle(Bundle),
    /// Feed the lists of a bundle through the generator again and compare the events
    Replay(Replay),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg debug bundle
  pleg debug bundle -o /tmp/node-7.tar.gz
  pleg debug bundle -o - | tar tz

It contains the flight recorder of the last minutes, health, node conditions, metrics, calls in
flight, versions and settings: names and ids of pods and containers, and error messages of the
runtime. It contains no labels, annotations, environment variables, logs or secrets.")]
pub(crate) struct Bundle {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Output file; - for stdout [default: pleg-bundle-TIME.tar.gz in the current directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg debug replay pleg-bundle-20261116T011500Z.tar.gz
  pleg debug replay bundle.tar.gz -o json | jq .same

The exit code is 1 if an event differs. No runtime and no daemon is contacted.")]
pub(crate) struct Replay {
    /// A file written by `pleg debug bundle`, or its recorder.jsonl
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg doctor
  pleg doctor -o wide
  pleg doctor -o json | jq -r '.findings[].trouble'
  pleg doctor -r unix:///run/crio/crio.sock --budget 15s || echo something is broken

Calls everything once: version, status, both lists, the status of every container and sandbox, and
the shim of every ready sandbox. It only reads. --timeout is the deadline of one call [default: 5s
for a list, 2s for a status]. The exit code is 1 if a finding is critical.")]
pub(crate) struct Doctor {
    /// Finish within this time, at least 10s; the report lists what did not fit
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_budget)]
    pub(crate) budget: Duration,
    /// Subscribe to the runtime's events for 3s. This consumes events that it holds for its next subscriber;
    /// refused on runtimes that deliver each event to one subscriber only
    #[arg(long)]
    pub(crate) events: bool,
    /// The daemon that knows the ids of containers while the runtime does not list them
    /// [default: $PLEG_DAEMON, else /run/pleg/pleg.sock or $XDG_RUNTIME_DIR/pleg.sock]
    #[arg(long, value_name = "ADDRESS", value_parser = DaemonAddress::parse)]
    pub(crate) daemon: Option<DaemonAddress>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg demo
  pleg demo --pods 500 --churn 50 --for 1m
  pleg demo --for 0                   Until Ctrl-C
  pleg demo -o json | tail -1 | jq .summary

The runtime is simulated, on its own socket; nothing on this machine is inspected. Halfway through, it
stops answering for one container: that container is named and quarantined, all others are unaffected.")]
pub(crate) struct Demo {
    /// Exit after this time; 0 for never
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration_or_zero)]
    pub(crate) duration: Duration,
    /// Number of pods, with two containers each
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = parse_pods)]
    pub(crate) pods: usize,
    /// Changes per second
    #[arg(long, value_name = "RATE", default_value_t = 4.0, value_parser = parse_rate)]
    pub(crate) churn: f64,
    /// The same seed makes the same node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Output format; json has one event per line, and a summary at the end
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: PlainFormat,
}

#[derive(Debug, Args)]
#[command(
    after_help = "\
Examples:
  pleg bench -r unix:///run/containerd/containerd.sock
  pleg bench --looks 100 -o json | jq .cpu_ratio
  pleg bench --every 1s --statuses
  pleg bench node                                  What pleg node adds to the runtime's own work

A relist (look) lists all sandboxes and containers and compares them with the records. The floor requests
the same lists on the same connection and discards the bytes. The two alternate.",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: Option<BenchWhat>,
    /// Number of relists to measure
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) looks: u32,
    /// Wait this long before each relist and each floor, as a generator does, so that CPU caches are cold
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration_or_zero)]
    pub(crate) every: Duration,
    /// Also request the status of every sandbox and container once, 64 at a time, and discard the answers
    #[arg(long)]
    pub(crate) statuses: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: PlainFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// Measure what pleg node adds to the cost of the runtime: starts, crashes, edits, removals, adoption, idle time
    Node(crate::commands::bench::node::NodeBench),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg version
  pleg version -o json")]
pub(crate) struct Version {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(pleg completions bash)
  pleg completions zsh > \"${fpath[1]}/_pleg\"
  pleg completions fish > ~/.config/fish/completions/pleg.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
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

fn parse_type(text: &str) -> Result<EventType, String> {
    EventType::parse(text).ok_or_else(|| {
        let names = EventType::ALL.map(EventType::name).join(", ");
        format!("unknown event type; expected one of {names}")
    })
}

fn parse_capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=10_000_000) => Ok(n),
        _ => Err("a number from 1 to 10000000".to_owned()),
    }
}

fn parse_mib(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=1024) => Ok(n),
        _ => Err("a number from 0 to 1024".to_owned()),
    }
}

fn parse_pods(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=20_000) => Ok(n),
        _ => Err("a number from 1 to 20000".to_owned()),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("a number from 0 to 10000".to_owned()),
    }
}

fn parse_budget(text: &str) -> Result<Duration, String> {
    let budget = parse_duration(text)?;
    if !(Duration::from_secs(10)..=Duration::from_mins(10)).contains(&budget) {
        return Err("a duration from 10s to 10m".to_owned());
    }
    Ok(budget)
}

fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") {
        return Ok(Duration::ZERO);
    }
    parse_duration(text)
}

/// Where a daemon of ours listens unless told otherwise; none for a user without a runtime directory.
pub(crate) fn default_socket() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/pleg/pleg.sock".into());
    }
    let dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
    dir.is_absolute().then(|| dir.join("pleg.sock"))
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
