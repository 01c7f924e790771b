//! Events of the node itself: what changed in its object.

use k8s_openapi::api::core::v1::Node;
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
        loop {
            node.changed().await;
            // While there is none, nothing changes.
            let Some(now) = node.get() else { continue };
            if uid(&before) != uid(&now) {
                recorder.set_node_uid(&uid(&now));
            }
            if let Some(event) = changes(&before, &now) {
                recorder.record(event);
            }
            before = now;
        }
    };
    shutdown.run_until_cancelled(following).await;
}

/// What others have changed. What this node changes itself, its manager reports. Pure.
fn changes(before: &Node, after: &Node) -> Option<Event> {
    let reason = match (is_unschedulable(before), is_unschedulable(after)) {
        (false, true) => "NodeNotSchedulable",
        (true, false) => "NodeSchedulable",
        _ => return None,
    };
    let name = after.metadata.name.as_deref().unwrap_or_default();
    let message = format!("Node {name} status is now: {reason}");
    Some(Event::node(EventType::Normal, reason, &message))
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(unschedulable: bool) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": unschedulable}})).unwrap()
    }

    #[test]
    fn a_cordoned_node_is_reported_as_a_kubelet_does() {
        let message = |before, after| changes(&node(before), &node(after)).map(|event| event.message.to_string());
        assert_eq!(message(true, true), None);
        assert_eq!(message(false, false), None);
        assert_eq!(
            message(false, true).unwrap(),
            "Node n1 status is now: NodeNotSchedulable"
        );
        assert_eq!(message(true, false).unwrap(), "Node n1 status is now: NodeSchedulable");
    }
}
