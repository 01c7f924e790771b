//! The status of a pod in the shape that Kubernetes gives it.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

/// In one word, how a pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The status of a pod.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// In one word.
    pub phase: Phase,
    /// What holds of it.
    pub conditions: Vec<Condition>,
    /// Why it failed as a whole, or that all of this is old, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The node's address.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<IpAddr>,
    /// The node's addresses.
    #[serde(rename = "hostIPs", skip_serializing_if = "Vec::is_empty")]
    pub host_ips: Vec<Address>,
    /// The pod's first address.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<IpAddr>,
    /// The pod's addresses.
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<Address>,
    /// When the node took it on.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub start_time: Option<Timestamp>,
    /// Those of `initContainers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Those of `containers`.
    pub container_statuses: Vec<ContainerStatus>,
    /// Who is killed first when memory is short.
    pub qos_class: QosClass,
}

/// An address, as Kubernetes wraps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
}

/// What a pod is promised of the node's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum QosClass {
    /// All it may use is promised.
    Guaranteed,
    /// Some of it.
    Burstable,
    /// Nothing.
    BestEffort,
}

/// Something that holds of a pod, or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What: `Ready`, …
    #[serde(rename = "type")]
    pub kind: ConditionKind,
    /// Whether.
    pub status: Truth,
    /// When it was last found to be so, if that is not now.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub last_probe_time: Option<Timestamp>,
    /// Since when.
    #[serde(serialize_with = "second")]
    pub last_transition_time: Timestamp,
    /// Why not, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Why not, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Which conditions there are, in the order in which they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ConditionKind {
    /// It has a sandbox, with a network.
    PodReadyToStartContainers,
    /// Its init containers are done.
    Initialized,
    /// It can serve.
    Ready,
    /// All its containers are ready.
    ContainersReady,
    /// It has a node.
    PodScheduled,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Truth {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody can tell at the moment.
    Unknown,
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// The status of a container.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: State,
    /// How the attempt before ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_state: Option<State>,
    /// It can serve; for an init container, it is done.
    pub ready: bool,
    /// How often it was started again.
    pub restart_count: u32,
    /// Its image.
    pub image: String,
    /// The image as the runtime found it.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// Its id, after the name of the runtime.
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// It runs, and its startup probe has succeeded.
    pub started: bool,
}

/// What a container does: one of three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It is not running yet, or again.
    Waiting {
        /// For what.
        reason: String,
        /// In a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// It runs.
    #[serde(rename_all = "camelCase")]
    Running {
        /// Since when.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        started_at: Option<Timestamp>,
    },
    /// It has ended.
    #[serde(rename_all = "camelCase")]
    Terminated {
        /// With which code.
        exit_code: i32,
        /// `Completed`, `Error`, `OOMKilled`, …
        reason: String,
        /// In a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
        /// When its process began.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        started_at: Option<Timestamp>,
        /// When it ended.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        finished_at: Option<Timestamp>,
        /// Its id, after the name of the runtime.
        #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
        container_id: Option<String>,
    },
}

impl State {
    /// The code that it ended with, if it has.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Terminated { exit_code, .. } => Some(*exit_code),
            _ => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

/// Kubernetes tells times in whole seconds.
fn second<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(*at);
    serializer.collect_str(&whole)
}

#[expect(clippy::ref_option, reason = "serde's signature")]
fn seconds<S: serde::Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => second(at, serializer),
        None => serializer.serialize_none(),
    }
}
