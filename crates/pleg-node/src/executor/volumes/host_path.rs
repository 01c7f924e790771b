//! `hostPath`: a path of the host, created or checked as its type says. Blocking.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{VolumeError, cannot_create, create_dir};
use crate::manifest::HostPathKind;

/// Whether a file is of some kind.
type IsKind = fn(&fs::FileType) -> bool;

/// Creates a host path if its type says so, and checks that it is of that type.
pub(super) fn prepare(volume: &str, path: &Path, kind: HostPathKind) -> Result<(), VolumeError> {
    match kind {
        HostPathKind::DirectoryOrCreate if !path.exists() => create_dir(path, 0o755, volume)?,
        HostPathKind::FileOrCreate => {
            let mut open = OpenOptions::new();
            let made = open.write(true).create_new(true).mode(0o644).open(path);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot_create(path, volume, error));
                }
                _ => {}
            }
        }
        _ => {}
    }
    // The words of the kubelet.
    let (wanted, is): (&'static str, IsKind) = match kind {
        HostPathKind::Any => return Ok(()),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => ("a directory", fs::FileType::is_dir),
        HostPathKind::FileOrCreate | HostPathKind::File => ("a file", fs::FileType::is_file),
        HostPathKind::Socket => ("a socket file", fs::FileType::is_socket),
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
    use super::*;

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
            let result = prepare("v", &dir.path().join(path), kind);
            assert_eq!(result.is_ok(), right, "{path} {kind:?}: {result:?}");
        }
        assert!(prepare("v", Path::new("/dev/null"), HostPathKind::CharDevice).is_ok());
        let error = prepare("v", Path::new("/dev/null"), HostPathKind::Socket).unwrap_err();
        let wanted = "volume v: hostPath type check failed: /dev/null is not a socket file";
        assert_eq!(error.to_string(), wanted);
        drop(socket);
    }
}
