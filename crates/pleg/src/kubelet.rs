//! Our events as the kubelet would have sent them, so that the two can be compared on the same history.
//!
//! The kubelet has five types and treats sandboxes as containers: a ready one is running, any other one has exited. It knows no
//! creation (its state before running is the same as "unknown" to it) and sends `ContainerRemoved` without a death only for what was
//! dead before.

use serde::Serialize;

use crate::diff::{Change, diff};
use crate::model::{ContainerState, PodView, SandboxState};

/// The kubelet's own event types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "the names are the kubelet's own")]
pub enum KubeletEventType {
    ContainerStarted,
    ContainerDied,
    ContainerRemoved,
    ContainerChanged,
    PodSync,
}

/// What the kubelet's PLEG would send: the type and the id of the container or sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct KubeletEvent {
    /// The type.
    #[serde(rename = "type")]
    pub kind: KubeletEventType,
    /// The container's or sandbox's id.
    pub id: String,
}

/// The events the kubelet's PLEG would send for a pod that went from `old` to `new`.
pub fn kubelet_events(old: &PodView, new: &PodView) -> Vec<KubeletEvent> {
    use KubeletEventType::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
    let mut events = Vec::new();
    let mut push = |kind, id: &str| {
        events.push(KubeletEvent {
            kind,
            id: id.to_owned(),
        })
    };
    for change in diff(old, new) {
        match change {
            // To the kubelet a container that is only created is in the state "unknown".
            Change::Created(container) | Change::Changed(container) => push(ContainerChanged, container.id.as_str()),
            Change::Started(container) => push(ContainerStarted, container.id.as_str()),
            Change::Died(container) => push(ContainerDied, container.id.as_str()),
            Change::Removed(container) => push(ContainerRemoved, container.id.as_str()),
            Change::SandboxChanged(id) => {
                let state = |view: &PodView| view.sandboxes.iter().find(|(s, _)| *s == id).map(|(_, state)| *state);
                match (state(old), state(new)) {
                    (_, Some(SandboxState::Ready)) => push(ContainerStarted, id.as_str()),
                    (_, Some(SandboxState::NotReady)) => push(ContainerDied, id.as_str()),
                    (Some(SandboxState::NotReady), None) => push(ContainerRemoved, id.as_str()),
                    (_, None) => {
                        push(ContainerDied, id.as_str());
                        push(ContainerRemoved, id.as_str());
                    }
                }
            }
            Change::PodRemoved => {}
        }
    }
    // Created → Unknown is a change to us; to the kubelet both are one state.
    let unknown = |view: &PodView, id: &str| {
        let state = view
            .containers
            .iter()
            .find(|(c, _)| c.id.as_str() == id)
            .map(|(_, state)| *state);
        matches!(state, Some(ContainerState::Created | ContainerState::Unknown))
    };
    events.retain(|event| event.kind != ContainerChanged || !(unknown(old, &event.id) && unknown(new, &event.id)));
    events
}
