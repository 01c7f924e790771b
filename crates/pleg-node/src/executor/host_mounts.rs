//! Mounts on the host: file systems in memory for volumes, and bind mounts for `subPath`. Blocking.
//!
//! They are made in the mount namespace of `pleg node`, which has to be that of the runtime. Nothing remembers them but the kernel: what is
//! mounted is read from `mountinfo`, so that mounts of a run that was killed are found and unmounted too.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// Mounts and unmounts. Behind a trait, because only root may.
pub trait Mounts: fmt::Debug + Send + Sync {
    /// Mounts a file system in memory of at most `bytes`.
    fn tmpfs(&self, target: &Path, bytes: u64) -> io::Result<()>;
    /// Mounts an open file or directory at another path.
    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()>;
    /// Unmounts what is mounted at a path; the last component may not be a symbolic link.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// What is mounted, oldest first. The paths have no symbolic links.
    fn mounted(&self) -> io::Result<Vec<PathBuf>>;
}

/// The mounts of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostMounts;

impl Mounts for HostMounts {
    fn tmpfs(&self, target: &Path, bytes: u64) -> io::Result<()> {
        let mount = |options: String| {
            let options = CString::new(options).map_err(|_| Errno::INVAL)?;
            rustix::mount::mount("tmpfs", target, "tmpfs", MountFlags::empty(), options.as_c_str())
        };
        // Secrets must not be written to a disk. Kernels before 6.3 do not know the option.
        match mount(format!("size={bytes},noswap")) {
            Err(Errno::INVAL) => Ok(mount(format!("size={bytes}"))?),
            mounted => Ok(mounted?),
        }
    }

    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        Ok(rustix::mount::mount_bind(source.as_str(), target)?)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
            // A process of the host is in it, or a mount was propagated to it: it goes as soon as it is no longer used.
            Err(Errno::BUSY) => Ok(rustix::mount::unmount(
                target,
                UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
            )?),
            unmounted => Ok(unmounted?),
        }
    }

    fn mounted(&self) -> io::Result<Vec<PathBuf>> {
        Ok(mount_points(&fs::read_to_string("/proc/self/mountinfo")?).collect())
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

/// Mounts that are only written down, for tests without root.
#[cfg(test)]
pub(crate) mod testing {
    use parking_lot::Mutex;

    use super::*;

    /// A mount that was asked for.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct FakeMount {
        pub(crate) target: PathBuf,
        /// `tmpfs SIZE`, or the path of what is bound.
        pub(crate) source: String,
    }

    #[derive(Debug, Default)]
    pub(crate) struct FakeMounts(pub(crate) Mutex<Vec<FakeMount>>);

    impl FakeMounts {
        fn add(&self, target: &Path, source: String) -> io::Result<()> {
            let target = fs::canonicalize(target)?;
            self.0.lock().push(FakeMount { target, source });
            Ok(())
        }

        /// What is mounted at a path.
        pub(crate) fn at(&self, target: &Path) -> Option<String> {
            let target = fs::canonicalize(target).ok()?;
            let all = self.0.lock();
            all.iter()
                .find(|mount| mount.target == target)
                .map(|mount| mount.source.clone())
        }
    }

    impl Mounts for FakeMounts {
        fn tmpfs(&self, target: &Path, bytes: u64) -> io::Result<()> {
            self.add(target, format!("tmpfs {bytes}"))
        }

        fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
            let source = fs::read_link(format!("/proc/self/fd/{}", source.as_raw_fd()))?;
            self.add(target, source.display().to_string())
        }

        fn unmount(&self, target: &Path) -> io::Result<()> {
            let target = fs::canonicalize(target)?;
            let mut all = self.0.lock();
            let at = all.iter().rposition(|mount| mount.target == target);
            all.remove(at.ok_or(io::ErrorKind::InvalidInput)?);
            Ok(())
        }

        fn mounted(&self) -> io::Result<Vec<PathBuf>> {
            Ok(self.0.lock().iter().map(|mount| mount.target.clone()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let lines =
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 8:2 / /a/my\\040disk\\ rw shared:1 - ext4 /dev/sdb1 rw\n";
        let points: Vec<PathBuf> = mount_points(lines).collect();
        assert_eq!(points, [PathBuf::from("/"), PathBuf::from("/a/my disk\\")]);
        assert!(HostMounts.mounted().unwrap().contains(&PathBuf::from("/proc")));
    }
}
