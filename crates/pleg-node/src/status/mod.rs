//! The status of a pod as the Kubernetes API shows it, computed as the kubelet does.
//!
//! In: manifest, cache entry, history, probe results and the last decision of a pod ([`StatusInput`]). Out: the `PodStatus` of the API: pure.
//! The pod worker computes it; [`reports`] owns what is published.
//!
//! | module | job |
//! |---|---|
//! | `model` | a status while it is computed |
//! | `containers` | state, last state and readiness of each container |
//! | `phase` | Pending, Running, Succeeded or Failed |
//! | `conditions` | Ready and others, and since when |
//! | [`reports`] | the published status of each pod |
//! | [`updates`] | what changed, for a publisher that acknowledges it |
//!
//! One thing differs from the kubelet: while the runtime does not answer, `Ready` is `Unknown`, with the time up to which the rest of the
//! status is true. A kubelet shows the last status as if nothing had happened.

pub mod reports;
pub mod updates;

mod conditions;
mod containers;
mod model;
mod phase;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use pleg::PodStatus;

use crate::manifest::{Pod, Resources};
use crate::probes::ProbeResults;
use crate::reconcile::history::{PodFailure, PodHistory};
use crate::reconcile::observed::ObservedPod;

use self::model::ApiPodStatus;

pub use model::{Phase, QosClass};

/// Everything that a status depends on.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    /// The manifest.
    pub pod: &'a Pod,
    /// What the runtime shows.
    pub status: &'a PodStatus,
    /// The history, with `status` recorded in it.
    pub history: &'a PodHistory,
    /// Probe results.
    pub probes: &'a ProbeResults,
    /// Containers in back-off, and until when.
    pub backing_off: &'a BTreeMap<String, Timestamp>,
    /// Containers that are being started or killed.
    pub in_flight: &'a BTreeSet<String>,
    /// Why the pod is not started, if it was not admitted.
    pub not_admitted: Option<&'a PodFailure>,
    /// The pod has terminated: nothing of it is left, and its phase is final.
    pub terminated: bool,
    /// Since when the containers of the pod are being stopped, because it has finished or failed, or is terminating.
    pub stopping_since: Option<Timestamp>,
    /// Set while this pod cannot be observed.
    pub stale: Option<&'a Stale>,
    /// The last published status, for the transition times of its conditions.
    pub before: Option<&'a core::PodStatus>,
    /// About the node.
    pub node: &'a NodeInfo,
    /// The time.
    pub now: Timestamp,
}

/// What a status says about the node.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The name of its runtime, such as `containerd`: the prefix of container ids.
    pub runtime: String,
}

/// A status that is not fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// When it was last true.
    pub as_of: Option<Timestamp>,
    /// Why there is no fresh one.
    pub why: String,
}

/// The reason of a stale status.
pub const STALE: &str = "StatusStale";

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_of {
            Some(at) => write!(f, "Last observed at {at:.0}; since then: {}", self.why),
            None => write!(f, "Not observed yet: {}", self.why),
        }
    }
}

/// The reason of a pod whose manifest is refused.
pub const REFUSED: &str = "ManifestRefused";

/// The status of a pod whose manifest is refused, as a kubelet shows one that it does not admit.
pub fn refused(why: &str) -> core::PodStatus {
    ApiPodStatus {
        phase: Phase::Failed,
        conditions: Vec::new(),
        reason: Some(REFUSED.to_owned()),
        message: Some(why.to_owned()),
        host_ips: Vec::new(),
        pod_ips: Vec::new(),
        start_time: None,
        init_container_statuses: Vec::new(),
        container_statuses: Vec::new(),
        ephemeral_container_statuses: Vec::new(),
        qos_class: QosClass::BestEffort,
        observed_generation: None,
    }
    .into()
}

/// Computes the status.
pub fn compute(from: &StatusInput<'_>) -> core::PodStatus {
    compute_model(from).into()
}

fn compute_model(from: &StatusInput<'_>) -> ApiPodStatus {
    let observed = ObservedPod {
        pod: from.pod,
        status: from.status,
        history: from.history,
    };
    let spec = &from.pod.spec;
    let mut all = containers::statuses(from, &observed);
    let (init, main) = all.split_at_mut(spec.init_containers.len());
    let phases = phase::phases(from, init, main);
    let is_over = phase::is_terminal(phases.shown);
    if is_over {
        containers::locate_all(from, init, main);
    }
    // With hostNetwork, the addresses of the pod are those of the host.
    let ips: &[IpAddr] = if spec.host_network && observed.usable_sandbox().is_some() {
        &from.node.ips
    } else {
        &from.status.ips
    };
    if from.history.rejected {
        return rejected(from);
    }
    // The reason of a phase that is withheld is withheld too.
    let failed = from.history.failed.as_ref().filter(|_| is_over).or(from.not_admitted);
    ApiPodStatus {
        phase: phases.shown,
        conditions: conditions::conditions(from, &observed, phases.computed, init, main),
        // A failure is final, so it is shown even if it is stale.
        reason: failed
            .map(|failed| failed.reason.clone())
            .or(from.stale.map(|_| STALE.to_owned())),
        message: failed
            .map(|failed| failed.message.clone())
            .or(from.stale.map(ToString::to_string)),
        host_ips: from.node.ips.clone(),
        pod_ips: ips.to_vec(),
        start_time: from.history.started_at,
        qos_class: qos_class(from.pod),
        init_container_statuses: init.to_vec(),
        container_statuses: main.to_vec(),
        ephemeral_container_statuses: containers::ephemeral_statuses(from, &observed),
        observed_generation: from.pod.object.metadata.generation,
    }
}

/// A pod that was not accepted has a phase and a reason, and as in the kubelet nothing else: there is nothing to say about its containers.
fn rejected(from: &StatusInput<'_>) -> ApiPodStatus {
    let failed = from.history.failed.as_ref();
    ApiPodStatus {
        phase: Phase::Failed,
        conditions: Vec::new(),
        reason: failed.map(|failed| failed.reason.clone()),
        message: failed.map(|failed| failed.message.clone()),
        host_ips: Vec::new(),
        pod_ips: Vec::new(),
        start_time: from.history.started_at,
        init_container_statuses: Vec::new(),
        container_statuses: Vec::new(),
        ephemeral_container_statuses: Vec::new(),
        qos_class: qos_class(from.pod),
        observed_generation: from.pod.object.metadata.generation,
    }
}

/// The quality-of-service class, from the resources of the containers.
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
