//! Checks new pods against the Node object before the node loop sees them.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use tokio::time::{Instant, sleep_until};

use super::admission::check;
use super::calls::PodCalls;
use super::table::PodTable;
use crate::pace::Pace;
use crate::retry::TroubleLog;

/// How old the Node object may be that lets a pod start. What rejects one is always read for it.
const NODE_AGE: Duration = Duration::from_secs(10);

/// Checks new pods for ever. While the Node object cannot be read, they wait.
pub(super) async fn check_new_pods(server: &PodCalls, table: &PodTable) {
    let mut changes = table.desired_changes();
    let (mut pace, mut log) = (Pace::new(), TroubleLog::default());
    let mut known: Option<(core::Node, Instant)> = None;
    loop {
        changes.borrow_and_update();
        if table.held().is_empty() {
            // It cannot be closed: the table has the sender.
            let _ = changes.changed().await;
            continue;
        }
        known.take_if(|(_, read_at)| read_at.elapsed() > NODE_AGE);
        if let Some((node, _)) = &known {
            admit(table, node);
            if table.held().is_empty() {
                continue;
            }
        }
        pace.begin();
        match server.node().await {
            Ok(node) => {
                // Without a Node object nothing speaks against a pod.
                let node = node.unwrap_or_default();
                log.fine("new pods can be checked again");
                judge(table, &node);
                known = Some((node, Instant::now()));
            }
            Err(error) => {
                log.failed(&error, "New pods wait for it");
                sleep_until(pace.failed(error.retry_after())).await;
            }
        }
    }
}

/// Lets those pods start that may.
fn admit(table: &PodTable, node: &core::Node) {
    for pod in table.held() {
        if check(&pod.object, node).is_ok() {
            table.checked(&pod.id.uid, Ok(()));
        }
    }
}

/// Lets pods start or rejects them, by a Node object that was just read.
fn judge(table: &PodTable, node: &core::Node) {
    let exists = node.metadata.name.is_some();
    for pod in table.held() {
        let verdict = if exists { check(&pod.object, node) } else { Ok(()) };
        table.checked(&pod.id.uid, verdict);
    }
}
