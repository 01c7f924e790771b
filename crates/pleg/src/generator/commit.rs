//! Makes what was inspected visible: status, record and events of one pod, so that no event is seen before its status.
//!
//! ```text
//! inspection ──▶ reconcile ──▶ diff ──▶ publish
//!                with what      changes   recorder, records,
//!                lists said     → events  cache, feed
//! ```

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use tokio::time::Instant;

use super::Generator;
use super::inspections::{Done, PodInspection};
use super::publisher::EventContext;
use super::quarantine::Arrival;
use crate::inspect::{Answered, Inspected};
use crate::model::event::{Event, Source};
use crate::model::status::PodStatus;
use crate::model::{PodRef, PodUid, PodView};
use crate::publish::cache::Committed;
use crate::recorder::Committing;
use crate::recorder::line::{Gone, Scope};
use crate::records::PodKey;
use crate::runtime::Runtime;

/// What was found of a pod, reconciled with what lists say of it.
struct Finding {
    key: PodKey,
    pod: PodRef,
    /// The pod as it was listed when it was inspected.
    view: PodView,
    /// The pod as it was found.
    after: PodView,
    /// Containers that were not answered for: their record stays as it is.
    kept: HashSet<Arc<str>>,
    gone: Gone,
    inspected: Inspected,
    /// What was last known of it.
    known: Option<Arc<PodStatus>>,
    arrival: Arrival,
    /// It ends the inspection of the pod that runs; else it is about one object.
    is_inspection: bool,
}

/// What a finding changes, with its events.
struct Change {
    key: PodKey,
    before: PodView,
    after: PodView,
    unanswered: Box<[Arc<str>]>,
    gone: Gone,
    status: PodStatus,
    events: Vec<Event>,
    arrival: Arrival,
    is_inspection: bool,
    now: Timestamp,
}

impl<R: Runtime> Generator<R> {
    /// Commits what an inspection brought. Objects that did not answer keep their record, and go into quarantine.
    pub(super) fn commit(&mut self, done: Done) {
        if let Some(finding) = self.reconcile(done) {
            let change = self.diff(finding);
            self.publish_change(change);
        }
    }

    /// Commits what one object answered that was in quarantine. Everything else of the pod stays as it is.
    pub(super) fn commit_object(&mut self, key: PodKey, answered: Answered, arrival: Arrival) {
        if let Some(finding) = self.reconcile_object(key, answered, arrival) {
            let change = self.diff(finding);
            self.publish_change(change);
        }
    }

    /// Compares what an inspection found with what lists have said meanwhile. None if the commit has to wait for a list.
    fn reconcile(&mut self, done: Done) -> Option<Finding> {
        let Done {
            key,
            view,
            known,
            skipped,
            inspected,
            ..
        } = done;
        let mut inspected = inspected?;
        // If a list has changed the pod meanwhile, the next inspection has to find out what this one was to.
        let unchanged = self.records.listed(key) == view;
        let by_id = self.inspections.get(key).and_then(PodInspection::by_id_since);
        let by_id = by_id.filter(|_| unchanged);
        if let Some(entry) = self.inspections.get_mut(key).filter(|_| !unchanged) {
            entry.ask_again();
        }
        let pod = self.records.pod(key).cloned()?;
        let entry = self.inspections.get(key)?;
        let (arrival, again) = (entry.arrival(), entry.again);
        if inspected.leaves_nothing_of(&view) && self.wait_for_list(key, by_id.is_some(), unchanged) {
            return None;
        }
        self.want_lists(&pod.uid, by_id.is_some(), &inspected);
        let unanswered = std::mem::take(&mut inspected.unanswered);
        let mut kept = skipped;
        kept.extend(unanswered.iter().map(|unanswered| Arc::clone(unanswered.object.id())));
        self.take_over(key, unanswered, arrival, again);
        // What was listed again since the runtime denied it may be back: the next inspection finds out.
        if again.is_none() {
            self.records.not_found(&[], &inspected.gone_containers);
        }
        let mut after = view.clone();
        if let Some(since) = by_id
            && self.records.advance(&inspected)
        {
            self.record_advance(key, &pod.uid, arrival.source, since);
            after = self.records.listed(key);
        }
        inspected.correct(&mut after);
        Some(Finding {
            key,
            pod,
            view,
            after,
            kept,
            gone: Gone::of(&inspected, again.is_none()),
            inspected,
            known,
            arrival,
            is_inspection: true,
        })
    }

    /// The same for one object.
    fn reconcile_object(&mut self, key: PodKey, answered: Answered, arrival: Arrival) -> Option<Finding> {
        let pod = self.records.pod(key).cloned()?;
        let (id, sent) = (Arc::clone(answered.object.id()), answered.sent);
        let inspected = Inspected::single(&self.records.listed(key), answered);
        if self.records.advance(&inspected) {
            self.record_advance(key, &pod.uid, arrival.source, sent);
        } else {
            self.recorder.inspecting(&pod.uid);
        }
        let view = self.records.listed(key);
        self.records.not_found(&[], &inspected.gone_containers);
        let mut after = view.clone();
        inspected.correct(&mut after);
        let others = view.containers.iter().map(|(container, _)| container.id.shared());
        let kept = others.filter(|other| *other != id).collect();
        let known = self.publisher.cache.known(&pod.uid).map(|known| known.status);
        Some(Finding {
            key,
            pod,
            view,
            after,
            kept,
            gone: Gone::of(&inspected, true),
            inspected,
            known,
            arrival,
            is_inspection: false,
        })
    }

    /// All that was known of the pod is gone, and no list has said yet that the pod is. Returns whether there is anything to wait for.
    fn wait_for_list(&mut self, key: PodKey, by_id: bool, unchanged: bool) -> bool {
        if self.stuck_list.is_hanging() && !self.stuck_list.is_emptied(key) {
            // A new sandbox of the pod may be in the list that hangs: only a list of sandboxes that is sent from now on shows it.
            let source = self
                .inspections
                .forget(key)
                .map_or(Source::Relist, |entry| entry.source);
            if let Some(pod) = self.records.pod(key).filter(|_| source == Source::OnDemand) {
                self.requests.pod(&pod.uid, source);
            }
            self.inspection_settled(key);
            return true;
        }
        if by_id && !self.records.is_dirty(key) {
            // Only a list can establish that the pod is gone.
            let asked = self.inspections.get(key).and_then(|entry| entry.again);
            let uid = self.records.pod(key).map(|pod| pod.uid.clone());
            self.clear_unchanged(key);
            match (asked, uid) {
                (Some((_, source)), Some(uid)) => _ = self.requests.pod(&uid, source),
                (None, Some(uid)) => _ = self.stream.hinted.pods.entry(uid).or_default(),
                _ => {}
            }
            return true;
        }
        if !unchanged && !self.records.listed(key).is_empty() {
            // Something else of the pod is listed since: the next inspection covers both.
            self.finish_inspection(key, true);
            self.inspection_settled(key);
            return true;
        }
        false
    }

    /// Asks for lists of the pod if the inspection raised a question that only lists can settle.
    fn want_lists(&mut self, uid: &PodUid, by_id: bool, inspected: &Inspected) {
        // There may be no event for what is ahead of the lists, and the next full relist is far.
        let behind = !by_id && self.stream.period.is_grown() && self.records.is_behind(inspected);
        // An object vanished without an event: the pod may have changed in other ways.
        if behind || (by_id && inspected.misses_something()) {
            self.stream.hinted.pods.entry(uid.clone()).or_default();
        }
    }

    /// Records that answers by id were ahead of the lists, and counts as a relist.
    fn record_advance(&mut self, key: PodKey, uid: &PodUid, source: Source, since: Instant) {
        let why = (Scope::Pods, source);
        self.recorder
            .relisted(&mut self.records, &[key], why, since.elapsed(), 0);
        self.recorder.inspecting(uid);
        self.census.note(true);
    }

    /// Compares the finding with what was last committed, and makes the status and the events of it.
    fn diff(&mut self, finding: Finding) -> Change {
        let Finding {
            key,
            pod,
            view,
            mut after,
            kept,
            gone,
            inspected,
            known,
            arrival,
            is_inspection,
        } = finding;
        let before = self.records.committed(key);
        let unanswered = after.keep(&before, &kept);
        let changes = self.records.changes(key, &after);
        let status = inspected.into_status(pod, &view, known.as_deref(), &self.records);
        let now = Timestamp::now();
        self.late_reasons.note(&changes, &status);
        let context = EventContext {
            pod: &status.pod,
            status: status.by_id(),
            known: known.as_deref().map(PodStatus::by_id).unwrap_or_default(),
            source: arrival.source,
            initial: arrival.initial,
            now,
        };
        let events = self.publisher.events(&changes, &context);
        drop(context);
        Change {
            key,
            before,
            after,
            unanswered,
            gone,
            status,
            events,
            arrival,
            is_inspection,
            now,
        }
    }

    /// Records the change and shows it to readers: first the status, then the events.
    fn publish_change(&mut self, change: Change) {
        let Change {
            key,
            before,
            after,
            unanswered,
            gone,
            status,
            events,
            arrival,
            is_inspection,
            now,
        } = change;
        self.recorder.committed(Committing {
            pod: &status.pod,
            before: &before,
            after: &after,
            gone: Some(gone),
            unanswered,
            seq: self.publisher.newest() + 1,
            events: &events,
        });
        let exists = self.records.commit(key, &after);
        let more = if is_inspection {
            self.finish_inspection(key, exists)
        } else {
            self.inspections.has(key)
        };
        if after.is_empty() && !more && self.records.listed(key).is_empty() {
            self.publisher.cache.remove(&status.pod.uid);
            if arrival.token > self.publisher.complete() {
                self.confirm_absence(arrival.source);
            }
        } else {
            let stale = self.stale_parts(key);
            let committed = Committed {
                token: arrival.token,
                at: now,
                held: more || !stale.is_empty(),
                inspecting: more || self.is_being_asked(key),
                stale,
            };
            self.publisher.cache.commit(status, committed);
        }
        self.witness_commit(&events);
        self.publisher.publish(events);
        self.gauges();
        self.inspection_settled(key);
    }

    /// Commits that no trace of the pod is left. There is nothing to ask the runtime about.
    pub(super) fn commit_removal(&mut self, key: PodKey) {
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        let source = self
            .inspections
            .forget(key)
            .map_or(Source::Relist, |entry| entry.source);
        self.release_pod(key, &pod.uid);
        let known = self.publisher.cache.known(&pod.uid).map(|known| known.status);
        let before = self.records.committed(key);
        let changes = self.records.changes(key, &PodView::default());
        let context = EventContext {
            pod: &pod,
            status: HashMap::new(),
            known: known.as_deref().map(PodStatus::by_id).unwrap_or_default(),
            source,
            initial: false,
            now: Timestamp::now(),
        };
        let events = self.publisher.events(&changes, &context);
        self.recorder.committed(Committing {
            pod: &pod,
            before: &before,
            after: &PodView::default(),
            gone: None,
            unanswered: Box::default(),
            seq: self.publisher.newest() + 1,
            events: &events,
        });
        self.records.commit(key, &PodView::default());
        self.publisher.cache.remove(&pod.uid);
        self.witness_commit(&events);
        self.publisher.publish(events);
        self.gauges();
        self.inspection_settled(key);
    }

    /// Requests relists of pods whose containers were killed a while ago.
    pub(super) fn ask_for_reasons(&mut self) {
        let now = Instant::now();
        while let Some(uid) = self.late_reasons.take_due(now) {
            if self.records.key(&uid).is_some() {
                self.requests.pod(&uid, Source::Relist);
            }
        }
    }

    /// Only a complete relist can establish that a pod is gone. A caller does not wait a period for it.
    pub(super) fn confirm_absence(&self, source: Source) {
        self.requests.all(source);
    }

    pub(super) fn gauges(&mut self) {
        self.recorder.inspections_limit(self.limiter.limit());
        self.metrics.gauges(
            self.quarantine.pods(),
            self.limiter.limit(),
            self.publisher.cache.reader().len(),
        );
    }
}
