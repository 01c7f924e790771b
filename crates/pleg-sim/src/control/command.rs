//! The commands: what can be asked of a simulator or a proxy, and what it answers.

use std::fmt;
use std::sync::Arc;

use pleg_cri::{Rpc, v1};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::duration::Span;
use crate::fault::{EventFaults, FaultError, GrpcCode};
use crate::selector::{PodRef, Selector, Target};
use crate::stats::StatsSnapshot;
use crate::world::{Odd, WorldError};

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
    /// The simulator refuses the command.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The fault makes no sense.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// No such call.
    #[error("{} is not a CRI call; expected a name such as ListContainers, ContainerStatus, PodSandboxStatus", pleg_cri::error::quoted(.0))]
    NoRpc(String),
    /// Only a simulator can do it.
    #[error(
        "{0} needs a simulated runtime, and this is a proxy in front of a real one; a proxy supports faults (hang, unhang, lock, \
             unlock, set --latency, fail, down, events, clear), stats and pods"
    )]
    NeedsWorld(&'static str),
    /// The runtime behind a proxy does not say which ids a name means.
    #[error("cannot find the ids of {target}: {error}; name the object with --id")]
    NoIds {
        /// What was named.
        target: Target,
        /// What the runtime said.
        error: String,
    },
    /// The runtime behind a proxy does not list its pods.
    #[error("cannot list the pods: {0}")]
    NoPods(String),
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
    /// Only the runtime says so: the process of the container lives on, as after its shim was killed.
    #[serde(default)]
    pub leave_process: bool,
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
    /// Only those about the object of this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
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
    /// Only those about the object of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// A pod, one container of it, or an object by its id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Object {
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Its container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl From<Selector> for Object {
    fn from(Selector { pod, container }: Selector) -> Self {
        Self {
            pod: Some(pod),
            container,
            id: None,
        }
    }
}

impl Object {
    /// What is meant, if anything is named at all.
    pub(crate) fn target(self) -> Result<Option<Target>, CommandError> {
        let invalid = |words: &str| Err(CommandError::Invalid(words.to_owned()));
        match self {
            Self {
                pod: Some(pod),
                container,
                id: None,
            } => Ok(Some(Target::Named(Selector { pod, container }))),
            Self {
                pod: None,
                container: None,
                id,
            } => Ok(id.map(|id| Target::Id(Arc::from(id)))),
            Self { id: Some(_), .. } => invalid("--id cannot be combined with --pod and --container"),
            Self { .. } => invalid("--container needs --pod NAMESPACE/NAME"),
        }
    }
}

/// Changes latency, churn, and how the runtime does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Latency of calls about this pod only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// Latency of calls about this container of it only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Latency of calls about the object of this id only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Changes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub churn: Option<f64>,
    /// What `Status` says of the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_ready: Option<bool>,
    /// What `Status` says of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_ready: Option<bool>,
    /// A subscriber that does not read blocks calls that create something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_on_subscribers: Option<bool>,
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

/// A pod's shim hangs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shim {
    /// The pod.
    pub pod: PodRef,
}

/// Shims go on: that of the pod, all when there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shims {
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
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
    Lock(Object),
    /// Locks end: those of the same object, all when there is none.
    Unlock(Object),
    Set(Set),
    Fail(Fail),
    Down(Down),
    /// Faults of the event stream.
    Events(EventFaults),
    /// The lists stay as they are, and what happens in the pod is not seen.
    HangShim(Shim),
    UnhangShim(Shims),
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

/// `running`, as people say it.
pub(crate) fn state_name(state: v1::ContainerState) -> String {
    let name = state.as_str_name();
    name.strip_prefix("CONTAINER_").unwrap_or(name).to_ascii_lowercase()
}

impl Command {
    /// The word people type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Storm(_) => "storm",
            Self::Exit(_) => "exit",
            Self::Restart(_) => "restart",
            Self::Remove(_) => "remove",
            Self::Add(_) => "add",
            Self::Hang(_) => "hang",
            Self::Unhang(_) => "unhang",
            Self::Lock(_) => "lock",
            Self::Unlock(_) => "unlock",
            Self::Set(_) => "set",
            Self::Fail(_) => "fail",
            Self::Down(_) => "down",
            Self::Events(_) => "events",
            Self::HangShim(_) => "hang-shim",
            Self::UnhangShim(_) => "unhang-shim",
            Self::Odd(_) => "odd",
            Self::Pad(_) => "pad",
            Self::Clear {} => "clear",
            Self::Stats {} => "stats",
            Self::Pods {} => "pods",
        }
    }
}
