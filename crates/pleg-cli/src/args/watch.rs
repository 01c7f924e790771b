//! `pleg watch`, and which events it shows.

use std::time::Duration;

use clap::Args;
use pleg::EventType;

use super::{LineFormat, ModeArg, Observe, WitnessArg};
use crate::Usage;
use crate::filter::{Filter, PodName};
use crate::since::Since;
use crate::text::parse_duration;

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
PlegDegraded, TroubleStarted, TroubleEnded; and ProcessExited, which is shown only with --type: the kernel's
word that a container's process has exited, a moment before the runtime's ContainerDied.

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
    /// Whether the kernel is used as a witness without a daemon, where it can be: auto or off
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) witness: WitnessArg,
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

fn parse_type(text: &str) -> Result<EventType, String> {
    EventType::parse(text).ok_or_else(|| {
        let names = EventType::ALL.map(EventType::name).join(", ");
        format!("unknown event type; expected one of {names}")
    })
}
