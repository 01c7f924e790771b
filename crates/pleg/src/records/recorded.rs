//! The records in the flight recorder's words: what relists have changed, what is not committed, and how everything stands.

use std::sync::Arc;

use super::table::{self, Item, Table};
use super::{PodKey, Records};
use crate::recorder::line::{Object, ObjectKind, ObjectSeen, ObjectState, PodState, State};

impl<S: Copy + Eq + Into<State>> Item<S> {
    fn object(&self, object: ObjectKind) -> Object {
        Object {
            object,
            id: Arc::clone(&self.id),
            name: Arc::clone(&self.name),
            attempt: self.attempt,
            created_at: self.created_at,
        }
    }

    fn news(&mut self, object: ObjectKind) -> Option<ObjectSeen> {
        let before = std::mem::replace(&mut self.recorded, self.listed);
        let denied = std::mem::replace(&mut self.recorded_denied, self.not_found);
        (before != self.listed).then(|| ObjectSeen {
            about: self.object(object),
            before: before.map(Into::into),
            after: self.listed.map(Into::into),
            denied,
        })
    }

    fn uncommitted(&self) -> Option<(Arc<str>, Option<State>, Option<State>)> {
        let state = |state: Option<S>| state.map(Into::into);
        self.is_dirty()
            .then(|| (Arc::clone(&self.id), state(self.committed), state(self.visible())))
    }

    fn state(&self, object: ObjectKind) -> ObjectState {
        ObjectState {
            about: self.object(object),
            listed: self.recorded.map(Into::into),
            committed: self.committed.map(Into::into),
            denied: self.not_found,
        }
    }
}

fn news<S: table::State + Into<State>>(
    table: &mut Table<S>,
    slots: &[u32],
    object: ObjectKind,
    into: &mut Vec<ObjectSeen>,
) {
    into.extend(slots.iter().filter_map(|&slot| table.get_mut(slot)?.news(object)));
}

impl Records {
    /// Objects of the pod whose listed state is not the one that was returned here before.
    pub(crate) fn news(&mut self, key: PodKey) -> Vec<ObjectSeen> {
        let mut objects = Vec::new();
        if let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) {
            news(
                &mut self.sandboxes,
                &record.sandboxes,
                ObjectKind::Sandbox,
                &mut objects,
            );
            news(
                &mut self.containers,
                &record.containers,
                ObjectKind::Container,
                &mut objects,
            );
        }
        objects
    }

    /// Objects of the pod whose listed state is not the committed one: before and after.
    pub(crate) fn uncommitted(&self, key: PodKey) -> Vec<(Arc<str>, Option<State>, Option<State>)> {
        let Some(record) = self.pods.get(key.0 as usize).and_then(Option::as_ref) else {
            return Vec::new();
        };
        let sandboxes = record.sandboxes.iter().filter_map(|&slot| self.sandboxes.get(slot));
        let containers = record.containers.iter().filter_map(|&slot| self.containers.get(slot));
        sandboxes
            .filter_map(Item::uncommitted)
            .chain(containers.filter_map(Item::uncommitted))
            .collect()
    }

    /// The pod as it stands. What [`Records::news`] has not returned yet is not in it.
    pub(crate) fn state(&self, key: PodKey) -> Option<PodState> {
        let record = self.pods.get(key.0 as usize)?.as_ref()?;
        let sandboxes = record.sandboxes.iter().filter_map(|&slot| self.sandboxes.get(slot));
        let containers = record.containers.iter().filter_map(|&slot| self.containers.get(slot));
        Some(PodState {
            pod: record.names.clone(),
            objects: sandboxes
                .map(|item| item.state(ObjectKind::Sandbox))
                .chain(containers.map(|item| item.state(ObjectKind::Container)))
                .collect(),
        })
    }
}
