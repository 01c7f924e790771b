//! Takes in what a relist listed: new objects, new states, and what is listed no more.

use std::sync::Arc;

use pleg_cri::{ContainerItem, SandboxItem};

use super::known::Seen;
use super::snapshot::{Oddities, Snapshot};
use super::table::{Item, Shown};
use super::{Coverage, Pod, PodKey, Records};
use crate::model::{ContainerState, PodRef, SandboxState};

impl Records {
    /// Takes in a relist. Returns the pods about which it brought news, and what was odd.
    pub fn observe(&mut self, snapshot: &mut Snapshot, coverage: Coverage) -> (Vec<PodKey>, Oddities) {
        self.relist = self.relist.wrapping_add(1);
        let mut odd = snapshot.sandboxes.oddities();
        add(&mut odd, snapshot.containers.oddities());
        let mut seen_sandboxes = std::mem::take(&mut snapshot.sandboxes.seen);
        let mut seen_containers = std::mem::take(&mut snapshot.containers.seen);
        seen_sandboxes.end();
        seen_containers.end();

        self.observe_sandboxes(snapshot, &mut seen_sandboxes, &mut odd);
        self.observe_containers(snapshot, &mut seen_containers, &mut odd);
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

    /// What is as it was has been recognised while the list was read; what is left in the snapshot are new items and new states.
    fn observe_sandboxes(&mut self, snapshot: &Snapshot, seen: &mut Seen, odd: &mut Oddities) {
        for i in 0..snapshot.sandboxes.len() {
            let item = snapshot.sandboxes.item(i);
            let shown = Shown {
                state: SandboxState::from_wire(item.state),
                clean: item.created_at >= 0 && (0..2).contains(&item.state),
            };
            let news = match self.sandboxes.find(item.id) {
                Some(slot) => self.sandboxes.see(slot, shown, seen, odd),
                None => self.add_sandbox(&item, shown, seen, odd),
            };
            if let Some(pod) = news {
                self.touch(pod);
            }
        }
    }

    fn observe_containers(&mut self, snapshot: &Snapshot, seen: &mut Seen, odd: &mut Oddities) {
        for i in 0..snapshot.containers.len() {
            let item = snapshot.containers.item(i);
            let shown = Shown {
                state: ContainerState::from_wire(item.state),
                clean: item.created_at >= 0 && (0..4).contains(&item.state),
            };
            let news = match self.containers.find(item.id) {
                Some(slot) => self.containers.see(slot, shown, seen, odd),
                None => self.add_container(&item, shown, seen, odd),
            };
            if let Some(pod) = news {
                self.touch(pod);
            }
        }
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

    /// The list of containers alone cannot establish that a pod is gone, so the containers of pods without a sandbox stay. The relist
    /// then leaves something unsettled.
    fn vanish_containers_in_sandboxes(&mut self, seen: &Seen) {
        for slot in self.containers.unseen(seen) {
            let pod = self
                .containers
                .get(slot)
                .and_then(|item| self.pods.get(item.pod.0 as usize)?.as_ref());
            let listed = |slot: &u32| self.sandboxes.get(*slot).is_some_and(|item| item.listed.is_some());
            if pod.is_some_and(|pod| pod.sandboxes.iter().any(listed)) {
                self.containers.vanish(slot).into_iter().for_each(|pod| self.touch(pod));
            } else {
                self.unsettled = true;
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
