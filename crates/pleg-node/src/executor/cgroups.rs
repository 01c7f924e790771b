//! Cgroups of pods. A runtime creates a pod's cgroup together with that of a container, and does not remove it, so we do. Blocking.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Cgroups within cgroups: a container's within its pod's, and what it made itself.
const DEEPEST: usize = 8;

/// Removes a pod's cgroup and the empty ones in it, from all hierarchies beneath `root`. One in which a process lives stays, and that is
/// an error. What is gone is gone.
pub(crate) fn remove(root: &Path, cgroup: &str) -> io::Result<()> {
    let cgroup = cgroup.trim_start_matches('/');
    for hierarchy in hierarchies(root)? {
        remove_empty(&hierarchy.join(cgroup), DEEPEST)?;
    }
    Ok(())
}

/// All of them: of version 2 there is one, of version 1 one for each controller.
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
        // Links are second names of controllers that are there.
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Only ever removes directories that are empty; the files of a cgroup are not in its way.
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
            // As a process would: something that cannot be removed.
            fs::write(places[0].join("pleg/podother/busy"), "").unwrap();
            assert!(remove(root, "/pleg/podother").is_err());
            assert!(places[0].join("pleg/podother/busy").exists());
        }
        assert!(remove(Path::new("/nowhere/at/all"), "/pleg/podabc").is_ok());
    }
}
