//! The things a node has: pods, sandboxes, containers, and the states they can be in.

pub mod cursor;
pub mod event;
pub mod kubelet_events;
pub mod selector;
pub mod status;

use std::fmt;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use pleg_cri::v1;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The shared text of the id.
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                Self(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Arc::deserialize(deserializer).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

id! {
    /// A pod's UID, from its sandbox's metadata or the label `io.kubernetes.pod.uid`.
    PodUid
}
id! {
    /// The runtime's id of a container.
    ContainerId
}
id! {
    /// The runtime's id of a sandbox.
    SandboxId
}

/// A pod by all its names. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// The identity of the pod.
    pub uid: PodUid,
    /// Its namespace; empty if unknown.
    pub namespace: Arc<str>,
    /// Its name; empty if unknown.
    pub name: Arc<str>,
}

impl PodRef {
    /// `namespace/name`, shared.
    pub fn full_name(&self) -> Arc<str> {
        self.to_string().into()
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            return write!(f, "with UID {}", self.uid);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A container by all its names. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerRef {
    /// The runtime's id.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: Arc<str>,
    /// How often a container of this name was created in this pod before.
    pub attempt: u32,
}

/// The state of a container. An absent container has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime itself does not know.
    Unknown,
}

impl ContainerState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Created, Self::Running, Self::Exited, Self::Unknown];

    /// From the wire; a value that we do not know is `Unknown`.
    pub fn from_wire(state: i32) -> Self {
        match v1::ContainerState::try_from(state) {
            Ok(v1::ContainerState::ContainerCreated) => Self::Created,
            Ok(v1::ContainerState::ContainerRunning) => Self::Running,
            Ok(v1::ContainerState::ContainerExited) => Self::Exited,
            Ok(v1::ContainerState::ContainerUnknown) | Err(_) => Self::Unknown,
        }
    }

    /// The name in lower case, as the kubelet's metrics write it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ContainerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "Created",
            Self::Running => "Running",
            Self::Exited => "Exited",
            Self::Unknown => "Unknown",
        })
    }
}

/// Whether a sandbox can hold running containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SandboxState {
    /// It can.
    Ready,
    /// It cannot any more.
    NotReady,
}

impl SandboxState {
    /// From the wire; what is not ready is not ready.
    pub fn from_wire(state: i32) -> Self {
        if state == v1::PodSandboxState::SandboxReady as i32 {
            Self::Ready
        } else {
            Self::NotReady
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
        })
    }
}

/// A container or a sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ObjectRef {
    /// A container.
    Container(ContainerRef),
    /// A sandbox.
    Sandbox {
        /// The runtime's id.
        id: SandboxId,
    },
}

impl ObjectRef {
    /// The runtime's id.
    pub fn id(&self) -> &Arc<str> {
        match self {
            Self::Container(container) => &container.id.0,
            Self::Sandbox { id } => &id.0,
        }
    }

    /// The container's name in the pod, if it is a container.
    pub fn container_name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Container(container) => Some(&container.name),
            Self::Sandbox { .. } => None,
        }
    }
}

/// The state of a container or of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ObjectState {
    /// A container's.
    Container(ContainerState),
    /// A sandbox's.
    Sandbox(SandboxState),
}

/// A pod as lists show it: just enough to tell what changed. Not part of the API.
#[doc(hidden)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodView {
    /// Its sandboxes, newest first.
    pub sandboxes: Vec<(SandboxId, SandboxState)>,
    /// Its containers, oldest first.
    pub containers: Vec<(ContainerRef, ContainerState)>,
}

impl PodView {
    /// No trace of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Gives the containers that `kept` names the state that they have in `before`, or takes them away if they have none there.
    /// Returns those for which that makes a difference.
    pub(crate) fn keep(&mut self, before: &Self, kept: &HashSet<Arc<str>>) -> Box<[Arc<str>]> {
        if kept.is_empty() {
            return Box::default();
        }
        let before = before.container_states();
        let mut changed = Vec::new();
        self.containers.retain_mut(|(container, state)| {
            if !kept.contains(container.id.as_str()) {
                return true;
            }
            let was = before.get(container.id.as_str()).copied();
            if was != Some(*state) {
                changed.push(container.id.shared());
            }
            *state = was.unwrap_or(*state);
            was.is_some()
        });
        changed.into()
    }

    /// The containers' states by id. A map, because one pod may have tens of thousands of dead ones
    /// (kubernetes/kubernetes#64507).
    pub(crate) fn container_states(&self) -> HashMap<&str, ContainerState> {
        self.containers
            .iter()
            .map(|(container, state)| (container.id.as_str(), *state))
            .collect()
    }

    /// The sandboxes' states by id.
    pub(crate) fn sandbox_states(&self) -> HashMap<&str, SandboxState> {
        self.sandboxes.iter().map(|(id, state)| (id.as_str(), *state)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_enum_values_have_a_meaning() {
        assert_eq!(ContainerState::from_wire(77), ContainerState::Unknown);
        assert_eq!(ContainerState::from_wire(-1), ContainerState::Unknown);
        assert_eq!(SandboxState::from_wire(9), SandboxState::NotReady);
        assert_eq!(SandboxState::from_wire(0), SandboxState::Ready);
    }
}
