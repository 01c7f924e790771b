//! Directories of pods that exist nowhere else: neither desired, nor in the runtime, nor in the state file. They are left behind when the
//! state file is lost together with the runtime's state, or when a clean-up was cut short.
//!
//! A log directory is ours if the pod's own directory exists: a kubelet on the same machine may use the same log directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use pleg::{PodRef, PodUid};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::executor::log_links;
use crate::executor::requests::NodeConfig;

/// Most directories that are looked at in one search.
const MAX_DIRECTORIES: usize = 4096;
/// The suffix of a directory that is being removed.
const REMOVING: &str = ".removing";

/// A pod's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    pub(super) uid: PodUid,
    /// The pod, as the name of its log directory says; none without one.
    pub(super) id: Option<PodRef>,
}

/// Searches for directories of pods, beside the loop.
#[derive(Debug)]
pub(super) struct Leftovers {
    node: Arc<NodeConfig>,
    running: JoinSet<Vec<Leftover>>,
}

impl Leftovers {
    pub(super) fn new(node: Arc<NodeConfig>) -> Self {
        Self {
            node,
            running: JoinSet::new(),
        }
    }

    /// Starts a search, unless one is running.
    pub(super) fn start(&mut self) {
        if self.running.is_empty() {
            let node = Arc::clone(&self.node);
            self.running.spawn_blocking(move || search(&node));
        }
    }

    /// Waits until a search is done. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Vec<Leftover>> {
        self.running.join_next().await?.ok()
    }

    /// Removes the directory of a pod without logs. It gets another name first, at once, so that the same pod can start meanwhile.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        let from = self.node.pod_directory(uid);
        let to = self.node.pods.join(format!("{uid}{REMOVING}"));
        if let Err(error) = fs::rename(&from, &to) {
            warn!("cannot remove {}, whose pod no longer exists: {error}", from.display());
            return;
        }
        info!("removing {}, whose pod no longer exists", from.display());
        self.start();
    }
}

/// The directories of pods. Removes what an earlier search has renamed, and dead links to logs.
fn search(node: &NodeConfig) -> Vec<Leftover> {
    if let Err(error) = log_links::remove_dead(&node.log_links, &node.logs) {
        warn!("cannot remove dead links from {}: {error}", node.log_links.display());
    }
    let mut by_uid: BTreeMap<String, PodRef> = BTreeMap::new();
    for name in names(&node.logs) {
        let mut parts = name.splitn(3, '_');
        if let (Some(namespace), Some(name), Some(uid)) = (parts.next(), parts.next(), parts.next()) {
            let id = PodRef {
                uid: uid.into(),
                namespace: namespace.into(),
                name: name.into(),
            };
            by_uid.insert(uid.to_owned(), id);
        }
    }
    let mut found = Vec::new();
    for name in names(&node.pods) {
        if name.ends_with(REMOVING) {
            remove_all(node.pods.join(&name));
            continue;
        }
        found.push(Leftover {
            id: by_uid.remove(&name),
            uid: name.as_str().into(),
        });
    }
    found
}

fn remove_all(path: PathBuf) {
    let removed = crate::executor::remove_unmounted_directory(&path);
    if let Err(error) = removed {
        warn!("{}", crate::error::with_causes(&error));
    }
}

/// The names of directories in a directory.
fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
    names.take(MAX_DIRECTORIES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    #[test]
    fn only_directories_of_ours_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        for path in [
            node.logs.join("default_web-n_1/app"),
            // Of a kubelet: there is no directory of the pod.
            node.logs.join("kube-system_dns_2/app"),
            node.pods.join("1"),
            node.pods.join("3"),
            node.pods.join("4.removing/volumes"),
        ] {
            fs::create_dir_all(path).unwrap();
        }
        let found = search(&node);
        let ids: Vec<(String, Option<String>)> = found
            .iter()
            .map(|one| {
                (
                    one.uid.to_string(),
                    one.id.as_ref().map(|id| id.full_name().to_string()),
                )
            })
            .collect();
        assert_eq!(ids.len(), 2);
        assert!(
            ids.contains(&("1".to_owned(), Some("default/web-n".to_owned()))),
            "{ids:?}"
        );
        assert!(ids.contains(&("3".to_owned(), None)), "{ids:?}");
        assert!(!node.pods.join("4.removing").exists());
        assert!(node.logs.join("kube-system_dns_2/app").exists());
    }
}
