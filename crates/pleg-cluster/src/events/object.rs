//! Events as objects of the API. Pure.
//!
//! They are `core/v1` Events with a count, as those of the kubelet, which is what `kubectl describe` and `kubectl get events` count and sort
//! by; the newer events.k8s.io has no place for a count that goes up by a patch.
//!
//! The component of a node's events is `kubelet`, in `source` and in `reportingComponent`: this node does what the kubelet does, with its reasons
//! and words, and dashboards, alerts and upstream's own tests select events of pods by that name. The host, and `reportingInstance`, is the node.
//! Beside a kubelet it is `pleg`.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pleg_node::events::{EventObject, EventType};
use serde_json::{Value, json};

/// Who records events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Component {
    /// In `source` and `reportingComponent`.
    pub(crate) name: &'static str,
    /// What to do if it may not write events: before and after the verb that is missing.
    if_forbidden: (&'static str, &'static str),
}

impl Component {
    /// In the place of a kubelet.
    pub(crate) const KUBELET: Self = Self {
        name: "kubelet",
        if_forbidden: ("The node needs the permission to ", " events: cluster role system:node"),
    };
    /// Beside a kubelet.
    pub(crate) const PLEG: Self = Self {
        name: "pleg",
        if_forbidden: (
            "Grant the verb ",
            " on events: deploy/rbac.yaml has the rules. The condition of the node is reported without it",
        ),
    };

    /// What to do if this verb on events is missing.
    pub(super) fn if_forbidden(self, verb: EventVerb) -> String {
        let (before, after) = self.if_forbidden;
        format!("{before}{}{after}", verb.name())
    }
}

/// What is done to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventVerb {
    /// It is new.
    Create,
    /// It is counted up.
    Patch,
}

impl EventVerb {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Create, Self::Patch];

    /// As rules name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Patch => "patch",
        }
    }
}

/// The namespace of events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";
/// Characters of an object's name that an event's name begins with: with a time, it has at most 253.
const MAX_NAME: usize = 236;

/// An event, as it is counted up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    /// The name of the event.
    pub(super) name: String,
    pub(super) involved: core::ObjectReference,
    pub(super) kind: EventType,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) count: u32,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl Record {
    /// Where the event is.
    pub(super) fn namespace(&self) -> &str {
        let namespace = self.involved.namespace.as_deref();
        namespace.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The event, to be created.
    pub(super) fn event(&self, component: Component, node: &str) -> core::Event {
        core::Event {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace().to_owned()),
                ..Default::default()
            },
            involved_object: self.involved.clone(),
            type_: Some(self.kind.name().to_owned()),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            count: Some(self.count()),
            first_timestamp: Some(Time(whole_seconds(self.first))),
            last_timestamp: Some(Time(whole_seconds(self.last))),
            source: Some(core::EventSource {
                component: Some(component.name.to_owned()),
                host: Some(node.to_owned()),
            }),
            reporting_component: Some(component.name.to_owned()),
            reporting_instance: Some(node.to_owned()),
            ..Default::default()
        }
    }

    /// The patch that counts it up.
    pub(super) fn patch(&self) -> Value {
        json!({
            "count": self.count(),
            "lastTimestamp": Time(whole_seconds(self.last)),
            // That of combined events is the newest.
            "message": self.message,
        })
    }

    fn count(&self) -> i32 {
        i32::try_from(self.count).unwrap_or(i32::MAX)
    }
}

/// What an event is about. Until the UID of the node is known, its name stands for it, as in the kubelet: `kubectl describe node` finds both.
pub(super) fn reference(object: &EventObject, node: &str, node_uid: Option<&str>) -> core::ObjectReference {
    match object {
        EventObject::Pod { id, field_path } => core::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(id.namespace.to_string()),
            name: Some(id.name.to_string()),
            uid: Some(id.uid.to_string()),
            field_path: field_path.clone(),
            ..Default::default()
        },
        EventObject::Node => core::ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node_uid.unwrap_or(node).to_owned()),
            ..Default::default()
        },
    }
}

/// The name of an event: that of its object, and a number that no other event of this node has.
pub(super) fn event_name(object: &str, number: i128) -> String {
    let end = object.char_indices().nth(MAX_NAME).map_or(object.len(), |(at, _)| at);
    let mut name = object[..end].trim_end_matches(['.', '-']).to_owned();
    // Writing to a string cannot fail.
    let _ = write!(name, ".{number:x}");
    name
}

/// The API keeps no fractions of a second here, and refuses some.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleg::PodRef;

    fn record(involved: core::ObjectReference) -> Record {
        Record {
            name: "web.1".to_owned(),
            involved,
            kind: EventType::Warning,
            reason: "BackOff".to_owned(),
            message: "Back-off".to_owned(),
            count: 3,
            first: Timestamp::from_second(1000).unwrap(),
            last: Timestamp::from_millisecond(2_000_750).unwrap(),
        }
    }

    #[test]
    fn an_event_of_a_pod_looks_like_the_kubelets() {
        let object = EventObject::Pod {
            id: PodRef {
                uid: "u1".into(),
                namespace: "shop".into(),
                name: "web".into(),
            },
            field_path: Some("spec.containers{app}".to_owned()),
        };
        let record = record(reference(&object, "n1", None));
        let event = serde_json::to_value(record.event(Component::KUBELET, "n1")).unwrap();
        let expected = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "web.1", "namespace": "shop"},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u1",
                "fieldPath": "spec.containers{app}",
            },
            "type": "Warning", "reason": "BackOff", "message": "Back-off", "count": 3,
            "firstTimestamp": "1970-01-01T00:16:40Z", "lastTimestamp": "1970-01-01T00:33:20Z",
            "source": {"component": "kubelet", "host": "n1"},
            "reportingComponent": "kubelet", "reportingInstance": "n1",
        });
        assert_eq!(event, expected);
        let patch = json!({"count": 3, "lastTimestamp": "1970-01-01T00:33:20Z", "message": "Back-off"});
        assert_eq!(record.patch(), patch);
    }

    #[test]
    fn an_event_of_the_node_is_in_the_default_namespace() {
        for (uid, expected) in [(None, "n1"), (Some("u7"), "u7")] {
            let record = record(reference(&EventObject::Node, "n1", uid));
            let event = record.event(Component::KUBELET, "n1");
            assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
            assert_eq!(event.involved_object.namespace, None);
            assert_eq!(event.involved_object.uid.as_deref(), Some(expected));
        }
    }

    #[test]
    fn names_are_short_enough_and_valid() {
        assert_eq!(event_name("web", 255), "web.ff");
        let long = event_name(&"a".repeat(253), i128::from(i64::MAX));
        assert!(long.len() <= 253, "{}", long.len());
        assert_eq!(
            event_name(&format!("{}.b", "a".repeat(235)), 1),
            format!("{}.1", "a".repeat(235))
        );
    }
}
