//! What the generator last committed for every pod, and what the lists have said since.
//!
//! Each container and sandbox has two states here: `listed`, what the newest relist said, and `committed`, what events have been
//! sent for. A pod is *dirty* while the two differ, so a change whose inspection failed is found again by itself. A relist only
//! writes `listed`; a commit only writes `committed`. What is unchanged is recognised while the lists are read, and costs a bit.

mod advance;
pub(crate) mod diff;
mod known;
mod recorded;
pub(crate) mod snapshot;
mod table;

use std::sync::Arc;

use hashbrown::HashMap;
use pleg_cri::{ContainerItem, SandboxItem};

use crate::model::status::{ContainerStatus, PodStatus, SandboxStatus};
use crate::model::{
    ContainerId, ContainerRef, ContainerState, ObjectRef, ObjectState, PodRef, PodUid, PodView, SandboxId, SandboxState,
};
use crate::records::diff::{Change, diff};
use crate::records::snapshot::{ContainerList, Oddities, SandboxList, Snapshot};
pub(crate) use advance::{Alive, Saw};
pub(crate) use known::{Recognised, Seen};
use table::{Item, Shown, State, Table};

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
    /// A relist begins: what was told by id so far is older than what it will list.
    pub(crate) fn begin_relist(&mut self) {
        self.sandboxes.forget_notes();
        self.containers.forget_notes();
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

    /// Takes in a relist. Returns the pods about which it brought news, and what was odd.
    pub fn observe(&mut self, snapshot: &mut Snapshot, coverage: Coverage) -> (Vec<PodKey>, Oddities) {
        self.relist = self.relist.wrapping_add(1);
        let mut odd = snapshot.sandboxes.oddities();
        add(&mut odd, snapshot.containers.oddities());
        let mut seen_sandboxes = std::mem::take(&mut snapshot.sandboxes.seen);
        let mut seen_containers = std::mem::take(&mut snapshot.containers.seen);
        seen_sandboxes.end();
        seen_containers.end();

        // What is as it was is done with; what is left are new items and new states.
        for i in 0..snapshot.sandboxes.len() {
            let item = snapshot.sandboxes.item(i);
            let shown = Shown {
                state: SandboxState::from_wire(item.state),
                clean: item.created_at >= 0 && (0..2).contains(&item.state),
            };
            let news = match self.sandboxes.find(item.id) {
                Some(slot) => self.sandboxes.see(slot, shown, &mut seen_sandboxes, &mut odd),
                None => self.add_sandbox(&item, shown, &mut seen_sandboxes, &mut odd),
            };
            if let Some(pod) = news {
                self.touch(pod);
            }
        }
        for i in 0..snapshot.containers.len() {
            let item = snapshot.containers.item(i);
            let shown = Shown {
                state: ContainerState::from_wire(item.state),
                clean: item.created_at >= 0 && (0..4).contains(&item.state),
            };
            let news = match self.containers.find(item.id) {
                Some(slot) => self.containers.see(slot, shown, &mut seen_containers, &mut odd),
                None => self.add_container(&item, shown, &mut seen_containers, &mut odd),
            };
            if let Some(pod) = news {
                self.touch(pod);
            }
        }
        match coverage {
            Coverage::Full => {
                self.vanish_sandboxes(&seen_sandboxes);
                self.vanish_containers(&seen_containers);
            }
            Coverage::Sandboxes => self.vanish_sandboxes(&seen_sandboxes),
            Coverage::Containers => self.vanish_containers_in_sandboxes(&seen_containers),
            Coverage::Pod(pod) => self.vanish_unseen_of(pod, &seen_sandboxes, &seen_containers),
            Coverage::News => {}
        }
        let denied = self.sandboxes.denied + self.containers.denied;
        odd.listed_not_found = u32::try_from(denied).unwrap_or(u32::MAX);
        // Their room is used again.
        snapshot.sandboxes.seen = seen_sandboxes;
        snapshot.containers.seen = seen_containers;
        (std::mem::take(&mut self.touched), odd)
    }

    /// Gives the list that [`Records::observe`] returned back, so that its room is used again.
    pub fn recycle(&mut self, mut touched: Vec<PodKey>) {
        touched.clear();
        self.touched = touched;
    }

    fn touch(&mut self, pod: PodKey) {
        if let Some(record) = self.pods.get_mut(pod.0 as usize).and_then(Option::as_mut)
            && record.touched != self.relist
        {
            record.touched = self.relist;
            self.touched.push(pod);
        }
    }

    fn add_sandbox(
        &mut self,
        item: &SandboxItem<'_>,
        shown: Shown<SandboxState>,
        seen: &mut Seen,
        odd: &mut Oddities,
    ) -> Option<PodKey> {
        if !item.has_metadata || item.uid.is_empty() {
            odd.sandbox_without_pod += 1;
            return None;
        }
        let (Ok(id), Ok(uid)) = (std::str::from_utf8(item.id), std::str::from_utf8(item.uid)) else {
            odd.bad_text += 1;
            return None;
        };
        let pod = self.pod_for(uid, item.namespace, item.name, odd);
        let new = Item {
            labelled: item.pod_uid_label == item.uid,
            not_found: false,
            listed: Some(shown.state),
            committed: None,
            recorded: None,
            recorded_denied: false,
            pod,
            sandbox: None,
            id: id.into(),
            name: Arc::default(),
            attempt: item.attempt,
            created_at: item.created_at,
        };
        let slot = self.sandboxes.insert(new, shown.clean, seen);
        self.pods[pod.0 as usize].as_mut()?.sandboxes.push(slot);
        Some(pod)
    }

    fn add_container(
        &mut self,
        item: &ContainerItem<'_>,
        shown: Shown<ContainerState>,
        seen: &mut Seen,
        odd: &mut Oddities,
    ) -> Option<PodKey> {
        let Ok(id) = std::str::from_utf8(item.id) else {
            odd.bad_text += 1;
            return None;
        };
        let known = self.sandboxes.find(item.pod_sandbox_id);
        let known = known.and_then(|slot| self.sandboxes.get(slot));
        // A sandbox that is not listed yet is remembered by its name all the same.
        let unlisted = || std::str::from_utf8(item.pod_sandbox_id).ok().map(Arc::from);
        let sandbox = known.map(|known| Arc::clone(&known.id)).or_else(unlisted);
        let pod = match (known.map(|known| known.pod), std::str::from_utf8(item.pod_uid_label)) {
            (Some(pod), _) => pod,
            (None, Ok(uid)) if !uid.is_empty() => self.pod_for(uid, item.pod_namespace_label, item.pod_name_label, odd),
            _ => {
                odd.container_without_pod += 1;
                return None;
            }
        };
        let record = self.pods[pod.0 as usize].as_mut()?;
        let new = Item {
            labelled: item.pod_uid_label == record.names.uid.as_str().as_bytes(),
            not_found: false,
            listed: Some(shown.state),
            committed: None,
            recorded: None,
            recorded_denied: false,
            pod,
            sandbox,
            id: id.into(),
            name: lossy(item.name, odd),
            attempt: item.attempt,
            created_at: item.created_at,
        };
        let slot = self.containers.insert(new, shown.clean, seen);
        record.containers.push(slot);
        Some(pod)
    }

    /// The pod of that UID, made if need be.
    fn pod_for(&mut self, uid: &str, namespace: &[u8], name: &[u8], odd: &mut Oddities) -> PodKey {
        if let Some(&key) = self.by_uid.get(uid) {
            // A container without labels may have come before the sandbox that knows the names.
            if let Some(record) = self.pods[key.0 as usize].as_mut()
                && record.names.name.is_empty()
                && !name.is_empty()
            {
                record.names.namespace = lossy(namespace, odd);
                record.names.name = lossy(name, odd);
            }
            return key;
        }
        let names = PodRef {
            uid: uid.into(),
            namespace: lossy(namespace, odd),
            name: lossy(name, odd),
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pods.push(None);
            u32::try_from(self.pods.len() - 1).unwrap_or(u32::MAX)
        });
        let key = PodKey(slot);
        self.by_uid.insert(names.uid.clone(), key);
        // Not the relist's own number: the first touch has to count.
        let touched = self.relist.wrapping_sub(1);
        self.pods[slot as usize] = Some(Pod {
            names,
            sandboxes: Vec::new(),
            containers: Vec::new(),
            present: false,
            touched,
        });
        key
    }

    fn vanish_sandboxes(&mut self, seen: &Seen) {
        for slot in self.sandboxes.unseen(seen) {
            self.sandboxes.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
        }
    }

    fn vanish_containers(&mut self, seen: &Seen) {
        for slot in self.containers.unseen(seen) {
            self.containers.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
        }
    }

    /// The list of containers alone cannot establish that a pod is gone, so the containers of pods without a sandbox stay.
    fn vanish_containers_in_sandboxes(&mut self, seen: &Seen) {
        for slot in self.containers.unseen(seen) {
            let pod = self
                .containers
                .get(slot)
                .and_then(|item| self.pods.get(item.pod.0 as usize)?.as_ref());
            let listed = |slot: &u32| self.sandboxes.get(*slot).is_some_and(|item| item.listed.is_some());
            if pod.is_some_and(|pod| pod.sandboxes.iter().any(listed)) {
                self.containers.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
            }
        }
    }

    fn vanish_unseen_of(&mut self, key: PodKey, seen_sandboxes: &Seen, seen_containers: &Seen) {
        let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let (sandboxes, containers) = (record.sandboxes.clone(), record.containers.clone());
        for slot in sandboxes {
            if self.sandboxes.get(slot).is_some_and(|s| s.labelled) && !seen_sandboxes.has(slot) {
                self.sandboxes.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
            }
        }
        for slot in containers {
            if self.containers.get(slot).is_some_and(|c| c.labelled) && !seen_containers.has(slot) {
                self.containers.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
            }
        }
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

    /// The state in which an object is listed, unless the runtime denied it when asked by id.
    pub(crate) fn object_state(&self, object: &ObjectRef) -> Option<ObjectState> {
        let id = object.id().as_bytes();
        match object {
            ObjectRef::Container(_) => {
                let item = self.containers.get(self.containers.find(id)?)?;
                item.visible().map(ObjectState::Container)
            }
            ObjectRef::Sandbox { .. } => {
                let item = self.sandboxes.get(self.sandboxes.find(id)?)?;
                item.visible().map(ObjectState::Sandbox)
            }
        }
    }

    /// What the lists say of a sandbox, as long as it has not been inspected.
    pub(crate) fn listed_sandbox(&self, id: &SandboxId, state: SandboxState) -> SandboxStatus {
        let slot = self.sandboxes.find(id.as_str().as_bytes());
        let item = slot.and_then(|slot| self.sandboxes.get(slot));
        let (attempt, created_at) = item.map_or((0, 0), |item| (item.attempt, item.created_at));
        SandboxStatus::listed(id, state, attempt, created_at)
    }

    /// What the lists say of a container, as long as it has not been inspected.
    pub(crate) fn listed_container(&self, container: &ContainerRef, state: ContainerState) -> ContainerStatus {
        let slot = self.containers.find(container.id.as_str().as_bytes());
        let item = slot.and_then(|slot| self.containers.get(slot));
        ContainerStatus::listed(container, state, item.map_or(0, |item| item.created_at))
    }

    /// What the lists say of a pod, as long as it has not been inspected.
    pub(crate) fn listed_status(&self, pod: PodRef, view: &PodView) -> PodStatus {
        let sandboxes = view.sandboxes.iter();
        let containers = view.containers.iter();
        PodStatus {
            pod,
            ips: Box::default(),
            sandboxes: sandboxes.map(|(id, state)| self.listed_sandbox(id, *state)).collect(),
            containers: containers
                .map(|(container, state)| self.listed_container(container, *state))
                .collect(),
        }
    }

    /// What changes when `view` is committed. That the pod is gone is said once nothing of it is listed, and only then.
    pub(crate) fn changes(&self, key: PodKey, view: &PodView) -> Vec<Change> {
        let mut changes = diff(&self.committed(key), view);
        changes.retain(|change| *change != Change::PodRemoved);
        if view.is_empty() && self.is_removed(key) {
            changes.push(Change::PodRemoved);
        }
        changes
    }

    /// Nothing of the pod is listed any more, and its removal is still to be reported.
    pub(crate) fn is_removed(&self, key: PodKey) -> bool {
        let pod = self.pods.get(key.0 as usize).and_then(Option::as_ref);
        pod.is_some_and(|pod| pod.present) && self.listed(key).is_empty()
    }

    /// The pod as the newest relist saw it.
    pub fn listed(&self, key: PodKey) -> PodView {
        self.view(key, Item::visible, Item::visible)
    }

    /// The pod as it was last committed.
    pub fn committed(&self, key: PodKey) -> PodView {
        self.view(key, |s| s.committed, |c| c.committed)
    }

    fn view(
        &self,
        key: PodKey,
        sandbox_state: impl Fn(&Item<SandboxState>) -> Option<SandboxState>,
        container_state: impl Fn(&Item<ContainerState>) -> Option<ContainerState>,
    ) -> PodView {
        let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) else {
            return PodView::default();
        };
        let mut sandboxes: Vec<_> = record
            .sandboxes
            .iter()
            .filter_map(|&slot| self.sandboxes.get(slot))
            .filter_map(|s| {
                Some((
                    (s.created_at, s.attempt),
                    SandboxId::from(Arc::clone(&s.id)),
                    sandbox_state(s)?,
                ))
            })
            .collect();
        sandboxes.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let mut containers: Vec<_> = record
            .containers
            .iter()
            .filter_map(|&slot| self.containers.get(slot))
            .filter_map(|c| Some((c.created_at, c.reference(), container_state(c)?)))
            .collect();
        containers.sort_by(|a, b| (a.0, a.1.attempt, &a.1.name, &a.1.id).cmp(&(b.0, b.1.attempt, &b.1.name, &b.1.id)));
        PodView {
            sandboxes: sandboxes.into_iter().map(|(_, id, state)| (id, state)).collect(),
            containers: containers
                .into_iter()
                .map(|(_, reference, state)| (reference, state))
                .collect(),
        }
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

fn add(odd: &mut Oddities, more: Oddities) {
    odd.empty_id += more.empty_id;
    odd.duplicate_id += more.duplicate_id;
    odd.bad_text += more.bad_text;
    odd.unknown_state += more.unknown_state;
    odd.bad_time += more.bad_time;
}

/// A name is only shown: what is no text in it is replaced, and counted.
fn lossy(text: &[u8], odd: &mut Oddities) -> Arc<str> {
    let text = String::from_utf8_lossy(text);
    odd.bad_text += u32::from(matches!(text, std::borrow::Cow::Owned(_)));
    text.into()
}
