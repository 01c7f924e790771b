//! What is written to the store, and how it is read back. Serialised names do not change: older releases wrote them.

use std::collections::BTreeMap;

use pleg::PodUid;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::manifest::Tree;
use crate::reconcile::history::PodHistory;
use crate::sources::DesiredPod;

pub(super) const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods");
pub(super) const MANIFESTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("manifests");
/// The version of the records. Records of another version are from another release, and are ignored.
const FORM: u32 = 1;

/// The history of a pod, as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HistoryRecord {
    form: u32,
    #[serde(rename = "memory")]
    history: PodHistory,
}

impl HistoryRecord {
    pub(super) fn encode(history: &PodHistory) -> Option<Vec<u8>> {
        let record = Self {
            form: FORM,
            history: history.clone(),
        };
        // Cannot fail: a history is texts and numbers.
        serde_json::to_vec(&record).ok()
    }
}

/// A manifest, as it is written.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ManifestRecord<D> {
    form: u32,
    pub(super) origin: String,
    pub(super) document: D,
}

impl ManifestRecord<Tree> {
    pub(super) fn encode(desired: &DesiredPod) -> Option<Vec<u8>> {
        let record = ManifestRecord {
            form: FORM,
            origin: desired.origin.to_string(),
            document: desired.pod.document.as_deref()?,
        };
        // Cannot fail: nor can a document.
        serde_json::to_vec(&record).ok()
    }
}

/// All histories and manifests in the store.
pub(super) type Loaded = (BTreeMap<PodUid, PodHistory>, BTreeMap<PodUid, ManifestRecord<Tree>>);

pub(super) fn load(database: &Database) -> Result<Loaded, Box<redb::Error>> {
    let boxed = |error: redb::Error| Box::new(error);
    // Tables have to exist to be read.
    let transaction = database.begin_write().map_err(|e| boxed(e.into()))?;
    for table in [PODS, MANIFESTS] {
        transaction.open_table(table).map_err(|e| boxed(e.into()))?;
    }
    transaction.commit().map_err(|e| boxed(e.into()))?;
    let pods = rows(database, PODS, |record: &HistoryRecord| record.form)?;
    let manifests = rows(database, MANIFESTS, |record: &ManifestRecord<Tree>| record.form)?;
    let histories = pods.into_iter().map(|(uid, record)| (uid, record.history));
    Ok((histories.collect(), manifests))
}

/// The rows of a table that this release can read.
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
