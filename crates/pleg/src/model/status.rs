//! What inspection returned: the part of CRI's statuses that people and sync loops ask for.

mod pairs;
mod summary;

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use jiff::Timestamp;
use pleg_cri::v1;
use serde::{Deserialize, Serialize};

pub use pairs::Pairs;
pub use summary::Summary;

use crate::model::{ContainerId, ContainerRef, ContainerState, PodRef, SandboxId, SandboxState};

/// A text of the runtime's longer than this is cut: a status is kept for every container of the node.
const TEXT_LIMIT: usize = 2048;
/// No pod has more addresses than this.
const IP_LIMIT: usize = 16;

/// A pod, as the runtime described it when it was last inspected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodStatus {
    /// Which pod.
    pub pod: PodRef,
    /// Its addresses; the last known ones once no sandbox is ready.
    pub ips: Box<[IpAddr]>,
    /// Its sandboxes, newest first.
    pub sandboxes: Box<[SandboxStatus]>,
    /// Its containers, oldest first.
    pub containers: Box<[ContainerStatus]>,
}

impl PodStatus {
    /// What is known of a pod the runtime has no trace of.
    pub fn empty(pod: PodRef) -> Self {
        Self {
            pod,
            ips: Box::default(),
            sandboxes: Box::default(),
            containers: Box::default(),
        }
    }

    /// The same without one container or sandbox.
    #[must_use]
    pub fn without(&self, id: &str) -> Self {
        let sandboxes = self.sandboxes.iter().filter(|sandbox| sandbox.id.as_str() != id);
        let containers = self.containers.iter().filter(|container| container.id.as_str() != id);
        Self {
            pod: self.pod.clone(),
            ips: self.ips.clone(),
            sandboxes: sandboxes.cloned().collect(),
            containers: containers.cloned().collect(),
        }
    }

    /// The pod's labels: those of its newest sandbox; none without a sandbox. [`Pairs`] bounds how many are kept.
    pub fn labels(&self) -> Option<&Pairs> {
        self.sandboxes.first().map(|sandbox| &sandbox.labels)
    }

    /// The pod's annotations: those of its newest sandbox; none without a sandbox. [`Pairs`] bounds how many are kept, and cuts long values.
    pub fn annotations(&self) -> Option<&Pairs> {
        self.sandboxes.first().map(|sandbox| &sandbox.annotations)
    }

    /// The containers by id, for callers that look up many.
    pub(crate) fn by_id(&self) -> HashMap<&ContainerId, &ContainerStatus> {
        self.containers
            .iter()
            .map(|container| (&container.id, container))
            .collect()
    }

    /// The status of one container.
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerStatus> {
        self.containers.iter().find(|container| container.id == *id)
    }
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// The runtime's id.
    pub id: SandboxId,
    /// Can it hold running containers?
    pub state: SandboxState,
    /// How often the pod's sandbox was made before.
    pub attempt: u32,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Its addresses.
    pub ips: Box<[IpAddr]>,
    /// The handler that runs it, such as `runc`; empty for the default.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub runtime_handler: Box<str>,
    /// The pod's labels.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub labels: Pairs,
    /// The pod's annotations.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    pub annotations: Pairs,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// The runtime's id.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: Arc<str>,
    /// How often a container of this name was created in this pod before.
    pub attempt: u32,
    /// What it was doing when it was inspected; may be newer than what the list said.
    pub state: ContainerState,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When its process started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When its process ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// How its process ended; only for [`ContainerState::Exited`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The runtime's word for its state: `Completed`, `Error`, `OOMKilled`, `StartError`, …
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Arc<str>,
    /// The runtime's sentence about its state.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
    /// The image as it was asked for.
    pub image: Box<str>,
    /// The image as it was found: a digest or an id.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub image_ref: Box<str>,
    /// Where its output goes.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub log_path: Box<str>,
    /// Its limits, where the runtime reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<Resources>>,
}

/// A container's limits, as they are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are CRI's own")]
pub struct Resources {
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    pub memory_limit_in_bytes: i64,
    pub oom_score_adj: i64,
}

impl SandboxStatus {
    /// What the list says of a sandbox that has not been inspected.
    pub fn listed(id: &SandboxId, state: SandboxState, attempt: u32, created_at: i64) -> Self {
        Self {
            id: id.clone(),
            state,
            attempt,
            created_at: timestamp(created_at),
            ips: Box::default(),
            runtime_handler: Box::default(),
            labels: Pairs::default(),
            annotations: Pairs::default(),
        }
    }

    /// Reads CRI's answer for the sandbox `id`, which is the id we asked by, whatever the answer says.
    pub fn from_cri(id: &SandboxId, status: &v1::PodSandboxStatus) -> Self {
        let network = status.network.as_ref();
        let ips = network.into_iter().flat_map(|network| {
            std::iter::once(&network.ip).chain(network.additional_ips.iter().map(|additional| &additional.ip))
        });
        Self {
            id: id.clone(),
            state: SandboxState::from_wire(status.state),
            attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
            created_at: timestamp(status.created_at),
            // An address the runtime garbled is no address.
            ips: ips.filter_map(|ip| ip.parse().ok()).take(IP_LIMIT).collect(),
            runtime_handler: text(&status.runtime_handler).into(),
            labels: Pairs::new(&status.labels),
            annotations: Pairs::new(&status.annotations),
        }
    }
}

impl ContainerStatus {
    /// What the list says of a container that has not been inspected.
    pub fn listed(container: &ContainerRef, state: ContainerState, created_at: i64) -> Self {
        Self {
            id: container.id.clone(),
            name: Arc::clone(&container.name),
            attempt: container.attempt,
            state,
            created_at: timestamp(created_at),
            started_at: None,
            finished_at: None,
            exit_code: None,
            reason: Arc::default(),
            message: Box::default(),
            image: Box::default(),
            image_ref: Box::default(),
            log_path: Box::default(),
            resources: None,
        }
    }

    /// Reads CRI's answer for the container `id`, which is the id we asked by, whatever the answer says.
    pub fn from_cri(id: &ContainerId, name: &Arc<str>, status: &v1::ContainerStatus) -> Self {
        let state = ContainerState::from_wire(status.state);
        let exited = state == ContainerState::Exited;
        Self {
            id: id.clone(),
            name: Arc::clone(name),
            attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
            state,
            created_at: timestamp(status.created_at),
            started_at: timestamp(status.started_at),
            finished_at: timestamp(status.finished_at).filter(|_| exited),
            exit_code: exited.then_some(status.exit_code),
            reason: text(&status.reason).into(),
            message: text(&status.message).into(),
            image: status.image.as_ref().map_or("", |image| text(&image.image)).into(),
            image_ref: text(&status.image_ref).into(),
            log_path: text(&status.log_path).into(),
            resources: status.resources.as_ref().and_then(|r| r.linux.as_ref()).map(|linux| {
                Box::new(Resources {
                    cpu_period: linux.cpu_period,
                    cpu_quota: linux.cpu_quota,
                    cpu_shares: linux.cpu_shares,
                    memory_limit_in_bytes: linux.memory_limit_in_bytes,
                    oom_score_adj: linux.oom_score_adj,
                })
            }),
        }
    }
}

/// Runtimes write "never" as 0, and broken ones write less.
fn timestamp(nanos: i64) -> Option<Timestamp> {
    if nanos <= 0 {
        None
    } else {
        Timestamp::from_nanosecond(i128::from(nanos)).ok()
    }
}

/// A text of the runtime's, cut to what is kept of one.
pub(crate) fn text(text: &str) -> &str {
    match text.char_indices().nth(TEXT_LIMIT) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_answers_are_bounded() {
        let status = v1::ContainerStatus {
            state: 42,
            created_at: -5,
            started_at: i64::MAX,
            finished_at: 7,
            exit_code: 9,
            message: "é".repeat(100_000),
            ..Default::default()
        };
        let status = ContainerStatus::from_cri(&"c".into(), &"web".into(), &status);
        assert_eq!(status.state, ContainerState::Unknown);
        assert_eq!(
            (status.created_at, status.finished_at, status.exit_code),
            (None, None, None)
        );
        assert!(status.started_at.is_some());
        assert_eq!(status.message.chars().count(), TEXT_LIMIT);
    }

    #[test]
    fn addresses_are_the_ones_that_parse() {
        let ip = |ip: &str| v1::PodIp { ip: ip.into() };
        let network = v1::PodSandboxNetworkStatus {
            ip: "10.0.0.7".into(),
            additional_ips: vec![ip("fd00::7"), ip("x")],
        };
        let status = v1::PodSandboxStatus {
            network: Some(network),
            ..Default::default()
        };
        let status = SandboxStatus::from_cri(&"s".into(), &status);
        assert_eq!(
            *status.ips,
            ["10.0.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]
        );
    }
}
