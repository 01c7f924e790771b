//! What the generator last committed for every pod, and what the lists have said since.
//!
//! Each container and sandbox has two states here: `listed`, what the newest relist said, and `committed`, what events have been
//! sent for. A pod is *dirty* while the two differ, so a change whose inspection failed is found again by itself. A relist only
//! writes `listed`; a commit only writes `committed`. What is unchanged is recognised while the lists are read, and costs a bit.

mod advance;
pub(crate) mod diff;
mod known;
mod observe;
mod recorded;
pub(crate) mod snapshot;
mod table;
mod views;

use std::sync::Arc;

use hashbrown::HashMap;

use crate::model::{ContainerId, ContainerRef, ContainerState, PodRef, PodUid, PodView, SandboxId, SandboxState};
use crate::records::snapshot::{ContainerList, SandboxList, Snapshot};
pub(crate) use advance::{Alive, Saw};
pub(crate) use known::{Recognised, Seen};
use table::{Item, State, Table};

/// A pod's place in the records. Valid until the pod is dropped from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey(u32);

#[derive(Debug)]
struct Pod {
    names: PodRef,
    sandboxes: Vec<u32>,
    containers: Vec<u32>,
    /// Events of the pod were sent, and its removal was not.
    present: bool,
    /// The relist that last touched it, so that it is reported once.
    touched: u32,
}

/// The records of all pods.
#[derive(Debug, Default)]
pub struct Records {
    pods: Vec<Option<Pod>>,
    free: Vec<u32>,
    by_uid: HashMap<PodUid, PodKey>,
    sandboxes: Table<SandboxState>,
    containers: Table<ContainerState>,
    /// Counts relists, so that a pod is touched once in each.
    relist: u32,
    /// Pods with news in the relist that is being taken in; reused.
    touched: Vec<PodKey>,
    /// The relist that is being taken in left containers listed that it found absent.
    unsettled: bool,
}

/// Which part of the node a relist covered: what it may declare absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Everything.
    Full,
    /// All sandboxes: the list of containers was not answered.
    Sandboxes,
    /// All containers: the list of sandboxes was not answered.
    Containers,
    /// One pod's labelled objects.
    Pod(PodKey),
    /// Nothing that was known before.
    News,
}

impl Records {
    /// A relist begins: what calls by id reported so far is older than what it will list.
    pub(crate) fn begin_relist(&mut self) {
        self.sandboxes.forget_notes();
        self.containers.forget_notes();
        self.unsettled = false;
    }

    /// The relist found containers absent that stay listed, because its lists were taken in one after the other.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Empties the snapshot for a relist, and lets it recognise what will be unchanged.
    pub fn prepare(&self, snapshot: &mut Snapshot) {
        snapshot.clear();
        self.sandboxes.prepare(&mut snapshot.sandboxes.seen);
        self.containers.prepare(&mut snapshot.containers.seen);
    }

    /// The same for one of the lists.
    pub(crate) fn prepare_sandboxes(&self, list: &mut SandboxList) {
        self.sandboxes.prepare(&mut list.seen);
    }

    /// The same for the other one.
    pub(crate) fn prepare_containers(&self, list: &mut ContainerList) {
        self.containers.prepare(&mut list.seen);
    }

    /// The place of a pod.
    pub fn key(&self, uid: &PodUid) -> Option<PodKey> {
        self.by_uid.get(uid).copied()
    }

    /// The names of a pod.
    pub fn pod(&self, key: PodKey) -> Option<&PodRef> {
        self.pods.get(key.0 as usize)?.as_ref().map(|record| &record.names)
    }

    /// How many pods there are.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// No pods at all.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Every object of the pod carries its UID as a label, so that a list filtered by it is complete.
    pub fn is_labelled(&self, key: PodKey) -> bool {
        let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) else {
            return false;
        };
        record
            .sandboxes
            .iter()
            .all(|&s| self.sandboxes.get(s).is_none_or(|s| s.labelled))
            && record
                .containers
                .iter()
                .all(|&c| self.containers.get(c).is_none_or(|c| c.labelled))
    }

    /// Something was seen that has not been committed.
    pub fn is_dirty(&self, key: PodKey) -> bool {
        self.is_dirty_beside(key, |_| false)
    }

    /// The same, leaving aside the objects that `is_aside` names.
    pub(crate) fn is_dirty_beside(&self, key: PodKey, is_aside: impl Fn(&Arc<str>) -> bool) -> bool {
        let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) else {
            return false;
        };
        let sandboxes = record.sandboxes.iter().filter_map(|&slot| self.sandboxes.get(slot));
        let containers = record.containers.iter().filter_map(|&slot| self.containers.get(slot));
        sandboxes.into_iter().any(|item| item.is_dirty() && !is_aside(&item.id))
            || containers
                .into_iter()
                .any(|item| item.is_dirty() && !is_aside(&item.id))
    }

    /// The runtime denied these objects when asked by id: they are gone, whatever the list said.
    pub fn not_found(&mut self, sandboxes: &[SandboxId], containers: &[ContainerId]) {
        for id in sandboxes {
            if let Some(slot) = self.sandboxes.find(id.as_str().as_bytes()) {
                self.sandboxes.deny(slot);
            }
        }
        for id in containers {
            if let Some(slot) = self.containers.find(id.as_str().as_bytes()) {
                self.containers.deny(slot);
            }
        }
    }

    /// Makes `view` what was last committed for the pod, and drops what neither is listed nor was committed. Returns false once
    /// the pod itself is dropped.
    pub fn commit(&mut self, key: PodKey, view: &PodView) -> bool {
        let listed = !view.is_empty() || !self.listed(key).is_empty();
        let Some(record) = self.pods.get_mut(key.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        record.present = listed && (record.present || !view.is_empty());
        let (sandboxes, containers) = (view.sandbox_states(), view.container_states());
        record.sandboxes.retain(|&slot| {
            let Some(item) = self.sandboxes.get_mut(slot) else {
                return false;
            };
            item.committed = sandboxes.get(&*item.id).copied();
            let keep = item.committed.is_some() || item.listed.is_some();
            if !keep {
                self.sandboxes.remove(slot);
            }
            keep
        });
        record.containers.retain(|&slot| {
            let Some(item) = self.containers.get_mut(slot) else {
                return false;
            };
            item.committed = containers.get(&*item.id).copied();
            let keep = item.committed.is_some() || item.listed.is_some();
            if !keep {
                self.containers.remove(slot);
            }
            keep
        });
        if record.sandboxes.is_empty() && record.containers.is_empty() {
            self.by_uid.remove(&record.names.uid);
            self.pods[key.0 as usize] = None;
            self.free.push(key.0);
            return false;
        }
        true
    }

    /// Drops what neither is listed nor was committed, without committing anything. Returns false once the pod itself is dropped.
    pub fn sweep(&mut self, key: PodKey) -> bool {
        let committed = self.committed(key);
        self.commit(key, &committed)
    }

    /// Every pod.
    pub fn keys(&self) -> impl Iterator<Item = PodKey> {
        self.by_uid.values().copied()
    }

    /// How many containers and sandboxes are listed.
    pub fn objects(&self) -> usize {
        self.sandboxes.listed + self.containers.listed
    }

    /// How many containers are listed in each state, in the order of [`ContainerState::ALL`]; and how many pods have a ready sandbox.
    pub fn census(&self) -> ([usize; 4], usize) {
        let mut states = [0; 4];
        for state in self.containers.items().filter_map(|item| item.listed) {
            states[state as usize] += 1;
        }
        let ready = |slot: &u32| {
            self.sandboxes
                .get(*slot)
                .is_some_and(|s| s.listed == Some(SandboxState::Ready))
        };
        let pods = self
            .pods
            .iter()
            .flatten()
            .filter(|pod| pod.sandboxes.iter().any(ready))
            .count();
        (states, pods)
    }
}

impl Item<ContainerState> {
    fn reference(&self) -> ContainerRef {
        ContainerRef {
            id: ContainerId::from(Arc::clone(&self.id)),
            name: Arc::clone(&self.name),
            attempt: self.attempt,
        }
    }
}

impl State for SandboxState {
    fn to_wire(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::NotReady => 1,
        }
    }
}

impl State for ContainerState {
    fn to_wire(self) -> u8 {
        match self {
            Self::Created => 0,
            Self::Running => 1,
            Self::Exited => 2,
            Self::Unknown => 3,
        }
    }

    /// A container that the runtime lost sight of may end; one that has ended stays so.
    fn stage(self) -> u8 {
        match self {
            Self::Created => 0,
            Self::Running => 1,
            Self::Unknown => 2,
            Self::Exited => 3,
        }
    }
}
