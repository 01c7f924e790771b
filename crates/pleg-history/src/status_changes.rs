//! What changed in the status of a pod that no event tells: addresses, labels, images, limits, the runtime's message about an end.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleg::{Cache, PodStatus, PodUid};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::codec::Labels;
use crate::entry::{FieldChange, PodStatusChanged};
use crate::store::PodLabels;

/// A value is cut to this many bytes.
const VALUE_LIMIT: usize = 1024;
/// Changes of one pod at once; a pod has a handful of containers.
const MOST_CHANGES: usize = 256;

/// The statuses as they were last written. Shares them with the cache, so it costs a pointer for each pod.
#[derive(Debug, Default)]
pub(crate) struct StatusChanges {
    known: FxHashMap<PodUid, Arc<PodStatus>>,
    /// Pods with events since the last comparison.
    touched: FxHashSet<PodUid>,
}

impl StatusChanges {
    /// Something happened to the pod.
    pub(crate) fn touch(&mut self, uid: &PodUid) {
        self.touched.insert(uid.clone());
    }

    /// Compares every pod next time: for changes that come without an event.
    pub(crate) fn touch_all(&mut self, cache: &Cache) {
        for entry in cache.entries() {
            let uid = &entry.status.pod.uid;
            let same = self
                .known
                .get(uid)
                .is_some_and(|known| Arc::ptr_eq(known, &entry.status));
            if !same {
                self.touched.insert(uid.clone());
            }
        }
    }

    /// What changed since the last call, for each pod that was touched.
    pub(crate) fn compare(&mut self, cache: &Cache) -> Vec<PodStatusChanged> {
        let mut changed = Vec::new();
        for uid in self.touched.drain() {
            let Some(entry) = cache.get(&uid).filter(|entry| !is_gone(&entry.status)) else {
                self.known.remove(&uid);
                continue;
            };
            let before = self.known.insert(uid, Arc::clone(&entry.status));
            if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &entry.status)) {
                continue;
            }
            let changes = diff(before.as_deref(), &entry.status);
            if !changes.is_empty() {
                changed.push(PodStatusChanged {
                    pod: entry.status.pod.clone(),
                    changes,
                });
            }
        }
        // In an order that does not depend on hashes.
        changed.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        changed
    }
}

impl PodLabels for StatusChanges {
    fn labels(&self, uid: &PodUid) -> Option<Labels> {
        let labels = self.known.get(uid)?.labels()?;
        Some(labels.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

fn is_gone(status: &PodStatus) -> bool {
    status.sandboxes.is_empty() && status.containers.is_empty()
}

/// The fields of a status that are compared: of which container, and which.
type Fields = BTreeMap<(Option<String>, &'static str), String>;

fn fields(status: &PodStatus) -> Fields {
    let mut fields = Fields::new();
    let mut set = |container: Option<&str>, name: &'static str, value: String| {
        if !value.is_empty() {
            let end = value.floor_char_boundary(VALUE_LIMIT);
            fields.insert((container.map(str::to_owned), name), value[..end].to_owned());
        }
    };
    let ips: Vec<String> = status.ips.iter().map(ToString::to_string).collect();
    set(None, "ips", ips.join(","));
    if let Some(labels) = status.labels() {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        set(None, "labels", labels.join(","));
    }
    if let Some(sandbox) = status.sandboxes.first() {
        set(None, "runtime_handler", sandbox.runtime_handler.to_string());
    }
    // The oldest first: of several with one name, the newest stays.
    for container in &status.containers {
        let name = Some(&*container.name);
        set(name, "image", container.image.to_string());
        set(name, "image_ref", container.image_ref.to_string());
        set(name, "message", container.message.to_string());
        if let Some(resources) = container.resources.as_deref() {
            let mut limit = |field, value: i64| {
                if value != 0 {
                    set(name, field, value.to_string());
                }
            };
            limit("cpu_period", resources.cpu_period);
            limit("cpu_quota", resources.cpu_quota);
            limit("cpu_shares", resources.cpu_shares);
            limit("memory_limit_in_bytes", resources.memory_limit_in_bytes);
        }
    }
    fields
}

fn diff(before: Option<&PodStatus>, now: &PodStatus) -> Vec<FieldChange> {
    let mut before = before.map(fields).unwrap_or_default();
    let mut changes = Vec::new();
    for ((container, field), to) in fields(now) {
        let from = before.remove(&(container.clone(), field));
        if from.as_ref() != Some(&to) {
            changes.push(FieldChange {
                container,
                field: field.to_owned(),
                from,
                to: Some(to),
            });
        }
    }
    // A container that is gone is an event; a field that is gone is not.
    let has = |name: &Option<String>| match name {
        None => true,
        Some(name) => now.containers.iter().any(|container| *container.name == **name),
    };
    for ((container, field), from) in before.into_iter().filter(|((container, _), _)| has(container)) {
        changes.push(FieldChange {
            container,
            field: field.to_owned(),
            from: Some(from),
            to: None,
        });
    }
    changes.truncate(MOST_CHANGES);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn status(image: &str, message: &str) -> PodStatus {
        let container = pleg::ContainerRef {
            id: "c".into(),
            name: "app".into(),
            attempt: 0,
        };
        let mut container = pleg::ContainerStatus::listed(&container, pleg::ContainerState::Running, 1);
        container.image = image.into();
        container.message = message.into();
        let mut status = PodStatus::empty(pod(1));
        status.ips = ["10.0.0.7".parse().unwrap()].into();
        status.containers = [container].into();
        status
    }

    #[test]
    fn only_what_changed_is_told() {
        let change = |container: Option<&str>, field: &str, from: Option<&str>, to: Option<&str>| FieldChange {
            container: container.map(str::to_owned),
            field: field.to_owned(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        };
        let (old, new) = (status("nginx:1", "cannot start"), status("nginx:2", ""));
        assert_eq!(
            diff(None, &old),
            [
                change(None, "ips", None, Some("10.0.0.7")),
                change(Some("app"), "image", None, Some("nginx:1")),
                change(Some("app"), "message", None, Some("cannot start")),
            ]
        );
        assert_eq!(
            diff(Some(&old), &new),
            [
                change(Some("app"), "image", Some("nginx:1"), Some("nginx:2")),
                change(Some("app"), "message", Some("cannot start"), None),
            ]
        );
        assert_eq!(diff(Some(&old), &old), []);
        // A container that is gone is no change of its fields.
        let mut gone = old.clone();
        gone.containers = [].into();
        assert_eq!(diff(Some(&old), &gone), []);
    }
}
