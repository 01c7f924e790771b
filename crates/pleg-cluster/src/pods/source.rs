//! The source of pods for the node loop: follows the API server, and sends all pods whenever one changed.

use std::time::Duration;

use pleg_node::manifest::NodeName;
use pleg_node::sources::{Origin, Snapshot};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::calls::PodCalls;
use super::checker::check_new_pods;
use super::follower::PodFollower;
use super::table::PodTable;
use crate::api::Api;
use crate::cluster::API_SOURCE;
use crate::list_watch::{Selection, follow};
use crate::retry::TroubleLog;

/// Least time between two snapshots: changes in between share one. The second one is for each pod: the node loop compares them all.
const SNAPSHOTS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_micros(40));
/// How often missing pods are looked for, if none is due before.
const MISSING: Duration = Duration::from_secs(5);

/// Pods of the API server, as a source of the node loop. Built without side effects; [`PodSource::run`] starts it.
#[derive(Debug)]
pub struct PodSource {
    server: PodCalls,
    table: PodTable,
    snapshots: mpsc::Sender<Snapshot>,
}

impl PodSource {
    /// For the node of that name. What the API server has is put into `table`, and sent to the node loop as snapshots.
    pub fn new(api: Api, node: &NodeName, table: PodTable, snapshots: mpsc::Sender<Snapshot>) -> Self {
        Self {
            server: PodCalls::new(api, node),
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

    /// Keeps the table up to date.
    async fn follow(&self) {
        let selection = Selection::all("the pods of this node").with_fields(self.server.selector());
        let follower = PodFollower::new(self.table.clone());
        follow(self.server.api().clone(), selection, follower).await;
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
            let snapshot = self.table.snapshot(&Self::origin());
            let pods = u32::try_from(snapshot.pods.len()).unwrap_or(u32::MAX);
            permit.send(snapshot);
            sleep(SNAPSHOTS.0.max(SNAPSHOTS.1.saturating_mul(pods))).await;
            // It cannot be closed: the table has the sender.
            let _ = changes.changed().await;
        }
    }

    /// Asks for pods that no list has.
    async fn ask_for_missing(&self) {
        let mut log = TroubleLog::default();
        loop {
            let Some((at, id)) = self.table.next_missing() else {
                sleep(MISSING).await;
                continue;
            };
            if at > Instant::now() {
                sleep_until(at.min(Instant::now() + MISSING)).await;
                continue;
            }
            match self.server.find(&id.namespace, &id.name).await {
                Ok(found) => {
                    let is_there = found.as_ref().and_then(|pod| pod.metadata.uid.as_deref()) == Some(id.uid.as_str());
                    if !is_there {
                        warn!(pod = %id, uid = %id.uid, "the API server has no such pod any more; terminating it");
                    }
                    self.table.asked(&id, found);
                }
                Err(error) => {
                    log.failed(&error, "It is asked for again");
                    self.table.ask_again(&id.uid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
