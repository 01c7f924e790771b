//! Hands out changed statuses to a publisher, such as the client of an API server.
//!
//! The publisher gets the newest status of one pod at a time, and acknowledges it once it is published. What changes meanwhile is handed out
//! after that, so at most one status of a pod is in flight, and only the newest one waits. A change that means little, because the next one is
//! about to follow, is held back for a moment: that a starting pod has its sandbox. The last status of a terminated pod, and the pod's record
//! in the store, are kept until it is acknowledged; without a publisher it is dropped at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use pleg::PodUid;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::Phase;
use super::model::ConditionKind;
use super::reports::{PodReports, Report};
use crate::store::StoreWriter;

/// Most terminated pods whose last status waits. Beyond that, the oldest is dropped.
const MAX_FINISHED: usize = 4096;
/// How long a minor change is held back: the containers of a pod usually run by then, which is published anyway.
const HOLD: Duration = Duration::from_secs(1);

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
            let now = Instant::now();
            let (update, held_until) = self
                .reports
                .with_queue(|queue| (queue.hand_out(now), queue.held_until()));
            if let Some(update) = update {
                return update;
            }
            tokio::select! {
                // It cannot be closed: the reports have the sender.
                _ = self.version.changed() => {}
                () = sleep_until(held_until.unwrap_or(now)), if held_until.is_some() => {}
            }
        }
    }

    /// This status is published, or nothing publishes statuses. The record of a terminated pod is dropped.
    pub fn acknowledge(&self, uid: &PodUid, revision: u64) {
        self.reports.with_queue(|queue| queue.acknowledge(uid, revision));
        self.reports.changed();
    }

    /// Hands out the newest status of this pod again, unless one of it waits or is in flight: what was published is no longer there.
    pub fn offer(&self, uid: &PodUid) {
        self.reports.with_queue(|queue| queue.offer(uid));
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
    /// Pods with a minor change, and until when that is held back.
    held: BTreeSet<(Instant, PodUid)>,
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
    /// Set while only minor changes are to be published: until when they are held back.
    held_until: Option<Instant>,
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
    pub(super) fn set(&mut self, report: Report, now: Instant) {
        let uid = report.pod.id.uid.clone();
        self.reopen(&uid);
        let Some(entry) = self.pods.get_mut(&uid) else {
            self.insert(report);
            return;
        };
        let before = std::mem::replace(&mut entry.report, report);
        let is_stuck_as_before = before.stuck == entry.report.stuck;
        if is_stuck_as_before && before.status == entry.report.status {
            return;
        }
        let is_minor = is_stuck_as_before && is_minor(&before.status, &entry.report.status);
        // Something else may be unpublished, which is not held back for this.
        let is_published = entry.waits.is_none() && entry.in_flight.is_none_or(|revision| revision == entry.revision);
        self.revision += 1;
        entry.revision = self.revision;
        if !is_minor {
            self.release(&uid);
        } else if is_published && entry.held_until.is_none() {
            entry.held_until = Some(now + HOLD);
        }
        self.enqueue(&uid);
    }

    /// What was held back is held back no longer.
    fn release(&mut self, uid: &PodUid) {
        let held_until = self.pods.get_mut(uid).and_then(|entry| entry.held_until.take());
        if let Some(until) = held_until {
            self.held.remove(&(until, uid.clone()));
        }
    }

    /// When something that is held back is due.
    fn held_until(&self) -> Option<Instant> {
        self.held.first().map(|(until, _)| *until)
    }

    fn offer(&mut self, uid: &PodUid) {
        self.release(uid);
        self.enqueue(uid);
    }

    fn insert(&mut self, report: Report) {
        self.revision += 1;
        let uid = report.pod.id.uid.clone();
        let entry = Entry {
            report,
            revision: self.revision,
            waits: None,
            held_until: None,
            in_flight: None,
            finished: None,
        };
        self.pods.insert(uid.clone(), entry);
        self.enqueue(&uid);
    }

    /// The pod has terminated; this is its last report. Its record is deleted from `store` once that is acknowledged.
    pub(super) fn finish(&mut self, report: Report, store: Option<StoreWriter>, now: Instant) {
        let uid = report.pod.id.uid.clone();
        self.set(report, now);
        self.release(&uid);
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
        if !self.has_publisher || entry.waits.is_some() || entry.in_flight.is_some() {
            return;
        }
        if let Some(until) = entry.held_until {
            self.held.insert((until, uid.clone()));
        } else {
            entry.waits = Some(entry.revision);
            self.waiting.insert(entry.revision, uid.clone());
        }
    }

    pub(super) fn is_published(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty() && self.pods.values().all(|entry| entry.in_flight.is_none())
    }

    fn hand_out(&mut self, now: Instant) -> Option<StatusUpdate> {
        while let Some((_, due)) = self.held.first().filter(|(until, _)| *until <= now).cloned() {
            self.offer(&due);
        }
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
            self.offer(uid);
        }
    }

    /// Drops a terminated pod, and its record.
    fn drop_finished(&mut self, uid: &PodUid) {
        self.release(uid);
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

/// Whether all that changed is that a pod which is about to start has its sandbox, and with it an address.
fn is_minor(before: &core::PodStatus, after: &core::PodStatus) -> bool {
    let without = |status: &core::PodStatus| {
        let mut status = status.clone();
        let ready = ConditionKind::PodReadyToStartContainers.name();
        status
            .conditions
            .iter_mut()
            .for_each(|all| all.retain(|one| one.type_ != ready));
        (status.pod_ip, status.pod_ips) = (None, None);
        status
    };
    Phase::of(after) == Some(Phase::Pending) && without(before) == without(after)
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
        reports.with_queue(|queue| queue.hand_out(Instant::now()))
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

    /// The status of a starting pod, with or without its sandbox.
    fn starting(has_sandbox: bool) -> Report {
        let mut report = report("a", "");
        let condition = |kind: &str, status: bool| core::PodCondition {
            type_: kind.to_owned(),
            status: if status { "True" } else { "False" }.to_owned(),
            ..core::PodCondition::default()
        };
        report.status = Arc::new(core::PodStatus {
            phase: Some("Pending".to_owned()),
            pod_ip: has_sandbox.then(|| "192.0.2.7".to_owned()),
            conditions: Some(vec![
                condition("PodReadyToStartContainers", has_sandbox),
                condition("Ready", false),
            ]),
            ..core::PodStatus::default()
        });
        report
    }

    fn running() -> Report {
        let mut report = starting(true);
        Arc::make_mut(&mut report.status).phase = Some("Running".to_owned());
        report
    }

    /// A pod usually runs soon after its sandbox does: one status says both.
    #[tokio::test(start_paused = true)]
    async fn that_a_starting_pod_has_its_sandbox_is_held_back_for_a_moment() {
        let phase = |update: &StatusUpdate| {
            let status = &update.report.status;
            (status.phase.clone().unwrap_or_default(), status.pod_ip.is_some())
        };
        for (runs_after, acknowledged_first) in [(300, true), (300, false), (5000, true), (5000, false)] {
            let reports = PodReports::default();
            let mut updates = reports.publish();
            let uid = starting(false).pod.id.uid.clone();
            reports.set(starting(false));
            let first = updates.next().await;
            let began = Instant::now();
            if acknowledged_first {
                updates.acknowledge(&uid, first.revision);
            }
            reports.set(starting(true));
            assert!(!reports.is_published());
            if !acknowledged_first {
                updates.acknowledge(&uid, first.revision);
            }
            let run = async {
                tokio::time::sleep(Duration::from_millis(runs_after)).await;
                reports.set(running());
            };
            let publish = async {
                let mut published = Vec::new();
                while published
                    .last()
                    .is_none_or(|(phase, _): &(String, bool)| phase == "Pending")
                {
                    let update = updates.next().await;
                    published.push(phase(&update));
                    if published.len() == 1 && runs_after > 1000 {
                        assert_eq!(began.elapsed(), HOLD);
                    }
                    updates.acknowledge(&uid, update.revision);
                }
                published
            };
            let ((), published) = tokio::join!(run, publish);
            assert_eq!(began.elapsed(), Duration::from_millis(runs_after));
            let mut wanted = vec![("Running".to_owned(), true)];
            if runs_after > 1000 {
                wanted.insert(0, ("Pending".to_owned(), true));
            }
            assert_eq!(published, wanted, "{runs_after} {acknowledged_first}");
            assert!(reports.is_published() && reports.with_queue(|queue| queue.held.is_empty()));
        }
    }

    /// What matters is published at once, also what came before and was held back.
    #[tokio::test(start_paused = true)]
    async fn nothing_else_is_held_back() {
        let reports = PodReports::default();
        let updates = reports.publish();
        reports.set(starting(false));
        // One that waits already takes it along.
        reports.set(starting(true));
        let update = next(&reports).unwrap();
        assert!(update.report.status.pod_ip.is_some());
        // A sandbox is lost while that is in flight, and then the pod fails.
        reports.set(starting(false));
        let uid = update.report.pod.id.uid.clone();
        reports.set(running());
        updates.acknowledge(&uid, update.revision);
        let update = next(&reports).unwrap();
        assert_eq!(update.report.status.phase.as_deref(), Some("Running"));
        updates.acknowledge(&uid, update.revision);
        reports.set(starting(true));
        let update = next(&reports).unwrap();
        updates.acknowledge(&uid, update.revision);
        reports.set(starting(false));
        assert!(next(&reports).is_none());
        // Retries and the last status are not.
        updates.offer(&uid);
        let update = next(&reports).unwrap();
        updates.acknowledge(&uid, update.revision);
        reports.set(starting(true));
        reports.finish(starting(true), None);
        assert!(next(&reports).unwrap().last);
        assert!(reports.with_queue(|queue| queue.held.is_empty()));
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
