//! Writes to the store: callers queue what changed, and a thread writes all that has gathered in one transaction.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pleg::PodUid;
use redb::Database;
use tracing::{info, warn};

use super::records::{HistoryRecord, MANIFESTS, ManifestRecord, PODS};
use crate::error::with_causes;
use crate::reconcile::history::PodHistory;
use crate::sources::DesiredPod;

/// Delay before a failed transaction is retried: a full disk may have room again.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between two transactions. Each waits for the disk, like those of the runtime, which must not be slowed down while many pods start.
/// A single change is written at once.
const PAUSE: Duration = Duration::from_millis(50);

/// By pod: the newest record, or none to delete it.
type Updates = BTreeMap<PodUid, Option<Vec<u8>>>;

/// What is to be written: at most one update per pod and table.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) pods: Updates,
    pub(super) manifests: Updates,
    pub(super) closed: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.manifests.is_empty()
    }

    /// Puts back what could not be written. Updates that came meanwhile are newer.
    fn put_back(&mut self, old: Self) {
        for (to, from) in [(&mut self.pods, old.pods), (&mut self.manifests, old.manifests)] {
            for (uid, bytes) in from {
                to.entry(uid).or_insert(bytes);
            }
        }
    }
}

/// The queue between callers and the thread.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    // Held to add or take updates; the thread writes without it.
    pending: Mutex<Pending>,
    /// Notified when there are updates, or when the queue is closed.
    changed: Condvar,
    /// Notified only when the queue is closed: ends the pause.
    closing: Condvar,
}

impl WriteQueue {
    /// The thread writes what is left, and exits.
    pub(super) fn close(&self) {
        self.pending.lock().closed = true;
        self.changed.notify_one();
        self.closing.notify_one();
    }

    fn update(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.pending.lock());
        self.changed.notify_one();
    }

    /// Waits for updates. Empty once the queue is closed.
    fn take(&self) -> Pending {
        let mut pending = self.pending.lock();
        while pending.is_empty() && !pending.closed {
            self.changed.wait(&mut pending);
        }
        let taken = std::mem::take(&mut *pending);
        pending.closed = taken.closed;
        taken
    }

    fn pause(&self) {
        let mut pending = self.pending.lock();
        if !pending.closed {
            self.closing.wait_for(&mut pending, PAUSE);
        }
    }

    /// Puts back updates that could not be written, and waits before the retry.
    fn put_back(&self, taken: Pending) {
        let mut pending = self.pending.lock();
        pending.put_back(taken);
        if !pending.closed {
            self.changed.wait_for(&mut pending, RETRY);
        }
    }
}

/// Queues changes of the store. Never blocks on the disk. Clones write to the same file.
#[derive(Debug, Clone)]
pub(crate) struct StoreWriter {
    pub(super) queue: Arc<WriteQueue>,
}

impl StoreWriter {
    pub(crate) fn save_history(&self, uid: &PodUid, history: &PodHistory) {
        if let Some(bytes) = HistoryRecord::encode(history) {
            self.queue
                .update(|pending| _ = pending.pods.insert(uid.clone(), Some(bytes)));
        }
    }

    /// Saves the manifest of a desired pod.
    pub(crate) fn save_manifest(&self, desired: &DesiredPod) {
        if let Some(bytes) = ManifestRecord::encode(desired) {
            let uid = desired.pod.id.uid.clone();
            self.queue
                .update(|pending| _ = pending.manifests.insert(uid, Some(bytes)));
        }
    }

    /// Nothing is left of the pod: deletes its history and its manifest.
    pub(crate) fn delete(&self, uid: &PodUid) {
        self.queue.update(|pending| {
            pending.pods.insert(uid.clone(), None);
            pending.manifests.insert(uid.clone(), None);
        });
    }
}

/// Writes updates until the queue is closed. Blocking.
pub(super) fn write_until_closed(database: &Database, queue: &WriteQueue, path: &Path) {
    let file = path.display();
    let mut failing = false;
    loop {
        let updates = queue.take();
        if updates.is_empty() {
            return;
        }
        match write(database, &updates) {
            Ok(()) => {
                if std::mem::take(&mut failing) {
                    info!(%file, "pod state can be written again");
                }
                queue.pause();
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(%file, error = with_causes(&*error), "cannot write the pod state; retrying");
                }
                if updates.closed {
                    return;
                }
                queue.put_back(updates);
            }
        }
    }
}

pub(super) fn write(database: &Database, pending: &Pending) -> Result<(), Box<redb::Error>> {
    let boxed = |error: redb::Error| Box::new(error);
    let transaction = database.begin_write().map_err(|e| boxed(e.into()))?;
    for (table, updates) in [(PODS, &pending.pods), (MANIFESTS, &pending.manifests)] {
        let mut table = transaction.open_table(table).map_err(|e| boxed(e.into()))?;
        for (uid, bytes) in updates {
            let done = match bytes {
                Some(bytes) => table.insert(uid.as_str(), bytes.as_slice()).map(drop),
                None => table.remove(uid.as_str()).map(drop),
            };
            done.map_err(|e| boxed(e.into()))?;
        }
    }
    transaction.commit().map_err(|e| boxed(e.into()))
}
