//! What a node did, for people: Events with the reasons and the words of the kubelet.
//!
//! In: what pod workers, the executor, probes, eviction and the image collector do. Out: an [`Event`] for each, to one [`EventSink`]; none
//! by default. A sink must not block: it is called wherever something happens. Nothing depends on an event, so a sink may drop them.
//!
//! | module | job |
//! |---|---|
//! | this one | the types, and the handle that the others record with |
//! | `failures` | the events of a failed action: pure |
//! | `wording` | messages that users search for: pure |

pub(crate) mod failures;
pub(crate) mod wording;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use pleg::PodRef;

use crate::manifest::{Pod, Role};

/// Characters that are kept of a message: what the API server accepts of newer events.
const MAX_MESSAGE: usize = 1024;

/// Receives events.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// Takes an event. Must not block; may drop it.
    fn record(&self, event: Event);
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub object: EventObject,
    /// Whether someone should look at it.
    pub kind: EventType,
    /// In a word: `Started`, `BackOff`, …
    pub reason: Cow<'static, str>,
    /// In a sentence.
    pub message: String,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventObject {
    /// A pod. The UID of a static pod is the hash in the annotation of its mirror pod, which is where `kubectl describe` looks for it.
    Pod {
        /// The pod.
        id: PodRef,
        /// The part of it, such as `spec.containers{app}`.
        field_path: Option<String>,
    },
    /// This node.
    Node,
}

/// Whether an event is good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Something may be wrong.
    Warning,
}

impl EventType {
    /// As the API has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Event {
    fn new(object: EventObject, kind: EventType, reason: impl Into<Cow<'static, str>>, message: &str) -> Self {
        let end = message
            .char_indices()
            .nth(MAX_MESSAGE)
            .map_or(message.len(), |(at, _)| at);
        Self {
            object,
            kind,
            reason: reason.into(),
            message: message[..end].to_owned(),
        }
    }

    /// About a pod.
    pub fn pod(id: &PodRef, kind: EventType, reason: impl Into<Cow<'static, str>>, message: &str) -> Self {
        let object = EventObject::Pod {
            id: id.clone(),
            field_path: None,
        };
        Self::new(object, kind, reason, message)
    }

    /// About a container of a pod.
    pub fn container(
        pod: &Pod,
        name: &str,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: &str,
    ) -> Self {
        let object = EventObject::Pod {
            id: pod.id.clone(),
            field_path: Some(field_path(pod, name)),
        };
        Self::new(object, kind, reason, message)
    }

    /// About this node.
    pub fn node(kind: EventType, reason: impl Into<Cow<'static, str>>, message: &str) -> Self {
        Self::new(EventObject::Node, kind, reason, message)
    }
}

/// Where a container is in its pod, as the kubelet writes it.
fn field_path(pod: &Pod, name: &str) -> String {
    let list = match pod.spec.container(name).map(|container| container.role) {
        Some(Role::Main) => "containers",
        Some(Role::Init | Role::Sidecar) => "initContainers",
        Some(Role::Ephemeral) => "ephemeralContainers",
        // Of a pod without a manifest.
        None => return format!("implicitly required container {name}"),
    };
    format!("spec.{list}{{{name}}}")
}

/// Records events, if there is a sink. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events(Option<Arc<dyn EventSink>>);

impl Events {
    pub(crate) fn new(sink: Arc<dyn EventSink>) -> Self {
        Self(Some(sink))
    }

    pub(crate) fn record(&self, event: Event) {
        if let Some(sink) = &self.0 {
            sink.record(event);
        }
    }

    /// Records that something about a pod is as it should be.
    pub(crate) fn pod_normal(&self, pod: &Pod, reason: &'static str, message: &str) {
        self.record(Event::pod(&pod.id, EventType::Normal, reason, message));
    }

    /// Records that something about a pod may be wrong.
    pub(crate) fn pod_warning(&self, pod: &Pod, reason: impl Into<Cow<'static, str>>, message: &str) {
        self.record(Event::pod(&pod.id, EventType::Warning, reason, message));
    }

    /// Records that something about a container is as it should be.
    pub(crate) fn container_normal(&self, pod: &Pod, name: &str, reason: &'static str, message: &str) {
        self.record(Event::container(pod, name, EventType::Normal, reason, message));
    }

    /// Records that something about a container may be wrong.
    pub(crate) fn container_warning(&self, pod: &Pod, name: &str, reason: &'static str, message: &str) {
        self.record(Event::container(pod, name, EventType::Warning, reason, message));
    }

    /// Records that something about this node may be wrong.
    pub(crate) fn node_warning(&self, reason: &'static str, message: &str) {
        self.record(Event::node(EventType::Warning, reason, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, pod};

    #[test]
    fn containers_are_named_by_their_place() {
        let spec = "initContainers: [{name: i, image: i}, {name: s, image: i, restartPolicy: Always}], \
                    containers: [{name: c, image: i}]";
        let pod = Case::new(spec).ephemeral("e").pod;
        for (name, expected) in [
            ("c", "spec.containers{c}"),
            ("i", "spec.initContainers{i}"),
            ("s", "spec.initContainers{s}"),
            ("e", "spec.ephemeralContainers{e}"),
            ("x", "implicitly required container x"),
        ] {
            assert_eq!(field_path(&pod, name), expected);
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let pod = pod("containers: [{name: c, image: i}]");
        let event = Event::pod(&pod.id, EventType::Normal, "Pulled", &"ü".repeat(5000));
        assert_eq!(event.message.chars().count(), MAX_MESSAGE);
    }
}
