//! What the API server has of this node's pods, shared by the parts that read it and the few that write it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use parking_lot::Mutex;
use pleg::{PodRef, PodUid};
use pleg_node::manifest::Pod;
use pleg_node::reconcile::history::PodFailure;
use pleg_node::sources::{Origin, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use super::known::{ApiPod, Changed, KnownPods, Listed, Mirror};

/// What the API server has of each pod. Clones share it. [`super::PodSource`] fills it; publishers add the answers to their writes.
#[derive(Debug, Clone)]
pub struct PodTable {
    // Held for a lookup or a change; never across an await.
    known: Arc<Mutex<KnownPods>>,
    desired: watch::Sender<u64>,
    mirrors: watch::Sender<u64>,
}

impl Default for PodTable {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            desired: watch::Sender::new(0),
            mirrors: watch::Sender::new(0),
        }
    }
}

impl PodTable {
    /// Waits for the first complete list.
    pub(crate) async fn synced(&self) {
        // It cannot be closed: we have the sender. The first list always counts as a change.
        let _ = self.desired.subscribe().wait_for(|_| self.is_synced()).await;
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.known.lock().is_synced()
    }

    pub(crate) fn get(&self, uid: &PodUid) -> Option<ApiPod> {
        self.known.lock().get(uid).cloned()
    }

    pub(crate) fn mirror(&self, full_name: &str) -> Option<Mirror> {
        self.known.lock().mirrors().get(full_name).cloned()
    }

    pub(crate) fn mirrors(&self) -> BTreeMap<Arc<str>, Mirror> {
        self.known.lock().mirrors().clone()
    }

    /// The UIDs of the static pods that have a mirror pod.
    pub(crate) fn mirrored(&self) -> Vec<PodUid> {
        let known = self.known.lock();
        known.mirrors().values().filter_map(Mirror::of).collect()
    }

    /// Changes of the pods that the node runs.
    pub(crate) fn desired_changes(&self) -> watch::Receiver<u64> {
        self.desired.subscribe()
    }

    /// Changes of mirror pods.
    pub(crate) fn mirror_changes(&self) -> watch::Receiver<u64> {
        self.mirrors.subscribe()
    }

    pub(crate) fn take_touched(&self) -> BTreeSet<PodUid> {
        self.known.lock().take_touched()
    }

    /// The newest version that was seen of any pod.
    pub(crate) fn newest(&self) -> u64 {
        self.known.lock().newest()
    }

    pub(crate) fn snapshot(&self, origin: &Origin) -> Snapshot {
        self.known.lock().snapshot(origin)
    }

    pub(crate) fn held(&self) -> Vec<Arc<Pod>> {
        self.known.lock().held()
    }

    pub(crate) fn checked(&self, uid: &PodUid, verdict: Result<(), PodFailure>) {
        self.change(|known| known.checked(uid, verdict));
    }

    pub(crate) fn next_missing(&self) -> Option<(Instant, PodRef)> {
        self.known.lock().next_missing()
    }

    /// An object as the API server has it: from the watch, or the answer to a write.
    pub(crate) fn apply(&self, object: core::Pod) {
        self.change(|known| known.apply(object));
    }

    pub(crate) fn delete(&self, object: &core::Pod) {
        self.change(|known| known.delete(object));
    }

    pub(crate) fn relist(&self, listed: Listed) {
        self.change(|known| known.relist(listed, Instant::now()));
    }

    /// This mirror pod was deleted. The watch says so too, but later.
    pub(crate) fn forget_mirror(&self, id: &PodRef) {
        self.change(|known| known.forget_mirror(&id.uid));
    }

    pub(crate) fn asked(&self, id: &PodRef, found: Option<core::Pod>) {
        self.change(|known| known.asked(id, found));
    }

    pub(crate) fn ask_again(&self, uid: &PodUid) {
        self.known.lock().ask_again(uid, Instant::now());
    }

    #[cfg(test)]
    pub(crate) fn relist_for_tests(&self, pods: Vec<core::Pod>) {
        self.relist(Listed {
            pods,
            version: "1".to_owned(),
            newest_before: 0,
        });
    }

    fn change(&self, change: impl FnOnce(&mut KnownPods) -> Changed) {
        let changed = change(&mut self.known.lock());
        if changed.desired {
            self.desired.send_modify(|version| *version += 1);
        }
        if changed.mirrors {
            self.mirrors.send_modify(|version| *version += 1);
        }
    }
}
