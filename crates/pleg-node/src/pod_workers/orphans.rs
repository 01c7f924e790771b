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
        self.preexisting = pods;
    }

    /// Pods without a worker that existed before this run and have this name, but are not this pod.
    pub(super) fn preexisting_of_name(&self, name: &Arc<str>, uid: &PodUid) -> Vec<PodRef> {
        let is_other =
            |other: &&PodRef| other.full_name() == *name && other.uid != *uid && !self.workers.contains_key(&other.uid);
        let others = self.preexisting.iter().filter(is_other);
        // A pod with several sandboxes is listed several times.
        let by_uid: BTreeMap<PodUid, PodRef> = others.map(|other| (other.uid.clone(), other.clone())).collect();
        by_uid.into_values().collect()
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
        self.preexisting.retain(|pod| spared.contains(&pod.full_name()));
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
