//! The status of a pod in the shape of the Kubernetes API. The prefix `Api` tells these types from what the runtime shows: `pleg::PodStatus`.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

/// The phase of a pod.
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
pub struct ApiPodStatus {
    /// Its phase.
    pub phase: Phase,
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Why it failed as a whole, or that the status is stale, in a word.
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
    /// When the node accepted it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
    pub start_time: Option<Timestamp>,
    /// Those of `initContainers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ApiContainerStatus>,
    /// Those of `containers`.
    pub container_statuses: Vec<ApiContainerStatus>,
    /// Decides which pods are killed first when memory is short.
    pub qos_class: QosClass,
}

/// An address, as the API wraps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
}

/// How much of its resources a pod is guaranteed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum QosClass {
    /// Requests equal limits, for all containers.
    Guaranteed,
    /// There are some requests or limits.
    Burstable,
    /// There are none.
    BestEffort,
}

/// A condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which: `Ready`, …
    #[serde(rename = "type")]
    pub kind: ConditionKind,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// When it was last observed, if the status is stale.
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

/// The conditions, in the order of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ConditionKind {
    /// It has a sandbox, with a network.
    PodReadyToStartContainers,
    /// Its init containers have completed.
    Initialized,
    /// It can serve.
    Ready,
    /// All its containers are ready.
    ContainersReady,
    /// It is assigned to a node.
    PodScheduled,
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It cannot be observed at the moment.
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// The status of a container.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiContainerStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: ApiContainerState,
    /// The exit of the attempt before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_state: Option<ApiContainerState>,
    /// It can serve; for an init container, it has completed.
    pub ready: bool,
    /// How often it was restarted.
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

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiContainerState {
    /// It is about to be started or restarted.
    Waiting {
        /// Why it is not started.
        reason: String,
        /// In a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// It is running.
    #[serde(rename_all = "camelCase")]
    Running {
        /// Since when.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        started_at: Option<Timestamp>,
    },
    /// It has exited.
    #[serde(rename_all = "camelCase")]
    Terminated {
        /// Its exit code.
        exit_code: i32,
        /// `Completed`, `Error`, `OOMKilled`, …
        reason: String,
        /// In a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
        /// When its process started.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        started_at: Option<Timestamp>,
        /// When it exited.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "seconds")]
        finished_at: Option<Timestamp>,
        /// Its id, after the name of the runtime.
        #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
        container_id: Option<String>,
    },
}

impl ApiContainerState {
    /// The exit code, if it has exited.
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

/// The API has times in whole seconds.
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
