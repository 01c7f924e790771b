//! The content of the lists: pods, containers, dead containers, orphans, odd objects. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pleg::internals::{Coverage, Records, Snapshot};
use pleg::{ContainerState, SandboxState};

use super::facts::{DeadOf, Inventory, Object};

/// Builds the inventory. A list that was not answered must be empty.
pub(super) fn take(snapshot: &mut Snapshot) -> Inventory {
    let mut inventory = by_name(snapshot);
    let mut records = Records::default();
    let (_, odd) = records.observe(snapshot, Coverage::Full);
    (inventory.pods, inventory.odd) = (records.len(), odd);
    inventory
}

fn by_name(snapshot: &Snapshot) -> Inventory {
    let mut inventory = Inventory::default();
    let sandboxes = take_sandboxes(snapshot, &mut inventory);
    take_containers(snapshot, &sandboxes, &mut inventory);
    // Lists are in any order; reports are sorted.
    let key = |object: &Arc<Object>| {
        (
            !object.alive,
            object.pod.clone(),
            object.container.clone(),
            object.id.clone(),
        )
    };
    inventory.sandboxes.sort_by_cached_key(key);
    inventory.containers.sort_by_cached_key(key);
    inventory.orphans.sort_by_cached_key(key);
    inventory
}

/// Enters the sandboxes. Returns them by id.
fn take_sandboxes<'a>(snapshot: &'a Snapshot, inventory: &mut Inventory) -> HashMap<&'a [u8], Arc<Object>> {
    let mut sandboxes: HashMap<&[u8], Arc<Object>> = HashMap::new();
    for i in 0..snapshot.sandboxes.len() {
        let item = snapshot.sandboxes.item(i);
        if sandboxes.contains_key(item.id) {
            continue; // Counted among the odd.
        }
        let sandbox = Arc::new(Object {
            pod: full_name(item.namespace, item.name),
            container: None,
            id: text(item.id),
            sandbox: text(item.id),
            alive: SandboxState::from_wire(item.state) == SandboxState::Ready,
        });
        sandboxes.insert(item.id, Arc::clone(&sandbox));
        inventory.sandboxes.push(sandbox);
    }
    sandboxes
}

/// Enters the containers: all of them, the orphans, and how many are dead in each pod.
fn take_containers(snapshot: &Snapshot, sandboxes: &HashMap<&[u8], Arc<Object>>, inventory: &mut Inventory) {
    let mut seen = HashSet::new();
    let mut dead: HashMap<String, (usize, String)> = HashMap::new();
    for i in 0..snapshot.containers.len() {
        let item = snapshot.containers.item(i);
        if !seen.insert(item.id) {
            continue;
        }
        let sandbox = sandboxes.get(item.pod_sandbox_id);
        let state = ContainerState::from_wire(item.state);
        let container = Arc::new(Object {
            pod: match sandbox {
                Some(sandbox) if !sandbox.pod.is_empty() => sandbox.pod.clone(),
                _ => full_name(item.pod_namespace_label, item.pod_name_label),
            },
            container: Some(text(item.name)),
            id: text(item.id),
            sandbox: text(item.pod_sandbox_id),
            alive: state == ContainerState::Running,
        });
        inventory.running += usize::from(state == ContainerState::Running);
        if state == ContainerState::Exited {
            inventory.dead += 1;
            let of = dead.entry(container.pod.clone()).or_default();
            *of = (of.0 + 1, container.sandbox.clone());
        }
        if sandbox.is_none() {
            inventory.orphans.push(Arc::clone(&container));
        }
        inventory.containers.push(container);
    }
    inventory.dead_of = dead
        .into_iter()
        .map(|(pod, (dead, sandbox))| DeadOf { pod, dead, sandbox })
        .collect();
    inventory
        .dead_of
        .sort_by(|a, b| (b.dead, &a.pod).cmp(&(a.dead, &b.pod)));
}

fn full_name(namespace: &[u8], name: &[u8]) -> String {
    match (namespace, name) {
        ([], []) => String::new(),
        _ => format!("{}/{}", text(namespace), text(name)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use pleg_cri::{ContainerItem, SandboxItem};

    use super::*;

    fn sandbox<'a>(id: &'a str, name: &'a str) -> SandboxItem<'a> {
        SandboxItem {
            id: id.as_bytes(),
            has_metadata: true,
            uid: name.as_bytes(),
            namespace: b"default",
            name: name.as_bytes(),
            ..SandboxItem::default()
        }
    }

    fn container<'a>(id: &'a str, sandbox: &'a str, state: i32) -> ContainerItem<'a> {
        ContainerItem {
            id: id.as_bytes(),
            pod_sandbox_id: sandbox.as_bytes(),
            name: b"app",
            state,
            ..ContainerItem::default()
        }
    }

    #[test]
    fn the_dead_the_orphans_and_the_odd_are_counted() {
        let mut snapshot = Snapshot::default();
        for (id, name) in [("s1", "web"), ("s2", "db")] {
            snapshot.sandboxes.push(&sandbox(id, name));
        }
        for (id, of, state) in [
            ("c1", "s1", 1),
            ("c2", "s1", 2),
            ("c3", "s2", 2),
            ("c4", "s2", 2),
            ("c4", "s2", 2),
            ("c5", "gone", 1),
        ] {
            snapshot.containers.push(&container(id, of, state));
        }
        let found = take(&mut snapshot);
        assert_eq!((found.pods, found.running, found.dead), (2, 2, 3));
        let dead: Vec<_> = found.dead_of.iter().map(|of| (of.pod.as_str(), of.dead)).collect();
        assert_eq!(dead, [("default/db", 2), ("default/web", 1)]);
        assert_eq!(found.orphans.len(), 1);
        assert_eq!(found.orphans[0].id, "c5");
        assert_eq!((found.odd.duplicate_id, found.odd.container_without_pod), (1, 1));
        // Running containers come first.
        let order: Vec<_> = found.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(order, ["c5", "c1", "c3", "c4", "c2"]);
    }
}
