//! The lines of a recording: one JSON object per line. In memory the same values are kept, with their texts shared.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::event::{EventType, Source};
use crate::model::{ContainerId, ContainerState, PodRef, PodUid, SandboxId, SandboxState};

/// The format of these lines. Another number is another format.
pub const FORMAT: u32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When, by the wall clock. Lines are in the order in which things happened, whatever it says.
    pub time: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// The first line.
    Recording(Arc<Header>),
    /// A pod as it was when the recording was taken: the end, from which the beginning is found by undoing the lines.
    Pod(Arc<PodState>),
    /// Lists came in. What they changed stands in the lines before this one.
    #[serde(rename = "look")]
    Relist(RelistTaken),
    /// Lists were not answered.
    #[serde(rename = "look-failed")]
    RelistFailed(Arc<RelistFailed>),
    /// How the lists differ, about one pod, from what was listed before.
    Seen(Arc<Seen>),
    /// An inspection of a pod began, of the objects listed now.
    Inspect {
        /// The pod.
        uid: PodUid,
    },
    /// A pod was committed.
    Commit(Arc<Commit>),
    /// Something got worse or better.
    Transition(Arc<Transition>),
    /// So many inspection calls may be in flight from now on.
    Limit {
        /// Before.
        from: u32,
        /// Now.
        to: u32,
    },
    /// A call that took long.
    SlowCall(Arc<SlowCall>),
    /// All calls of one kind, since the generator began.
    Calls(Arc<Calls>),
    /// What only a newer version knows.
    #[serde(other)]
    Other,
}

/// What holds for the whole recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of the generator.
    pub version: Arc<str>,
    /// How far back it reaches.
    pub from: Timestamp,
    /// For how long lines are kept, in seconds.
    pub window_seconds: u64,
    /// How many bytes of memory lines may take.
    pub limit_bytes: usize,
    /// How many they took, by a cautious estimate.
    pub bytes: usize,
    /// Lines within the window that were dropped because of the limit.
    pub dropped: u64,
    /// The number of the newest event.
    pub seq: u64,
}

/// A container or a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ObjectKind {
    Container,
    Sandbox,
}

/// The state of a container or sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the model")]
pub enum State {
    Created,
    Running,
    Exited,
    Unknown,
    Ready,
    NotReady,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Created => "Created",
            Self::Running => "Running",
            Self::Exited => "Exited",
            Self::Unknown => "Unknown",
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
        })
    }
}

impl From<ContainerState> for State {
    fn from(state: ContainerState) -> Self {
        match state {
            ContainerState::Created => Self::Created,
            ContainerState::Running => Self::Running,
            ContainerState::Exited => Self::Exited,
            ContainerState::Unknown => Self::Unknown,
        }
    }
}

impl From<SandboxState> for State {
    fn from(state: SandboxState) -> Self {
        match state {
            SandboxState::Ready => Self::Ready,
            SandboxState::NotReady => Self::NotReady,
        }
    }
}

/// An object of a pod, by what a list tells and never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Which of the two.
    pub object: ObjectKind,
    /// The runtime's id.
    pub id: Arc<str>,
    /// A container's name in the pod.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub name: Arc<str>,
    /// How often one of this name was created before.
    pub attempt: u32,
    /// The runtime's time of making, in nanoseconds since 1970.
    pub created_at: i64,
}

/// A pod at the end of the recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// Which pod.
    pub pod: PodRef,
    /// Everything of it that is listed or committed.
    pub objects: Box<[ObjectState]>,
}

/// An object at the end of the recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectState {
    /// Which object.
    #[serde(flatten)]
    pub about: Object,
    /// What the newest list that covers it said; none: it is not there.
    pub listed: Option<State>,
    /// What events were sent for.
    pub committed: Option<State>,
    /// The runtime denied it when asked by id.
    pub denied: bool,
}

/// Lists that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelistTaken {
    /// Everything, or single pods.
    pub scope: Scope,
    /// What triggered the relist.
    pub source: Source,
    /// From asking to the last byte.
    pub micros: u64,
    /// Of both lists; 0 where it was not counted.
    pub bytes: u64,
    /// Objects whose listed state changed.
    pub changes: u32,
}

/// What a relist covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Everything.
    Full,
    /// Single pods.
    Pods,
}

/// Lists that were not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelistFailed {
    /// Everything, or single pods.
    pub scope: Scope,
    /// From asking to the failure.
    pub micros: u64,
    /// Why.
    pub error: Arc<str>,
}

/// How lists differ about one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Which pod.
    pub pod: PodRef,
    /// What changed.
    pub objects: Box<[ObjectSeen]>,
}

/// One object whose listed state changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSeen {
    /// Which object.
    #[serde(flatten)]
    pub about: Object,
    /// What was listed; none: it was not there.
    pub before: Option<State>,
    /// What is listed.
    pub after: Option<State>,
    /// Until now the runtime denied it when asked by id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub denied: bool,
}

/// A commit, and the events it made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Which pod.
    pub uid: PodUid,
    /// Nothing of the pod was listed any more, so nothing was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removal: bool,
    /// What it changed in the record.
    pub changes: Box<[ObjectCommitted]>,
    /// What was listed, and denied when asked for.
    #[serde(flatten)]
    pub gone: Gone,
    /// Containers that changed and were not answered for: their record stays as it was.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub unanswered: Box<[Arc<str>]>,
    /// The number of the first event.
    pub seq: u64,
    /// The events, in order.
    pub events: Box<[Sent]>,
}

/// What was listed, and denied when asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Sandboxes.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub gone_sandboxes: Box<[SandboxId]>,
    /// Containers.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub gone_containers: Box<[ContainerId]>,
    /// They are taken for denied until their listed state changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub denied: bool,
}

impl Gone {
    /// Nothing is gone.
    pub fn is_empty(&self) -> bool {
        self.gone_sandboxes.is_empty() && self.gone_containers.is_empty()
    }
}

/// One object whose committed state changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCommitted {
    /// The runtime's id.
    pub id: Arc<str>,
    /// What was committed.
    pub before: Option<State>,
    /// What is.
    pub after: Option<State>,
}

/// An event, by what a list decides about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// To which container or sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The state a sandbox is in now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SandboxState>,
}

/// Something got worse or better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// What.
    pub to: Turn,
    /// The pod it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
    /// How long it had been worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasted_seconds: Option<f64>,
}

/// What can get worse or better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Turn {
    /// A pod cannot be inspected.
    Quarantined,
    /// It can again, or is gone.
    Released,
    /// Relists fail.
    RuntimeLost,
    /// They are complete again.
    RuntimeBack,
    /// No complete relist within the threshold.
    Unhealthy,
    /// There is one again.
    Healthy,
    /// A pod's shim does not answer.
    ShimHangs,
    /// It does again, or is gone.
    ShimAnswers,
    /// The status of a container that does not change is not answered.
    StatusHangs,
    /// It is again, or the container is gone.
    StatusAnswers,
    /// Changes are found by the runtime's events.
    Evented,
    /// They are found by full relists only; the message says why.
    Generic,
    /// A full relist found a change that events should have reported.
    Missed,
    /// The kernel and the runtime disagree about a container.
    RuntimeWrong,
    /// They agree again.
    RuntimeRight,
    /// The pause between full relists changed; the message says to what.
    Period,
    /// What only a newer version knows.
    #[serde(other)]
    Other,
}

/// A call that took long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowCall {
    /// Which.
    pub rpc: Arc<str>,
    /// How long.
    pub micros: u64,
    /// `ok`, `dropped`, or why it failed.
    pub outcome: Arc<str>,
}

/// All calls of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Which.
    pub rpc: Arc<str>,
    /// How many ended.
    pub calls: u64,
    /// How many of those failed.
    pub failed: u64,
    /// What all of them took.
    pub micros: u64,
    /// What the longest took.
    pub longest_micros: u64,
}
