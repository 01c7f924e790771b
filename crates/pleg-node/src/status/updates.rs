//! Hands out changed statuses to a publisher, such as the client of an API server.
//!
//! The publisher gets the newest status of one pod at a time, and acknowledges it once it is published. What changes meanwhile is handed out
//! after that, so at most one status of a pod is in flight, and only the newest one waits. The last status of a terminated pod, and the
//! pod's record in the store, are kept until it is acknowledged; without a publisher it is dropped at once.

use std::collections::{BTreeMap, BTreeSet};

use pleg::PodUid;
use tokio::sync::watch;
use tracing::warn;

use super::reports::{PodReports, Report};
use crate::store::StoreWriter;

/// Most terminated pods whose last status waits. Beyond that, the oldest is dropped.
const MAX_FINISHED: usize = 4096;

/// A status to publish.
#[derive(Debug, Clone)]
pub struct StatusUpdate {
    /// The pod and its status.
    pub report: Report,
    /// Identifies this status: [`StatusUpdates::acknowledge`].
    pub revision: u64,
    /// The pod has terminated, and nothing of it is left on this node: no other status follows.
    pub last: bool,
}

/// Statuses that changed, for one publisher.
#[derive(Debug)]
pub struct StatusUpdates {
    pub(super) reports: PodReports,
    pub(super) version: watch::Receiver<u64>,
}

impl StatusUpdates {
    /// Waits for the next pod whose status changed, oldest change first. Cancel-safe.
    pub async fn next(&mut self) -> StatusUpdate {
        loop {
            self.version.borrow_and_update();
            if let Some(update) = self.reports.with_queue(Queue::hand_out) {
                return update;
            }
            // It cannot be closed: the reports have the sender.
            let _ = self.version.changed().await;
        }
    }

    /// This status is published, or nothing publishes statuses. The record of a terminated pod is dropped.
    pub fn acknowledge(&self, uid: &PodUid, revision: u64) {
        self.reports.with_queue(|queue| queue.acknowledge(uid, revision));
        self.reports.changed();
    }

    /// Hands out the newest status of this pod again, unless one of it waits or is in flight: what was published is no longer there.
    pub fn offer(&self, uid: &PodUid) {
        self.reports.with_queue(|queue| queue.enqueue(uid));
        self.reports.changed();
    }

    /// Whether there is a status of this pod, if only the last one of a terminated pod that is not acknowledged.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.reports.with_queue(|queue| queue.pods.contains_key(uid))
    }

    /// The status could not be published: the newest one of this pod is handed out again.
    pub fn retry(&self, uid: &PodUid) {
        self.reports.with_queue(|queue| queue.retry(uid));
        self.reports.changed();
    }
}

/// The newest report of each pod, and which of them wait for the publisher.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pods: BTreeMap<PodUid, Entry>,
    /// Pods that wait, in the order of their changes.
    waiting: BTreeMap<u64, PodUid>,
    /// Terminated pods, by the revision of their last status.
    finished: BTreeMap<u64, PodUid>,
    /// The number of the last change of any pod.
    revision: u64,
    pub(super) has_publisher: bool,
}

#[derive(Debug)]
struct Entry {
    report: Report,
    /// The number of its last change.
    revision: u64,
    /// Its place among those that wait.
    waits: Option<u64>,
    /// The revision that is being published.
    in_flight: Option<u64>,
    /// Set once the pod has terminated.
    finished: Option<Finished>,
}

#[derive(Debug)]
struct Finished {
    revision: u64,
    /// Has the record of the pod; none if it stays.
    store: Option<StoreWriter>,
}

impl Queue {
    pub(super) fn get(&self, uid: &PodUid) -> Option<&Report> {
        let entry = self.pods.get(uid)?;
        entry.finished.is_none().then_some(&entry.report)
    }

    /// The reports of all pods that have not terminated.
    pub(super) fn reports(&self) -> impl Iterator<Item = &Report> {
        let present = self.pods.values().filter(|entry| entry.finished.is_none());
        present.map(|entry| &entry.report)
    }

    /// From now on, changes wait for a publisher, which has seen nothing yet.
    pub(super) fn attach(&mut self) {
        self.has_publisher = true;
        let all: BTreeSet<PodUid> = self.pods.keys().cloned().collect();
        for uid in all {
            self.retry(&uid);
        }
    }

    /// A pod of the same UID is desired again.
    pub(super) fn reopen(&mut self, uid: &PodUid) {
        if let Some(finished) = self.pods.get_mut(uid).and_then(|entry| entry.finished.take()) {
            self.finished.remove(&finished.revision);
        }
    }

    /// A report of a pod that has not terminated.
    pub(super) fn set(&mut self, report: Report) {
        let uid = report.pod.id.uid.clone();
        self.reopen(&uid);
        let Some(entry) = self.pods.get_mut(&uid) else {
            self.insert(report);
            return;
        };
        let changed = entry.report.status != report.status || entry.report.stuck != report.stuck;
        entry.report = report;
        if changed {
            self.revision += 1;
            entry.revision = self.revision;
            self.enqueue(&uid);
        }
    }

    fn insert(&mut self, report: Report) {
        self.revision += 1;
        let uid = report.pod.id.uid.clone();
        let entry = Entry {
            report,
            revision: self.revision,
            waits: None,
            in_flight: None,
            finished: None,
        };
        self.pods.insert(uid.clone(), entry);
        self.enqueue(&uid);
    }

    /// The pod has terminated; this is its last report. Its record is deleted from `store` once that is acknowledged.
    pub(super) fn finish(&mut self, report: Report, store: Option<StoreWriter>) {
        let uid = report.pod.id.uid.clone();
        self.set(report);
        let Some(entry) = self.pods.get_mut(&uid) else { return };
        self.revision += 1;
        entry.revision = self.revision;
        entry.finished = Some(Finished {
            revision: self.revision,
            store,
        });
        self.finished.insert(self.revision, uid.clone());
        self.enqueue(&uid);
        if !self.has_publisher {
            return self.drop_finished(&uid);
        }
        if self.finished.len() > MAX_FINISHED
            && let Some((_, oldest)) = self.finished.pop_first()
        {
            warn!(uid = %oldest, "dropping the last status of a terminated pod: too many wait to be published");
            self.drop_finished(&oldest);
        }
    }

    fn enqueue(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if self.has_publisher && entry.waits.is_none() && entry.in_flight.is_none() {
            entry.waits = Some(entry.revision);
            self.waiting.insert(entry.revision, uid.clone());
        }
    }

    pub(super) fn is_published(&self) -> bool {
        self.waiting.is_empty() && self.pods.values().all(|entry| entry.in_flight.is_none())
    }

    fn hand_out(&mut self) -> Option<StatusUpdate> {
        loop {
            let (_, uid) = self.waiting.pop_first()?;
            let Some(entry) = self.pods.get_mut(&uid) else { continue };
            entry.waits = None;
            entry.in_flight = Some(entry.revision);
            return Some(StatusUpdate {
                report: entry.report.clone(),
                revision: entry.revision,
                last: entry.finished.is_some(),
            });
        }
    }

    fn acknowledge(&mut self, uid: &PodUid, revision: u64) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if entry.in_flight != Some(revision) {
            return;
        }
        entry.in_flight = None;
        if entry.revision > revision {
            self.enqueue(uid);
        } else if entry.finished.is_some() {
            self.drop_finished(uid);
        }
    }

    fn retry(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.in_flight = None;
            self.enqueue(uid);
        }
    }

    /// Drops a terminated pod, and its record.
    fn drop_finished(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.remove(uid) else { return };
        if let Some(waits) = entry.waits {
            self.waiting.remove(&waits);
        }
        let Some(finished) = entry.finished else { return };
        self.finished.remove(&finished.revision);
        if let Some(store) = finished.store {
            store.delete(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::reconcile::decide::{Goal, Stage};
    use crate::status::refused;
    use crate::testing::pod_named;

    fn report(name: &str, message: &str) -> Report {
        Report {
            pod: pod_named(name, "containers: [{name: c, image: i}]"),
            status: Arc::new(refused(message)),
            stage: Stage::Running,
            goal: Goal::Run,
            stale: None,
            stuck: None,
        }
    }

    /// Name, message and `!` for the last one.
    fn text(update: &StatusUpdate) -> String {
        let message = update.report.status.message.clone().unwrap_or_default();
        let name = update.report.pod.id.name.trim_end_matches("-n");
        format!("{name}:{message}{}", if update.last { "!" } else { "" })
    }

    fn next(reports: &PodReports) -> Option<StatusUpdate> {
        reports.with_queue(Queue::hand_out)
    }

    fn waiting(reports: &PodReports) -> Vec<String> {
        std::iter::from_fn(|| next(reports))
            .map(|update| text(&update))
            .collect()
    }

    #[test]
    fn only_the_newest_status_of_a_pod_waits_and_one_is_in_flight() {
        let reports = PodReports::default();
        reports.set(report("a", "0"));
        let updates = reports.publish();
        for (name, message) in [("b", "1"), ("a", "1"), ("b", "2"), ("a", "2")] {
            reports.set(report(name, message));
        }
        let (a, b) = (next(&reports).unwrap(), next(&reports).unwrap());
        assert_eq!((text(&a), text(&b)), ("a:2".to_owned(), "b:2".to_owned()));
        // What is the same is no change, and what changes waits for the one in flight.
        reports.set(report("a", "2"));
        reports.set(report("b", "3"));
        assert!(next(&reports).is_none());
        let uid = &b.report.pod.id.uid;
        updates.acknowledge(&a.report.pod.id.uid, a.revision);
        updates.acknowledge(uid, b.revision + 9);
        assert!(next(&reports).is_none());
        updates.acknowledge(uid, b.revision);
        assert_eq!(waiting(&reports), ["b:3"]);
        updates.retry(uid);
        assert_eq!(waiting(&reports), ["b:3"]);
    }

    #[test]
    fn a_record_stays_until_its_last_status_is_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.redb");
        let store = crate::Store::open(&path).unwrap();
        let (a, b) = (report("a", "1"), report("b", "1"));
        let history = crate::reconcile::history::PodHistory::default();
        for report in [&a, &b] {
            store.writer().save_history(&report.pod.id.uid, &history);
        }
        let reports = PodReports::default();
        let updates = reports.publish();
        for report in [&a, &b] {
            reports.set(report.clone());
            reports.finish(report.clone(), Some(store.writer()));
            assert!(reports.get(&report.pod.id.uid).is_none());
        }
        let update = next(&reports).unwrap();
        assert_eq!(text(&update), "a:1!");
        updates.acknowledge(&update.report.pod.id.uid, update.revision);
        assert_eq!(waiting(&reports), ["b:1!"]);
        drop(store);
        let kept = crate::Store::open(&path).unwrap().take_histories();
        assert_eq!(
            kept.into_keys().collect::<Vec<_>>(),
            std::slice::from_ref(&b.pod.id.uid)
        );
    }

    #[test]
    fn without_a_publisher_nothing_waits() {
        let reports = PodReports::default();
        reports.set(report("a", "1"));
        reports.finish(report("a", "1"), None);
        let _updates = reports.publish();
        assert!(next(&reports).is_none());
    }

    #[test]
    fn a_pod_that_is_desired_again_is_not_dropped() {
        let reports = PodReports::default();
        let updates = reports.publish();
        reports.finish(report("a", "1"), None);
        let update = next(&reports).unwrap();
        reports.set(report("a", "2"));
        updates.acknowledge(&update.report.pod.id.uid, update.revision);
        assert_eq!(waiting(&reports), ["a:2"]);
        assert_eq!(reports.pods().len(), 1);
    }

    #[test]
    fn last_statuses_that_wait_are_bounded() {
        let reports = PodReports::default();
        let _updates = reports.publish();
        let one = report("a", "1");
        for n in 0..MAX_FINISHED + 10 {
            let mut pod = (*one.pod).clone();
            pod.id.uid = format!("{n}").into();
            let report = Report {
                pod: Arc::new(pod),
                ..one.clone()
            };
            reports.finish(report, None);
        }
        assert_eq!(waiting(&reports).len(), MAX_FINISHED);
    }
}
