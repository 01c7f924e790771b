//! The status of a pod as Kubernetes shows it, computed as the kubelet does. Pure.
//!
//! | module | job |
//! |---|---|
//! | `types` | its shape |
//! | `containers` | what each container does, did before, and whether it is ready |
//! | `phase` | the pod in one word |
//! | `conditions` | what holds of it, and since when |
//!
//! One thing differs from the kubelet. A pod whose runtime does not answer is not shown as it was last seen, as if nothing had
//! happened: its `Ready` is `Unknown`, with the time up to which the rest is true.

pub mod reports;

mod conditions;
mod containers;
mod phase;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use pleg::PodStatus;

use crate::manifest::{Pod, Resources};
use crate::probes::Results;
use crate::reconcile::history::{PodFailure, PodHistory};
use crate::reconcile::observed::Observed;

pub use types::{Address, Condition, ConditionKind, ContainerStatus, Phase, QosClass, State, Status, Truth};

/// All that a status depends on.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The manifest.
    pub pod: &'a Pod,
    /// What the runtime shows.
    pub status: &'a PodStatus,
    /// What is remembered; has learnt from `status`.
    pub memory: &'a PodHistory,
    /// What probes found.
    pub probes: &'a Results,
    /// Containers that wait to be started again, and until when.
    pub held: &'a BTreeMap<String, Timestamp>,
    /// Containers with which something is under way.
    pub busy: &'a BTreeSet<String>,
    /// Why the pod is not begun, if something about it is refused.
    pub refusal: Option<&'a PodFailure>,
    /// Set while the runtime does not tell about this pod.
    pub stale: Option<&'a Stale>,
    /// What was said last, for the times of its conditions.
    pub before: Option<&'a Status>,
    /// About the node.
    pub node: &'a Node,
    /// The time.
    pub now: Timestamp,
}

/// What a status says about the node.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// How its runtime is called, such as `containerd`: before each container's id.
    pub runtime: String,
}

/// What is shown is not the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// It was true then.
    pub as_of: Option<Timestamp>,
    /// Why there is nothing newer.
    pub why: String,
}

/// The reason of what is old.
pub const STALE: &str = "StatusStale";

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_of {
            Some(at) => write!(f, "Last observed at {at:.0}; since then: {}", self.why),
            None => write!(f, "Not observed yet: {}", self.why),
        }
    }
}

/// The reason of a pod whose manifest cannot be run.
pub const REFUSED: &str = "ManifestRefused";

/// The status of a pod whose manifest cannot be run, as a kubelet shows one that it does not admit.
pub fn refused(why: &str) -> Status {
    Status {
        phase: Phase::Failed,
        conditions: Vec::new(),
        reason: Some(REFUSED.to_owned()),
        message: Some(why.to_owned()),
        host_ip: None,
        host_ips: Vec::new(),
        pod_ip: None,
        pod_ips: Vec::new(),
        start_time: None,
        init_container_statuses: Vec::new(),
        container_statuses: Vec::new(),
        qos_class: QosClass::BestEffort,
    }
}

/// Computes the status.
pub fn compute(from: &Sources<'_>) -> Status {
    let seen = Observed {
        pod: from.pod,
        status: from.status,
        memory: from.memory,
    };
    let spec = &from.pod.spec;
    let all = containers::statuses(from, &seen);
    let (init, main) = all.split_at(spec.init_containers.len());
    let phase = phase::phase(spec, init, main, from.memory.failed.is_some());
    // Where the host's network is the pod's, so are its addresses.
    let ips: &[IpAddr] = if spec.host_network && seen.usable_sandbox().is_some() {
        &from.node.ips
    } else {
        &from.status.ips
    };
    let addresses = |ips: &[IpAddr]| ips.iter().map(|&ip| Address { ip }).collect();
    let failed = from.memory.failed.as_ref().or(from.refusal);
    Status {
        phase,
        conditions: conditions::conditions(from, &seen, phase, init, main),
        // What has failed stays failed, however old that is.
        reason: failed
            .map(|failed| failed.reason.clone())
            .or(from.stale.map(|_| STALE.to_owned())),
        message: failed
            .map(|failed| failed.message.clone())
            .or(from.stale.map(ToString::to_string)),
        host_ip: from.node.ips.first().copied(),
        host_ips: addresses(&from.node.ips),
        pod_ip: ips.first().copied(),
        pod_ips: addresses(ips),
        start_time: from.memory.started_at,
        qos_class: qos_class(from.pod),
        init_container_statuses: init.to_vec(),
        container_statuses: main.to_vec(),
    }
}

/// The class that follows from what containers ask for.
pub fn qos_class(pod: &Pod) -> QosClass {
    let all: Vec<&Resources> = pod
        .spec
        .all_containers()
        .map(|container| &container.resources)
        .collect();
    let is_zero = |quantity: Option<crate::manifest::Quantity>| quantity.is_none_or(|quantity| quantity.milli() == 0);
    let guaranteed = |resources: &&Resources| {
        !is_zero(resources.cpu_limit)
            && !is_zero(resources.memory_limit)
            && resources.cpu_request == resources.cpu_limit
            && resources.memory_request == resources.memory_limit
    };
    let nothing = |resources: &&Resources| is_zero(resources.cpu_request) && is_zero(resources.memory_request);
    if all.iter().all(guaranteed) {
        QosClass::Guaranteed
    } else if all.iter().all(nothing) {
        QosClass::BestEffort
    } else {
        QosClass::Burstable
    }
}
