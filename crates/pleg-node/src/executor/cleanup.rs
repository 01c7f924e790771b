//! Removes what a terminated pod leaves on the host: its directories and its cgroup. Blocking.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::host_mounts::{HostMounts, Mounts};
use super::log_links;
use super::requests::{Cgroups, NodeConfig, SUB_PATHS};
use crate::cgroups::{names, remove as remove_cgroup};
use crate::manifest::Pod;

/// Why something of a pod was not removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    /// Something is mounted there, whose content is not the pod's.
    #[error("not removing {}: {} is a mount point; unmount it first", .path.display(), .mount.display())]
    Mounted {
        /// The directory.
        path: PathBuf,
        /// The mount point in it.
        mount: PathBuf,
    },
    /// A mount of ours cannot be unmounted.
    #[error("cannot unmount {}", .mount.display())]
    Unmount {
        /// The mount point.
        mount: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be removed.
    #[error("cannot remove {}", .path.display())]
    Remove {
        /// The directory or cgroup.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The thread that removes it panicked, or we shut down.
    #[error("removal was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Removes the pod's own directories and its cgroup, with all that is in them; never the target of a symbolic link, or what somebody else
/// mounted there. Our own mounts are unmounted first, also those of a run that was killed. What does not exist is skipped.
pub(super) fn remove(node: &NodeConfig, pod: &Pod) -> Result<(), CleanupError> {
    let logs = node.log_directory(pod);
    log_links::remove_of_pod(&node.log_links, pod, &logs).map_err(|source| CleanupError::Remove {
        path: node.log_links.clone(),
        source,
    })?;
    // The pod's own directory last: while it exists, the logs are known to be ours.
    for path in [logs, node.pod_directory(&pod.id.uid)] {
        remove_directory(&path, &*node.host.mounts)?;
    }
    // systemd removes slices itself.
    if node.cgroups == Cgroups::Path {
        // The class of a pod whose manifest is lost is not known.
        for levels in names::everywhere(&node.cgroup_root, &pod.id.uid) {
            let cgroup = names::path(&levels);
            remove_cgroup::remove(&node.cgroup_mount, &cgroup).map_err(|source| CleanupError::Remove {
                path: node.cgroup_mount.join(cgroup.trim_start_matches('/')),
                source,
            })?;
        }
    }
    Ok(())
}

/// Removes the directory of a pod, or of its volumes, with all that is in it. What we mounted there is unmounted first; if something else is
/// mounted there, nothing is removed.
pub(crate) fn remove_unmounted_directory(path: &Path) -> Result<(), CleanupError> {
    remove_directory(path, &HostMounts)
}

fn remove_directory(path: &Path, mounts: &dyn Mounts) -> Result<(), CleanupError> {
    if !path.exists() {
        return Ok(());
    }
    let failed = |source| CleanupError::Remove {
        path: path.to_owned(),
        source,
    };
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut mounted = mounts.mounted().map_err(failed)?;
    mounted.retain(|mount| mount.starts_with(&real));
    // A privileged container can leave mounts behind in a volume. Their content must not be removed.
    if let Some(mount) = mounted.iter().find(|mount| !is_ours(&real, mount)) {
        return Err(CleanupError::Mounted {
            path: path.to_owned(),
            mount: mount.clone(),
        });
    }
    // The newest first: one may be on another.
    for mount in mounted.iter().rev() {
        let unmounted = mounts.unmount(mount);
        unmounted.map_err(|source| CleanupError::Unmount {
            mount: mount.clone(),
            source,
        })?;
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Whether we mounted it: a volume in memory, or a part of a volume and what came with it. `path` is the directory of a pod, or of its
/// volumes.
fn is_ours(path: &Path, mount: &Path) -> bool {
    let is_ours_below = |pod_directory: &Path| {
        let below = mount.strip_prefix(pod_directory).unwrap_or(mount);
        let parts: Vec<_> = below.iter().collect();
        match parts.as_slice() {
            [volumes, kind, _name] => *volumes == "volumes" && kind.to_string_lossy().starts_with("kubernetes.io~"),
            [sub_paths, _volume, _container, _index, ..] => *sub_paths == SUB_PATHS,
            _ => false,
        }
    };
    is_ours_below(path) || path.parent().is_some_and(is_ours_below)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::executor::host_mounts::testing::{FakeMount, FakeMounts};
    use crate::executor::objects::Objects;
    use crate::executor::volumes::prepare;
    use crate::testing::{node, pod};

    /// A container with mount propagation can leave a disk mounted in its volume.
    #[test]
    fn what_is_mounted_in_a_volume_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = node(dir.path());
        let mounts = Arc::new(FakeMounts::default());
        node.host.mounts = mounts.clone();
        let pod = pod("volumes: [{name: tmp, emptyDir: {}}], containers: [{name: a, image: i}]");
        prepare(&node, &pod, &Objects::default()).unwrap();
        let disk = node.empty_dir(&pod, "tmp").join("my disk");
        fs::create_dir(&disk).unwrap();
        fs::write(disk.join("precious"), "x").unwrap();
        mounts.0.lock().push(FakeMount {
            target: fs::canonicalize(&disk).unwrap(),
            source: "/dev/sdb1".to_owned(),
        });
        let error = remove(&node, &pod).unwrap_err().to_string();
        assert!(
            error.starts_with("not removing ") && error.ends_with("my disk is a mount point; unmount it first"),
            "{error}"
        );
        assert!(disk.join("precious").exists());
        mounts.0.lock().clear();
        remove(&node, &pod).unwrap();
        assert!(!disk.exists());
    }
}
