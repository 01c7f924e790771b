//! `subPath`: a part of a volume, found without leaving the volume. Blocking.
//!
//! A container that writes to a volume can put a symbolic link where another container mounts a `subPath`, also between our check and the
//! mount of the runtime. So the part is opened once, by `openat2` with `RESOLVE_BENEATH`: the kernel follows links only while they stay
//! in the volume, and no race can change that. What was opened is then bound to a path of our own, below the directory of the pod where no
//! container can write, and the runtime gets that path.
//!
//! The path `/proc/PID/fd/N` of what was opened would need no mount. But runtimes resolve symbolic links of a mount's source themselves,
//! and then mount the path that they found: the race would be back.
//!
//! Unlike in the kubelet, an absolute link in a volume is refused even if it points into the volume. Kernels before 5.6 have no `openat2`.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::executor::host_mounts::Mounts;

/// How often an open is repeated that the kernel gave up because something was renamed meanwhile.
const MAX_RETRIES: usize = 64;

/// Why a `subPath` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// It is absolute, or contains `..`.
    #[error("must be a relative path without \"..\"")]
    Invalid,
    /// A symbolic link leads out of the volume.
    #[error("leads out of the volume")]
    Escapes,
    /// It cannot be opened, created or bound.
    #[error("cannot be prepared")]
    Io(#[source] io::Error),
}

impl From<Errno> for SubPathError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::XDEV | Errno::LOOP => Self::Escapes,
            error => Self::Io(error.into()),
        }
    }
}

/// Opens a part of a volume; directories that are missing are created.
pub(super) fn open(volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    let root = rustix::fs::openat(CWD, volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let parts = parts(sub_path)?;
    let mut found = open_beneath(root.as_fd(), Path::new("."))?;
    let mut path = PathBuf::new();
    for part in parts {
        path.push(part);
        found = match open_beneath(root.as_fd(), &path) {
            Err(Errno::NOENT) => {
                // Another process may have created it: it is opened as what it is then.
                match rustix::fs::mkdirat(&found, part, Mode::from_raw_mode(0o750)) {
                    Ok(()) => like_root(&root, open_beneath(root.as_fd(), &path)?)?,
                    Err(Errno::EXIST) => open_beneath(root.as_fd(), &path)?,
                    Err(error) => return Err(error.into()),
                }
            }
            opened => opened?,
        };
    }
    Ok(found)
}

/// The components of a valid path.
fn parts(sub_path: &str) -> Result<Vec<&Path>, SubPathError> {
    let components = Path::new(sub_path).components();
    let parts = components.filter(|component| *component != Component::CurDir);
    let part = |component| match component {
        Component::Normal(name) => Ok(Path::new(name)),
        _ => Err(SubPathError::Invalid),
    };
    parts.map(part).collect()
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut retries = 0;
    loop {
        match rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN) if retries < MAX_RETRIES => retries += 1,
            opened => return opened,
        }
    }
}

/// Gives a new directory the permissions of the volume, and its group if that has one.
fn like_root(root: &OwnedFd, directory: OwnedFd) -> Result<OwnedFd, SubPathError> {
    let stat = rustix::fs::fstat(root)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), mode)?;
    Ok(directory)
}

/// Binds an open part of a volume to a path of ours, which is created. What an earlier attempt of the container bound there is unmounted.
pub(super) fn bind(mounts: &dyn Mounts, source: &OwnedFd, target: &Path) -> io::Result<()> {
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent)?;
    let is_directory = FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode) == FileType::Directory;
    let real = fs::canonicalize(parent)?.join(target.file_name().unwrap_or_default());
    for _ in mounts.mounted()?.iter().filter(|mounted| **mounted == real) {
        mounts.unmount(&real)?;
    }
    // It may be a file now and have been a directory before. Never more than these: the content of a mount must not be removed.
    match fs::symlink_metadata(&real) {
        Ok(metadata) if metadata.is_dir() && !is_directory => fs::remove_dir(&real)?,
        Ok(metadata) if !metadata.is_dir() && is_directory => fs::remove_file(&real)?,
        _ => {}
    }
    if is_directory {
        fs::create_dir_all(&real)?;
    } else {
        fs::OpenOptions::new().create(true).append(true).open(&real)?;
    }
    mounts.bind(source.as_fd(), &real)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::executor::host_mounts::testing::FakeMounts;

    fn path_of(file: &OwnedFd) -> PathBuf {
        fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
    }

    #[test]
    fn the_table() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let volume = real.join("v");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2775)).unwrap();
        fs::write(volume.join("a/file"), "").unwrap();
        fs::write(real.join("host"), "").unwrap();
        for (target, link) in [
            ("a/file", "in"),
            ("../host", "out"),
            ("nothing", "broken"),
            ("loop", "loop"),
        ] {
            symlink(target, volume.join(link)).unwrap();
        }
        symlink(&volume, volume.join("absolute")).unwrap();
        symlink("../..", volume.join("a/up")).unwrap();
        for (sub_path, wanted) in [
            ("", Ok("")),
            ("a", Ok("a")),
            ("a//b/.", Ok("a/b")),
            ("a/file", Ok("a/file")),
            // As in the volume of a ConfigMap, whose files are links.
            ("in", Ok("a/file")),
            ("new/deep", Ok("new/deep")),
            ("../host", Err("must be a relative path without \"..\"")),
            ("a/../a", Err("must be a relative path without \"..\"")),
            ("/etc", Err("must be a relative path without \"..\"")),
            ("out", Err("leads out of the volume")),
            ("a/up/host", Err("leads out of the volume")),
            ("absolute/a", Err("leads out of the volume")),
            ("loop", Err("leads out of the volume")),
            ("broken", Err("cannot be prepared")),
            ("a/file/x", Err("cannot be prepared")),
        ] {
            let found = open(&volume, sub_path).map(|file| path_of(&file));
            let found = found.map_err(|error| error.to_string());
            let wanted = wanted.map(|path| volume.join(path)).map_err(ToOwned::to_owned);
            let wanted = wanted.map(|path| path.components().collect::<PathBuf>());
            assert_eq!(found, wanted, "{sub_path}");
        }
        let mode = fs::metadata(volume.join("new/deep")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o2775);
    }

    /// Also if an assertion fails: the scope waits for its threads.
    struct StopAtEnd<'a>(&'a AtomicBool);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A container swaps a directory for a link to the host, as fast as it can, while we prepare the mount of another one (CVE-2017-1002101,
    /// CVE-2021-25741).
    #[test]
    fn no_race_leads_out_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let (volume, host) = (real.join("v"), real.join("host"));
        fs::create_dir_all(volume.join("swapped/sub")).unwrap();
        fs::create_dir_all(host.join("sub")).unwrap();
        symlink(&host, volume.join("other")).unwrap();
        let stop = AtomicBool::new(false);
        let (mut inside, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                while !stop.load(Ordering::Relaxed) {
                    let (one, two) = (volume.join("swapped"), volume.join("other"));
                    rustix::fs::renameat_with(CWD, &one, CWD, &two, flags).unwrap();
                }
            });
            let mounts = FakeMounts::default();
            // Until both outcomes were seen often, so that there was a race.
            while inside < 200 || refused < 200 {
                match open(&volume, "swapped/sub") {
                    Ok(file) => {
                        let target = real.join("volume-subpaths/v/c/0");
                        bind(&mounts, &file, &target).unwrap();
                        let bound = mounts.at(&target).unwrap();
                        assert!(bound.starts_with(volume.to_str().unwrap()), "{bound}");
                        inside += 1;
                    }
                    Err(SubPathError::Escapes) => refused += 1,
                    // The kernel gave up, or found neither of the two.
                    Err(SubPathError::Io(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert_eq!(fs::read_dir(host.join("sub")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_bound_may_become_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, target) = (dir.path().join("v"), dir.path().join("targets/0"));
        fs::create_dir_all(volume.join("a")).unwrap();
        fs::write(volume.join("b"), "").unwrap();
        let mounts = FakeMounts::default();
        for part in ["a", "b", "a"] {
            bind(&mounts, &open(&volume, part).unwrap(), &target).unwrap();
            assert!(mounts.at(&target).unwrap().ends_with(part));
            assert_eq!(mounts.0.lock().len(), 1);
            assert_eq!(target.is_dir(), part == "a");
        }
    }
}
