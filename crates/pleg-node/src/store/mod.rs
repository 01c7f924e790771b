//! The state that survives a restart of `pleg node`, in one file: how containers exited, how often they were started, their back-off; and
//! the last good manifest of each pod, so that a broken file costs no pod, and a pod whose file is gone terminates as its manifest says.
//!
//! Pod workers hand over their history whenever it changes, and continue; a thread writes everything that has gathered in one transaction.
//! After a crash the file is consistent, and at most the last moments are missing; those are found in the runtime again. Nothing in the file
//! decides what runs now, so losing it costs history, but no pod.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pleg::PodUid;
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::manifest::{self, NodeName, Tree};
use crate::reconcile::history::PodHistory;
use crate::sources::{DesiredPod, Origin};

const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods");
const MANIFESTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("manifests");
/// What is written has this form. Another one is that of another release, and is left out.
const FORM: u32 = 1;
/// The file is small; what is in it is read once.
const CACHE: usize = 1 << 20;
/// A disk that is full may have room a moment later.
const RETRY: Duration = Duration::from_secs(5);
/// Between two transactions. Each waits for the disk, as those of the runtime do: while many pods start we are not to be in its way.
/// What comes alone is written at once.
const REST: Duration = Duration::from_millis(50);

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another `pleg node` uses it.
    #[error("{} is in use: is another pleg node running on this machine?", .0.display())]
    InUse(PathBuf),
    /// It cannot be made or opened.
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

/// A pod, as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    form: u32,
    memory: PodHistory,
}

/// A manifest, as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest<D> {
    form: u32,
    origin: String,
    document: D,
}

/// The newest word about each pod, or that it is to be forgotten.
type Words = BTreeMap<PodUid, Option<Vec<u8>>>;

/// What is to be written. One entry a pod at most, in each.
#[derive(Debug, Default)]
struct Pending {
    pods: Words,
    manifests: Words,
    closed: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.manifests.is_empty()
    }

    /// Puts back what could not be written. What came meanwhile is newer.
    fn put_back(&mut self, old: Self) {
        for (to, from) in [(&mut self.pods, old.pods), (&mut self.manifests, old.manifests)] {
            for (uid, bytes) in from {
                to.entry(uid).or_insert(bytes);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    // Held for handing over or taking; the thread writes without it.
    pending: Mutex<Pending>,
    wake: Condvar,
    /// Told when it is closed, and of nothing else.
    closing: Condvar,
}

/// Takes what is to be kept. Clones write to the same file.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

impl Keeper {
    pub(crate) fn keep(&self, uid: &PodUid, memory: &PodHistory) {
        let record = Record {
            form: FORM,
            memory: memory.clone(),
        };
        // A memory is texts and numbers: it can be written.
        if let Ok(bytes) = serde_json::to_vec(&record) {
            self.shared.pending.lock().pods.insert(uid.clone(), Some(bytes));
            self.shared.wake.notify_one();
        }
    }

    /// Keeps the manifest of a pod that is wanted.
    pub(crate) fn keep_manifest(&self, offer: &DesiredPod) {
        let record = Manifest {
            form: FORM,
            origin: offer.origin.to_string(),
            document: &offer.pod.document,
        };
        // So is a document.
        if let Ok(bytes) = serde_json::to_vec(&record) {
            let uid = offer.pod.id.uid.clone();
            self.shared.pending.lock().manifests.insert(uid, Some(bytes));
            self.shared.wake.notify_one();
        }
    }

    /// Nothing is left of the pod.
    pub(crate) fn forget(&self, uid: &PodUid) {
        let mut pending = self.shared.pending.lock();
        pending.pods.insert(uid.clone(), None);
        pending.manifests.insert(uid.clone(), None);
        drop(pending);
        self.shared.wake.notify_one();
    }
}

/// The file, and the thread that writes it.
#[derive(Debug)]
pub struct Store {
    keeper: Keeper,
    remembered: BTreeMap<PodUid, PodHistory>,
    manifests: BTreeMap<PodUid, Manifest<Tree>>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens or creates the file and reads it. Blocking. A corrupt file is renamed, and a new one is created.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |error: redb::Error| StoreError::Open {
            path: path.to_owned(),
            source: Box::new(error),
        };
        if let Some(directory) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o750).create(directory);
            made.map_err(|error| failed(error.into()))?;
        }
        let database = match open(path) {
            Err(DatabaseError::DatabaseAlreadyOpen) => return Err(StoreError::InUse(path.to_owned())),
            // A disk that fails, or a file that is not ours to open, is no broken file.
            Err(DatabaseError::Storage(redb::StorageError::Io(error)))
                if error.kind() != std::io::ErrorKind::InvalidData && path.is_file() =>
            {
                return Err(failed(error.into()));
            }
            Err(error) if path.is_file() => {
                let aside = path.with_extension("broken");
                warn!(file = %path.display(), aside = %aside.display(), %error, "cannot read the stored pod state; moved it aside and starting empty");
                std::fs::rename(path, &aside).map_err(|error| failed(error.into()))?;
                open(path).map_err(|error| failed(error.into()))?
            }
            opened => opened.map_err(|error| failed(error.into()))?,
        };
        let (remembered, manifests) = load(&database).map_err(|error| failed(*error))?;
        let shared = Arc::new(Shared::default());
        let (writer, file) = (Arc::clone(&shared), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("pleg-store".to_owned())
            .spawn(move || write_until_closed(&database, &writer, &file))
            .map_err(|source| StoreError::Thread {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            keeper: Keeper { shared },
            remembered,
            manifests,
            thread: Some(thread),
        })
    }

    /// The pods that were wanted when the file was last written, and where they came from: for the sources, who may find their
    /// manifests broken. What this release cannot read is left out.
    pub fn manifests(&self, node: &NodeName) -> Vec<DesiredPod> {
        let mut offers = Vec::new();
        for (uid, record) in &self.manifests {
            // What a pod is made from is read in one way only.
            let text = serde_json::to_vec(&record.document).unwrap_or_default();
            let found = manifest::read(&text, node).unwrap_or_default();
            match found.pods.into_iter().find(|pod| pod.id.uid == *uid) {
                Some(pod) => offers.push(DesiredPod {
                    origin: Origin::from(record.origin.as_str()),
                    pod,
                }),
                None => {
                    warn!(%uid, origin = record.origin, "ignoring a stored manifest: it defines another pod now");
                }
            }
        }
        offers
    }

    /// What was in the file when it was opened.
    pub(crate) fn take_remembered(&mut self) -> BTreeMap<PodUid, PodHistory> {
        std::mem::take(&mut self.remembered)
    }

    pub(crate) fn keeper(&self) -> Keeper {
        self.keeper.clone()
    }
}

impl Drop for Store {
    /// Writes what was handed over, and closes the file.
    fn drop(&mut self) {
        self.keeper.shared.pending.lock().closed = true;
        self.keeper.shared.wake.notify_one();
        self.keeper.shared.closing.notify_one();
        if let Some(thread) = self.thread.take() {
            // It logs what it cannot write; that it panicked would be in the log as well.
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> Result<Database, DatabaseError> {
    // Manifests are in it, with all that people write into environments. Where it cannot be made, whoever opens it says why.
    let _ = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path);
    Database::builder().set_cache_size(CACHE).create(path)
}

type Loaded = (BTreeMap<PodUid, PodHistory>, BTreeMap<PodUid, Manifest<Tree>>);

fn load(database: &Database) -> Result<Loaded, Box<redb::Error>> {
    let boxed = |error: redb::Error| Box::new(error);
    // The tables have to be there to be read.
    let begun = database.begin_write().map_err(|e| boxed(e.into()))?;
    for table in [PODS, MANIFESTS] {
        begun.open_table(table).map_err(|e| boxed(e.into()))?;
    }
    begun.commit().map_err(|e| boxed(e.into()))?;
    let pods = rows(database, PODS, |record: &Record| record.form)?;
    let manifests = rows(database, MANIFESTS, |record: &Manifest<Tree>| record.form)?;
    let remembered = pods.into_iter().map(|(uid, record)| (uid, record.memory));
    Ok((remembered.collect(), manifests))
}

/// What can be read of a table.
fn rows<T: DeserializeOwned>(
    database: &Database,
    table: TableDefinition<'_, &str, &[u8]>,
    form: fn(&T) -> u32,
) -> Result<BTreeMap<PodUid, T>, Box<redb::Error>> {
    let boxed = |error: redb::Error| Box::new(error);
    let read = database.begin_read().map_err(|e| boxed(e.into()))?;
    let table = read.open_table(table).map_err(|e| boxed(e.into()))?;
    let mut rows = BTreeMap::new();
    for entry in table.iter().map_err(|e| boxed(e.into()))? {
        let (uid, bytes) = entry.map_err(|e| boxed(e.into()))?;
        let uid = uid.value();
        match serde_json::from_slice::<T>(bytes.value()) {
            Ok(record) if form(&record) == FORM => _ = rows.insert(PodUid::from(uid), record),
            Ok(record) => warn!(
                uid,
                form = form(&record),
                "ignoring the stored state of a pod: another release wrote it"
            ),
            Err(error) => warn!(uid, %error, "cannot read the stored state of a pod"),
        }
    }
    Ok(rows)
}

fn write_until_closed(database: &Database, shared: &Shared, path: &Path) {
    let mut failing = false;
    loop {
        let taken = {
            let mut pending = shared.pending.lock();
            while pending.is_empty() && !pending.closed {
                shared.wake.wait(&mut pending);
            }
            let taken = std::mem::take(&mut *pending);
            pending.closed = taken.closed;
            taken
        };
        if taken.is_empty() {
            return;
        }
        match write(database, &taken) {
            Ok(()) => {
                if std::mem::take(&mut failing) {
                    info!(file = %path.display(), "pod state can be written again");
                }
                let mut pending = shared.pending.lock();
                if !pending.closed {
                    shared.closing.wait_for(&mut pending, REST);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(file = %path.display(), %error, "cannot write the pod state; retrying");
                }
                if taken.closed {
                    return;
                }
                let mut pending = shared.pending.lock();
                pending.put_back(taken);
                if !pending.closed {
                    shared.wake.wait_for(&mut pending, RETRY);
                }
            }
        }
    }
}

fn write(database: &Database, pending: &Pending) -> Result<(), Box<redb::Error>> {
    let boxed = |error: redb::Error| Box::new(error);
    let begun = database.begin_write().map_err(|e| boxed(e.into()))?;
    for (table, words) in [(PODS, &pending.pods), (MANIFESTS, &pending.manifests)] {
        let mut table = begun.open_table(table).map_err(|e| boxed(e.into()))?;
        for (uid, bytes) in words {
            let done = match bytes {
                Some(bytes) => table.insert(uid.as_str(), bytes.as_slice()).map(drop),
                None => table.remove(uid.as_str()).map(drop),
            };
            done.map_err(|e| boxed(e.into()))?;
        }
    }
    begun.commit().map_err(|e| boxed(e.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::{Case, at};

    fn memory(end: i64, code: i32) -> PodHistory {
        let case = Case::new("containers: [{name: app, image: i}]").sandbox(true, 0);
        let mut memory = case.exited("app", end, code).learnt().memory;
        memory.containers.get_mut("app").unwrap().starting(at(end));
        memory
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/node.redb");
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let mut store = Store::open(&path).unwrap();
        assert!(store.take_remembered().is_empty());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "environments are in it");
        let keeper = store.keeper();
        keeper.keep(&a, &memory(1, 3));
        keeper.keep(&b, &memory(2, 0));
        keeper.keep(&a, &memory(5, 4));
        assert!(matches!(Store::open(&path), Err(StoreError::InUse(_))));
        drop(store);
        let mut store = Store::open(&path).unwrap();
        let remembered = store.take_remembered();
        assert_eq!(
            remembered,
            BTreeMap::from([(a.clone(), memory(5, 4)), (b, memory(2, 0))])
        );
        store.keeper().forget(&a);
        drop(store);
        assert_eq!(Store::open(&path).unwrap().take_remembered().len(), 1);
    }

    #[test]
    fn manifests_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        let node = NodeName::new("n").unwrap();
        let pod = crate::testing::pod(
            "nodeSelector: null, containers: [{name: app, image: i, env: [{name: A, value: 'ä $$'}]}]",
        );
        let offer = DesiredPod {
            origin: "/etc/x/web.yaml".into(),
            pod,
        };
        let store = Store::open(&path).unwrap();
        store.keeper().keep_manifest(&offer);
        store.keeper().keep(&offer.pod.id.uid, &memory(1, 3));
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.manifests(&node), std::slice::from_ref(&offer));
        // On a node of another name it is another pod.
        assert_eq!(store.manifests(&NodeName::new("m").unwrap()), []);
        store.keeper().forget(&offer.pod.id.uid);
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert!(store.manifests(&node).is_empty() && store.take_remembered().is_empty());
    }

    #[test]
    fn a_broken_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        std::fs::write(&path, "no database").unwrap();
        let mut store = Store::open(&path).unwrap();
        assert!(store.take_remembered().is_empty());
        assert_eq!(std::fs::read(dir.path().join("node.broken")).unwrap(), b"no database");
        store.keeper().keep(&"a".into(), &memory(1, 3));
        drop(store);
        assert_eq!(Store::open(&path).unwrap().take_remembered().len(), 1);
        // Nobody to put aside.
        assert!(matches!(Store::open(dir.path()), Err(StoreError::Open { .. })));
    }

    #[test]
    fn what_another_release_wrote_is_left_out() {
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
        let remembered = Store::open(&path).unwrap().take_remembered();
        assert_eq!(remembered, BTreeMap::from([(PodUid::from("2"), PodHistory::default())]));
    }
}
