//! Events of the node itself: what changed in its object.

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use pleg_node::events::{Event, EventSink as _, EventType};
use tokio_util::sync::CancellationToken;

use super::EventRecorder;
use crate::node::NodeObject;

/// Tells what changes in the Node object, until shutdown.
pub(crate) async fn follow_node(recorder: EventRecorder, mut node: NodeObject, shutdown: CancellationToken) {
    let following = async {
        let mut before = node.registered().await;
        let uid = |node: &Node| node.metadata.uid.clone().unwrap_or_default();
        recorder.set_node_uid(&uid(&before));
        recorder.record_node(EventType::Normal, "Starting", "Starting pleg node.");
        loop {
            node.changed().await;
            // While there is none, nothing changes.
            let Some(now) = node.get() else { continue };
            if uid(&before) != uid(&now) {
                recorder.set_node_uid(&uid(&now));
            }
            for event in changes(&before, &now) {
                recorder.record(event);
            }
            before = now;
        }
    };
    shutdown.run_until_cancelled(following).await;
}

/// What a kubelet tells about such a change. Pure.
fn changes(before: &Node, after: &Node) -> Vec<Event> {
    let name = after.metadata.name.as_deref().unwrap_or_default();
    let mut events = Vec::new();
    let mut normal = |reason: &'static str| {
        let message = format!("Node {name} status is now: {reason}");
        events.push(Event::node(EventType::Normal, reason, &message));
    };
    match (ready(before), ready(after)) {
        (Some(old), Some(new)) if old == new => {}
        // The node lifecycle controller says so itself.
        (Some(_), Some("True")) => normal("NodeReady"),
        (Some(_), Some("False")) => normal("NodeNotReady"),
        _ => {}
    }
    match (is_unschedulable(before), is_unschedulable(after)) {
        (false, true) => normal("NodeNotSchedulable"),
        (true, false) => normal("NodeSchedulable"),
        _ => {}
    }
    let (old, new) = (boot_id(before), boot_id(after));
    if !old.is_empty() && !new.is_empty() && old != new {
        let message = format!("Node {name} has been rebooted, boot id: {new}");
        events.push(Event::node(EventType::Warning, "Rebooted", &message));
    }
    events
}

fn ready(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    let is_ready = |condition: &&NodeCondition| condition.type_ == "Ready";
    conditions
        .iter()
        .find(is_ready)
        .map(|condition| condition.status.as_str())
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

fn boot_id(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| &info.boot_id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, unschedulable: bool, boot_id: &str) -> Node {
        let info = json!({
            "architecture": "", "bootID": boot_id, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        });
        let conditions = json!([{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]);
        let status = json!({"conditions": conditions, "nodeInfo": info});
        let spec = json!({"unschedulable": unschedulable});
        serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn changes_are_told_as_a_kubelet_tells_them() {
        let cases: [(Node, Node, &[(&str, &str)]); 8] = [
            (node("True", false, "a"), node("True", false, "a"), &[]),
            (
                node("True", false, "a"),
                node("False", false, "a"),
                &[("NodeNotReady", "Node n1 status is now: NodeNotReady")],
            ),
            (
                node("False", false, "a"),
                node("True", false, "a"),
                &[("NodeReady", "Node n1 status is now: NodeReady")],
            ),
            (
                node("Unknown", false, "a"),
                node("True", false, "a"),
                &[("NodeReady", "Node n1 status is now: NodeReady")],
            ),
            (node("True", false, "a"), node("Unknown", false, "a"), &[]),
            (
                node("True", false, "a"),
                node("True", true, "a"),
                &[("NodeNotSchedulable", "Node n1 status is now: NodeNotSchedulable")],
            ),
            (
                node("True", false, "a"),
                node("True", false, "b"),
                &[("Rebooted", "Node n1 has been rebooted, boot id: b")],
            ),
            (Node::default(), node("True", false, "a"), &[]),
        ];
        for (before, after, expected) in cases {
            let events = changes(&before, &after);
            let told: Vec<_> = events.iter().map(|event| (&*event.reason, &*event.message)).collect();
            assert_eq!(told, expected);
        }
        let rebooted = changes(&node("True", false, "a"), &node("True", false, "b"));
        assert_eq!(rebooted[0].kind, EventType::Warning);
    }
}
