//! The commands and what they do.

use std::fmt;

use pleg_cri::Rpc;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::duration::Span;
use crate::fault::{EventFaults, FaultError, GrpcCode};
use crate::selector::{PodRef, Selector};
use crate::sim::Shared;
use crate::stats::StatsSnapshot;
use crate::world::{Ending, Odd, World, WorldError};

/// Pods that one command may add.
const MOST_ADDED: usize = 20_000;

/// A call by its name, such as `ListContainers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RpcName(pub Rpc);

impl std::str::FromStr for RpcName {
    type Err = CommandError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Rpc::ALL.iter().find(|rpc| rpc.name().eq_ignore_ascii_case(text));
        found
            .map(|&rpc| Self(rpc))
            .ok_or_else(|| CommandError::NoRpc(text.chars().take(40).collect()))
    }
}

impl fmt::Display for RpcName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for RpcName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for RpcName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommandError {
    /// The world refuses.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The fault makes no sense.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// No such call.
    #[error("{0:?} is no CRI call: write its name as in ListContainers, ContainerStatus, PodSandboxStatus")]
    NoRpc(String),
    /// Something else is wrong with it.
    #[error("{0}")]
    Invalid(String),
}

/// Every running container exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storm {
    /// With this code.
    pub exit_code: i32,
}

/// Running containers of a pod exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// The pod.
    pub pod: PodRef,
    /// Only this container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// With this code.
    #[serde(default)]
    pub exit_code: i32,
    /// Killed for its memory instead: 137, `OOMKilled`.
    #[serde(default)]
    pub oom: bool,
}

/// More pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// How many.
    pub pods: usize,
}

/// Calls are held until `unhang`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hang {
    /// Which calls.
    pub rpc: RpcName,
    /// Only those about this pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Only those about this container of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Calls are let go: those of the same selectors, all when there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unhang {
    /// Which calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcName>,
    /// Only those about this pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Only those about this container of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Locks end: the one of the same selectors, all when there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Unlock {
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Changes latency or churn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Set {
    /// How long calls take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Span>,
    /// Up to this much is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    /// Latency of this call only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcName>,
    /// Changes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub churn: Option<f64>,
}

/// A share of the calls fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// Which calls.
    pub rpc: RpcName,
    /// With this code.
    pub code: GrpcCode,
    /// How many of them, from 0 to 1; 0 ends it.
    #[serde(default = "always")]
    pub rate: f64,
}

fn always() -> f64 {
    1.0
}

/// The socket is closed for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// For so long.
    #[serde(rename = "for")]
    pub length: Span,
}

/// Odd objects appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OddObject {
    /// What is odd about them.
    pub kind: Odd,
}

/// Lists become longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pad {
    /// By so many bytes; 0 ends it.
    pub bytes: usize,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each holds the type that says it")]
pub enum Command {
    Storm(Storm),
    Exit(Exit),
    /// Containers come back as new attempts.
    Restart(Selector),
    /// A pod or a container goes.
    Remove(Selector),
    Add(Add),
    Hang(Hang),
    Unhang(Unhang),
    /// Every `ListContainers` and every call about this container is held, as containerd does.
    Lock(Selector),
    Unlock(Unlock),
    Set(Set),
    Fail(Fail),
    Down(Down),
    /// Faults of the event stream.
    Events(EventFaults),
    Odd(OddObject),
    Pad(Pad),
    /// Ends every fault, latency too.
    Clear {},
    /// All counters.
    Stats {},
    /// All pods by name.
    Pods {},
}

/// A pod as a person can select it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// `NAMESPACE/NAME`.
    pub pod: PodRef,
    /// Names and states of its containers, newest attempt.
    pub containers: Vec<(String, String)>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It was done: in words.
    Done(String),
    /// All counters.
    Stats(StatsSnapshot),
    /// All pods.
    Pods(Vec<PodState>),
}

fn selector(pod: Option<PodRef>, container: Option<String>) -> Result<Option<Selector>, CommandError> {
    match (pod, container) {
        (Some(pod), container) => Ok(Some(Selector { pod, container })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(CommandError::Invalid(
            "a container needs its pod too: add --pod NAMESPACE/NAME".into(),
        )),
    }
}

/// `1 pod`, `2 pods`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Does a command.
pub(crate) async fn execute(shared: &Shared, command: Command) -> Result<Reply, CommandError> {
    let (world, faults) = (|| shared.world(), &shared.faults);
    let done = match command {
        Command::Storm(Storm { exit_code }) => {
            let count = world().storm(Ending::Exit(exit_code));
            format!("{} exited with {exit_code}", counted(count, "container"))
        }
        Command::Exit(Exit {
            pod,
            container,
            exit_code,
            oom,
        }) => {
            let ending = if oom { Ending::Oom } else { Ending::Exit(exit_code) };
            let count = world().exit(&pod, container.as_deref(), ending)?;
            format!(
                "{} of pod {pod} exited with {}",
                counted(count, "container"),
                ending.code()
            )
        }
        Command::Restart(Selector { pod, container }) => {
            let count = world().restart(&pod, container.as_deref())?;
            format!("{} of pod {pod} restarted", counted(count, "container"))
        }
        Command::Remove(target) => {
            let gone = world().remove(&target.pod, target.container.as_deref())?;
            faults.forget(&gone);
            format!("{target} removed")
        }
        Command::Add(Add { pods }) => {
            if pods > MOST_ADDED {
                return Err(CommandError::Invalid(format!("at most {MOST_ADDED} pods at once")));
            }
            world().add_pods(pods)?;
            format!("{} added", counted(pods, "pod"))
        }
        Command::Hang(Hang { rpc, pod, container }) => {
            let target = selector(pod, container)?;
            let about = target
                .as_ref()
                .map_or(String::new(), |target| format!(" about {target}"));
            shared.hang(rpc.0, target)?;
            format!("{rpc}{about} hangs until unhang")
        }
        Command::Unhang(Unhang { rpc, pod, container }) => {
            let count = faults.unhang(rpc.map(|rpc| rpc.0), selector(pod, container)?.as_ref());
            format!("{} ended", counted(count, "hang"))
        }
        Command::Lock(target) => {
            let done = format!("{target} is locked: ListContainers hangs until unlock");
            shared.lock_containers(target)?;
            done
        }
        Command::Unlock(Unlock { pod, container }) => {
            let count = faults.unlock(selector(pod, container)?.as_ref());
            format!("{} ended", counted(count, "lock"))
        }
        Command::Set(set) => apply(shared, set)?,
        Command::Fail(Fail { rpc, code, rate }) => {
            faults.fail(rpc.0, code, rate)?;
            format!("{rpc} fails with {code} at a rate of {rate}")
        }
        Command::Down(Down { length }) => {
            if !shared.down(length.0).await {
                return Err(CommandError::Invalid("the simulator is ending".into()));
            }
            format!("down for {length}")
        }
        Command::Events(events) => {
            faults.set_events(events)?;
            "event faults set".to_owned()
        }
        Command::Odd(OddObject { kind }) => {
            world().add_odd(kind)?;
            "odd objects added".to_owned()
        }
        Command::Pad(Pad { bytes }) => {
            world().pad_lists(bytes);
            format!("lists padded with {bytes} bytes")
        }
        Command::Clear {} => {
            faults.clear();
            "all faults ended".to_owned()
        }
        Command::Stats {} => return Ok(Reply::Stats(shared.stats.snapshot())),
        Command::Pods {} => return Ok(Reply::Pods(pods(&world()))),
    };
    Ok(Reply::Done(done))
}

fn pods(world: &World) -> Vec<PodState> {
    let state = |state: pleg_cri::v1::ContainerState| {
        let name = state.as_str_name();
        name.strip_prefix("CONTAINER_").unwrap_or(name).to_ascii_lowercase()
    };
    let pods = world.pod_names().into_iter();
    pods.map(|(pod, containers)| PodState {
        pod,
        containers: containers.into_iter().map(|(name, s)| (name, state(s))).collect(),
    })
    .collect()
}

fn apply(shared: &Shared, set: Set) -> Result<String, CommandError> {
    if set.latency.is_none() && set.churn.is_none() {
        return Err(CommandError::Invalid(
            "nothing to set: give a latency or a churn".into(),
        ));
    }
    let mut done = Vec::new();
    if let Some(latency) = set.latency {
        let jitter = set.jitter.unwrap_or_default();
        shared.faults.set_latency(set.rpc.map(|rpc| rpc.0), latency.0, jitter.0);
        let calls = set.rpc.map_or_else(|| "every call".to_owned(), |rpc| rpc.to_string());
        done.push(format!("{calls} takes {latency}"));
    }
    if let Some(churn) = set.churn {
        if !(0.0..=1e6).contains(&churn) {
            return Err(CommandError::Invalid(format!(
                "{churn} is no churn: write changes a second, up to 1000000"
            )));
        }
        shared.world().set_churn(churn);
        done.push(format!("{churn} changes a second"));
    }
    Ok(done.join(", "))
}
