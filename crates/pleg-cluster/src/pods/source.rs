//! The source of pods for the node loop: follows the API server, and sends all pods whenever one changed.

use std::time::Duration;

use pleg_node::manifest::NodeName;
use pleg_node::sources::{Origin, Snapshot};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::checker::check_new_pods;
use super::list_watch::{ListWatch, WatchEnd};
use super::pace::Pace;
use super::table::PodTable;
use crate::api::{Api, ApiError};
use crate::cluster::API_SOURCE;

/// Least time between two snapshots: changes in between share one.
const SNAPSHOTS: Duration = Duration::from_millis(20);
/// How often missing pods are looked for, if none is due before.
const MISSING: Duration = Duration::from_secs(5);

/// Pods of the API server, as a source of the node loop. Built without side effects; [`PodSource::run`] starts it.
#[derive(Debug)]
pub struct PodSource {
    server: ListWatch,
    table: PodTable,
    snapshots: mpsc::Sender<Snapshot>,
}

impl PodSource {
    /// For the node of that name. What the API server has is put into `table`, and sent to the node loop as snapshots.
    pub fn new(api: Api, node: &NodeName, table: PodTable, snapshots: mpsc::Sender<Snapshot>) -> Self {
        Self {
            server: ListWatch::new(api, node),
            table,
            snapshots,
        }
    }

    /// The origin of its pods, for the node loop.
    pub fn origin() -> Origin {
        API_SOURCE.into()
    }

    /// Runs until shutdown, or until the node loop has ended.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = self.send_snapshots() => {}
            () = self.follow() => {}
            () = self.ask_for_missing() => {}
            () = check_new_pods(&self.server, &self.table) => {}
        }
    }

    /// A list, then watches, and another list when a watch cannot go on.
    async fn follow(&self) {
        let mut pace = Pace::new();
        loop {
            pace.begin();
            let mut version = match self.server.list(self.table.newest()).await {
                Ok(listed) => {
                    debug!(
                        pods = listed.pods.len(),
                        version = listed.version,
                        "listed the pods of this node"
                    );
                    let version = listed.version.clone();
                    self.table.relist(listed);
                    version
                }
                Err(error) => {
                    log(&error, &pace);
                    sleep_until(pace.failed(error.retry_after())).await;
                    continue;
                }
            };
            self.watch(&mut version, &mut pace).await;
        }
    }

    /// Watches until a list has to come first.
    async fn watch(&self, version: &mut String, pace: &mut Pace) {
        loop {
            pace.begin();
            let next = match self.server.watch(version, &self.table).await {
                WatchEnd::Cut => pace.went_well(),
                // The API server may come back with an older state, if etcd was restored. It accepts a watch from a version that it has
                // not reached yet, and sends nothing.
                WatchEnd::Failed(error) => {
                    log(&error, pace);
                    return sleep_until(pace.failed(error.retry_after())).await;
                }
                WatchEnd::Expired(why) => {
                    info!("listing the pods of this node again: {why}");
                    return sleep_until(pace.failed(None)).await;
                }
            };
            sleep_until(next).await;
        }
    }

    /// Sends a snapshot whenever something changed, the first one after the first complete list. Returns once nobody receives them.
    async fn send_snapshots(&self) {
        let mut changes = self.table.desired_changes();
        self.table.synced().await;
        loop {
            let Ok(permit) = self.snapshots.reserve().await else {
                return;
            };
            changes.borrow_and_update();
            permit.send(self.table.snapshot(&Self::origin()));
            sleep(SNAPSHOTS).await;
            // It cannot be closed: the table has the sender.
            let _ = changes.changed().await;
        }
    }

    /// Asks for pods that no list has.
    async fn ask_for_missing(&self) {
        loop {
            let Some((at, id)) = self.table.next_missing() else {
                sleep(MISSING).await;
                continue;
            };
            if at > Instant::now() {
                sleep_until(at.min(Instant::now() + MISSING)).await;
                continue;
            }
            match self.server.get(&id.namespace, &id.name).await {
                Ok(found) => {
                    let is_there = found.as_ref().and_then(|pod| pod.metadata.uid.as_deref()) == Some(id.uid.as_str());
                    if !is_there {
                        warn!(pod = %id, uid = %id.uid, "the API server has no such pod any more; terminating it");
                    }
                    self.table.asked(&id, found);
                }
                Err(error) => {
                    warn!(pod = %id, "{error}");
                    self.table.ask_again(&id.uid);
                }
            }
        }
    }
}

/// An outage is logged once, and then now and then.
fn log(error: &ApiError, pace: &Pace) {
    if pace.failures().is_multiple_of(20) {
        warn!("{error}; pods keep running, and it is tried again");
    } else {
        debug!("{error}");
    }
}

#[cfg(test)]
mod tests;
