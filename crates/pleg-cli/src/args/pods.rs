//! The commands that show pods and containers.

use clap::{Args, ValueEnum};
use pleg::LabelSelector;

use super::{Observe, TextFormat};
use crate::filter::PodName;

/// For lists of things that have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    Table,
    Wide,
    Json,
    Yaml,
    /// Names only, one per line, as `pleg inspect` takes them
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Namespace and name
    Name,
    /// Youngest first
    Age,
    /// Most restarts first
    Restarts,
    /// The word under STATE
    State,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg pods
  pleg pods -n kube-system -o wide
  pleg pods web-0 kube-system/coredns-76f75df574-abcde
  pleg pods -l 'app=web,tier in (front, back),!canary'
  pleg pods --not-ready --sort-by age
  pleg pods -w                                       The table, then a row for each pod that changes or goes
  pleg pods -o json | jq '.[].pod.name'")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Pods {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Only these pods
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = PodName::parse)]
    pub(crate) names: Vec<PodName>,
    /// Only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// All namespaces; this is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Only pods with these labels, as in kubectl: a=b, a!=b, a in (b, c), a notin (b, c), a, !a
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<LabelSelector>,
    /// Only pods whose state is neither Running nor Completed, or that are not ready
    #[arg(long)]
    pub(crate) not_ready: bool,
    /// Sort order
    #[arg(long, value_name = "BY", default_value = "name")]
    pub(crate) sort_by: SortBy,
    /// Stay and print a row for each pod that changes; the last row of a removed pod has the state Removed. If the daemon stops,
    /// reconnect to it
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Omit the header of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: ListFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg inspect web
  pleg inspect kube-system/coredns-76f75df574-abcde
  pleg inspect 8f3c1c1e-6a0e-4a6c-9f0a-2b7f5d0c9a11 -o yaml
  pleg inspect 3f2a91c0                                The pod of this container or sandbox

With a daemon, the last events of the pod are shown too.")]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// The pod's name, with or without its namespace; its UID; or the id of one of its containers or sandboxes. A prefix of an id
    /// or UID is enough
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
    /// The pod's namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg ps
  pleg ps -a -n kube-system
  pleg containers -a -o wide
  pleg containers -a -o json | jq '.[] | select(.exit_code != 0)'")]
pub(crate) struct Containers {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Only containers of these pods
    #[arg(value_name = "[NAMESPACE/]POD", value_parser = PodName::parse)]
    pub(crate) pods: Vec<PodName>,
    /// All containers, not only running ones
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Omit the header of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Output format; name prints ids
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: ListFormat,
}
