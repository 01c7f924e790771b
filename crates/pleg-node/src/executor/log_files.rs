//! The files of a container log: `0.log`, its last rotated file `0.log.20261116-110700`, and older ones, which are compressed:
//! `0.log.20261116-100700.gz`. Blocking.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

/// The suffix of compressed logs.
const COMPRESSED: &str = ".gz";
/// The suffix of a file that is being written.
const TEMPORARY: &str = ".tmp";

/// Whether a log is too large; or missing, because it was renamed and never reopened.
pub(super) fn needs_rotation(file: &Path, max_bytes: u64) -> io::Result<bool> {
    match fs::symlink_metadata(file) {
        Ok(metadata) => Ok(metadata.is_file() && metadata.len() > max_bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!rotated_files(file)?.is_empty()),
        Err(error) => Err(error),
    }
}

/// Renames a log, and removes the oldest rotated files. Returns the new name; none if there is no log.
pub(super) fn rotate(file: &Path, max_files: usize, now: Timestamp) -> io::Result<Option<PathBuf>> {
    let name = with_suffix(file, &format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    match fs::rename(file, &name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        renamed => renamed?,
    }
    remove_leftovers(file)?;
    // The log that the runtime is about to open counts too.
    let room = max_files.saturating_sub(1);
    for surplus in rotated_files(file)?.iter().rev().skip(room) {
        remove_file(surplus)?;
    }
    Ok(Some(name))
}

/// Compresses rotated files, except the newest: something may still read it, or the runtime write to it.
pub(super) fn compress(file: &Path) -> io::Result<()> {
    let rotated = rotated_files(file)?;
    let older = rotated.len().saturating_sub(1);
    for log in rotated.iter().take(older).filter(|log| !has_suffix(log, COMPRESSED)) {
        compress_file(log)?;
    }
    Ok(())
}

fn compress_file(log: &Path) -> io::Result<()> {
    let mode = fs::metadata(log)?.permissions().mode();
    let temporary = with_suffix(log, TEMPORARY);
    let written =
        write_compressed(log, &temporary, mode).and_then(|()| fs::rename(&temporary, with_suffix(log, COMPRESSED)));
    if written.is_err() {
        // A half file is of no use, and the disk may be full.
        let _ = remove_file(&temporary);
    }
    written?;
    remove_file(log)
}

fn write_compressed(log: &Path, to: &Path, mode: u32) -> io::Result<()> {
    let mut from = File::open(log)?;
    let to = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(to)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish()?.sync_all()
}

/// Removes what a crash left behind: half written files, and originals of compressed ones.
fn remove_leftovers(file: &Path) -> io::Result<()> {
    let all = rotated_files(file)?;
    for one in &all {
        let is_compressed = all.contains(&with_suffix(one, COMPRESSED));
        if has_suffix(one, TEMPORARY) || is_compressed {
            remove_file(one)?;
        }
    }
    Ok(())
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes())
}

/// Removes a log and its rotated files. Blocking.
pub(super) fn remove(file: &Path) -> io::Result<()> {
    for old in rotated_files(file)? {
        remove_file(&old)?;
    }
    remove_file(file)
}

/// Removes the logs of attempts before this one, and their rotated files. `file` is the log of any attempt of the container.
pub(super) fn remove_attempts_before(file: &Path, attempt: u32) -> io::Result<()> {
    let entries = match file.parent().map(fs::read_dir) {
        None => return Ok(()),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Some(entries) => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.split_once(".log"));
        let number = number.and_then(|(number, _)| number.parse::<u32>().ok());
        if number.is_some_and(|number| number < attempt) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// The rotated files of a log, oldest first.
fn rotated_files(file: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(prefix)) = (file.parent(), with_suffix(file, ".").file_name().map(OsString::from))
    else {
        return Ok(Vec::new());
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let prefix = prefix.as_encoded_bytes();
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Removes a file, if it exists.
fn remove_file(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn earlier_attempts_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "0.log",
            "1.log",
            "1.log.20261116-110700",
            "2.log",
            "10.log",
            "notes",
            "x.log",
        ] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        remove_attempts_before(&dir.path().join("3.log"), 2).unwrap();
        let names = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["10.log", "2.log", "notes", "x.log"]);
        remove_attempts_before(&dir.path().join("no/such/3.log"), 2).unwrap();
    }

    #[test]
    fn the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0.log");
        // The log of another attempt.
        fs::write(dir.path().join("10.log"), "x").unwrap();
        for round in 0..6 {
            fs::write(&file, round.to_string()).unwrap();
            assert!(needs_rotation(&file, 0).unwrap());
            assert!(!needs_rotation(&file, 1).unwrap());
            let name = rotate(&file, 3, at(round)).unwrap().unwrap();
            assert_eq!(fs::read_to_string(name).unwrap(), round.to_string());
            // It was renamed, and the runtime has opened no new one.
            assert!(needs_rotation(&file, 1).unwrap());
        }
        let left: Vec<String> = rotated_files(&file)
            .unwrap()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        assert_eq!(left, ["4", "5"]);
        assert_eq!(rotate(&file, 3, at(9)).unwrap(), None);
        fs::write(&file, "now").unwrap();
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert!(!needs_rotation(&file, 0).unwrap());
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["10.log"]);
        assert!(!needs_rotation(&dir.path().join("no/such/0.log"), 0).unwrap());
    }

    #[test]
    fn all_but_the_newest_are_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0.log");
        for round in 0..5 {
            fs::write(&file, format!("round {round}")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
            rotate(&file, 4, at(round)).unwrap().unwrap();
            compress(&file).unwrap();
        }
        let left = rotated_files(&file).unwrap();
        let suffixes: Vec<bool> = left.iter().map(|file| has_suffix(file, COMPRESSED)).collect();
        assert_eq!(suffixes, [true, true, false], "{left:?}");
        let mut text = String::new();
        let mut reader = flate2::read::GzDecoder::new(File::open(&left[1]).unwrap());
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "round 3");
        assert_eq!(fs::read_to_string(&left[2]).unwrap(), "round 4");
        assert_eq!(fs::metadata(&left[0]).unwrap().permissions().mode() & 0o777, 0o640);
    }

    /// A crash while compressing leaves a half file; one right after it leaves the file twice.
    #[test]
    fn leftovers_of_a_crash_go() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0.log");
        let name = |suffix: &str| dir.path().join(format!("0.log.20260101-000000{suffix}"));
        fs::write(name(""), "twice").unwrap();
        fs::write(name(".gz"), "compressed").unwrap();
        fs::write(dir.path().join("0.log.20260102-000000"), "kept").unwrap();
        fs::write(dir.path().join("0.log.20260102-000000.tmp"), "half").unwrap();
        fs::write(&file, "now").unwrap();
        rotate(&file, 5, at(0)).unwrap().unwrap();
        let left = rotated_files(&file).unwrap();
        assert_eq!(left.len(), 3, "{left:?}");
        assert_eq!(left[..2], [name(".gz"), dir.path().join("0.log.20260102-000000")]);
    }
}
