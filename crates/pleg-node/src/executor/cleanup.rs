//! Removes what a terminated pod leaves on the host: its directories and its cgroup. Blocking.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::log_links;
use super::requests::{Cgroups, NodeConfig};
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

/// Removes the pod's own directories and its cgroup, with all that is in them; never the target of a symbolic link, or what is mounted
/// there. What does not exist is skipped.
pub(super) fn remove(node: &NodeConfig, pod: &Pod) -> Result<(), CleanupError> {
    remove_unmounted(node, pod, Path::new("/proc/self/mountinfo"))
}

fn remove_unmounted(node: &NodeConfig, pod: &Pod, mountinfo: &Path) -> Result<(), CleanupError> {
    let logs = node.log_directory(pod);
    log_links::remove_of_pod(&node.log_links, pod, &logs).map_err(|source| CleanupError::Remove {
        path: node.log_links.clone(),
        source,
    })?;
    // The pod's own directory last: while it exists, the logs are known to be ours.
    for path in [logs, node.pod_directory(&pod.id.uid)] {
        remove_directory(&path, mountinfo)?;
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

/// Removes a directory with all that is in it, unless something is mounted there.
pub(crate) fn remove_unmounted_directory(path: &Path) -> Result<(), CleanupError> {
    remove_directory(path, Path::new("/proc/self/mountinfo"))
}

fn remove_directory(path: &Path, mountinfo: &Path) -> Result<(), CleanupError> {
    if !path.exists() {
        return Ok(());
    }
    let failed = |source| CleanupError::Remove {
        path: path.to_owned(),
        source,
    };
    // A privileged container can leave mounts behind in a volume. Their content must not be removed.
    let mounts = fs::read_to_string(mountinfo).map_err(failed)?;
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(mount) = mount_points(&mounts).find(|mount| mount.starts_with(&real)) {
        let path = path.to_owned();
        return Err(CleanupError::Mounted { path, mount });
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// The mount points in a `mountinfo` file.
fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| {
        // Spaces and other special characters are written as \ooo.
        let mut bytes = Vec::with_capacity(point.len());
        let mut rest = point.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            let code = after.get(..3).filter(|_| byte == b'\\');
            let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
            bytes.push(code.unwrap_or(byte));
            rest = if code.is_some() { &after[3..] } else { after };
        }
        PathBuf::from(OsString::from_vec(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::volumes::prepare;
    use crate::testing::{node, pod};

    /// A container with mount propagation can leave a disk mounted in its volume.
    #[test]
    fn what_is_mounted_in_a_volume_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let pod = pod("volumes: [{name: tmp, emptyDir: {}}], containers: [{name: a, image: i}]");
        prepare(&node, &pod).unwrap();
        let disk = node.empty_dir(&pod, "tmp").join("my disk");
        fs::create_dir(&disk).unwrap();
        fs::write(disk.join("precious"), "x").unwrap();
        let mountinfo = dir.path().join("mountinfo");
        let place = fs::canonicalize(&disk)
            .unwrap()
            .display()
            .to_string()
            .replace(' ', "\\040");
        let lines =
            format!("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 8:2 / {place} rw shared:1 - ext4 /dev/sdb1 rw\n");
        fs::write(&mountinfo, lines).unwrap();
        let error = remove_unmounted(&node, &pod, &mountinfo).unwrap_err().to_string();
        assert!(
            error.starts_with("not removing ") && error.ends_with("my disk is a mount point; unmount it first"),
            "{error}"
        );
        assert!(disk.join("precious").exists());
        fs::write(&mountinfo, "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n").unwrap();
        remove_unmounted(&node, &pod, &mountinfo).unwrap();
        assert!(!disk.exists());
    }
}
