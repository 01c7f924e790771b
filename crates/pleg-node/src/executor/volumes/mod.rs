//! The log directories and volumes of a pod, prepared before its sandbox; mounts and parts of volumes, before each container. Blocking.
//! `cleanup` removes them.
//!
//! | module | job |
//! |---|---|
//! | `empty_dir`, `host_path` | these kinds of volumes |
//! | `projected`, `atomic_writer` | files of `configMap`, `secret`, `downwardAPI` and `projected`, and how they are replaced |
//! | `ownership` | `fsGroup` |
//! | `container_mounts`, `sub_path` | what one container mounts; parts of volumes, safe against races |

mod atomic_writer;
mod container_mounts;
mod empty_dir;
mod host_path;
mod ownership;
mod projected;
mod sub_path;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::objects::{ClaimedVolume, Objects};
use super::requests::NodeConfig;
use crate::manifest::{Container, Pod, ProjectedVolume, Volume};

pub(crate) use container_mounts::mounts;
pub use projected::ContentError;
pub use sub_path::SubPathError;

/// Why a directory or a volume of a pod cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It cannot be created.
    #[error("cannot create {} for {what}", .path.display())]
    Create {
        /// The directory or file.
        path: PathBuf,
        /// What it is for: a volume, or the logs.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is provided by others, who are found through an API server.
    #[error("volume {volume} needs an API server, and this node has none")]
    NoApiServer {
        /// The volume.
        volume: String,
    },
    /// A host path is not what the manifest says.
    #[error("volume {volume}: hostPath type check failed: {} is not {wanted}", .path.display())]
    WrongKind {
        /// The volume.
        volume: String,
        /// Its path.
        path: PathBuf,
        /// What it has to be.
        wanted: &'static str,
    },
    /// A file of a volume has no content.
    #[error("volume {volume}: {source}")]
    Content {
        /// The volume.
        volume: String,
        /// Why.
        source: ContentError,
    },
    /// The files of a volume cannot be written.
    #[error("cannot write the files of volume {volume} to {}", .path.display())]
    Write {
        /// The volume.
        volume: String,
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A volume cannot be given to its group.
    #[error("cannot change the group of volume {volume} at {} to fsGroup {gid}", .path.display())]
    Ownership {
        /// The volume.
        volume: String,
        /// Its path.
        path: PathBuf,
        /// The group.
        gid: i64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A part of a volume cannot be mounted.
    #[error("subPath {sub_path} of volume {volume} cannot be mounted in container {container}")]
    SubPath {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// The part.
        sub_path: String,
        /// Why.
        #[source]
        source: SubPathError,
    },
    /// `subPathExpr` refers to a variable that does not exist.
    #[error("subPathExpr of volume {volume} refers to {name}, which is not a variable of the container")]
    UnknownVariable {
        /// The volume.
        volume: String,
        /// The variable.
        name: String,
    },
}

impl VolumeError {
    /// The reason in a pod status: volumes are prepared for the pod, their parts for a container.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::SubPath { .. } | Self::UnknownVariable { .. } => "CreateContainerConfigError",
            _ => "FailedMount",
        }
    }
}

/// Creates the directories of logs and volumes, checks host paths, and writes files. What exists already stays.
pub fn prepare(node: &NodeConfig, pod: &Pod, objects: &Objects) -> Result<(), VolumeError> {
    // No other user of this machine may access the pod's directory. It also marks the logs as ours.
    create_dir(&node.pod_directory(&pod.id.uid), 0o750, "the pod")?;
    for container in pod.spec.all_containers().chain(&pod.spec.ephemeral_containers) {
        prepare_logs(node, pod, container)?;
    }
    for (name, volume) in &pod.spec.volumes {
        match volume {
            Volume::EmptyDir(empty_dir) => {
                let path = node.empty_dir(pod, name);
                let bytes = empty_dir::memory_size(pod, volume, node.memory);
                empty_dir::prepare(&*node.host.mounts, name, &path, empty_dir.medium, bytes)?;
                own(pod, name, &path)?;
            }
            Volume::HostPath { path, kind } => host_path::prepare(name, Path::new(path), *kind)?,
            Volume::Projected(projected) => prepare_projected(node, pod, (name, volume, projected), objects)?,
            Volume::PersistentVolumeClaim { claim, read_only } => {
                prepare_claimed(pod, name, objects.claim(claim), *read_only)?;
            }
        }
    }
    Ok(())
}

/// Creates the directory of a container's logs. One that was added to a running pod has none yet.
pub(crate) fn prepare_logs(node: &NodeConfig, pod: &Pod, container: &Container) -> Result<(), VolumeError> {
    create_dir(&node.log_directory(pod).join(&container.name), 0o755, "the logs")
}

/// Writes the files of volumes whose content changed. Nothing else of the pod is touched.
pub(crate) fn refresh(node: &NodeConfig, pod: &Pod, objects: &Objects) -> Result<(), VolumeError> {
    for (name, volume) in &pod.spec.volumes {
        if let Volume::Projected(projected) = volume {
            prepare_projected(node, pod, (name, volume, projected), objects)?;
        }
    }
    Ok(())
}

/// Checks the path of a persistent volume, and gives it to the group of the pod, unless the pod must not change it.
fn prepare_claimed(pod: &Pod, name: &str, claimed: Option<&ClaimedVolume>, read_only: bool) -> Result<(), VolumeError> {
    let claimed = claimed.ok_or_else(|| VolumeError::NoApiServer {
        volume: name.to_owned(),
    })?;
    host_path::prepare(name, &claimed.path, claimed.kind)?;
    if claimed.owned_by_group && !read_only {
        own(pod, name, &claimed.path)?;
    }
    Ok(())
}

fn prepare_projected(
    node: &NodeConfig,
    pod: &Pod,
    (name, volume, projected): (&str, &Volume, &ProjectedVolume),
    objects: &Objects,
) -> Result<(), VolumeError> {
    // First: a volume without content is not mounted.
    let files = projected::files(node, pod, projected, objects).map_err(|source| VolumeError::Content {
        volume: name.to_owned(),
        source,
    })?;
    let Some(path) = node.volume_path(pod, name) else {
        return Ok(());
    };
    let bytes = empty_dir::memory_size(pod, volume, node.memory);
    let medium = projected::medium(projected.kind);
    empty_dir::prepare(&*node.host.mounts, name, &path, medium, bytes)?;
    let written = atomic_writer::write(&path, &files, pod.spec.security.fs_group);
    written.map(drop).map_err(|source| VolumeError::Write {
        volume: name.to_owned(),
        path,
        source,
    })
}

/// Gives a volume to the group of the pod, if it has one.
fn own(pod: &Pod, name: &str, path: &Path) -> Result<(), VolumeError> {
    let Some(group) = pod.spec.security.fs_group else {
        return Ok(());
    };
    let owned = ownership::apply(path, group, false);
    owned.map_err(|source| VolumeError::Ownership {
        volume: name.to_owned(),
        path: path.to_owned(),
        gid: group.gid,
        source,
    })
}

fn cannot_create(path: &Path, what: &str, source: io::Error) -> VolumeError {
    VolumeError::Create {
        path: path.to_owned(),
        what: what.to_owned(),
        source,
    }
}

fn create_dir(path: &Path, mode: u32, what: &str) -> Result<(), VolumeError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|error| cannot_create(path, what, error))
}

#[cfg(test)]
mod tests;
