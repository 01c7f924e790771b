//! The records as those need them who ask by id: what may still change, whose shim to probe, and what was answered.

use std::sync::Arc;

use super::table::Item;
use super::{Pod, PodKey, Records};
use crate::evented::Reached;
use crate::inspect::Inspected;
use crate::model::status::{ContainerStatus, SandboxStatus};
use crate::model::{ContainerRef, ContainerState, ObjectRef, PodRef, SandboxId, SandboxState};

/// A container or sandbox that may still change: one to ask for by id when lists do not answer.
#[derive(Debug, Clone)]
pub(crate) struct Alive {
    pub(crate) pod: PodKey,
    pub(crate) sandbox: SandboxId,
    /// None: it is about the sandbox.
    pub(crate) container: Option<ContainerRef>,
}

impl Alive {
    /// What it is about.
    pub(crate) fn object(&self) -> ObjectRef {
        match &self.container {
            Some(container) => ObjectRef::Container(container.clone()),
            None => ObjectRef::Sandbox {
                id: self.sandbox.clone(),
            },
        }
    }

    /// The id to ask for.
    pub(crate) fn id(&self) -> Arc<str> {
        match &self.container {
            Some(container) => container.id.shared(),
            None => self.sandbox.shared(),
        }
    }
}

/// A state that a call by id reported.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Saw {
    Sandbox(SandboxState),
    Container(ContainerState),
}

impl Records {
    /// Whatever may still change: containers that have not ended, and ready sandboxes.
    pub(crate) fn alive(&self) -> impl Iterator<Item = Alive> {
        let pods = (0u32..).zip(&self.pods);
        pods.filter_map(|(n, pod)| Some((PodKey(n), pod.as_ref()?)))
            .flat_map(|(key, pod)| {
                let sandboxes = pod.sandboxes.iter().filter_map(|&slot| self.sandboxes.get(slot));
                let ready = sandboxes.filter(|item| item.visible() == Some(SandboxState::Ready));
                let containers = pod.containers.iter().filter_map(|&slot| self.containers.get(slot));
                let alive = containers.filter(|item| !matches!(item.visible(), None | Some(ContainerState::Exited)));
                let of_sandbox = move |item: &Item<SandboxState>| Alive {
                    pod: key,
                    sandbox: SandboxId::from(Arc::clone(&item.id)),
                    container: None,
                };
                let of_container = move |item: &Item<ContainerState>| Alive {
                    pod: key,
                    sandbox: SandboxId::from(item.sandbox.clone().unwrap_or_default()),
                    container: Some(item.reference()),
                };
                ready.map(of_sandbox).chain(alive.map(of_container))
            })
    }

    /// The sandbox that a container is in, where that is known.
    pub(crate) fn sandbox_of(&self, container: &str) -> Option<SandboxId> {
        let item = self.containers.get(self.containers.find(container.as_bytes())?)?;
        item.sandbox.clone().map(SandboxId::from)
    }

    fn newest_sandbox(&self, pod: &Pod) -> Option<&Item<SandboxState>> {
        let sandboxes = pod.sandboxes.iter().filter_map(|&slot| self.sandboxes.get(slot));
        sandboxes.filter(|item| item.visible().is_some()).max_by_key(|item| {
            (
                item.visible() == Some(SandboxState::Ready),
                item.created_at,
                item.attempt,
            )
        })
    }

    /// The ready sandbox of a pod.
    pub(crate) fn ready_sandbox(&self, key: PodKey) -> Option<(PodRef, SandboxId)> {
        let pod = self.pods.get(key.0 as usize)?.as_ref()?;
        let sandbox = self.newest_sandbox(pod)?;
        let ready = sandbox.visible() == Some(SandboxState::Ready);
        ready.then(|| (pod.names.clone(), SandboxId::from(Arc::clone(&sandbox.id))))
    }

    /// The first pod with a ready sandbox after the given one, round and round.
    pub(crate) fn next_ready(&self, after: Option<PodKey>) -> Option<(PodKey, (PodRef, SandboxId))> {
        let len = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        let first = after.map_or(0, |key| key.0.saturating_add(1));
        (first..len)
            .chain(0..first.min(len))
            .map(PodKey)
            .find_map(|key| Some((key, self.ready_sandbox(key)?)))
    }

    /// Up to `n` other pods with a ready sandbox, spread over all there are.
    pub(crate) fn spread_from(&self, of: PodKey, n: u32) -> impl Iterator<Item = (PodKey, PodRef)> {
        let len = u32::try_from(self.pods.len()).unwrap_or(u32::MAX).max(1);
        let mut last = of;
        (0..n).filter_map(move |i| {
            let step = u64::from(len) * u64::from(i) / u64::from(n);
            let after = (u64::from(of.0) + step) % u64::from(len);
            let (key, (pod, _)) = self.next_ready(Some(PodKey(u32::try_from(after).ok()?)))?;
            // Where there are few, two steps may lead to the same.
            let found = key != of && std::mem::replace(&mut last, key) != key;
            found.then_some((key, pod))
        })
    }

    /// A container of the pod that has not exited: the one whose `turn` it is, round and round.
    pub(crate) fn alive_container(&self, key: PodKey, turn: usize) -> Option<ContainerRef> {
        let containers = self.alive_containers(key).count();
        let nth = turn.checked_rem(containers)?;
        self.alive_containers(key).nth(nth).map(Item::reference)
    }

    /// The container of that id, if it is the pod's and has not exited.
    pub(crate) fn alive_container_of(&self, key: PodKey, id: &str) -> Option<ContainerRef> {
        let mut containers = self.alive_containers(key);
        containers.find(|item| &*item.id == id).map(Item::reference)
    }

    fn alive_containers(&self, key: PodKey) -> impl Iterator<Item = &Item<ContainerState>> {
        let pod = self.pods.get(key.0 as usize).and_then(Option::as_ref);
        let slots = pod.into_iter().flat_map(|pod| pod.containers.iter());
        slots
            .filter_map(|&slot| self.containers.get(slot))
            .filter(|item| !matches!(item.visible(), None | Some(ContainerState::Exited)))
    }

    /// The pod of a container or sandbox.
    pub(crate) fn pod_of(&self, id: &str) -> Option<PodKey> {
        let container = self
            .containers
            .find(id.as_bytes())
            .and_then(|slot| self.containers.get(slot));
        let sandbox = || {
            self.sandboxes
                .find(id.as_bytes())
                .and_then(|slot| self.sandboxes.get(slot))
        };
        container.map(|item| item.pod).or_else(|| Some(sandbox()?.pod))
    }

    /// An object has come as far as an event says, or further, by what was last seen of it. So has one that is not known: it is gone,
    /// or lists will tell.
    pub(crate) fn has_reached(&self, id: &str, reached: Reached) -> bool {
        let container = self.containers.find(id.as_bytes());
        if let Some(item) = container.and_then(|slot| self.containers.get(slot)) {
            return match (item.visible(), reached) {
                (None | Some(ContainerState::Exited), Reached::Running | Reached::Ended) | (None, Reached::Gone) => {
                    true
                }
                (Some(state), Reached::Running) => state != ContainerState::Created,
                (Some(_), Reached::Ended | Reached::Gone) => false,
            };
        }
        let sandbox = self.sandboxes.find(id.as_bytes());
        sandbox
            .and_then(|slot| self.sandboxes.get(slot))
            .is_none_or(|item| match (item.visible(), reached) {
                (None, _) => true,
                (Some(state), Reached::Running) => state == SandboxState::Ready,
                (Some(state), Reached::Ended) => state == SandboxState::NotReady,
                (Some(_), Reached::Gone) => false,
            })
    }

    /// An inspection found something in a later state than the lists show.
    pub(crate) fn is_behind(&self, inspected: &Inspected) -> bool {
        let sandbox = |status: &SandboxStatus| {
            let slot = self.sandboxes.find(status.id.as_str().as_bytes());
            slot.is_some_and(|slot| self.sandboxes.is_behind(slot, status.state))
        };
        let container = |status: &ContainerStatus| {
            let slot = self.containers.find(status.id.as_str().as_bytes());
            slot.is_some_and(|slot| self.containers.is_behind(slot, status.state))
        };
        inspected.sandboxes.iter().flatten().any(sandbox) || inspected.containers.iter().flatten().any(container)
    }

    /// It is the id of a sandbox.
    pub(crate) fn is_sandbox(&self, id: &str) -> bool {
        self.sandboxes.find(id.as_bytes()).is_some()
    }

    /// Takes in what an inspection said of objects that are listed, as far as it is ahead: states only ever move on, and the list
    /// may be newer. Returns whether anything was.
    pub(crate) fn advance(&mut self, inspected: &Inspected) -> bool {
        let mut news = false;
        for status in inspected.sandboxes.iter().flatten() {
            let slot = self.sandboxes.find(status.id.as_str().as_bytes());
            news |= slot.is_some_and(|slot| self.sandboxes.note(slot, status.state).is_some());
        }
        for status in inspected.containers.iter().flatten() {
            let slot = self.containers.find(status.id.as_str().as_bytes());
            news |= slot.is_some_and(|slot| self.containers.note(slot, status.state).is_some());
        }
        news
    }

    /// Takes in what the runtime said when asked by id while a list is in flight. Returns the pod if that is news.
    pub(crate) fn note(&mut self, who: &Alive, saw: Saw) -> Option<PodKey> {
        let id = who.id();
        match saw {
            Saw::Sandbox(state) => self.sandboxes.note(self.sandboxes.find(id.as_bytes())?, state),
            Saw::Container(state) => self.containers.note(self.containers.find(id.as_bytes())?, state),
        }
    }
}
