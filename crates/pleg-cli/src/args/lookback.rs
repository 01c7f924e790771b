//! The commands that look back: `pleg history`, `pleg why`, `pleg report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use pleg_history::EntryType;

use crate::address::DaemonAddress;
use crate::since::parse_moment;

/// Where the commands that look back find a history.
#[derive(Debug, Clone, Args)]
pub(crate) struct HistorySource {
    /// Ask the daemon at this socket, or at http://HOST:PORT [default: $PLEG_DAEMON, else /run/pleg/pleg.sock or
    /// $XDG_RUNTIME_DIR/pleg.sock]
    #[arg(long, value_name = "ADDRESS", value_parser = DaemonAddress::parse)]
    pub(crate) daemon: Option<DaemonAddress>,
    /// Read this file, with or without a daemon that writes it; nothing is changed in it [default, if no daemon
    /// answers: $PLEG_HISTORY_FILE, else the one that pleg run writes]
    #[arg(long, value_name = "FILE", conflicts_with = "daemon")]
    pub(crate) history_file: Option<PathBuf>,
}

/// For lines of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HistoryFormat {
    Table,
    /// Also lag, number, source, ids
    Wide,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg history                                    The newest 1000 entries
  pleg history web-0 --since 3h                   What happened to a pod
  pleg history --since 02:50 --until 03:10        What the node did last night at three
  pleg history --type ContainerDied --reason OOMKilled --since 7d
  pleg history -n kube-system -l app=dns --since 24h
  pleg history 3f2a91c0 -o json | jq .            One container, by the beginning of its id
  pleg history --follow --type HealthChanged      From now on, as it is written
  pleg history --history-file /var/lib/pleg/history.dat --since 24h

POD is a name, with or without its namespace, a UID, the beginning of one of them, or the id of a container or the
beginning of it. A * at the end stands for all pods that begin like that. A pod that is gone is found too.
Types: those of `pleg watch`, and DaemonStarted, DaemonStopped, HealthChanged, PodStatusChanged, NodeEvent, Gap;
Sample and ProcessExited only with --type.
Times: 10m, 7d (before now), 02:50 (the last one), 2026-11-16T18:00.")]
pub(crate) struct History {
    #[command(flatten)]
    pub(crate) source: HistorySource,
    /// Only this pod or container
    #[arg(value_name = "POD|CONTAINER")]
    pub(crate) subject: Option<String>,
    /// From this time on, or from this long ago
    #[arg(long, value_name = "WHEN", value_parser = parse_moment)]
    pub(crate) since: Option<Timestamp>,
    /// Up to this time, or up to this long ago
    #[arg(long, value_name = "WHEN", value_parser = parse_moment, conflicts_with = "follow")]
    pub(crate) until: Option<Timestamp>,
    /// Only these types, case-insensitive
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = parse_type)]
    pub(crate) types: Vec<EntryType>,
    /// Only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Only pods with these labels, as last seen: a=b, a!=b, a in (b, c), a notin (b, c), a, !a
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = parse_selector)]
    pub(crate) selector: Option<String>,
    /// Only events with one of these reasons or troubles, such as OOMKilled or hung-shim, case-insensitive
    #[arg(long, value_name = "REASON", value_delimiter = ',')]
    pub(crate) reason: Vec<String>,
    /// The newest so many [default: 1000, or all with --since or --until]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) limit: Option<u32>,
    /// Stay and print what is written from now on; from a daemon only. If it stops, reconnect to it
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: HistoryFormat,
}

/// For an answer in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhyFormat {
    Text,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg why web-0                                  The last 24 hours
  pleg why kube-system/coredns-76f75df574-abcde --since 7d
  pleg why web-0 --until 04:00                    As it was then
  pleg why 3f2a91c0                               The pod of this container
  pleg why web-0 -o json | jq -r .verdict

Says what ended the pod's containers: how often and how, how long they lived, what came right before the last failure
(a failed probe, an announced stop, a lost sandbox, trouble of the node, a quarantine, other pods that died with it), and what to type
next. Each line names the event it comes from; `pleg history` shows it. Works for pods that are gone.")]
pub(crate) struct Why {
    #[command(flatten)]
    pub(crate) source: HistorySource,
    /// The pod: its name, with or without its namespace; its UID; the id of one of its containers; or the beginning of one of them
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
    /// The pod's namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Deaths from this time on, or from this long ago
    #[arg(long, value_name = "WHEN", value_parser = parse_moment, default_value = "24h")]
    pub(crate) since: Timestamp,
    /// Deaths up to this time [default: now]
    #[arg(long, value_name = "WHEN", value_parser = parse_moment)]
    pub(crate) until: Option<Timestamp>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: WhyFormat,
}

/// For a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DayFormat {
    Text,
    Json,
    /// One file for a browser, with plots; needs nothing else
    Html,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg report                                     The last 24 hours
  pleg report --since 7d
  pleg report --since 02:00 --until 05:00         Last night
  pleg report --html node.html                    One file to attach to a ticket
  pleg report -o json | jq '.worst_pods[0].summary'
  pleg report --history-file /var/lib/pleg/history.dat --html node.html

Events by the hour, the worst pods and why they died, troubles and how long they lasted, how long the node was healthy,
how long relists took and how late events were. A window of more than 6 hours begins with a whole hour of UTC. The HTML
file has no script and loads nothing.")]
pub(crate) struct DayReport {
    #[command(flatten)]
    pub(crate) source: HistorySource,
    /// From this time on, or from this long ago
    #[arg(long, value_name = "WHEN", value_parser = parse_moment, default_value = "24h")]
    pub(crate) since: Timestamp,
    /// Up to this time [default: now]
    #[arg(long, value_name = "WHEN", value_parser = parse_moment)]
    pub(crate) until: Option<Timestamp>,
    /// Write the report as HTML to this file
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    pub(crate) html: Option<PathBuf>,
    /// The name of the node in the report [default: $NODE_NAME, else the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: DayFormat,
}

fn parse_type(text: &str) -> Result<EntryType, String> {
    EntryType::parse(text).ok_or_else(|| {
        let names: Vec<_> = EntryType::all().map(EntryType::name).collect();
        format!("unknown type; expected one of {}", names.join(", "))
    })
}

/// Kept as it was typed, for the daemon.
fn parse_selector(text: &str) -> Result<String, String> {
    let selector: Result<pleg::LabelSelector, _> = text.parse();
    selector.map(|_| text.to_owned()).map_err(|error| error.to_string())
}
