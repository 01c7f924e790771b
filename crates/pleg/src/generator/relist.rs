//! A relist from its start to its end: sends the lists that are due, takes in what arrives, and ends with the last inspection.

use std::sync::Arc;

use pleg_cri::ErrorKind;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Generator;
use super::event_stream::HintedPods;
use super::inspections::InspectTrigger;
use super::listing::{Arrived, Failed, Listing, Part, Relist, Scope, SingleList};
use super::requests::PendingRequests;
use super::take_in::Size;
use crate::model::PodUid;
use crate::recorder::line::{self, Turn};
use crate::records::snapshot::{ContainerList, SandboxList, Snapshot};
use crate::records::{Coverage, PodKey};
use crate::runtime::Runtime;

/// Up to this many pods are listed one by one. A runtime walks all its containers for a filtered list too, so beyond a few a full
/// relist is cheaper.
const MOST_PODS: usize = 4;

impl<R: Runtime> Generator<R> {
    /// When lists are next to be sent, or the open relist is to end.
    pub(super) fn relist_wake(&self) -> Option<Instant> {
        let send = if self.lists.is_in_flight() {
            None
        } else {
            let wakes = [self.full_at(), self.requested_at(), self.hinted_at()];
            wakes.into_iter().flatten().min()
        };
        [send, self.schedule.late_at()].into_iter().flatten().min()
    }

    /// When the next full relist is due.
    fn full_at(&self) -> Option<Instant> {
        let period = &self.stream.period;
        let oldest = period
            .is_grown()
            .then(|| self.publisher.cache.reader().oldest_wait())
            .flatten();
        let grown = period.now().saturating_sub(period.least());
        self.schedule.full_at(grown, oldest.map(|since| since + period.least()))
    }

    /// When lists that events ask for may be sent.
    fn hinted_at(&self) -> Option<Instant> {
        (!self.stream.hinted.is_empty()).then(|| self.schedule.hinted_at())
    }

    /// When lists that callers ask for may be sent.
    fn requested_at(&self) -> Option<Instant> {
        (!self.requests.is_empty()).then(|| self.schedule.requested_at())
    }

    /// Sends the lists of the relist that is due now, if one is and none is in flight.
    pub(super) fn start_relist(&mut self) {
        if self.lists.is_in_flight() {
            return;
        }
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let due = is_due(self.full_at());
        if !due && !is_due(self.hinted_at()) && !is_due(self.requested_at()) {
            return;
        }
        let cache = &self.publisher.cache;
        let (requested, token) = self.requests.take(|| cache.start_relist());
        // Every relist serves the hints of events, whatever its reason.
        let hinted = std::mem::take(&mut self.stream.hinted);
        let scope = self.scope(due, &requested, &hinted);
        self.records.begin_relist();
        let mut spare = Snapshot::default();
        if let Scope::Full = scope {
            self.end_relist();
            self.full_relist_begins();
            if let Some(interval) = self.schedule.full_started(now) {
                self.metrics.relist_interval(interval);
            }
            spare = self.lists.take_spare();
            self.records.prepare(&mut spare);
        }
        let relist = Relist {
            token,
            started: now,
            due,
            requested,
            hinted,
        };
        self.metrics.relist_started(matches!(scope, Scope::Full));
        let unidentified = self.identity.take_unknown();
        let listing = Listing::send(&self.runtime, relist, scope, unidentified, spare);
        self.lists.begin(listing);
    }

    /// What to list: everything, or only the pods that callers or events are about.
    fn scope(&self, due: bool, requested: &PendingRequests, hinted: &HintedPods) -> Scope {
        let labelled = |uid: &PodUid| self.records.key(uid).map(|key| self.records.is_labelled(key));
        let full = due
            || requested.all.is_some()
            || hinted.all
            || requested.pods.len() + hinted.pods.len() > MOST_PODS
            || self.schedule.full_is_cheaper(hinted.pods.len())
            || !requested.pods.keys().all(|uid| labelled(uid).unwrap_or(false))
            // What is not known yet is found by its label, or it will be missing afterwards.
            || !hinted.pods.keys().all(|uid| labelled(uid).unwrap_or(true));
        if full {
            return Scope::Full;
        }
        let only_hinted = hinted.pods.keys().filter(|uid| !requested.pods.contains_key(*uid));
        Scope::Pods(requested.pods.keys().chain(only_hinted).cloned().collect())
    }

    /// Takes in a list that ended.
    pub(super) fn list_arrived(&mut self, arrived: Arrived) {
        let Some(listing) = self.lists.in_flight() else { return };
        let (sent, full, answered) = (listing.relist.started, listing.is_full(), arrived.is_answer());
        let ended = self.lists.arrived(arrived);
        if answered {
            self.limiter.alive(sent);
            if full {
                self.health.list_patience(self.lists.patience());
            }
        }
        if let Some(listing) = ended {
            self.all_lists_arrived(listing);
        }
        self.give_up_overtaken();
    }

    /// Takes in a relist whose lists have all ended.
    fn all_lists_arrived(&mut self, listing: Listing) {
        self.identity.asked(listing.unidentified);
        let relist = &listing.relist;
        let requested = !relist.due && !relist.requested.is_empty();
        self.schedule
            .lists_ended(relist.started.elapsed(), listing.is_full(), requested);
        let Listing {
            relist,
            scope,
            sandboxes,
            containers,
            pods,
            ..
        } = listing;
        match (scope, pods) {
            (Scope::Full, _) => self.full_lists_arrived(relist, sandboxes, containers),
            (Scope::Pods(uids), Some(Ok(snapshots))) => self.pod_lists_arrived(relist, &uids, snapshots),
            (Scope::Pods(_), Some(Err(failed))) => self.lists_failed(relist, failed, line::Scope::Pods),
            // A relist of pods ends with their lists.
            (Scope::Pods(_), None) => {}
        }
    }

    fn full_lists_arrived(&mut self, relist: Relist, sandboxes: Part<SandboxList>, containers: Part<ContainerList>) {
        let mut snapshot = Snapshot::default();
        let (coverage, size) = match (sandboxes, containers) {
            (Part::Answered(sandboxes, a), Part::Answered(containers, b)) => {
                snapshot = Snapshot { sandboxes, containers };
                (Coverage::Full, Size::of(a, b))
            }
            (Part::TakenIn, Part::Answered(list, bytes)) => {
                snapshot.containers = list;
                (Coverage::Containers, Size::of(0, bytes))
            }
            (Part::Answered(list, bytes), Part::TakenIn) => {
                snapshot.sandboxes = list;
                (Coverage::Sandboxes, Size::of(bytes, 0))
            }
            (sandboxes, containers) => {
                if let Some(failed) = self.take_in_what_answered(sandboxes, containers, relist.started) {
                    self.lists_failed(relist, failed, line::Scope::Full);
                }
                return;
            }
        };
        self.end_stuck_list(true);
        self.take_in_full(&mut snapshot, coverage, &relist, size);
        self.lists.recycle(snapshot);
    }

    /// One of the lists failed, or both did: takes in the other one. Returns how it failed.
    fn take_in_what_answered(
        &mut self,
        sandboxes: Part<SandboxList>,
        containers: Part<ContainerList>,
        started: Instant,
    ) -> Option<Failed> {
        let (error, list, other_list_ok) = match (sandboxes, containers) {
            (Part::Failed(error), Part::Failed(_)) => (error, None, false),
            (Part::Failed(error), mut other) => (error, other.take_answer().map(SingleList::Containers), true),
            (mut other, Part::Failed(error)) => (error, other.take_answer().map(SingleList::Sandboxes), true),
            // A relist ends when no list is open, and a list is taken in by itself only while the other one is.
            _ => return None,
        };
        if let Some(list) = list {
            self.take_in_single_list(list, started);
        }
        Some(Failed { error, other_list_ok })
    }

    fn pod_lists_arrived(&mut self, relist: Relist, uids: &[PodUid], snapshots: Vec<Snapshot>) {
        self.metrics.relist_ended(false, None);
        if self.stuck_list.is_hanging() {
            // The two lists of a pod were answered at moments that are far apart: together they cannot establish that it is gone.
            self.end_stuck_list(true);
            return self.put_back(relist);
        }
        for (uid, mut snapshot) in uids.iter().zip(snapshots) {
            let requested = relist.requested.pods.get(uid);
            let requested = requested.map(|&source| (source, InspectTrigger::Asked));
            let why = requested.unwrap_or((self.stream.hint_source(), InspectTrigger::News));
            self.take_in_pod(uid, &mut snapshot, relist.token, why, relist.started);
            // Without its label, or under another pod's: somewhere it is, or it is gone again.
            let missing = |id: &Arc<str>| self.records.pod_of(id).is_none();
            if relist.hinted.pods.get(uid).is_some_and(|ids| ids.iter().any(missing)) {
                self.stream.hinted.all = true;
            }
        }
    }

    /// A relist brought no snapshot: the next one serves what it was to serve.
    fn lists_failed(&mut self, relist: Relist, failed: Failed, scope: line::Scope) {
        if failed.error.kind.is_unreachable() {
            self.end_stuck_list(false);
        }
        let started = relist.started;
        self.put_back(relist);
        self.relist_failed(scope, started, failed);
    }

    fn put_back(&mut self, relist: Relist) {
        self.requests.put_back(relist.requested);
        self.stream.hinted.put_back(relist.hinted);
    }

    fn relist_failed(&mut self, scope: line::Scope, started: Instant, failed: Failed) {
        let Failed { error, other_list_ok } = failed;
        self.reset_period("a relist failed");
        let now = Instant::now();
        let full = scope == line::Scope::Full;
        self.schedule.failed(now, full);
        let text = error.to_string();
        self.recorder.relist_failed(scope, now - started, &text);
        self.metrics.relist_ended(full, Some(&text));
        // A runtime that does not implement our calls is not the one we know.
        if error.kind.is_unreachable() || error.kind == ErrorKind::Unimplemented {
            self.identity.lost(self.publisher.token());
        }
        if full {
            self.metrics.relist_failed(now - started, error.kind.label());
            let advice = self.health.advice_on(&error, other_list_ok);
            if self.health.relist_failed(error, other_list_ok, started) {
                self.recorder.transition(Turn::RuntimeLost, None, Some(&text), None);
                tracing::warn!(
                    retry_every = %seconds(self.config.period),
                    "relist failed: {text}"
                );
                tracing::debug!("{advice}");
            }
        }
    }

    /// Ends the open relist if its remaining inspections make no progress, or take too long.
    pub(super) fn end_relist_if_late(&mut self) {
        if self.schedule.late_at().is_some_and(|at| Instant::now() >= at) {
            self.end_relist();
        }
    }

    /// Ends the open relist if it waits for no inspection.
    pub(super) fn end_relist_if_settled(&mut self) {
        if self.schedule.is_settled() {
            self.end_relist();
        }
    }

    fn end_relist(&mut self) {
        if let Some(open) = self.schedule.close() {
            let now = Instant::now();
            self.metrics
                .relist_done(now - open.started, open.bytes, jiff::Timestamp::now());
            self.metrics.relist_ended(true, None);
            let pause = self.pause(open.due);
            self.schedule.set_next_full(now + pause);
        }
    }

    /// An inspection of a pod ended, or turned out not to be needed.
    pub(super) fn inspection_settled(&mut self, key: PodKey) {
        self.schedule.inspection_settled(key);
        self.end_relist_if_settled();
    }
}
