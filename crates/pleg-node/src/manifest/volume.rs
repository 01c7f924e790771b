//! Volumes of a pod, and their mounts in containers.

use std::time::Duration;

use super::env::{ObjectRef, PodField, ResourceField};
use super::quantity::Quantity;

/// A directory or file that containers share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// A directory of the pod, empty at its start and removed with it.
    EmptyDir(EmptyDir),
    /// A path of the host.
    HostPath {
        /// The path.
        path: String,
        /// What has to be at the path.
        kind: HostPathKind,
    },
    /// A directory of files with content of the API: `configMap`, `secret`, `downwardAPI` and `projected`.
    Projected(ProjectedVolume),
    /// A volume that others have provided.
    PersistentVolumeClaim {
        /// The name of the claim, in the pod's namespace.
        claim: String,
        /// It is mounted read-only in all containers.
        read_only: bool,
    },
}

/// A directory of the pod, empty at its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EmptyDir {
    /// Where it is.
    pub medium: Medium,
    /// The pod is evicted if it is larger; with [`Medium::Memory`], the size of the file system.
    pub size_limit: Option<Quantity>,
}

/// What an `emptyDir` is stored on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Medium {
    /// The node's disk.
    #[default]
    Disk,
    /// A file system in memory.
    Memory,
}

/// A directory of files, replaced as a whole (by a symbolic link) when their content changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedVolume {
    /// Which kind of volume it is in the manifest: its directory is named after that.
    pub kind: ProjectedKind,
    /// The mode of files that have none of their own.
    pub default_mode: u32,
    /// What its files contain. Of two files with one path, the later one counts.
    pub sources: Vec<Projection>,
}

/// The kind of a [`ProjectedVolume`] in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectedKind {
    /// `configMap`: one source.
    ConfigMap,
    /// `secret`: one source. Kept in memory.
    Secret,
    /// `downwardAPI`: one source.
    DownwardApi,
    /// `projected`: any sources. Kept in memory.
    Projected,
}

/// Files of a [`ProjectedVolume`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projection {
    /// Entries of a `ConfigMap` or Secret.
    Object {
        /// The object. If it is optional, entries that are missing are left out.
        object: ObjectRef,
        /// The entries and their files; if empty, each entry is a file of its name.
        items: Vec<ObjectFile>,
    },
    /// Fields of the pod.
    DownwardApi(Vec<DownwardFile>),
    /// A token of the pod's service account.
    ServiceAccountToken {
        /// For whom it is meant; the API server if none.
        audience: Option<String>,
        /// How long it is valid: at least 10 min.
        expiration: Duration,
        /// Its file.
        path: String,
    },
}

/// An entry of an object, as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFile {
    /// The key of the entry.
    pub key: String,
    /// The path of the file in the volume: relative, without `..`.
    pub path: String,
    /// Its mode, if not that of the volume.
    pub mode: Option<u32>,
}

/// A field of the pod, as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownwardFile {
    /// The path of the file in the volume: relative, without `..`.
    pub path: String,
    /// What it contains.
    pub value: DownwardValue,
    /// Its mode, if not that of the volume.
    pub mode: Option<u32>,
}

/// What a file of the downward API contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownwardValue {
    /// A field of the pod: one of its metadata.
    Field(PodField),
    /// A request or limit of a container.
    Resource(ResourceField),
}

/// What has to be at a path of the host before a container starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPathKind {
    /// Anything; not checked.
    Any,
    /// A directory; created if it is missing.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file; created, empty, if it is missing.
    FileOrCreate,
    /// A file.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Whether mounts below a mount are propagated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// Not at all.
    #[default]
    None,
    /// From the host to the container.
    HostToContainer,
    /// In both directions.
    Bidirectional,
}

/// A volume that is mounted in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name.
    pub volume: String,
    /// Its path in the container.
    pub path: String,
    /// Which part of the volume; all if none.
    pub sub_path: Option<SubPath>,
    /// Whether it is read-only.
    pub read_only: bool,
    /// How mounts below it are propagated.
    pub propagation: Propagation,
}

/// A path in a volume: relative, without `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubPath {
    /// `subPath`: as it is.
    Path(String),
    /// `subPathExpr`: with `$(NAME)` for variables of the container. The result has to be relative and without `..` too.
    Expression(String),
}
