//! A status while it is computed: the words of the API as enums, so that rules about them are checked by the compiler. At the end it becomes
//! the `PodStatus` of the Kubernetes API.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Kubernetes' own")]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    /// The phase of a status, if it has one that this node sets.
    pub fn of(status: &core::PodStatus) -> Option<Self> {
        let all = [Self::Pending, Self::Running, Self::Succeeded, Self::Failed];
        all.into_iter()
            .find(|phase| status.phase.as_deref() == Some(phase.name()))
    }

    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// The status of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiPodStatus {
    /// Its phase.
    pub(super) phase: Phase,
    /// Its conditions.
    pub(super) conditions: Vec<Condition>,
    /// Why it failed as a whole, or that the status is stale, in a word.
    pub(super) reason: Option<String>,
    /// The same, in a sentence.
    pub(super) message: Option<String>,
    /// The node's addresses.
    pub(super) host_ips: Vec<IpAddr>,
    /// The pod's addresses.
    pub(super) pod_ips: Vec<IpAddr>,
    /// When the node accepted it.
    pub(super) start_time: Option<Timestamp>,
    /// Those of `initContainers`.
    pub(super) init_container_statuses: Vec<ApiContainerStatus>,
    /// Those of `containers`.
    pub(super) container_statuses: Vec<ApiContainerStatus>,
    /// Those of `ephemeralContainers`.
    pub(super) ephemeral_container_statuses: Vec<ApiContainerStatus>,
    /// Decides which pods are killed first when memory is short.
    pub(super) qos_class: QosClass,
    /// The generation of the object that the status is about.
    pub(super) observed_generation: Option<i64>,
}

/// How much of its resources a pod is guaranteed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    /// Requests equal limits, for all containers.
    Guaranteed,
    /// There are some requests or limits.
    Burstable,
    /// There are none.
    BestEffort,
}

impl QosClass {
    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// A condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    /// Which: `Ready`, …
    pub(super) kind: ConditionKind,
    /// Whether it holds.
    pub(super) status: ConditionStatus,
    /// When it was last observed, if the status is stale.
    pub(super) last_probe_time: Option<Timestamp>,
    /// Since when.
    pub(super) last_transition_time: Timestamp,
    /// Why not, in a word.
    pub(super) reason: Option<&'static str>,
    /// Why not, in a sentence.
    pub(super) message: Option<String>,
}

/// The conditions, in the order of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConditionKind {
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
    /// Containers are being resized. Only set while they are.
    PodResizeInProgress,
}

impl ConditionKind {
    /// As the API writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PodReadyToStartContainers => "PodReadyToStartContainers",
            Self::Initialized => "Initialized",
            Self::Ready => "Ready",
            Self::ContainersReady => "ContainersReady",
            Self::PodScheduled => "PodScheduled",
            Self::PodResizeInProgress => "PodResizeInProgress",
        }
    }
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It cannot be observed at the moment.
    Unknown,
}

impl ConditionStatus {
    /// As the API writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// The status of a container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiContainerStatus {
    /// Its name.
    pub(super) name: String,
    /// Its state.
    pub(super) state: ApiContainerState,
    /// The exit of the attempt before.
    pub(super) last_state: Option<ApiContainerState>,
    /// It can serve; for an init container, it has completed.
    pub(super) ready: bool,
    /// How often it was restarted.
    pub(super) restart_count: u32,
    /// Its image.
    pub(super) image: String,
    /// The image as the runtime found it.
    pub(super) image_id: String,
    /// Its id, after the name of the runtime.
    pub(super) container_id: Option<String>,
    /// It runs, and its startup probe has succeeded.
    pub(super) started: bool,
    /// While it runs: the resources that it has.
    pub(super) resources: Option<core::ResourceRequirements>,
    /// While it runs: the requests that it is to have.
    pub(super) allocated_resources: Option<ResourceList>,
}

/// Quantities by the names of resources.
pub(super) type ResourceList = BTreeMap<String, Quantity>;

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApiContainerState {
    /// It is about to be started or restarted.
    Waiting {
        /// Why it is not started.
        reason: String,
        /// In a sentence.
        message: String,
    },
    /// It is running.
    Running {
        /// Since when.
        started_at: Option<Timestamp>,
    },
    /// It has exited.
    Terminated {
        /// Its exit code.
        exit_code: i32,
        /// `Completed`, `Error`, `OOMKilled`, …
        reason: String,
        /// In a sentence.
        message: String,
        /// When its process started.
        started_at: Option<Timestamp>,
        /// When it exited.
        finished_at: Option<Timestamp>,
        /// Its id, after the name of the runtime.
        container_id: Option<String>,
    },
}

impl ApiContainerState {
    /// The exit code, if it has exited.
    pub(super) fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Terminated { exit_code, .. } => Some(*exit_code),
            _ => None,
        }
    }
}

/// The API has times in whole seconds.
pub(super) fn time(at: Timestamp) -> Time {
    Time(whole_second(at))
}

pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl From<ApiPodStatus> for core::PodStatus {
    fn from(status: ApiPodStatus) -> Self {
        // They have no probes, so whether they have started is not said.
        let ephemeral = |status: ApiContainerStatus| core::ContainerStatus {
            started: None,
            ..status.into()
        };
        let containers = |all: Vec<ApiContainerStatus>| all.into_iter().map(core::ContainerStatus::from).collect();
        let host_ip = |ip: IpAddr| core::HostIP { ip: ip.to_string() };
        let pod_ip = |ip: IpAddr| core::PodIP { ip: ip.to_string() };
        let init = Some(status.init_container_statuses).filter(|all| !all.is_empty());
        Self {
            phase: Some(status.phase.name().to_owned()),
            conditions: Some(status.conditions.into_iter().map(core::PodCondition::from).collect()),
            reason: status.reason,
            message: status.message,
            host_ip: status.host_ips.first().map(ToString::to_string),
            pod_ip: status.pod_ips.first().map(ToString::to_string),
            host_ips: some(status.host_ips.into_iter().map(host_ip).collect()),
            pod_ips: some(status.pod_ips.into_iter().map(pod_ip).collect()),
            start_time: status.start_time.map(time),
            init_container_statuses: init.map(containers),
            container_statuses: Some(containers(status.container_statuses)),
            ephemeral_container_statuses: some(
                status.ephemeral_container_statuses.into_iter().map(ephemeral).collect(),
            ),
            qos_class: Some(status.qos_class.name().to_owned()),
            observed_generation: status.observed_generation,
            ..Self::default()
        }
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

impl From<Condition> for core::PodCondition {
    fn from(condition: Condition) -> Self {
        Self {
            type_: condition.kind.name().to_owned(),
            status: condition.status.name().to_owned(),
            last_probe_time: condition.last_probe_time.map(time),
            last_transition_time: Some(time(condition.last_transition_time)),
            reason: condition.reason.map(str::to_owned),
            message: condition.message,
            observed_generation: None,
        }
    }
}

impl From<ApiContainerStatus> for core::ContainerStatus {
    fn from(status: ApiContainerStatus) -> Self {
        Self {
            name: status.name,
            state: Some(status.state.into()),
            last_state: status.last_state.map(core::ContainerState::from),
            ready: status.ready,
            restart_count: i32::try_from(status.restart_count).unwrap_or(i32::MAX),
            image: status.image,
            image_id: status.image_id,
            container_id: status.container_id,
            started: Some(status.started),
            resources: status.resources,
            allocated_resources: status.allocated_resources,
            ..Self::default()
        }
    }
}

impl From<ApiContainerState> for core::ContainerState {
    fn from(state: ApiContainerState) -> Self {
        let mut result = Self::default();
        match state {
            ApiContainerState::Waiting { reason, message } => {
                result.waiting = Some(core::ContainerStateWaiting {
                    reason: Some(reason),
                    message: text(message),
                });
            }
            ApiContainerState::Running { started_at } => {
                result.running = Some(core::ContainerStateRunning {
                    started_at: started_at.map(time),
                });
            }
            ApiContainerState::Terminated {
                exit_code,
                reason,
                message,
                started_at,
                finished_at,
                container_id,
            } => {
                result.terminated = Some(core::ContainerStateTerminated {
                    exit_code,
                    reason: Some(reason),
                    message: text(message),
                    started_at: started_at.map(time),
                    finished_at: finished_at.map(time),
                    container_id,
                    signal: None,
                });
            }
        }
        result
    }
}
