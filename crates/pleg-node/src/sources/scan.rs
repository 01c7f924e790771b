//! Scans a directory. Blocking, and defensive: any user who can write there can put anything there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::manifest::{MAX_BYTES, Unreadable};

/// A file that was not closed as far as we know counts as complete once it was unchanged for this long.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// Files that are read.
const MOST_FILES: usize = 1024;
/// What is read at once, of all files together.
const MOST_BYTES: usize = 64 << 20;
/// Names that are looked at; a directory with more is something else.
const MOST_NAMES: usize = 16 * 1024;
/// What a manifest's name ends with. Anything else (editors leave such things) is left alone.
const ENDINGS: [&str; 4] = ["yaml", "yml", "json", "manifest"];

/// What tells that a file is not the one that was read.
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

/// What is at a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// What was read before.
    Same,
    /// Something new.
    Text(Fingerprint, Vec<u8>),
    /// Something new that may still be written.
    Unsettled,
    /// A directory, which is not read.
    Directory,
    /// Something that cannot be read.
    Unusable(Option<Fingerprint>, String),
}

/// Looks at the directory. `known` are the fingerprints of what was read; `done` are the files whose writers are.
pub(super) fn scan(
    directory: &Path,
    known: &BTreeMap<OsString, Fingerprint>,
    done: &BTreeSet<OsString>,
    now: SystemTime,
) -> io::Result<BTreeMap<OsString, Found>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory)?.take(MOST_NAMES) {
        let entry = entry?;
        // What is none by its name is left alone, but a directory is worth a word: somebody may think that we read what is in it.
        let name = entry.file_name();
        if is_manifest(&name) || (!is_hidden(&name) && entry.path().is_dir()) {
            names.insert(name);
        }
    }
    let mut room = MOST_BYTES;
    let look = |(n, name): (usize, OsString)| {
        let found = if n >= MOST_FILES {
            Found::Unusable(
                None,
                format!(
                    "is skipped: {} has more than {MOST_FILES} manifests",
                    directory.display()
                ),
            )
        } else if room == 0 {
            Found::Unusable(
                None,
                format!("is skipped: the manifests before it add up to {} MiB", MOST_BYTES >> 20),
            )
        } else {
            look(&directory.join(&name), known.get(&name), done.contains(&name), now)
        };
        if let Found::Text(_, text) = &found {
            room = room.saturating_sub(text.len());
        }
        (name, found)
    };
    Ok(names.into_iter().enumerate().map(look).collect())
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_manifest(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    !is_hidden(name) && ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// What is at `path`.
pub(super) fn look(path: &Path, known: Option<&Fingerprint>, done: bool, now: SystemTime) -> Found {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return Found::Unusable(None, unreadable(&error)),
    };
    let fingerprint = Fingerprint::of(&metadata);
    if known == Some(&fingerprint) {
        return Found::Same;
    }
    if metadata.is_dir() {
        return Found::Directory;
    }
    // A time in the future says nothing; one that is long past says that nobody writes.
    let age = metadata
        .modified()
        .ok()
        .and_then(|modified| now.duration_since(modified).ok());
    if !done && age.is_some_and(|age| age < SETTLE) {
        return Found::Unsettled;
    }
    if metadata.is_file() && metadata.len() > MAX_BYTES as u64 {
        return Found::Unusable(Some(fingerprint), Unreadable::TooLarge.to_string());
    }
    match read(path) {
        Ok((before, text, after)) if before == after => Found::Text(after, text),
        Ok(_) => Found::Unsettled,
        Err(error) => Found::Unusable(Some(fingerprint), unreadable(&error)),
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
    // It may grow while we read. One byte more than is accepted: whoever reads the text says that it is too large.
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

    fn now(directory: &Path, known: &BTreeMap<OsString, Fingerprint>, done: &[&str]) -> BTreeMap<OsString, Found> {
        let done = done.iter().map(OsString::from).collect();
        scan(directory, known, &done, SystemTime::now()).unwrap()
    }

    fn later(directory: &Path) -> BTreeMap<OsString, Found> {
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
        assert_eq!(now(dir.path(), &BTreeMap::new(), &[])[&name], Found::Unsettled);
        let Found::Text(fingerprint, text) = now(dir.path(), &BTreeMap::new(), &["a.yaml"]).remove(&name).unwrap()
        else {
            panic!("not read");
        };
        assert_eq!(text, b"x");
        let known = BTreeMap::from([(name.clone(), fingerprint)]);
        assert_eq!(now(dir.path(), &known, &["a.yaml"])[&name], Found::Same);
        assert!(matches!(later(dir.path())[&name], Found::Text(..)));
        std::fs::write(dir.path().join("a.yaml"), "y").unwrap();
        assert_eq!(now(dir.path(), &known, &[])[&name], Found::Unsettled);
    }

    #[test]
    fn what_is_no_manifest_is_left_alone_and_directories_are_told() {
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
        let told = |name: &str| match &found[OsStr::new(name)] {
            Found::Unusable(_, what) => what.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(found[OsStr::new("more")], Found::Directory);
        assert_eq!(found[OsStr::new("loop.yaml")], Found::Directory);
        assert!(told("gone.yaml").contains("a broken symbolic link?"));
        assert!(matches!(&found[OsStr::new("link.yaml")], Found::Text(_, text) if text == b"x"));
    }

    #[test]
    fn pipes_and_giants_hold_up_nobody() {
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
        let Found::Unusable(_, what) = &found[OsStr::new("pipe.yaml")] else {
            panic!("{found:?}");
        };
        assert_eq!(what, "cannot be read: it is not a regular file");
        let Found::Unusable(_, what) = &found[OsStr::new("giant.yaml")] else {
            panic!("{found:?}");
        };
        assert_eq!(what, "is larger than 4 MiB, the limit for a manifest");
    }

    #[test]
    fn too_many_files_are_told() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MOST_FILES + 2 {
            std::fs::write(dir.path().join(format!("{n:05}.yaml")), "x").unwrap();
        }
        let found = later(dir.path());
        let left_out = found
            .values()
            .filter(|found| matches!(found, Found::Unusable(..)))
            .count();
        assert_eq!((found.len(), left_out), (MOST_FILES + 2, 2));
    }
}
