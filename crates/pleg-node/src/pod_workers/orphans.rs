//! Pods of an earlier run of `pleg node`: adopted if a source desires them, else terminated as orphans.
//!
//! Pods are ours if they carry our label, so pods of other owners are never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleg::{PodRef, PodUid};
use tracing::info;

use super::PodWorkers;
use crate::manifest::Pod;
use crate::reconcile::decide::Goal;
use crate::reconcile::history::PodHistory;
use crate::sources::DesiredPod;

impl PodWorkers {
    /// What the store has from an earlier run.
    pub(crate) fn restore(&mut self, histories: BTreeMap<PodUid, PodHistory>, pods: Vec<DesiredPod>) {
        self.histories = histories;
        let by_uid = |stored: DesiredPod| (stored.pod.id.uid.clone(), stored.pod);
        self.stored_pods = pods.into_iter().map(by_uid).collect();
    }

    /// These pods of ours existed before this run.
    pub(crate) fn set_preexisting(&mut self, pods: Vec<PodRef>) {
        self.preexisting.clear();
        for pod in pods {
            // A pod with several sandboxes is listed several times.
            let of_name = self.preexisting.entry(pod.full_name()).or_default();
            of_name.insert(pod.uid.clone(), pod);
        }
    }

    /// This pod has a worker.
    pub(super) fn forget_preexisting(&mut self, pod: &PodRef) {
        let name = pod.full_name();
        if let Some(of_name) = self.preexisting.get_mut(&name) {
            of_name.remove(&pod.uid);
            if of_name.is_empty() {
                self.preexisting.remove(&name);
            }
        }
    }

    /// Pods without a worker that existed before this run and have this name, but are not this pod.
    pub(super) fn preexisting_of_name(&self, name: &Arc<str>, uid: &PodUid) -> Vec<PodRef> {
        let of_name = self.preexisting.get(name).into_iter().flat_map(BTreeMap::values);
        let is_other = |other: &&PodRef| other.uid != *uid && !self.workers.contains_key(&other.uid);
        of_name.filter(is_other).cloned().collect()
    }

    /// Terminates orphaned pods: their manifests were removed while we were not running. `ours` are the pods that the runtime has; pods
    /// known from the store alone are terminated too, because their directories may be left. Pods with a name in `spared` are kept: their
    /// manifests exist, but are broken.
    pub(crate) fn terminate_orphans(
        &mut self,
        ours: Vec<PodRef>,
        desired: &BTreeSet<PodUid>,
        spared: &BTreeSet<Arc<str>>,
    ) {
        self.preexisting.retain(|name, _| spared.contains(name));
        let stored: Vec<PodRef> = self.stored_pods.values().map(|pod| pod.id.clone()).collect();
        let mut kept = desired.clone();
        for id in ours.into_iter().chain(stored) {
            if spared.contains(&id.full_name()) {
                kept.insert(id.uid);
            } else if !desired.contains(&id.uid) && !self.workers.contains_key(&id.uid) {
                self.terminate_orphan(id, "no manifest defines it");
            }
        }
        // The history of all other pods is no longer needed.
        self.histories.retain(|uid, _| {
            let stays = kept.contains(uid);
            if let (Some(store), false) = (&self.context.store, stays) {
                store.delete(uid);
            }
            stays
        });
    }

    /// Terminates a pod that has no worker: with its grace period and hooks if its manifest is stored, else with the defaults.
    pub(crate) fn terminate_orphan(&mut self, id: PodRef, why: &str) {
        let stored = self.stored_pods.get(&id.uid).cloned();
        let pod = stored.unwrap_or_else(|| Arc::new(Pod::without_manifest(id)));
        info!(pod = %pod.id, "terminating pod: {why}");
        self.context.metrics.orphan();
        let goal = Goal::Terminate {
            since: self.context.clock.now(),
            grace: pod.spec.termination_grace,
        };
        self.spawn(pod, goal);
    }
}
