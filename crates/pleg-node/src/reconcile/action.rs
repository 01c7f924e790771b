//! What a decision can ask for.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use pleg::{ContainerId, SandboxId};

use super::resize::SetResources;
use crate::manifest::ProbeKind;

/// Shortest time between SIGTERM and SIGKILL, also if there is no grace period or nothing is left of it.
pub(crate) const MIN_GRACE: Duration = Duration::from_secs(2);

/// Something to do through the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create a sandbox. The sandboxes it replaces are stopped first, which frees their network.
    RunSandbox {
        /// The number of the new sandbox.
        attempt: u32,
        /// The sandboxes to stop first.
        replaces: Vec<SandboxId>,
    },
    /// Stop a sandbox that is no longer needed.
    StopSandbox(SandboxId),
    /// Stop a sandbox and remove it, with its containers.
    RemoveSandbox(SandboxId),
    /// Remove a sandbox that was replaced long ago. Nothing waits for it.
    RemoveOldSandbox(SandboxId),
    /// Remove an exited container, with its log.
    RemoveContainer {
        /// The container.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Its number.
        attempt: u32,
    },
    /// Start a container: pull its image, create it, start it, run its post-start hook.
    Start {
        /// Its name.
        name: String,
        /// Its number.
        attempt: u32,
        /// The sandbox to start it in.
        sandbox: SandboxId,
        /// Set if it is already created and only has to be started.
        created: Option<ContainerId>,
    },
    /// Change the limits of a running container.
    Resize {
        /// The container.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Its number.
        attempt: u32,
        /// What it gets.
        resources: SetResources,
        /// Whether its memory limit becomes smaller.
        shrinks: bool,
    },
    /// Run the pre-stop hook of a sidecar that is killed later, when it is its turn.
    PreStop {
        /// The container.
        id: ContainerId,
        /// Its name.
        name: String,
        /// What is left of the grace period.
        grace: Duration,
    },
    /// Stop a container: run its pre-stop hook, then stop it within its grace period.
    Kill {
        /// The container.
        id: ContainerId,
        /// Its name.
        name: String,
        /// What is left of its grace period. It has at least two seconds between SIGTERM and SIGKILL.
        grace: Duration,
        /// Whether its pre-stop hook is run first.
        pre_stop: bool,
        /// Why it is killed.
        reason: KillReason,
    },
}

impl Action {
    /// The container that no other action may touch meanwhile. None for actions on the sandbox, or on an exited container.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Start { name, .. }
            | Self::Resize { name, .. }
            | Self::PreStop { name, .. }
            | Self::Kill { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Somebody waits for it: a pod starts or stops. What is removed was reported as gone before.
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            Self::RunSandbox { .. } | Self::StopSandbox(_) | Self::Start { .. } | Self::Kill { .. } => true,
            Self::RemoveSandbox(_)
            | Self::RemoveOldSandbox(_)
            | Self::RemoveContainer { .. }
            | Self::Resize { .. }
            | Self::PreStop { .. } => false,
        }
    }

    /// The id of the object that the action stops or removes, if it does.
    pub(crate) fn stopped_object(&self) -> Option<&str> {
        match self {
            Self::PreStop { id, .. } | Self::Kill { id, .. } | Self::RemoveContainer { id, .. } => Some(id.as_str()),
            Self::StopSandbox(id) | Self::RemoveSandbox(id) | Self::RemoveOldSandbox(id) => Some(id.as_str()),
            Self::RunSandbox { .. } | Self::Start { .. } | Self::Resize { .. } => None,
        }
    }
}

/// Why a container is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// It failed its startup or liveness probe.
    Probe(ProbeKind),
    /// Its post-start hook failed.
    PostStartHook,
    /// Its sandbox is no longer usable.
    SandboxUnusable,
    /// A newer container has its name.
    Duplicate,
    /// The runtime does not know whether it runs.
    StateUnknown,
    /// Its image in the pod is another one now.
    ImageChanged,
    /// Its resources in the pod are others now, and its `resizePolicy` wants a restart.
    ResourcesChanged,
    /// The pod has finished without it.
    PodFinished,
    /// The pod is terminating.
    PodTerminating,
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probe(kind) => write!(f, "its {} probe failed", kind.name()),
            Self::PostStartHook => f.write_str("its post-start hook failed"),
            Self::SandboxUnusable => f.write_str("its sandbox is no longer usable"),
            Self::Duplicate => f.write_str("a newer container has its name"),
            Self::StateUnknown => f.write_str("the runtime does not know whether it runs"),
            Self::ImageChanged => f.write_str("its image has changed"),
            Self::ResourcesChanged => f.write_str("its resources have changed"),
            Self::PodFinished => f.write_str("the pod has finished"),
            Self::PodTerminating => f.write_str("the pod is terminating"),
        }
    }
}

impl KillReason {
    /// The next attempt replaces the container, even if its exit code is 0. For the other reasons the exit is final.
    pub fn is_replacement(self) -> bool {
        match self {
            Self::Probe(_)
            | Self::PostStartHook
            | Self::SandboxUnusable
            | Self::StateUnknown
            | Self::Duplicate
            | Self::ImageChanged
            | Self::ResourcesChanged => true,
            Self::PodFinished | Self::PodTerminating => false,
        }
    }
}

/// Actions of a pod that are not done yet. Decisions leave their objects alone.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    /// An action on the sandbox: nothing else can be decided.
    pub sandbox: bool,
    /// Containers that are being started or killed.
    pub containers: BTreeSet<String>,
    /// Those that are being started: their post-start hooks may still run.
    pub starts: BTreeSet<String>,
    /// Containers that are being resized.
    pub resizes: BTreeSet<String>,
    /// Exited containers that are being removed.
    pub removals: BTreeSet<ContainerId>,
    /// Replaced sandboxes that are being removed.
    pub old_sandboxes: BTreeSet<SandboxId>,
}
