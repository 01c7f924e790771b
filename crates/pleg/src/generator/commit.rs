//! Makes what was inspected visible: status, record and events of one pod, so that no event is seen before its status.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use tokio::time::Instant;

use super::Generator;
use super::inspections::{Done, PodInspection};
use super::quarantine::Arrival;
use crate::inspect::{Answered, Inspected, may_learn_more};
use crate::model::cursor::InstanceId;
use crate::model::event::{Event, EventType, Source, Subject};
use crate::model::status::{ContainerStatus, PodStatus};
use crate::model::{ContainerId, ContainerRef, PodRef, PodUid, PodView};
use crate::publish::cache::Committed;
use crate::recorder::Committing;
use crate::recorder::line::{Gone, Scope};
use crate::records::PodKey;
use crate::records::diff::Change;
use crate::runtime::Runtime;

/// A lag beyond this is a clock that was set, not a lag.
const MOST_LAG: Duration = Duration::from_hours(1);

/// Delay before a container killed by SIGKILL is inspected again: the runtime learns of an OOM kill separately from the exit.
const REASON_ARRIVES_SOON: Duration = Duration::from_secs(2);
/// Most pods that are inspected again for a reason. If many containers are killed at once, the cause is not an OOM kill of each.
const MOST_REASONS: usize = 32;

impl<R: Runtime> Generator<R> {
    /// Commits what an inspection brought. Objects that did not answer keep their record, and go into quarantine.
    pub(super) fn commit(&mut self, done: Done) {
        let Done {
            key,
            view,
            known,
            skipped,
            inspected,
            ..
        } = done;
        let Some(mut inspected) = inspected else { return };
        // If a list has changed the pod meanwhile, the next inspection has to tell what this one was to find out.
        let unchanged = self.records.listed(key) == view;
        let by_id = self
            .work
            .get(&key)
            .and_then(PodInspection::by_id_since)
            .filter(|_| unchanged);
        if let Some(work) = self.work.get_mut(&key).filter(|_| !unchanged) {
            work.ask_again();
        }
        let (Some(pod), Some(work)) = (self.records.pod(key).cloned(), self.work.get(&key)) else {
            return;
        };
        let (arrival, again) = (work.arrival(), work.again);
        if inspected.leaves_nothing_of(&view) && self.wait_for_list(key, by_id.is_some(), unchanged) {
            return;
        }
        self.want_lists(&pod.uid, by_id.is_some(), &inspected);
        let unanswered = std::mem::take(&mut inspected.unanswered);
        let mut kept = skipped;
        kept.extend(unanswered.iter().map(|unanswered| Arc::clone(unanswered.object.id())));
        self.take_over(key, unanswered, arrival, again);
        // What was listed again since the runtime denied it may be back: the next inspection tells.
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
        self.settle(Commit {
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
        });
    }

    /// Commits what one object answered that was in quarantine. Everything else of the pod stays as it is.
    pub(super) fn commit_object(&mut self, key: PodKey, answered: Answered, arrival: Arrival) {
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
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
        let known = self.cache.known(&pod.uid).map(|known| known.status);
        self.settle(Commit {
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
        });
    }

    /// All that was known of the pod is gone, and no list has said yet that the pod is. Returns whether there is anything to wait for.
    fn wait_for_list(&mut self, key: PodKey, by_id: bool, unchanged: bool) -> bool {
        if self.stuck_list.is_hanging() && !self.stuck_list.is_emptied(key) {
            // A new sandbox of the pod may be in the list that hangs: only a list of sandboxes that is sent from now on can tell.
            let source = self.forget_work(key).map_or(Source::Relist, |work| work.source);
            if let Some(pod) = self.records.pod(key).filter(|_| source == Source::OnDemand) {
                self.requests.pod(&pod.uid, source);
            }
            self.inspection_settled(key);
            return true;
        }
        if by_id && !self.records.is_dirty(key) {
            // Only a list can establish that the pod is gone.
            let asked = self.work.get(&key).and_then(|work| work.again);
            let uid = self.records.pod(key).map(|pod| pod.uid.clone());
            self.clear_unchanged(key);
            match (asked, uid) {
                (Some((_, source)), Some(uid)) => _ = self.requests.pod(&uid, source),
                (None, Some(uid)) => _ = self.evented.hinted.pods.entry(uid).or_default(),
                _ => {}
            }
            return true;
        }
        if !unchanged && !self.records.listed(key).is_empty() {
            // Something else of the pod is listed since: the next inspection tells of both.
            self.work_done(key, true);
            self.inspection_settled(key);
            return true;
        }
        false
    }

    /// Asks for lists of the pod where the inspection says something that only lists can settle.
    fn want_lists(&mut self, uid: &PodUid, by_id: bool, inspected: &Inspected) {
        // There may be no event for what is ahead of the lists, and the next full relist is far.
        let behind = !by_id && self.evented.period.is_grown() && self.records.is_behind(inspected);
        // What went without a word: its pod may not be what we think.
        if behind || (by_id && inspected.misses_something()) {
            self.evented.hinted.pods.entry(uid.clone()).or_default();
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

    /// The last step of a commit: record, cache, events.
    fn settle(&mut self, commit: Commit) {
        let Commit {
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
        } = commit;
        let before = self.records.committed(key);
        let unanswered = after.keep(&before, &kept);
        let changes = self.records.changes(key, &after);
        let status = inspected.into_status(pod.clone(), &view, known.as_deref(), &self.records);
        let now = Timestamp::now();
        self.note_killed(&changes, &status);
        let context = Context {
            pod: &pod,
            status: status.by_id(),
            known: known.as_deref().map(PodStatus::by_id).unwrap_or_default(),
            source: arrival.source,
            initial: arrival.initial,
            now,
        };
        let events = self.events(&changes, &context);
        drop(context);
        self.recorder.committed(Committing {
            pod: &pod,
            before: &before,
            after: &after,
            gone: Some(gone),
            unanswered,
            seq: self.feed.reader().newest() + 1,
            events: &events,
        });

        let exists = self.records.commit(key, &after);
        let more = if is_inspection {
            self.work_done(key, exists)
        } else {
            self.has_open_work(key)
        };
        if after.is_empty() && !more && self.records.listed(key).is_empty() {
            self.cache.remove(&pod.uid);
            if arrival.token > self.cache.reader().complete() {
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
            self.cache.commit(status, committed);
        }
        self.publish(events);
        self.gauges();
        self.inspection_settled(key);
    }

    /// Commits that no trace of the pod is left. There is nothing to ask the runtime about.
    pub(super) fn commit_removal(&mut self, key: PodKey) {
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        let work = self.forget_work(key);
        let source = work.as_ref().map_or(Source::Relist, |work: &PodInspection| work.source);
        self.release_pod(key, &pod.uid);
        let known = self.cache.known(&pod.uid).map(|known| known.status);
        let before = self.records.committed(key);
        let changes = self.records.changes(key, &PodView::default());
        let context = Context {
            pod: &pod,
            status: HashMap::new(),
            known: known.as_deref().map(PodStatus::by_id).unwrap_or_default(),
            source,
            initial: false,
            now: Timestamp::now(),
        };
        let events = self.events(&changes, &context);
        self.recorder.committed(Committing {
            pod: &pod,
            before: &before,
            after: &PodView::default(),
            gone: None,
            unanswered: Box::default(),
            seq: self.feed.reader().newest() + 1,
            events: &events,
        });
        self.records.commit(key, &PodView::default());
        self.cache.remove(&pod.uid);
        self.publish(events);
        self.gauges();
        self.inspection_settled(key);
    }

    /// Notes to ask again why containers were killed, if they were just now.
    fn note_killed(&mut self, changes: &[Change], status: &PodStatus) {
        let (died, now) = (status.by_id(), Timestamp::now());
        let killed = |change: &Change| {
            let Change::Died(container) = change else { return false };
            died.get(&container.id)
                .is_some_and(|status| may_learn_more(status, now))
        };
        if self.reasons.len() < MOST_REASONS && changes.iter().any(killed) {
            let uid = status.pod.uid.clone();
            self.reasons.push_back((Instant::now() + REASON_ARRIVES_SOON, uid));
        }
    }

    /// Has pods looked at whose containers were killed a while ago.
    pub(super) fn ask_for_reasons(&mut self) {
        let now = Instant::now();
        while let Some((_, uid)) = self.reasons.pop_front_if(|(at, _)| *at <= now) {
            if self.records.key(&uid).is_some() {
                self.requests.pod(&uid, Source::Relist);
            }
        }
    }

    /// Only a complete relist can say that there is no trace of a pod. A caller's request does not wait a period for it.
    pub(super) fn confirm_absence(&self, source: Source) {
        self.requests.all(source);
    }

    fn events(&self, changes: &[Change], context: &Context<'_>) -> Vec<Event> {
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            if let Change::Died(container) = change
                && self.stops.announced(&container.id)
            {
                let subject = Subject::Container(container.clone());
                events.push(context.event(EventType::ContainerStopped, Some(subject)));
            }
            if let Change::Removed(container) = change {
                self.stops.forget(&container.id);
            }
            let (kind, subject) = change.event();
            events.push(context.event(kind, subject));
        }
        events
    }

    pub(super) fn gauges(&mut self) {
        self.recorder.inspections_limit(self.limiter.limit());
        self.metrics
            .gauges(self.quarantine.pods(), self.limiter.limit(), self.cache.reader().len());
    }
}

/// What is committed of a pod.
struct Commit {
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

/// What the events of one commit have in common.
struct Context<'a> {
    pod: &'a PodRef,
    /// What inspection said just now; nothing for a pod that is gone.
    status: HashMap<&'a ContainerId, &'a ContainerStatus>,
    /// What it said before.
    known: HashMap<&'a ContainerId, &'a ContainerStatus>,
    source: Source,
    initial: bool,
    now: Timestamp,
}

impl Context<'_> {
    fn event(&self, kind: EventType, subject: Option<Subject>) -> Event {
        let container = match &subject {
            Some(Subject::Container(container)) => Some(container),
            _ => None,
        };
        let status = container.and_then(|container| self.container(container));
        let death = matches!(kind, EventType::ContainerDied | EventType::ContainerStopped);
        let happened = status.and_then(|status| match kind {
            EventType::ContainerCreated => status.created_at,
            EventType::ContainerStarted => status.started_at,
            EventType::ContainerDied | EventType::ContainerStopped => status.finished_at,
            _ => None,
        });
        Event {
            // Both are given by the feed.
            seq: 0,
            instance: InstanceId::default(),
            time: self.now,
            kind,
            pod: Some(self.pod.clone()),
            subject,
            exit_code: status.filter(|_| death).and_then(|status| status.exit_code),
            reason: status
                .filter(|_| death)
                .map(|status| status.reason.clone())
                .filter(|reason| !reason.is_empty()),
            initial: self.initial,
            source: self.source,
            lag: happened.filter(|_| !self.initial).and_then(|at| lag(at, self.now)),
            trouble: None,
            lasted: None,
        }
    }

    /// A container that is gone may have been described before it went.
    fn container(&self, container: &ContainerRef) -> Option<&ContainerStatus> {
        self.status
            .get(&container.id)
            .or_else(|| self.known.get(&container.id))
            .copied()
    }
}

fn lag(from: Timestamp, to: Timestamp) -> Option<Duration> {
    // The two clocks may disagree; a negative lag is none.
    Duration::try_from(to.duration_since(from))
        .ok()
        .filter(|lag| *lag <= MOST_LAG)
}
