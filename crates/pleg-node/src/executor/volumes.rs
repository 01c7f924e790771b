//! The log directories and volumes of a pod, prepared before its sandbox. Blocking. `cleanup` removes them.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::requests::NodeConfig;
use crate::manifest::{HostPathKind, Pod, Volume};

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
    /// Its content comes from an API server.
    #[error("volume {volume} needs an API server, and this node has none")]
    NoApiServer {
        /// The volume.
        volume: String,
    },
    /// A host path is not what the manifest says.
    #[error("volume {volume}: {} is not {wanted}", .path.display())]
    WrongKind {
        /// The volume.
        volume: String,
        /// Its path.
        path: PathBuf,
        /// What it has to be.
        wanted: &'static str,
    },
}

/// Creates the directories of logs and volumes, and checks host paths. What exists already stays.
pub fn prepare(node: &NodeConfig, pod: &Pod) -> Result<(), VolumeError> {
    // No other user of this machine may access the pod's directory. It also marks the logs as ours.
    create_dir(&node.pod_directory(&pod.id.uid), 0o750, "the pod")?;
    let logs = node.log_directory(pod);
    for container in pod.spec.all_containers() {
        create_dir(&logs.join(&container.name), 0o755, "the logs")?;
    }
    for (name, volume) in &pod.spec.volumes {
        match volume {
            Volume::EmptyDir(_) => {
                let path = node.empty_dir(pod, name);
                create_dir(&path, 0o755, name)?;
                // Any user of any container of the pod may write there. The umask would take that away from the mode above.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o777))
                    .map_err(|e| cannot_create(&path, name, e))?;
            }
            Volume::HostPath { path, kind } => prepare_host_path(name, Path::new(path), *kind)?,
            Volume::Projected(_) | Volume::PersistentVolumeClaim { .. } => {
                return Err(VolumeError::NoApiServer { volume: name.clone() });
            }
        }
    }
    Ok(())
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

/// Whether a file is of some kind.
type IsKind = fn(&fs::FileType) -> bool;

/// Creates a host path if its type says so, and checks that it is of that type.
fn prepare_host_path(volume: &str, path: &Path, kind: HostPathKind) -> Result<(), VolumeError> {
    match kind {
        HostPathKind::DirectoryOrCreate => create_dir(path, 0o755, volume)?,
        HostPathKind::FileOrCreate => {
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(path)
                .map(drop);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot_create(path, volume, error));
                }
                _ => {}
            }
        }
        _ => {}
    }
    let (wanted, is): (&'static str, IsKind) = match kind {
        HostPathKind::Any => return Ok(()),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => ("a directory", fs::FileType::is_dir),
        HostPathKind::FileOrCreate | HostPathKind::File => ("a file", fs::FileType::is_file),
        HostPathKind::Socket => ("a socket", fs::FileType::is_socket),
        HostPathKind::CharDevice => ("a character device", fs::FileType::is_char_device),
        HostPathKind::BlockDevice => ("a block device", fs::FileType::is_block_device),
    };
    if fs::metadata(path).is_ok_and(|metadata| is(&metadata.file_type())) {
        return Ok(());
    }
    Err(VolumeError::WrongKind {
        volume: volume.to_owned(),
        path: path.to_owned(),
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::executor::cleanup;
    use crate::testing::{node, pod};

    #[test]
    fn what_is_created_is_removed_and_nothing_else() {
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
        // Only root and its group have access.
        assert_eq!(mode(&node.pod_directory(&pod.id.uid)) & 0o007, 0);
        assert_eq!(mode(&node.pods) & 0o007, 0);
        assert!(node.log_directory(&pod).join("a").is_dir());
        // A container may leave a symbolic link behind: its target is not removed.
        fs::write(host.join("keep"), "x").unwrap();
        symlink(&host, tmp.join("link")).unwrap();
        cleanup::remove(&node, &pod).unwrap();
        cleanup::remove(&node, &pod).unwrap();
        assert!(!cgroup.exists());
        assert!(!tmp.exists() && !node.log_directory(&pod).exists() && !node.pod_directory(&pod.id.uid).exists());
        assert_eq!(fs::read(host.join("keep")).unwrap(), b"x");
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
            let result = prepare_host_path("v", &dir.path().join(path), kind);
            assert_eq!(result.is_ok(), right, "{path} {kind:?}: {result:?}");
        }
        assert!(prepare_host_path("v", Path::new("/dev/null"), HostPathKind::CharDevice).is_ok());
        drop(socket);
    }
}
