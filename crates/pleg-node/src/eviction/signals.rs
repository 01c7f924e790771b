//! What pressure is measured by: signals, the resources they are about, and the node conditions they set. Pure.

use std::collections::BTreeMap;
use std::fmt;

/// A figure that says how much of a resource is left. In the order in which pressure is relieved: memory first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `memory.available`
    MemoryAvailable,
    /// `nodefs.available`: of the filesystem of volumes.
    NodeFsAvailable,
    /// `nodefs.inodesFree`
    NodeFsInodesFree,
    /// `imagefs.available`: of the filesystem of images and writable layers.
    ImageFsAvailable,
    /// `imagefs.inodesFree`
    ImageFsInodesFree,
    /// `pid.available`
    PidAvailable,
}

impl Signal {
    /// Every signal.
    pub const ALL: [Self; 6] = [
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::PidAvailable,
    ];

    /// Its name in flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The resource that is short, as messages name it.
    pub(crate) fn resource(self) -> Resource {
        match self {
            Self::MemoryAvailable => Resource::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable => Resource::EphemeralStorage,
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => Resource::Inodes,
            Self::PidAvailable => Resource::Pids,
        }
    }

    /// The condition of the node.
    pub(crate) fn condition(self) -> Pressure {
        match self {
            Self::MemoryAvailable => Pressure::Memory,
            Self::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// Whether it is about the filesystem of images.
    pub(crate) fn is_image_fs(self) -> bool {
        matches!(self, Self::ImageFsAvailable | Self::ImageFsInodesFree)
    }
}

/// A resource that can be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

impl Resource {
    /// Whether amounts are bytes, and written with binary suffixes.
    pub(crate) fn is_bytes(self) -> bool {
        matches!(self, Self::Memory | Self::EphemeralStorage)
    }

    pub(crate) fn is_disk(self) -> bool {
        matches!(self, Self::EphemeralStorage | Self::Inodes)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        })
    }
}

/// A condition of the node that says what is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The type of the condition.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// The kubelet's reason and message.
    pub(crate) fn reason(self, under: bool) -> (&'static str, &'static str) {
        match (self, under) {
            (Self::Memory, true) => (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            ),
            (Self::Memory, false) => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            (Self::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            (Self::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            (Self::Pid, true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            (Self::Pid, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        }
    }
}

/// How much of something there is, and how much is left.
pub(crate) type Observation = crate::host::resources::Amount;

/// What was observed at one time. A signal that could not be read is absent, and decides nothing.
pub(crate) type Observations = BTreeMap<Signal, Observation>;
