//! Links to container logs, as a kubelet makes them for log shippers: `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`. Blocking.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::manifest::Pod;

/// Longest file name of most filesystems.
const MAX_NAME: usize = 255;
const SUFFIX: &str = ".log";

/// The link of a container.
pub(super) fn path(directory: &Path, pod: &Pod, container: &str, id: &str) -> PathBuf {
    let mut name = format!("{}{container}-{id}", prefix(pod));
    // Names of pods and containers, and ids, are ASCII.
    name.truncate(MAX_NAME - SUFFIX.len());
    directory.join(name + SUFFIX)
}

fn prefix(pod: &Pod) -> String {
    format!("{}_{}_", pod.id.name, pod.id.namespace)
}

/// Links to a log, if it exists. A runtime that writes no logs gets no links.
pub(super) fn create(link: &Path, log: &Path) -> io::Result<()> {
    if fs::symlink_metadata(log).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    if let Some(directory) = link.parent() {
        fs::create_dir_all(directory)?;
    }
    remove(link)?;
    symlink(log, link)
}

/// Removes a link, if it exists.
pub(super) fn remove(link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the links into the log directory of a pod.
pub(super) fn remove_of_pod(directory: &Path, pod: &Pod, logs: &Path) -> io::Result<()> {
    let prefix = prefix(pod);
    // By name first: there may be thousands of links.
    remove_links(
        directory,
        |name| name.starts_with(&prefix),
        |target| target.starts_with(logs),
    )
}

/// Removes the links into a directory of logs whose log is gone.
pub(crate) fn remove_dead(directory: &Path, logs: &Path) -> io::Result<()> {
    let is_dead = |target: &Path| target.starts_with(logs) && fs::symlink_metadata(target).is_err();
    remove_links(directory, |_| true, is_dead)
}

fn remove_links(directory: &Path, is_named: impl Fn(&str) -> bool, is_dead: impl Fn(&Path) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !is_named(&entry.file_name().to_string_lossy()) {
            continue;
        }
        // What is not a link is not ours.
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        if is_dead(&target) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn links_come_and_go_with_their_logs() {
        let dir = tempfile::tempdir().unwrap();
        let (links, logs) = (dir.path().join("containers"), dir.path().join("pods/default_p-n_1"));
        let pod = pod("containers: [{name: app, image: i}]");
        let link = path(&links, &pod, "app", "abc");
        assert_eq!(link.file_name().unwrap(), "p-n_default_app-abc.log");
        // No log, no link, and no directory.
        create(&link, &logs.join("app/0.log")).unwrap();
        assert!(!links.exists());
        fs::create_dir_all(logs.join("app")).unwrap();
        fs::write(logs.join("app/0.log"), "hello").unwrap();
        create(&link, &logs.join("app/0.log")).unwrap();
        create(&link, &logs.join("app/0.log")).unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "hello");
        // Those of others stay: a pod of another runtime, a file, and a log elsewhere.
        for (name, target) in [
            ("p-n_default_app-other.log", "/elsewhere/0.log"),
            ("q_default_app-1.log", "/nowhere"),
        ] {
            symlink(target, links.join(name)).unwrap();
        }
        fs::write(links.join("p-n_default_app-file.log"), "").unwrap();
        remove_dead(&links, &dir.path().join("pods")).unwrap();
        assert_eq!(names(&links).len(), 4);
        remove_of_pod(&links, &pod, &logs).unwrap();
        assert!(!link.exists());
        create(&link, &logs.join("app/0.log")).unwrap();
        fs::remove_file(logs.join("app/0.log")).unwrap();
        remove_dead(&links, &dir.path().join("pods")).unwrap();
        let left = [
            "p-n_default_app-file.log",
            "p-n_default_app-other.log",
            "q_default_app-1.log",
        ];
        assert_eq!(names(&links), left);
        remove_dead(&dir.path().join("none"), &logs).unwrap();
    }

    #[test]
    fn long_names_are_cut() {
        let pod = pod("containers: [{name: app, image: i}]");
        let link = path(Path::new("/d"), &pod, &"c".repeat(200), &"0".repeat(64));
        let name = link.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), MAX_NAME);
        assert!(name.ends_with("000.log"));
    }
}
