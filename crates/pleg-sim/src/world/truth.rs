//! Everything the world holds, for comparison with what a client saw.

use std::sync::Arc;

use pleg_cri::v1;

use super::World;

/// All objects at one moment, sorted by id. Odd list items that are no objects are not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth {
    /// Every sandbox.
    pub sandboxes: Vec<SandboxTruth>,
    /// Every container.
    pub containers: Vec<ContainerTruth>,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SandboxTruth {
    /// Its id.
    pub id: Arc<str>,
    /// Its pod's UID.
    pub uid: String,
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub name: String,
    /// Which sandbox of the pod it is.
    pub attempt: u32,
    /// READY.
    pub ready: bool,
    /// Nanoseconds since 1970.
    pub created_at: i64,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerTruth {
    /// Its id.
    pub id: Arc<str>,
    /// Its sandbox, which may be gone.
    pub sandbox: Arc<str>,
    /// Its pod's UID (namespace/name for a pod without one).
    pub uid: Arc<str>,
    /// Its name.
    pub name: String,
    /// Which attempt at this container it is.
    pub attempt: u32,
    /// Its state.
    pub state: v1::ContainerState,
    /// The exit code, 0 until it exited.
    pub exit_code: i32,
    /// Why it exited.
    pub reason: &'static str,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    /// Nanoseconds since 1970, 0 until it started.
    pub started_at: i64,
    /// Nanoseconds since 1970, 0 until it exited.
    pub finished_at: i64,
}

impl World {
    /// Everything there is now.
    pub fn truth(&self) -> Truth {
        let mut truth = Truth {
            sandboxes: self.sandboxes.iter().map(SandboxTruth::from).collect(),
            containers: self.containers.iter().map(ContainerTruth::from).collect(),
        };
        truth.sandboxes.sort_unstable();
        truth.containers.sort_unstable();
        truth
    }
}

impl From<&super::Sandbox> for SandboxTruth {
    fn from(sandbox: &super::Sandbox) -> Self {
        Self {
            id: Arc::clone(&sandbox.id),
            uid: sandbox.metadata.uid.clone(),
            namespace: sandbox.metadata.namespace.clone(),
            name: sandbox.metadata.name.clone(),
            attempt: sandbox.metadata.attempt,
            ready: sandbox.ready,
            created_at: sandbox.created_at,
        }
    }
}

impl From<&super::Container> for ContainerTruth {
    fn from(container: &super::Container) -> Self {
        Self {
            id: Arc::clone(&container.id),
            sandbox: Arc::clone(&container.sandbox),
            uid: Arc::clone(&container.pod),
            name: container.metadata.name.clone(),
            attempt: container.metadata.attempt,
            state: container.state,
            exit_code: container.exit_code,
            reason: container.reason,
            created_at: container.created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
        }
    }
}
