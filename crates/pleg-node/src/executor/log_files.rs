//! The files of a container log: `0.log`, and its rotated files `0.log.20261116-110700`. Blocking.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

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
    // The log that the runtime is about to open counts too.
    let room = max_files.saturating_sub(1);
    for surplus in rotated_files(file)?.iter().rev().skip(room) {
        remove_file(surplus)?;
    }
    Ok(Some(name))
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
}
