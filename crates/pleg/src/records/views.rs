//! What the records say of a pod: as it is listed, and as it was committed.

use std::sync::Arc;

use super::diff::{Change, diff};
use super::table::Item;
use super::{PodKey, Records};
use crate::model::status::{ContainerStatus, PodStatus, SandboxStatus};
use crate::model::{ContainerRef, ContainerState, ObjectRef, ObjectState, PodRef, PodView, SandboxId, SandboxState};

impl Records {
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
}
