//! The state that survives a restart of `pleg node`, in one file: the history of each pod, and its last valid manifest, so that a broken file
//! costs no pod, and a pod whose manifest is gone terminates as its manifest said.
//!
//! In: histories from pod workers and manifests from the registry, whenever they change. Out: what an earlier run had, once, at the start. A
//! thread owns the file and writes everything that has gathered in one transaction. After a crash the file is consistent, and at most the
//! last moments are missing; those are found in the runtime again. Nothing in the file decides what runs now, so losing it costs history,
//! but no pod.

mod records;
mod writer;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use pleg::PodUid;
use redb::{Database, DatabaseError};
use tracing::warn;

use self::records::{ManifestRecord, load};
use self::writer::{WriteQueue, write_until_closed};
use crate::manifest::{NodeName, Tree};
use crate::reconcile::history::PodHistory;
use crate::sources::static_pods::{self, ConfigSource};
use crate::sources::{DesiredPod, Origin};

pub(crate) use self::writer::StoreWriter;

/// The cache of the database. The file is small, and is read once.
const CACHE_BYTES: usize = 1 << 20;

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another `pleg node` uses it.
    #[error("{} is in use: is another pleg node running on this machine?", .0.display())]
    InUse(PathBuf),
    /// It cannot be created or opened.
    #[error("cannot open {}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<redb::Error>,
    },
    /// There is no thread to write it.
    #[error("cannot start the thread that writes {}", .path.display())]
    Thread {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The file, and the thread that writes it. Dropping it writes what is left: blocking.
#[derive(Debug)]
pub struct Store {
    writer: StoreWriter,
    histories: BTreeMap<PodUid, PodHistory>,
    manifests: BTreeMap<PodUid, ManifestRecord<Tree>>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens or creates the file and reads it. Blocking. A corrupt file is renamed, and a new one is created.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = open_or_replace(path)?;
        let (histories, manifests) = load(&database).map_err(|error| cannot_open(path, *error))?;
        let queue = Arc::new(WriteQueue::default());
        let (thread_queue, file) = (Arc::clone(&queue), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("pleg-store".to_owned())
            .spawn(move || write_until_closed(&database, &thread_queue, &file))
            .map_err(|source| StoreError::Thread {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            writer: StoreWriter { queue },
            histories,
            manifests,
            thread: Some(thread),
        })
    }

    /// The pods that were desired when the file was last written, with their origins: for the sources, whose manifests may be broken now.
    /// Manifests that this release cannot read are left out.
    pub fn manifests(&self, node: &NodeName) -> Vec<DesiredPod> {
        let mut pods = Vec::new();
        for (uid, record) in &self.manifests {
            // Stored documents are parsed like any other.
            let text = serde_json::to_vec(&record.document).unwrap_or_default();
            let origin = Origin::from(record.origin.as_str());
            let found = static_pods::read(&text, node, ConfigSource::of(&origin)).unwrap_or_default();
            match found.pods.into_iter().find(|pod| pod.id.uid == *uid) {
                Some(pod) => pods.push(DesiredPod { origin, pod }),
                None => {
                    warn!(%uid, origin = record.origin, "ignoring a stored manifest: it defines another pod now");
                }
            }
        }
        pods
    }

    /// The histories that were in the file when it was opened.
    pub(crate) fn take_histories(&mut self) -> BTreeMap<PodUid, PodHistory> {
        std::mem::take(&mut self.histories)
    }

    pub(crate) fn writer(&self) -> StoreWriter {
        self.writer.clone()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.writer.queue.close();
        if let Some(thread) = self.thread.take() {
            // It logs what it cannot write, and a panic is in the log as well.
            let _ = thread.join();
        }
    }
}

fn cannot_open(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    StoreError::Open {
        path: path.to_owned(),
        source: Box::new(error.into()),
    }
}

/// Opens the file, with its directory. A corrupt file is renamed.
fn open_or_replace(path: &Path) -> Result<Database, StoreError> {
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o750).create(directory);
        made.map_err(|error| cannot_open(path, error))?;
    }
    match open(path) {
        Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse(path.to_owned())),
        // A failing disk or a missing permission does not mean that the file is corrupt.
        Err(DatabaseError::Storage(redb::StorageError::Io(error)))
            if error.kind() != std::io::ErrorKind::InvalidData && path.is_file() =>
        {
            Err(cannot_open(path, error))
        }
        Err(error) if path.is_file() => {
            let aside = path.with_extension("broken");
            warn!(file = %path.display(), aside = %aside.display(), %error, "cannot read the stored pod state; moved it aside and starting empty");
            std::fs::rename(path, &aside).map_err(|error| cannot_open(path, error))?;
            open(path).map_err(|error| cannot_open(path, error))
        }
        opened => opened.map_err(|error| cannot_open(path, error)),
    }
}

fn open(path: &Path) -> Result<Database, DatabaseError> {
    // Created by us, because manifests contain secrets in environments: only root may read it. If that fails, the database says why.
    let _ = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path);
    Database::builder().set_cache_size(CACHE_BYTES).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::writer::{Pending, write};
    use super::*;
    use crate::testing::{Case, at};

    fn history(end: i64, code: i32) -> PodHistory {
        let case = Case::new("containers: [{name: app, image: i}]").sandbox(true, 0);
        let mut history = case.exited("app", end, code).observed().history;
        history.containers.get_mut("app").unwrap().record_start(at(end));
        history
    }

    #[test]
    fn histories_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/node.redb");
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let mut store = Store::open(&path).unwrap();
        assert!(store.take_histories().is_empty());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "it contains environments");
        let writer = store.writer();
        writer.save_history(&a, &history(1, 3));
        writer.save_history(&b, &history(2, 0));
        writer.save_history(&a, &history(5, 4));
        assert!(matches!(Store::open(&path), Err(StoreError::InUse(_))));
        drop(store);
        let mut store = Store::open(&path).unwrap();
        let histories = store.take_histories();
        assert_eq!(
            histories,
            BTreeMap::from([(a.clone(), history(5, 4)), (b, history(2, 0))])
        );
        store.writer().delete(&a);
        drop(store);
        assert_eq!(Store::open(&path).unwrap().take_histories().len(), 1);
    }

    #[test]
    fn manifests_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        let node = NodeName::new("n").unwrap();
        let pod = crate::testing::pod(
            "nodeSelector: null, containers: [{name: app, image: i, env: [{name: A, value: 'ä $$'}]}]",
        );
        let desired = DesiredPod {
            origin: "/etc/x/web.yaml".into(),
            pod,
        };
        let store = Store::open(&path).unwrap();
        store.writer().save_manifest(&desired);
        store.writer().save_history(&desired.pod.id.uid, &history(1, 3));
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.manifests(&node), std::slice::from_ref(&desired));
        // On a node with another name it is another pod.
        assert_eq!(store.manifests(&NodeName::new("m").unwrap()), []);
        store.writer().delete(&desired.pod.id.uid);
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert!(store.manifests(&node).is_empty() && store.take_histories().is_empty());
    }

    #[test]
    fn a_corrupt_file_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        std::fs::write(&path, "no database").unwrap();
        let mut store = Store::open(&path).unwrap();
        assert!(store.take_histories().is_empty());
        assert_eq!(std::fs::read(dir.path().join("node.broken")).unwrap(), b"no database");
        store.writer().save_history(&"a".into(), &history(1, 3));
        drop(store);
        assert_eq!(Store::open(&path).unwrap().take_histories().len(), 1);
        // A directory is not moved aside.
        assert!(matches!(Store::open(dir.path()), Err(StoreError::Open { .. })));
    }

    #[test]
    fn records_of_another_release_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        let database = open(&path).unwrap();
        let pods = [
            "{\"form\": 2, \"memory\": {}}",
            "{",
            "{\"form\":1,\"memory\":{\"started_at\":null,\"containers\":{},\"sandbox_failure\":null,\"failed\":null}}",
        ];
        let pods = pods
            .iter()
            .enumerate()
            .map(|(n, text)| (PodUid::from(n.to_string()), Some(text.as_bytes().to_vec())));
        let pending = Pending {
            pods: pods.collect(),
            ..Pending::default()
        };
        write(&database, &pending).unwrap();
        drop(database);
        let histories = Store::open(&path).unwrap().take_histories();
        assert_eq!(histories, BTreeMap::from([(PodUid::from("2"), PodHistory::default())]));
    }

    /// Names in the file stay, whatever the fields are called.
    #[test]
    fn the_format_of_a_history_does_not_change() {
        let text = serde_json::to_string(&history(1, 3)).unwrap();
        let at = at(1);
        for part in [
            format!("\"started_at\":\"{}\"", crate::testing::at(0)),
            "\"containers\":{\"app\":{\"attempt\":0,\"endings\":[{\"attempt\":0,\"id\":\"app0\",\"exit_code\":3"
                .to_owned(),
            format!("\"back_off\":{{\"delay\":{{\"secs\":10,\"nanos\":0}},\"since\":\"{at}\"}},\"failure\":null"),
            "\"replaced\":null,\"made_in\":null,\"failed_hook\":null,\"pre_stopped\":null,\"probed\":null".to_owned(),
            "\"sandbox_failure\":null,\"failed\":null,\"finishing_since\":null".to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
    }
}
