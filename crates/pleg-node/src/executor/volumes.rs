//! Directories of a pod on the host: made before its sandbox, removed after it. Blocking.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::executor::cgroups;
use crate::executor::requests::{Cgroups, Node};
use crate::manifest::{HostPathKind, Pod, Volume};

/// Why a pod cannot have a directory or a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It cannot be made.
    #[error("cannot create {} for {what}", .path.display())]
    Make {
        /// Which.
        path: PathBuf,
        /// Volume or logs.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what the manifest says.
    #[error("volume {volume}: {} is not {wanted}", .path.display())]
    Wrong {
        /// The volume.
        volume: String,
        /// Its path.
        path: PathBuf,
        /// What it has to be.
        wanted: &'static str,
    },
    /// Something is mounted there: what is in it is not the pod's.
    #[error("not removing {}: {} is a mount point; unmount it first", .path.display(), .mount.display())]
    Mounted {
        /// Which.
        path: PathBuf,
        /// Where.
        mount: PathBuf,
    },
    /// It cannot be removed.
    #[error("cannot remove {}", .path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Makes the directories of logs and volumes, and checks what has to be there. What is there already stays.
pub fn prepare(node: &Node, pod: &Pod) -> Result<(), VolumeError> {
    let logs = node.log_directory(pod);
    for container in pod.spec.all_containers() {
        make(&logs.join(&container.name), 0o755, "the logs")?;
    }
    for (name, volume) in &pod.spec.volumes {
        match volume {
            Volume::EmptyDir => {
                // Every container of the pod may write there, and no other user of this machine may access it.
                make(&node.pod_directory(&pod.id.uid), 0o750, name)?;
                let path = node.empty_dir(pod, name);
                make(&path, 0o755, name)?;
                // Any user of any container may write there. The umask would take that away.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).map_err(|e| failed(&path, name, e))?;
            }
            Volume::HostPath { path, kind } => host_path(name, Path::new(path), *kind)?,
        }
    }
    Ok(())
}

/// Removes the pod's own directories and its cgroup, with all that is in them; never what a link leads to or what is mounted there. What is gone is
/// gone.
pub fn remove(node: &Node, pod: &Pod) -> Result<(), VolumeError> {
    remove_beside(node, pod, Path::new("/proc/self/mountinfo"))
}

fn remove_beside(node: &Node, pod: &Pod, mountinfo: &Path) -> Result<(), VolumeError> {
    for path in [node.pod_directory(&pod.id.uid), node.log_directory(pod)] {
        if !path.exists() {
            continue;
        }
        // A privileged container can leave mounts behind in a volume, and to remove what is in them would be to remove it for all.
        let mounts = fs::read_to_string(mountinfo).map_err(|source| VolumeError::Remove {
            path: path.clone(),
            source,
        })?;
        let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if let Some(mount) = mount_points(&mounts).find(|mount| mount.starts_with(&real)) {
            return Err(VolumeError::Mounted { path, mount });
        }
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(VolumeError::Remove { path, source });
            }
            _ => {}
        }
    }
    // A slice is systemd's to remove.
    if node.cgroups == Cgroups::Path {
        let cgroup = node.cgroup(pod);
        cgroups::remove(&node.cgroup_mount, &cgroup).map_err(|source| VolumeError::Remove {
            path: node.cgroup_mount.join(cgroup.trim_start_matches('/')),
            source,
        })?;
    }
    Ok(())
}

/// Where something is mounted, as the kernel lists it.
fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| {
        // Spaces and such are written as \\ooo.
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

fn failed(path: &Path, what: &str, source: io::Error) -> VolumeError {
    VolumeError::Make {
        path: path.to_owned(),
        what: what.to_owned(),
        source,
    }
}

fn make(path: &Path, mode: u32, what: &str) -> Result<(), VolumeError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|error| failed(path, what, error))
}

/// Whether a file is of some kind.
type Is = fn(&fs::FileType) -> bool;

fn host_path(volume: &str, path: &Path, kind: HostPathKind) -> Result<(), VolumeError> {
    match kind {
        HostPathKind::DirectoryOrCreate => make(path, 0o755, volume)?,
        HostPathKind::FileOrCreate => {
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(path)
                .map(drop);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(path, volume, error)),
                _ => {}
            }
        }
        _ => {}
    }
    let (wanted, is): (&'static str, Is) = match kind {
        HostPathKind::Any => return Ok(()),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => ("a directory", fs::FileType::is_dir),
        HostPathKind::FileOrCreate | HostPathKind::File => ("a file", fs::FileType::is_file),
        HostPathKind::Socket => ("a socket", fs::FileType::is_socket),
        HostPathKind::CharDevice => ("a character device", fs::FileType::is_char_device),
        HostPathKind::BlockDevice => ("a block device", fs::FileType::is_block_device),
    };
    let right = fs::metadata(path).is_ok_and(|metadata| is(&metadata.file_type()));
    if right {
        return Ok(());
    }
    Err(VolumeError::Wrong {
        volume: volume.to_owned(),
        path: path.to_owned(),
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{node, pod};

    #[test]
    fn what_is_made_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let host = dir.path().join("host");
        let pod = pod(&format!(
            "volumes: [{{name: tmp, emptyDir: {{}}}}, {{name: host, hostPath: {{path: {}, type: DirectoryOrCreate}}}}], \
             containers: [{{name: a, image: i}}]",
            host.display()
        ));
        prepare(&node, &pod).unwrap();
        prepare(&node, &pod).unwrap();
        let cgroup = node.cgroup_mount.join("memory").join(&node.cgroup(&pod)[1..]);
        fs::create_dir_all(cgroup.join("left")).unwrap();
        let tmp = node.empty_dir(&pod, "tmp");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&tmp), 0o777);
        // Whoever is not root does not get there.
        assert_eq!(mode(&node.pod_directory(&pod.id.uid)) & 0o007, 0);
        assert_eq!(mode(&node.pods) & 0o007, 0);
        assert!(node.log_directory(&pod).join("a").is_dir());
        // A container may leave a link behind; what it leads to is none of our business.
        fs::write(host.join("keep"), "x").unwrap();
        symlink(&host, tmp.join("link")).unwrap();
        remove(&node, &pod).unwrap();
        remove(&node, &pod).unwrap();
        assert!(!cgroup.exists());
        assert!(!tmp.exists() && !node.log_directory(&pod).exists() && !node.pod_directory(&pod.id.uid).exists());
        assert_eq!(fs::read(host.join("keep")).unwrap(), b"x");
    }

    /// A container with mount propagation can leave a disk of the host mounted in its volume.
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
        let error = remove_beside(&node, &pod, &mountinfo).unwrap_err().to_string();
        assert!(
            error.starts_with("not removing ") && error.ends_with("my disk is a mount point; unmount it first"),
            "{error}"
        );
        assert!(disk.join("precious").exists());
        fs::write(&mountinfo, "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n").unwrap();
        remove_beside(&node, &pod, &mountinfo).unwrap();
        assert!(!disk.exists());
    }

    #[test]
    fn host_paths_have_to_be_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for (path, kind, right) in [
            ("none", HostPathKind::Any, true),
            ("none", HostPathKind::Directory, false),
            ("none", HostPathKind::File, false),
            (".", HostPathKind::Directory, true),
            ("file", HostPathKind::File, true),
            ("file", HostPathKind::Directory, false),
            ("file", HostPathKind::DirectoryOrCreate, false),
            ("file", HostPathKind::Socket, false),
            ("socket", HostPathKind::Socket, true),
            ("new/dir", HostPathKind::DirectoryOrCreate, true),
            ("new/dir", HostPathKind::FileOrCreate, false),
            ("new/file", HostPathKind::FileOrCreate, true),
            ("file", HostPathKind::FileOrCreate, true),
            ("file", HostPathKind::BlockDevice, false),
        ] {
            let result = host_path("v", &dir.path().join(path), kind);
            assert_eq!(result.is_ok(), right, "{path} {kind:?}: {result:?}");
        }
        assert!(host_path("v", Path::new("/dev/null"), HostPathKind::CharDevice).is_ok());
        drop(socket);
    }
}
