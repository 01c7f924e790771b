//! Removes the cgroups of pods that have left, which no runtime does. Blocking.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Deepest nesting: cgroups of containers, and those that they created.
const MAX_DEPTH: usize = 8;

/// Removes the cgroup of a pod and the empty ones in it, from all hierarchies below `root`. A cgroup with a process in it stays, and that is
/// an error. A cgroup that does not exist is skipped.
pub(crate) fn remove(root: &Path, cgroup: &str) -> io::Result<()> {
    let cgroup = cgroup.trim_start_matches('/');
    for hierarchy in hierarchies(root)? {
        remove_empty(&hierarchy.join(cgroup), MAX_DEPTH)?;
    }
    Ok(())
}

/// The hierarchies: one in version 2, one for each controller in version 1.
fn hierarchies(root: &Path) -> io::Result<Vec<PathBuf>> {
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let mut found = Vec::new();
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Symbolic links are other names of the same controllers.
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes directories only if they are empty. The files of a cgroup do not count.
fn remove_empty(path: &Path, depth: usize) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if depth > 0 && entry.file_type()?.is_dir() {
            remove_empty(&entry.path(), depth - 1)?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn empty_cgroups_go_and_others_stay() {
        for version in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            let places: Vec<PathBuf> = if version == 2 {
                fs::write(root.join("cgroup.controllers"), "cpu").unwrap();
                vec![root.to_owned()]
            } else {
                symlink("cpu,cpuacct", root.join("cpu")).unwrap();
                ["cpu,cpuacct", "memory"].map(|name| root.join(name)).into()
            };
            for place in &places {
                fs::create_dir_all(place.join("pleg/podabc/container/deeper")).unwrap();
                fs::create_dir_all(place.join("pleg/podother")).unwrap();
            }
            remove(root, "/pleg/podabc").unwrap();
            remove(root, "/pleg/podabc").unwrap();
            for place in &places {
                assert!(
                    !place.join("pleg/podabc").exists() && place.join("pleg/podother").exists(),
                    "{version}"
                );
            }
            // Stands for a process: a directory that is not empty.
            fs::write(places[0].join("pleg/podother/busy"), "").unwrap();
            assert!(remove(root, "/pleg/podother").is_err());
            assert!(places[0].join("pleg/podother/busy").exists());
        }
        assert!(remove(Path::new("/nowhere/at/all"), "/pleg/podabc").is_ok());
    }
}
