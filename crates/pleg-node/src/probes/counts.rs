//! How often each probe of each container was run, and how that went: what `/metrics/probes` shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::{PodRef, PodUid};

use crate::manifest::ProbeKind;

/// The results of one probe so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeCount {
    /// It succeeded.
    pub successful: u64,
    /// It failed.
    pub failed: u64,
    /// It could not be run.
    pub unknown: u64,
}

/// The probes of a pod's containers, by container and kind.
#[derive(Debug, Clone)]
struct PodCounts {
    pod: PodRef,
    probes: BTreeMap<(String, ProbeKind), ProbeCount>,
}

/// The counts of all pods that have probes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ProbeCounts {
    // Held for a read or a change; never across an await. Pods that are gone are removed.
    pods: Arc<Mutex<BTreeMap<PodUid, PodCounts>>>,
}

impl ProbeCounts {
    /// Counts a result; none if the probe could not be run.
    pub(super) fn count(&self, pod: &PodRef, container: &str, kind: ProbeKind, success: Option<bool>) {
        let mut pods = self.pods.lock();
        let counts = pods.entry(pod.uid.clone()).or_insert_with(|| PodCounts {
            pod: pod.clone(),
            probes: BTreeMap::new(),
        });
        let count = counts.probes.entry((container.to_owned(), kind)).or_default();
        match success {
            Some(true) => count.successful += 1,
            Some(false) => count.failed += 1,
            None => count.unknown += 1,
        }
    }

    /// The pod is gone.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.pods.lock().remove(uid);
    }

    /// All counts: pod, container, probe.
    pub fn all(&self) -> Vec<(PodRef, String, ProbeKind, ProbeCount)> {
        let pods = self.pods.lock();
        let counts = pods.values().flat_map(|counts| {
            let probes = counts.probes.iter();
            probes.map(|((container, kind), count)| (counts.pod.clone(), container.clone(), *kind, *count))
        });
        counts.collect()
    }
}
