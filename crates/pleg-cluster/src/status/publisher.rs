//! The task that publishes statuses: one call for a pod at a time, a bounded number in all.
//!
//! A status that cannot be published is retried: if the API server answers, this pod alone waits; if it does not, all do, and one call at a
//! time finds out when it is back. Every 10 s, statuses that others have overwritten are published again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use pleg::PodUid;
use pleg_node::PodReports;
use pleg_node::manifest::NodeName;
use pleg_node::status::updates::{StatusUpdate, StatusUpdates};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::calls::{differs, publish};
use crate::api::{Api, ApiError};
use crate::pace::{Pace, back_off};
use crate::pods::{PodCalls, PodTable};

/// Calls in flight.
const CONCURRENT: usize = 16;
/// How often statuses that others have written are looked at.
const RECONCILE: Duration = Duration::from_secs(10);
/// When a status that the API server refuses is tried again, unless it changes before.
const REFUSED: Duration = Duration::from_mins(1);
/// At shutdown, how long calls in flight may take.
const DRAIN: Duration = Duration::from_secs(2);

/// Publishes pod statuses. [`StatusPublisher::run`] starts it.
#[derive(Debug)]
pub struct StatusPublisher {
    server: PodCalls,
    table: PodTable,
    reports: PodReports,
    updates: StatusUpdates,
    /// By pod: what could not be published.
    failed: BTreeMap<PodUid, Failed>,
    /// Set while the API server does not answer: when it is tried again.
    away: Option<Instant>,
    pace: Pace,
}

/// A pod whose status the API server did not take.
#[derive(Debug, Default)]
struct Failed {
    /// How often in a row.
    failures: u32,
    /// When it is tried again; none once that is under way.
    retry_at: Option<Instant>,
}

/// A call that ended.
type Done = (StatusUpdate, Result<(), ApiError>);

impl StatusPublisher {
    /// Publishes the statuses of these reports to the pods of this table. From now on, the last statuses of terminated pods are kept for
    /// it.
    pub fn new(api: Api, node: &NodeName, table: PodTable, reports: PodReports) -> Self {
        Self {
            server: PodCalls::new(api, node),
            table,
            updates: reports.publish(),
            reports,
            failed: BTreeMap::new(),
            away: None,
            pace: Pace::new(),
        }
    }

    /// Runs until shutdown. What is not published by then is published by the next run.
    pub async fn run(mut self, shutdown: CancellationToken) {
        // Before the first list it is not known which pods there are.
        if shutdown.run_until_cancelled(self.table.synced()).await.is_none() {
            return;
        }
        let mut calls: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
        let mut reconcile = interval_at(Instant::now() + RECONCILE, RECONCILE);
        reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mirrors = self.table.mirror_changes();
        loop {
            let room = match self.away {
                None => calls.len() < CONCURRENT,
                Some(until) => calls.is_empty() && until <= Instant::now(),
            };
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = calls.next(), if !calls.is_empty() => self.on_done(done),
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => self.retry_due(),
                _ = reconcile.tick() => self.reconcile(),
                Ok(()) = mirrors.changed() => self.reconcile_mirrors(),
                update = self.updates.next(), if room => {
                    let (server, table) = (self.server.clone(), self.table.clone());
                    self.pace.begin();
                    calls.push(Box::pin(async move {
                        let done = publish(&server, &table, &update.report, update.last).await;
                        (update, done)
                    }));
                }
            }
        }
        // What is half done is done again by the next run.
        let _ = timeout(DRAIN, async { while calls.next().await.is_some() {} }).await;
    }

    /// When something is tried again.
    fn next_wake(&self) -> Option<Instant> {
        let away = self.away.filter(|until| *until > Instant::now());
        self.failed
            .values()
            .filter_map(|failed| failed.retry_at)
            .chain(away)
            .min()
    }

    fn on_done(&mut self, (update, done): Done) {
        let uid = &update.report.pod.id.uid;
        match done {
            Ok(()) => {
                self.away = None;
                self.pace.went_well();
                self.failed.remove(uid);
                self.updates.acknowledge(uid, update.revision);
            }
            Err(error) if error.code().is_none() => {
                self.set_away(&error);
                self.updates.retry(uid);
            }
            Err(error) => {
                // It answers, if only to refuse.
                self.away = None;
                let is_final = !error.is_transient() && !error.is_conflict();
                self.set_failed(&update, &error, is_final);
                if is_final && !update.last {
                    // What changes meanwhile may be accepted.
                    self.updates.acknowledge(uid, update.revision);
                }
            }
        }
    }

    /// The API server does not answer, which the log says for all parts together: all statuses wait.
    fn set_away(&mut self, error: &ApiError) {
        // Others may have been in flight.
        if self.away.is_none_or(|until| until <= Instant::now()) {
            debug!("{error}");
            self.away = Some(self.pace.failed(None));
        }
    }

    /// The API server does not take this status: this pod waits.
    fn set_failed(&mut self, update: &StatusUpdate, error: &ApiError, is_final: bool) {
        let id = &update.report.pod.id;
        let failed = self.failed.entry(id.uid.clone()).or_default();
        failed.failures = failed.failures.saturating_add(1);
        let wait = if is_final {
            REFUSED
        } else {
            error
                .retry_after()
                .unwrap_or_default()
                .min(REFUSED)
                .max(back_off(failed.failures, Pace::LONGEST))
        };
        failed.retry_at = Some(Instant::now() + wait);
        if failed.failures == 1 {
            warn!(pod = %id, "{error}; trying again in {} s", wait.as_secs_f32().ceil());
        } else {
            debug!(pod = %id, failures = failed.failures, "{error}");
        }
    }

    /// Hands out the statuses again whose wait is over.
    fn retry_due(&mut self) {
        let now = Instant::now();
        for (uid, failed) in &mut self.failed {
            if failed.retry_at.take_if(|at| *at <= now).is_some() {
                self.updates.retry(uid);
            }
        }
    }

    /// Publishes again what others have written.
    fn reconcile(&mut self) {
        for uid in self.table.take_touched() {
            let report = self.reports.get(&uid);
            if report.is_some_and(|report| differs(&self.table, &report)) {
                self.updates.offer(&uid);
            }
        }
        // Pods that are gone need no memory.
        let updates = &self.updates;
        self.failed.retain(|uid, _| updates.has(uid));
        self.reconcile_mirrors();
    }

    /// A mirror pod that was created, or changed by others, gets the status of its static pod.
    fn reconcile_mirrors(&self) {
        for uid in self.table.mirrored() {
            let report = self.reports.get(&uid);
            if report.is_some_and(|report| differs(&self.table, &report)) {
                self.updates.offer(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests;
