//! Our events as the kubelet would have sent them, so that the two can be compared on the same history.
//!
//! The kubelet has five types and treats sandboxes as containers: a ready one is running, any other one has exited. A container that
//! is only created is to it in the same state as one whose state the runtime does not know: *unknown*.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::model::SandboxState;
use crate::model::event::{Event, EventType, Subject};

/// The kubelet's own event types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kubelet's own")]
pub enum KubeletEventType {
    ContainerStarted,
    ContainerDied,
    ContainerRemoved,
    ContainerChanged,
    PodSync,
}

/// What the kubelet's PLEG would send: the type, and the id of the container or sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KubeletEvent {
    /// The type.
    #[serde(rename = "type")]
    pub kind: KubeletEventType,
    /// The container's or sandbox's id; the pod's UID for `PodSync`.
    pub id: String,
}

/// The kubelet's states of a container or sandbox that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Exited,
    Unknown,
}

/// Translates a stream of events. It has to know what it saw before: a `ContainerChanged` from created to unknown is no change to the
/// kubelet, and a ready sandbox that vanishes dies first. Remembers only what exists.
#[derive(Debug, Default)]
pub struct KubeletEvents {
    states: HashMap<String, State>,
}

impl KubeletEvents {
    /// What the kubelet would have sent for `event`, the next one of the stream.
    pub fn project(&mut self, event: &Event) -> Vec<KubeletEvent> {
        use EventType as E;
        match (event.kind, &event.subject) {
            (E::ContainerStarted, Some(Subject::Container(c))) => self.becomes(c.id.as_str(), Some(State::Running)),
            (E::ContainerDied, Some(Subject::Container(c))) => self.becomes(c.id.as_str(), Some(State::Exited)),
            (E::ContainerCreated | E::ContainerChanged, Some(Subject::Container(c))) => {
                self.becomes(c.id.as_str(), Some(State::Unknown))
            }
            (E::ContainerRemoved, Some(Subject::Container(c))) => self.becomes(c.id.as_str(), None),
            (E::PodSandboxChanged, Some(Subject::Sandbox { id, state })) => {
                let state = state.map(|state| match state {
                    SandboxState::Ready => State::Running,
                    SandboxState::NotReady => State::Exited,
                });
                self.becomes(id.as_str(), state)
            }
            (E::PodSync, _) => {
                let id = event.pod.as_ref().map(|pod| pod.uid.to_string()).unwrap_or_default();
                vec![KubeletEvent {
                    kind: KubeletEventType::PodSync,
                    id,
                }]
            }
            // The kubelet has no word for the rest.
            _ => Vec::new(),
        }
    }

    fn becomes(&mut self, id: &str, state: Option<State>) -> Vec<KubeletEvent> {
        use KubeletEventType::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
        let before = match state {
            Some(state) => self.states.insert(id.to_owned(), state),
            None => self.states.remove(id),
        };
        if before == state {
            return Vec::new();
        }
        let kinds: &[_] = match (before, state) {
            (_, Some(State::Running)) => &[ContainerStarted],
            (_, Some(State::Exited)) => &[ContainerDied],
            (_, Some(State::Unknown)) => &[ContainerChanged],
            (Some(State::Exited), None) => &[ContainerRemoved],
            (_, None) => &[ContainerDied, ContainerRemoved],
        };
        kinds
            .iter()
            .map(|&kind| KubeletEvent {
                kind,
                id: id.to_owned(),
            })
            .collect()
    }
}

/// A whole history at once.
pub fn kubelet_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<KubeletEvent> {
    let mut projection = KubeletEvents::default();
    events.into_iter().flat_map(|event| projection.project(event)).collect()
}
