//! Writes the files of a volume so that a container sees either all old ones or all new ones. Blocking.
//!
//! The layout is the kubelet's, which programs rely on: the files are in a directory named after the time, `..data` is a symbolic link to
//! it, and each top-level name is a link below `..data`. A new version is a new directory and a renamed link. A program that has opened
//! `..data` once reads one version to the end.
//!
//! ```text
//! ..2026_11_17_20_00_00.1/{key, dir/file}
//! ..data -> ..2026_11_17_20_00_00.1
//! key -> ..data/key
//! dir -> ..data/dir
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;

use super::ownership;
use crate::manifest::FsGroup;

/// The link to the current version.
const DATA: &str = "..data";
/// The link to the next version, until it is renamed.
const DATA_TMP: &str = "..data_tmp";

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    /// Its owner; root if none.
    pub(super) user: Option<u32>,
}

/// The files of a volume, by their relative paths.
pub(super) type Files = BTreeMap<String, File>;

/// Writes the files of a volume, unless it has them already. Returns whether it wrote.
pub(super) fn write(volume: &Path, files: &Files, group: Option<FsGroup>) -> io::Result<bool> {
    for path in files.keys() {
        check_path(path)?;
    }
    let current = fs::read_link(volume.join(DATA)).ok();
    let is_current = current.as_ref().is_some_and(|current| {
        let found = read(&volume.join(current), Path::new(""));
        found.is_ok_and(|found| found.iter().eq(files.iter().map(|(path, file)| (path, &file.content))))
    });
    if !is_current {
        let version = new_version(volume)?;
        let written = write_version(&volume.join(&version), files, group);
        if let Err(error) = written.and_then(|()| switch_to(volume, &version)) {
            // What is left of it is removed by the next write if not now.
            let _ = fs::remove_dir_all(volume.join(&version));
            return Err(error);
        }
    }
    // Also if nothing changed: an earlier write may have been interrupted after its switch.
    link_names(volume, files)?;
    remove_old(volume)?;
    Ok(!is_current)
}

/// A path must stay in the volume, and must not be one of ours.
fn check_path(path: &str) -> io::Result<()> {
    let mut components = Path::new(path).components();
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    if path.is_empty() || path.starts_with("..") || !components.all(plain) {
        let message = format!("the file path {path:?} is absolute, or contains or starts with \"..\"");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// The files of a version, with their content.
fn read(directory: &Path, below: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            found.extend(read(directory, &path)?);
        } else {
            found.insert(path.to_string_lossy().into_owned(), fs::read(entry.path())?);
        }
    }
    Ok(found)
}

/// Creates the directory of the next version, and returns its name.
fn new_version(volume: &Path) -> io::Result<OsString> {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut number = 0_u32;
    loop {
        let name = OsString::from(format!("..{}.{number}", now.strftime("%Y_%m_%d_%H_%M_%S")));
        match create_directory(&volume.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number = number.saturating_add(1),
            created => return created.map(|()| name),
        }
    }
}

fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    // The umask would take something away from the mode of a builder.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn write_version(directory: &Path, files: &Files, group: Option<FsGroup>) -> io::Result<()> {
    for (path, file) in files {
        let mut parent = directory.to_owned();
        for part in Path::new(path).parent().into_iter().flat_map(Path::components) {
            parent.push(part);
            if !parent.is_dir() {
                create_directory(&parent)?;
            }
        }
        let path = directory.join(path);
        let mut open = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        open.write_all(&file.content)?;
        if let Some(user) = file.user {
            std::os::unix::fs::fchown(&open, Some(user), None)?;
        }
        open.set_permissions(fs::Permissions::from_mode(file.mode & 0o777))?;
    }
    if let Some(group) = group {
        let whole = FsGroup {
            on_root_mismatch: false,
            ..group
        };
        ownership::apply(directory, whole, true)?;
    }
    Ok(())
}

/// Makes a version the current one.
fn switch_to(volume: &Path, version: &OsStr) -> io::Result<()> {
    let (tmp, data) = (volume.join(DATA_TMP), volume.join(DATA));
    match fs::remove_file(&tmp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(version, &tmp)?;
    fs::rename(tmp, data)
}

/// Links the top-level names of all files, and removes links of files that are gone.
fn link_names(volume: &Path, files: &Files) -> io::Result<()> {
    let name = |path: &String| {
        Path::new(path)
            .components()
            .next()
            .map(|first| PathBuf::from(first.as_os_str()))
    };
    let wanted: BTreeSet<PathBuf> = files.keys().filter_map(name).collect();
    for entry in fs::read_dir(volume)? {
        let name = PathBuf::from(entry?.file_name());
        let is_ours = name.to_string_lossy().starts_with("..");
        if !is_ours && !wanted.contains(&name) {
            fs::remove_file(volume.join(name))?;
        }
    }
    for name in wanted {
        match symlink(Path::new(DATA).join(&name), volume.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes all versions but the current one, also those that were never finished.
fn remove_old(volume: &Path) -> io::Result<()> {
    let current = fs::read_link(volume.join(DATA))?;
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let is_version = entry.file_name().to_string_lossy().starts_with("..") && entry.file_type()?.is_dir();
        if is_version && *entry.file_name() != *current.as_os_str() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn files(all: &[(&str, &str)]) -> Files {
        let file = |(path, content): &(&str, &str)| {
            let file = File {
                content: content.as_bytes().to_vec(),
                mode: 0o640,
                user: None,
            };
            ((*path).to_owned(), file)
        };
        all.iter().map(file).collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let entries = fs::read_dir(volume).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.starts_with("..2"));
        names.sort();
        names
    }

    #[test]
    fn versions_replace_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        let one = files(&[("key", "1"), ("dir/a", "2"), ("dir/b", "3")]);
        assert!(write(volume, &one, None).unwrap());
        assert_eq!(names(volume), ["..data", "dir", "key"]);
        assert_eq!(fs::read_link(volume.join("key")).unwrap(), Path::new("..data/key"));
        assert_eq!(fs::read(volume.join("dir/b")).unwrap(), b"3");
        assert_eq!(fs::metadata(volume.join("dir/b")).unwrap().mode() & 0o7777, 0o640);
        // A reader that is in a version stays there.
        let before = fs::read_link(volume.join(DATA)).unwrap();

        // Nothing changed: nothing is written.
        assert!(!write(volume, &one, None).unwrap());
        assert_eq!(fs::read_link(volume.join(DATA)).unwrap(), before);

        assert!(write(volume, &files(&[("key", "new"), ("more", "")]), None).unwrap());
        assert_ne!(fs::read_link(volume.join(DATA)).unwrap(), before);
        assert_eq!(names(volume), ["..data", "key", "more"]);
        assert_eq!(fs::read(volume.join("key")).unwrap(), b"new");
        assert!(!volume.join(before).exists());
        // An optional object without entries: a volume without files.
        assert!(write(volume, &Files::new(), None).unwrap());
        assert_eq!(names(volume), ["..data"]);
        assert!(!write(volume, &Files::new(), None).unwrap());
    }

    /// Whenever an earlier write was killed, the next one completes it.
    #[test]
    fn an_interrupted_write_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        write(volume, &files(&[("old", "1")]), None).unwrap();
        // A version that was not finished, and a link that was not renamed.
        fs::create_dir_all(volume.join("..2020_01_01_00_00_00.0/half")).unwrap();
        symlink("..2020_01_01_00_00_00.0", volume.join(DATA_TMP)).unwrap();
        let new = files(&[("new", "2")]);
        assert!(write(volume, &new, None).unwrap());
        assert_eq!(names(volume), ["..data", "new"]);
        assert!(!volume.join("..2020_01_01_00_00_00.0").exists());
        // Killed after the switch: the names are those of the version before.
        fs::remove_file(volume.join("new")).unwrap();
        symlink("..data/old", volume.join("old")).unwrap();
        assert!(!write(volume, &new, None).unwrap());
        assert_eq!(names(volume), ["..data", "new"]);
    }

    /// A reader sees one version at a time, never a mixture and never nothing.
    #[test]
    fn readers_see_whole_versions() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path();
        let version = |n: u32| files(&[("a", &n.to_string()), ("b", &n.to_string())]);
        write(volume, &version(0), None).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| assert!((1..200).all(|n| write(volume, &version(n), None).unwrap())));
            while !writer.is_finished() {
                // Holding the directory open is what a program does that wants one version.
                let flags = rustix::fs::OFlags::DIRECTORY;
                let opened = rustix::fs::open(volume.join(DATA), flags, rustix::fs::Mode::empty());
                // The link is always there; the version that it named a moment ago may be gone.
                assert!(fs::symlink_metadata(volume.join(DATA)).is_ok());
                let Ok(data) = opened else { continue };
                let data = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&data)));
                if let (Ok(a), Ok(b)) = (fs::read(data.join("a")), fs::read(data.join("b"))) {
                    assert_eq!(a, b);
                }
            }
        });
    }

    #[test]
    fn no_path_leaves_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["", "..data", "../x", "a/../../x", "/etc/passwd", "..x/y"] {
            let error = write(dir.path(), &files(&[(path, "")]), None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
