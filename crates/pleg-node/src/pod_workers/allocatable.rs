//! What pods may request in total. A pod that does not fit is rejected, as in the kubelet; pods that are here already always fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::PodUid;

use super::preemption::{Worth, victims, worth};
use crate::cgroups::limits::{cpu_request, ephemeral_storage_request, memory_request};
use crate::manifest::{Pod, Quantity};
use crate::reconcile::history::PodFailure;

/// What pods may request in total: the node's allocatable resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocatable {
    /// Thousandths of a core.
    pub milli_cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub ephemeral_storage: u64,
    /// How many pods.
    pub pods: u64,
}

/// Of CPU, memory and local storage.
pub(super) type Requests = [i64; 3];

/// What a pod requests, and what it is worth when another one needs its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requested {
    pub(super) requests: Requests,
    pub(super) worth: Option<Worth>,
}

impl Requested {
    fn of(pod: &Pod) -> Self {
        Self {
            requests: requests_of(pod),
            worth: worth(pod),
        }
    }
}

const NAMES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

fn requests_of(pod: &Pod) -> Requests {
    let spec = &pod.spec;
    let cpu = spec.overhead.cpu.map_or(0, Quantity::milli);
    let memory = spec.overhead.memory.map_or(0, Quantity::units);
    [
        cpu_request(spec).saturating_add(cpu),
        memory_request(spec).saturating_add(memory),
        ephemeral_storage_request(spec),
    ]
}

/// What the pods of this node request. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestedResources {
    limits: Option<Allocatable>,
    // Held for a lookup or a change; never across an await.
    requests: Arc<Mutex<BTreeMap<PodUid, Requested>>>,
}

impl RequestedResources {
    /// With no more than this.
    pub(crate) fn limited(limits: Allocatable) -> Self {
        Self {
            limits: Some(limits),
            ..Self::default()
        }
    }

    /// Counts a pod, if it fits beside the others.
    pub(crate) fn claim(&self, pod: &Pod) -> Result<(), PodFailure> {
        let requested = Requested::of(pod);
        let mut all = self.requests.lock();
        if let Some(limits) = self.limits
            && !all.contains_key(&pod.id.uid)
        {
            fits(limits, &all, requested.requests)?;
        }
        all.insert(pod.id.uid.clone(), requested);
        Ok(())
    }

    /// Counts a critical pod, which always fits. Returns the pods that have to make room for it; they count no longer.
    pub(crate) fn claim_critical(&self, pod: &Pod) -> Vec<PodUid> {
        let requested = Requested::of(pod);
        let mut all = self.requests.lock();
        let victims = match self.limits {
            Some(limits) if !all.contains_key(&pod.id.uid) => victims(limits, &all, requested.requests),
            _ => Vec::new(),
        };
        all.retain(|uid, _| !victims.contains(uid));
        all.insert(pod.id.uid.clone(), requested);
        victims
    }

    /// Counts a pod that is here already.
    pub(crate) fn adopt(&self, pod: &Pod) {
        self.requests.lock().insert(pod.id.uid.clone(), Requested::of(pod));
    }

    /// The pod has ended.
    pub(crate) fn release(&self, uid: &PodUid) {
        self.requests.lock().remove(uid);
    }
}

/// Whether a pod fits beside all others.
pub(super) fn fits(
    limits: Allocatable,
    all: &BTreeMap<PodUid, Requested>,
    requested: Requests,
) -> Result<(), PodFailure> {
    let limit = |limit: u64| i64::try_from(limit).unwrap_or(i64::MAX);
    let pods = i64::try_from(all.len()).unwrap_or(i64::MAX);
    if pods >= limit(limits.pods) {
        return Err(out_of("pods", 1, pods, limit(limits.pods)));
    }
    let capacity = [limits.milli_cpu, limits.memory, limits.ephemeral_storage].map(limit);
    for (n, name) in NAMES.iter().enumerate() {
        let used = all.values().map(|pod| pod.requests[n]).fold(0, i64::saturating_add);
        if requested[n] > 0 && used.saturating_add(requested[n]) > capacity[n] {
            return Err(out_of(name, requested[n], used, capacity[n]));
        }
    }
    Ok(())
}

fn out_of(name: &str, requested: i64, used: i64, capacity: i64) -> PodFailure {
    PodFailure {
        reason: format!("OutOf{name}"),
        message: format!(
            "Pod was rejected: Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod_named;

    fn pod(name: &str, requests: &str) -> Arc<Pod> {
        let containers = format!("containers: [{{name: a, image: i, resources: {{requests: {{{requests}}}}}}}]");
        pod_named(name, &containers)
    }

    #[test]
    fn what_does_not_fit_is_rejected_until_something_ends() {
        let limits = Allocatable {
            milli_cpu: 1000,
            memory: 1 << 20,
            ephemeral_storage: 1 << 20,
            pods: 2,
        };
        let first = pod("first", "cpu: 600m, memory: 1Ki");
        for (requests, reason) in [
            ("", None),
            ("cpu: 400m", None),
            ("cpu: 401m", Some("OutOfcpu")),
            ("memory: 1Mi", Some("OutOfmemory")),
        ] {
            let all = RequestedResources::limited(limits);
            all.claim(&first).unwrap();
            let other = pod("other", requests);
            let rejected = all.claim(&other).err().map(|failure| failure.reason);
            assert_eq!(rejected.as_deref(), reason, "{requests}");
            all.release(&first.id.uid);
            assert_eq!(all.claim(&other), Ok(()), "{requests}");
        }
        let all = RequestedResources::limited(limits);
        all.claim(&first).unwrap();
        all.claim(&first).unwrap();
        all.adopt(&pod("second", "cpu: 9"));
        // Static pods have no such request.
        let mut storing = (*pod("storing", "")).clone();
        storing.spec.containers[0].resources.ephemeral_storage_request = Some(Quantity::whole(2 << 20));
        let one = RequestedResources::limited(limits);
        assert_eq!(one.claim(&storing).unwrap_err().reason, "OutOfephemeral-storage");
        let third = all.claim(&pod("third", "")).unwrap_err();
        assert_eq!(third.reason, "OutOfpods");
        assert_eq!(
            third.message,
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
        );
        // A critical pod always fits, and those that make room for it count no longer.
        let full = RequestedResources::limited(limits);
        full.claim(&first).unwrap();
        let mut critical = (*pod("critical", "cpu: 900m")).clone();
        critical.spec.priority.value = 2_000_001_000;
        assert_eq!(full.claim_critical(&critical), Vec::<PodUid>::new(), "static pods stay");
        full.release(&critical.id.uid);
        let mut api = (*first).clone();
        api.document = None;
        full.adopt(&api);
        assert_eq!(full.claim_critical(&critical), std::slice::from_ref(&first.id.uid));
        assert_eq!(full.claim(&pod("third", "cpu: 200m")).unwrap_err().reason, "OutOfcpu");
        // Without limits everything fits.
        assert_eq!(RequestedResources::default().claim(&pod("big", "cpu: 1000")), Ok(()));
    }
}
