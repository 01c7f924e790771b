//! Scans a directory. Blocking, and defensive: any user who can write there can put anything there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::static_pods::ManifestError;
use crate::manifest::MAX_BYTES;

/// A file that was not reported as closed counts as complete once it is unchanged for this long.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// Most files that are read.
const MAX_FILES: usize = 1024;
/// Most bytes that one scan reads, of all files together.
const MAX_SCAN_BYTES: usize = 64 << 20;
/// Most directory entries that are read; a directory with more is not one of manifests.
const MAX_NAMES: usize = 16 * 1024;
/// Extensions of manifests. Other files, such as those that editors leave, are ignored.
const EXTENSIONS: [&str; 4] = ["yaml", "yml", "json", "manifest"];

/// Tells whether a file has changed since it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a scan found under one name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScannedFile {
    /// The content that was read before.
    Same,
    /// New content.
    Text(Fingerprint, Vec<u8>),
    /// New content that may still be written.
    Unsettled,
    /// A directory, which is not read.
    Directory,
    /// It cannot be read, and why.
    Unusable(Option<Fingerprint>, String),
}

/// Scans the directory. `known` are the fingerprints of what was read; `closed` are files whose writers are done.
pub(super) fn scan(
    directory: &Path,
    known: &BTreeMap<OsString, Fingerprint>,
    closed: &BTreeSet<OsString>,
    now: SystemTime,
) -> io::Result<BTreeMap<OsString, ScannedFile>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)?.take(MAX_NAMES) {
        let entry = entry?;
        // Other files are ignored, but a directory is reported: its owner may think that we read what is in it.
        let name = entry.file_name();
        if is_manifest(&name) || (!is_hidden(&name) && entry.path().is_dir()) {
            names.insert(name);
        }
    }
    let mut room = MAX_SCAN_BYTES;
    let scan_one = |(n, name): (usize, OsString)| {
        let found = if n >= MAX_FILES {
            ScannedFile::Unusable(
                None,
                format!(
                    "is skipped: {} has more than {MAX_FILES} manifests",
                    directory.display()
                ),
            )
        } else if room == 0 {
            ScannedFile::Unusable(
                None,
                format!(
                    "is skipped: the manifests before it add up to {} MiB",
                    MAX_SCAN_BYTES >> 20
                ),
            )
        } else {
            scan_file(&directory.join(&name), known.get(&name), closed.contains(&name), now)
        };
        if let ScannedFile::Text(_, text) = &found {
            room = room.saturating_sub(text.len());
        }
        (name, found)
    };
    Ok(names.into_iter().enumerate().map(scan_one).collect())
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_manifest(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    !is_hidden(name) && ending.is_some_and(|ending| EXTENSIONS.contains(&ending))
}

/// Scans one file. `closed` if its writer is done.
pub(super) fn scan_file(path: &Path, known: Option<&Fingerprint>, closed: bool, now: SystemTime) -> ScannedFile {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return ScannedFile::Unusable(None, unreadable(&error)),
    };
    let fingerprint = Fingerprint::of(&metadata);
    if known == Some(&fingerprint) {
        return ScannedFile::Same;
    }
    if metadata.is_dir() {
        return ScannedFile::Directory;
    }
    // A timestamp in the future says nothing; one that is long past says that nothing writes to it.
    let age = metadata
        .modified()
        .ok()
        .and_then(|modified| now.duration_since(modified).ok());
    if !closed && age.is_some_and(|age| age < SETTLE) {
        return ScannedFile::Unsettled;
    }
    if metadata.is_file() && metadata.len() > MAX_BYTES as u64 {
        return ScannedFile::Unusable(Some(fingerprint), ManifestError::TooLarge.to_string());
    }
    match read(path) {
        Ok((before, text, after)) if before == after => ScannedFile::Text(after, text),
        Ok(_) => ScannedFile::Unsettled,
        Err(error) => ScannedFile::Unusable(Some(fingerprint), unreadable(&error)),
    }
}

/// Reads a file, with its fingerprints before and after.
fn read(path: &Path) -> io::Result<(Fingerprint, Vec<u8>, Fingerprint)> {
    // Non-blocking: opening a pipe would block until there is a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = Vec::new();
    // It may grow while we read. One byte more than is accepted, so that the parser reports that it is too large.
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    (&mut file).take(most).read_to_end(&mut text)?;
    Ok((Fingerprint::of(&metadata), text, Fingerprint::of(&file.metadata()?)))
}

fn unreadable(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => " (a broken symbolic link?)",
        _ => "",
    };
    format!("cannot be read: {error}{hint}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn now(
        directory: &Path,
        known: &BTreeMap<OsString, Fingerprint>,
        closed: &[&str],
    ) -> BTreeMap<OsString, ScannedFile> {
        let closed = closed.iter().map(OsString::from).collect();
        scan(directory, known, &closed, SystemTime::now()).unwrap()
    }

    fn later(directory: &Path) -> BTreeMap<OsString, ScannedFile> {
        scan(
            directory,
            &BTreeMap::new(),
            &BTreeSet::new(),
            SystemTime::now() + SETTLE,
        )
        .unwrap()
    }

    #[test]
    fn a_file_is_read_when_its_writer_is_done() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.yaml"), "x").unwrap();
        let name = OsString::from("a.yaml");
        assert_eq!(now(dir.path(), &BTreeMap::new(), &[])[&name], ScannedFile::Unsettled);
        let ScannedFile::Text(fingerprint, text) =
            now(dir.path(), &BTreeMap::new(), &["a.yaml"]).remove(&name).unwrap()
        else {
            panic!("not read");
        };
        assert_eq!(text, b"x");
        let known = BTreeMap::from([(name.clone(), fingerprint)]);
        assert_eq!(now(dir.path(), &known, &["a.yaml"])[&name], ScannedFile::Same);
        assert!(matches!(later(dir.path())[&name], ScannedFile::Text(..)));
        std::fs::write(dir.path().join("a.yaml"), "y").unwrap();
        assert_eq!(now(dir.path(), &known, &[])[&name], ScannedFile::Unsettled);
    }

    #[test]
    fn other_files_are_ignored_and_directories_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "a.yaml",
            "b.yml",
            "c.json",
            "d.manifest",
            "e.yaml~",
            ".f.yaml",
            "README",
            "4913",
            "g.YAML",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("more")).unwrap();
        std::fs::create_dir(dir.path().join(".git")).unwrap();
        symlink(dir.path(), dir.path().join("loop.yaml")).unwrap();
        symlink("nowhere", dir.path().join("gone.yaml")).unwrap();
        symlink("a.yaml", dir.path().join("link.yaml")).unwrap();
        let found = later(dir.path());
        let names: Vec<_> = found.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "a.yaml",
                "b.yml",
                "c.json",
                "d.manifest",
                "gone.yaml",
                "link.yaml",
                "loop.yaml",
                "more"
            ]
        );
        let problem = |name: &str| match &found[OsStr::new(name)] {
            ScannedFile::Unusable(_, what) => what.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(found[OsStr::new("more")], ScannedFile::Directory);
        assert_eq!(found[OsStr::new("loop.yaml")], ScannedFile::Directory);
        assert!(problem("gone.yaml").contains("a broken symbolic link?"));
        assert!(matches!(&found[OsStr::new("link.yaml")], ScannedFile::Text(_, text) if text == b"x"));
    }

    #[test]
    fn pipes_and_huge_files_do_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe.yaml");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        File::create(dir.path().join("giant.yaml"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let found = later(dir.path());
        let ScannedFile::Unusable(_, what) = &found[OsStr::new("pipe.yaml")] else {
            panic!("{found:?}");
        };
        assert_eq!(what, "cannot be read: it is not a regular file");
        let ScannedFile::Unusable(_, what) = &found[OsStr::new("giant.yaml")] else {
            panic!("{found:?}");
        };
        assert_eq!(what, "is larger than 4 MiB, the limit for a manifest");
    }

    #[test]
    fn too_many_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MAX_FILES + 2 {
            std::fs::write(dir.path().join(format!("{n:05}.yaml")), "x").unwrap();
        }
        let found = later(dir.path());
        let skipped = found
            .values()
            .filter(|found| matches!(found, ScannedFile::Unusable(..)))
            .count();
        assert_eq!((found.len(), skipped), (MAX_FILES + 2, 2));
    }
}
