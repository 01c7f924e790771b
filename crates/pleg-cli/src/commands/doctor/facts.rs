//! The facts that an examination found, before they are judged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pleg::health::Oddities;
use pleg::shim::Shim;
use serde::Serialize;

/// The largest list that a kubelet accepts: its limit for any message.
pub(super) const KUBELET_LIMIT: usize = 16 << 20;
/// A status call that takes longer is reported.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// No answer to a verbose `PodSandboxStatus` within this is a hung shim: containerd itself waits 4 s for one, and 2 ms for others.
pub(super) const SHIM_ANSWERS: Duration = Duration::from_secs(2);

/// Everything that was found.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) endpoint: String,
    /// `None` if the path cannot be read.
    pub(super) socket: Option<Socket>,
    /// `None` if the runtime did not answer at all; [`Facts::silence`] has the reason.
    pub(super) runtime: Option<Runtime>,
    pub(super) silence: Option<Silence>,
    pub(super) conditions: Vec<Condition>,
    pub(super) sandboxes: List,
    pub(super) containers: List,
    pub(super) inventory: Inventory,
    /// Every call that was made.
    pub(super) samples: Vec<Sample>,
    /// The latency of one status call without other load; `None` if there was no object.
    pub(super) alone: Option<Duration>,
    /// The processes of shims that did not answer in time, by sandbox, if found.
    pub(super) shims: HashMap<String, Shim>,
    pub(super) events: Events,
    pub(super) processes: Processes,
    /// What was skipped for lack of time, as text.
    pub(super) left_out: Vec<String>,
}

impl Facts {
    /// The median of the plain statuses, answered or not.
    pub(super) fn median_status(&self) -> Duration {
        let plain = self.samples.iter().filter(|sample| sample.is_plain_status());
        let mut took: Vec<Duration> = plain.map(|sample| sample.took).collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied().unwrap_or_default()
    }

    /// Half of the status calls are slow, and so are calls about no container: then no container is to blame.
    pub(super) fn everything_is_slow(&self) -> bool {
        // A list that hangs is a lock.
        let is_list = |sample: &Sample| sample.rpc.starts_with("List") || sample.rpc.starts_with("Stream");
        let is_slow = |sample: &Sample| sample.took >= SLOW && (sample.answer == Answer::Ok || !is_list(sample));
        let of_node = |sample: &Sample| sample.object.is_none() && is_slow(sample);
        self.median_status() >= SLOW && self.samples.iter().any(of_node)
    }
}

/// Why a runtime did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing listens, or the runtime says that it is not up.
    Down(String),
    /// It accepts connections and does not answer.
    Stuck(String),
}

/// What the runtime says about itself.
#[derive(Debug, Clone, Default, Serialize)]
#[expect(clippy::struct_field_names, reason = "`RuntimeConfig` is the call's name")]
pub(super) struct Runtime {
    pub(super) name: String,
    pub(super) version: String,
    /// The CRI version in use.
    pub(super) api: String,
    /// Whether it has the streaming list calls; none if no list was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) streaming_lists: Option<bool>,
    /// Whether it has `RuntimeConfig`; none if that was not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime_config: Option<bool>,
}

/// A condition out of `Status`, such as `RuntimeReady`.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

/// The socket as the file system shows it.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Socket {
    pub(super) path: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// As `chmod` takes it.
    pub(super) mode: String,
    /// Everybody may open it, and reach it.
    pub(super) world_accessible: bool,
}

/// The result of one list call.
#[derive(Debug, Clone, Default)]
pub(super) struct List {
    pub(super) items: usize,
    pub(super) bytes: usize,
    pub(super) streamed: bool,
    pub(super) took: Duration,
    pub(super) answer: Answer,
}

/// How a call ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Answer {
    #[default]
    Ok,
    /// No answer within this time.
    None(Duration),
    /// The runtime does not have the call.
    Unimplemented,
    /// Listed, and not found by its id.
    NotFound,
    /// The runtime could not be reached any more.
    Unreachable(String),
    /// Any other error, in the runtime's words.
    Failed(String),
}

/// A container or sandbox, with the names that people use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// `namespace/name`; empty if unknown.
    pub(super) pod: String,
    /// None for a sandbox.
    pub(super) container: Option<String>,
    pub(super) id: String,
    /// The sandbox it belongs to, or which it is.
    pub(super) sandbox: String,
    /// Running, or a ready sandbox.
    pub(super) alive: bool,
}

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// Its name on the wire.
    pub(super) rpc: &'static str,
    /// With `verbose`, for which the runtime asks the shim.
    pub(super) verbose: bool,
    /// None for calls about everything.
    pub(super) object: Option<Arc<Object>>,
    pub(super) took: Duration,
    pub(super) answer: Answer,
}

impl Sample {
    /// A status call as a kubelet makes it.
    pub(super) fn is_plain_status(&self) -> bool {
        self.object.is_some() && !self.verbose
    }
}

/// The content of the lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Inventory {
    pub(super) pods: usize,
    pub(super) sandboxes: Vec<Arc<Object>>,
    pub(super) containers: Vec<Arc<Object>>,
    pub(super) running: usize,
    /// Containers that have exited.
    pub(super) dead: usize,
    /// Pods with dead containers, those with most first.
    pub(super) dead_of: Vec<DeadOf>,
    /// Containers whose sandbox is not listed.
    pub(super) orphans: Vec<Arc<Object>>,
    pub(super) odd: Oddities,
}

/// How many dead containers a pod has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DeadOf {
    /// `namespace/name`.
    pub(super) pod: String,
    pub(super) dead: usize,
    #[serde(skip)]
    pub(super) sandbox: String,
}

/// What the kernel shows of running containers.
#[derive(Debug, Clone, Default)]
pub(super) struct Processes {
    pub(super) running: usize,
    /// How many of them were asked for.
    pub(super) asked: usize,
    /// How many processes can be watched.
    pub(super) watched: usize,
    /// Why another one cannot.
    pub(super) why_not: Option<String>,
    /// Containers that the runtime reports as running although their process has exited.
    pub(super) exited: Vec<ContainerProcess>,
    /// Containers that the runtime reports as exited although a process of theirs is alive.
    pub(super) leftover: Vec<ContainerProcess>,
}

/// A container and its process.
#[derive(Debug, Clone)]
pub(super) struct ContainerProcess {
    pub(super) object: Arc<Object>,
    pub(super) pid: u32,
    /// The parent of the process, as long as it is not reaped.
    pub(super) shim: Option<Shim>,
}

/// What is known about the event stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Events {
    /// Not requested.
    #[default]
    NotTried,
    /// This runtime sends each event to one subscriber: subscribing would take events from the kubelet.
    Split,
    /// The runtime has none.
    Unimplemented,
    /// The subscription succeeded, with this many events within this time.
    Open { events: usize, within: Duration },
    /// It refused or ended it.
    Failed(String),
    /// No time was left.
    NoTime,
}
