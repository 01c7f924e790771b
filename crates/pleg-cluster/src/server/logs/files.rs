//! The files of one log: `0.log`, the newest rotated file `0.log.20261116-110700`, and older ones, `0.log.20261116-100700.gz`. Blocking.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::read::MultiGzDecoder;

const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// A file, whatever its name is: a rotation changes the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// A rotated file, which may be compressed at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rotated {
    /// When it was rotated, as in its name: later ones are greater.
    pub(super) when: String,
    /// Its name while it is not compressed.
    path: PathBuf,
}

/// An open file.
#[derive(Debug)]
pub(super) enum Opened {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

/// Opens a file that may be read and is a file: whoever can write to the directory cannot make us follow a link or wait for a pipe.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK)
        .bits()
        .cast_signed();
    match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(path, &error)),
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Err(io::Error::other(format!("{} is not a file", path.display()))),
    }
}

/// An error that names the file.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read the log {}: {error}", path.display()))
}

pub(super) fn id(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok(FileId {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// The rotated files of a log, oldest first.
pub(super) fn rotated(current: &Path) -> io::Result<Vec<Rotated>> {
    let (Some(directory), Some(name)) = (current.parent(), current.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| named(directory, &error))?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| named(directory, &error))?.file_name();
        let when = entry
            .to_str()
            .and_then(|entry| entry.strip_prefix(name)?.strip_prefix('.'));
        let Some(when) = when.filter(|when| !when.ends_with(TEMPORARY)) else {
            continue;
        };
        // While it is compressed, both files exist.
        let when = when.strip_suffix(COMPRESSED).unwrap_or(when);
        found.insert(when.to_owned(), directory.join(format!("{name}.{when}")));
    }
    Ok(found.into_iter().map(|(when, path)| Rotated { when, path }).collect())
}

impl Rotated {
    /// Opens it; none if it has been removed.
    pub(super) fn open(&self) -> io::Result<Option<Opened>> {
        if let Some(file) = open(&self.path)? {
            return Ok(Some(Opened::Plain(file)));
        }
        let file = open(&self.compressed())?;
        Ok(file.map(|file| Opened::Compressed(Box::new(MultiGzDecoder::new(file)))))
    }

    /// When it was last written to, as the filesystem says; compressing it counts. None if it has been removed.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        let metadata = fs::symlink_metadata(&self.path).or_else(|_| fs::symlink_metadata(self.compressed()));
        metadata.and_then(|metadata| metadata.modified()).ok()
    }

    fn compressed(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(COMPRESSED);
        name.into()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Which file it is; none if it is compressed or has been removed.
    pub(super) fn id(&self) -> io::Result<Option<FileId>> {
        open(&self.path)?.as_ref().map(id).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_found_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "0.log",
            "0.log.20261118-000002",
            "0.log.20261118-000001.gz",
            "0.log.20261118-000001",
            "0.log.20261118-000003.tmp",
            "0.log.20261117-000000.gz",
            "1.log.20261118-000009",
            "0.logs",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = rotated(&dir.path().join("0.log")).unwrap();
        let when: Vec<&str> = found.iter().map(|one| one.when.as_str()).collect();
        assert_eq!(when, ["20261117-000000", "20261118-000001", "20261118-000002"]);
        let kinds: Vec<bool> = found
            .iter()
            .map(|one| matches!(one.open().unwrap(), Some(Opened::Plain(_))))
            .collect();
        assert_eq!(kinds, [false, true, true]);
        assert!(rotated(&dir.path().join("absent/0.log")).unwrap().is_empty());
    }

    #[test]
    fn links_and_pipes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), dir.path().join("0.log")).unwrap();
        let error = open(&dir.path().join("0.log")).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read the log ") && error.contains("0.log"),
            "{error}"
        );
        assert!(open(dir.path()).unwrap_err().to_string().ends_with("is not a file"));
        assert!(open(&dir.path().join("1.log")).unwrap().is_none());
    }
}
