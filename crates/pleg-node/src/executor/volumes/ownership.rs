//! `fsGroup`: the group that owns a volume. Blocking.
//!
//! As in the kubelet, every file of the volume gets the group and its permissions, and directories the set-group-id bit, so that new files
//! get the group too. The user who owns a file stays. In the kubelet `fsGroupChangePolicy` has no effect on volumes that are made for the
//! pod, which are all that exist here; here `OnRootMismatch` saves the walk through an `emptyDir` when a sandbox is replaced.
//!
//! A container may write to the volume while we walk through it. So no path is followed: every file is opened without following symbolic
//! links, below the open directory it was found in, and changed through its descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags};

use crate::manifest::FsGroup;

/// Added to the permissions of files that may be written, or only read.
const WRITABLE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
/// Added for directories: enter, and the set-group-id bit.
const DIRECTORY: u32 = 0o2110;
/// Deepest nesting. Each level needs a descriptor.
const MAX_DEPTH: usize = 128;

/// Gives a volume to its group.
pub(super) fn apply(volume: &Path, group: FsGroup, read_only: bool) -> io::Result<()> {
    let gid = u32::try_from(group.gid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let owner = Owner {
        gid: Gid::from_raw(gid),
        mask: if read_only { READ_ONLY } else { WRITABLE },
    };
    let root = rustix::fs::openat(CWD, volume, path_only(), Mode::empty())?;
    if group.on_root_mismatch && owner.matches(&root)? {
        return Ok(());
    }
    // The root last: if we are interrupted it does not match, and the next walk is a full one.
    owner.change_content(&root, MAX_DEPTH)?;
    owner.change(&root)
}

fn path_only() -> OFlags {
    OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

struct Owner {
    gid: Gid,
    mask: u32,
}

impl Owner {
    fn matches(&self, root: &OwnedFd) -> io::Result<bool> {
        let stat = rustix::fs::fstat(root)?;
        let wanted = self.mask | DIRECTORY;
        Ok(stat.st_gid == self.gid.as_raw() && stat.st_mode & wanted == wanted)
    }

    /// Changes one file.
    fn change(&self, file: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(file)?;
        rustix::fs::chownat(file.as_fd(), c"", None, Some(self.gid), AtFlags::EMPTY_PATH)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            return Ok(());
        }
        let more = if kind == FileType::Directory { DIRECTORY } else { 0 };
        // The type is not part of the permissions.
        let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | self.mask | more);
        // A descriptor that is only a path cannot be changed itself; its link below /proc can.
        Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?)
    }

    fn change_content(&self, directory: &OwnedFd, depth: usize) -> io::Result<()> {
        if depth == 0 {
            let message = format!("directories are nested more than {MAX_DEPTH} deep");
            return Err(io::Error::other(message));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(directory, c".", flags, Mode::empty())?;
        for entry in Dir::new(readable)? {
            let entry = entry?;
            let name: CString = entry.file_name().to_owned();
            if name.as_bytes() == b"." || name.as_bytes() == b".." {
                continue;
            }
            let file = match rustix::fs::openat(directory, &name, path_only(), Mode::empty()) {
                // Removed since.
                Err(rustix::io::Errno::NOENT) => continue,
                file => file?,
            };
            if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Directory {
                self.change_content(&file, depth - 1)?;
            }
            self.change(&file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    /// A group that the tests may give files to without being root: their own.
    fn own_group(on_root_mismatch: bool) -> FsGroup {
        FsGroup {
            gid: rustix::process::getgid().as_raw().into(),
            on_root_mismatch,
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn everything_in_a_volume_is_the_groups_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("v"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("sub")).unwrap();
        for (path, bits) in [(volume.join("sub/file"), 0o600), (outside.clone(), 0o600)] {
            fs::write(&path, "").unwrap();
            set_mode(&path, bits);
        }
        set_mode(&volume.join("sub"), 0o700);
        symlink(&outside, volume.join("link")).unwrap();
        apply(&volume, own_group(false), false).unwrap();
        assert_eq!(mode(&volume) & 0o2770, 0o2770);
        assert_eq!(
            (mode(&volume.join("sub")), mode(&volume.join("sub/file"))),
            (0o2770, 0o660)
        );
        assert_eq!(mode(&outside), 0o600);
    }

    #[test]
    fn read_only_volumes_stay_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o400);
        apply(dir.path(), own_group(false), true).unwrap();
        assert_eq!(mode(&file), 0o440);
    }

    #[test]
    fn a_root_that_matches_is_enough_for_on_root_mismatch() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o600);
        // The root does not match yet.
        set_mode(dir.path(), 0o700);
        apply(dir.path(), own_group(true), false).unwrap();
        assert_eq!(mode(&file), 0o660);
        set_mode(&file, 0o600);
        apply(dir.path(), own_group(true), false).unwrap();
        assert_eq!(mode(&file), 0o600);
        apply(dir.path(), own_group(false), false).unwrap();
        assert_eq!(mode(&file), 0o660);
    }

    #[test]
    fn a_nest_without_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join(vec!["d"; MAX_DEPTH].join("/"));
        fs::create_dir_all(deep).unwrap();
        let error = apply(dir.path(), own_group(false), false).unwrap_err().to_string();
        assert_eq!(error, "directories are nested more than 128 deep");
    }
}
