//! Makes what was inspected visible: status, record and events of one pod, so that no event is seen before its status.

use std::time::Duration;

use hashbrown::HashMap;
use jiff::Timestamp;
use pleg_cri::error::seconds;
use tokio::time::Instant;

use super::Generator;
use super::work::Work;
use crate::cursor::InstanceId;
use crate::diff::{Change, diff};
use crate::event::{Event, EventType, Source, Subject};
use crate::inspect::{Inspected, may_learn_more};
use crate::model::{ContainerId, ContainerRef, PodRef, PodView};
use crate::recorder::Committing;
use crate::recorder::line::{Gone, Scope, Turn};
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::status::{ContainerStatus, PodStatus};

/// A lag beyond this is a clock that was set, not a lag.
const MOST_LAG: Duration = Duration::from_hours(1);

/// The reason of an end that is told apart from it has arrived after this long, mostly.
const REASON_ARRIVES_SOON: Duration = Duration::from_secs(2);
/// Pods that are asked again for a reason. Where many containers are killed at once, it is not the memory of each.
const MOST_REASONS: usize = 32;

impl<R: Runtime> Generator<R> {
    /// Commits an inspected pod. `view` is what the list showed when the inspection began.
    pub(super) fn commit(&mut self, key: PodKey, mut view: PodView, inspected: Inspected, known: Option<&PodStatus>) {
        // If a list has changed the pod meanwhile, the next inspection has to tell what this one was to find out.
        let unchanged = self.records.listed(key) == view;
        let by_id = self.work.get(&key).and_then(Work::by_id_since).filter(|_| unchanged);
        if let Some(work) = self.work.get_mut(&key).filter(|_| !unchanged) {
            work.ask_again();
        }
        let (Some(pod), Some(work)) = (self.records.pod(key).cloned(), self.work.get(&key)) else {
            return;
        };
        let (token, source, initial) = (work.token, work.source, work.initial);
        if by_id.is_some() && inspected.leaves_nothing_of(&view) && !self.records.is_dirty(key) {
            // All that was known of the pod is gone; whether the pod is, only a list can tell.
            let asked = work.again;
            self.no_news(key);
            match asked {
                Some((_, source)) => _ = self.hints.pod(&pod.uid, source),
                None => _ = self.evented.wanted.pods.entry(pod.uid).or_default(),
            }
            return;
        }
        if !unchanged && inspected.leaves_nothing_of(&view) && !self.records.listed(key).is_empty() {
            // All that was asked about is gone, and something else of the pod is listed since: the next inspection tells of both.
            self.work_done(key, true);
            self.moved(key);
            return;
        }
        if let Some(trouble) = &work.trouble {
            self.health.release(&pod.uid);
            let lasted = trouble.since.elapsed();
            self.recorder.transition(Turn::Released, Some(&pod), None, Some(lasted));
            if trouble.told {
                tracing::info!("pod {pod} left quarantine after {}", seconds(lasted));
            }
        }
        // What was listed again since the runtime denied it may be back: the next inspection tells.
        if work.again.is_none() {
            self.records
                .not_found(&inspected.gone_sandboxes, &inspected.gone_containers);
        }
        if let Some(since) = by_id
            && self.records.advance(&inspected)
        {
            let why = (Scope::Pods, source);
            self.recorder.look(&mut self.records, &[key], why, since.elapsed(), 0);
            self.recorder.inspecting(&pod.uid);
            self.uncounted = true;
            view = self.records.listed(key);
        }
        if by_id.is_none() && self.evented.period.is_grown() && self.records.is_behind(&inspected) {
            // There may be no event for that, and the next full look is far.
            self.evented.wanted.pods.entry(pod.uid.clone()).or_default();
        }
        if by_id.is_some() && inspected.misses_something() {
            // It went without a word; its pod may not be what we think.
            self.evented.wanted.pods.entry(pod.uid.clone()).or_default();
        }
        inspected.correct(&mut view);
        let gone = Gone::of(&inspected, work.again.is_none());

        let before = self.records.committed(key);
        let changes = diff(&before, &view);
        let status = inspected.into_status(pod.clone(), known);
        let now = Timestamp::now();
        self.note_killed(&changes, &status);
        let context = Context {
            pod: &pod,
            status: status.by_id(),
            known: known.map(PodStatus::by_id).unwrap_or_default(),
            source,
            initial,
            now,
        };
        let events = self.events(&changes, &context);
        drop(context);
        self.recorder.committed(Committing {
            pod: &pod,
            before: &before,
            after: &view,
            gone: Some(gone),
            seq: self.feed.reader().newest() + 1,
            events: &events,
        });

        let exists = self.records.commit(key, &view);
        let held = self.work_done(key, exists);
        if view.is_empty() && !held {
            self.cache.remove(&pod.uid);
            if token > self.cache.reader().complete() {
                self.confirm_absence(source);
            }
        } else {
            self.cache.commit(status, token, now, held);
        }
        self.publish(events);
        self.gauges();
        self.moved(key);
    }

    /// Commits that no trace of the pod is left. There is nothing to ask the runtime about.
    pub(super) fn commit_removal(&mut self, key: PodKey) {
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        let work = self.forget_work(key);
        let source = work.as_ref().map_or(Source::Relist, |work: &Work| work.source);
        let known = self.cache.known(&pod.uid).map(|known| known.status);
        let before = self.records.committed(key);
        let changes = diff(&before, &PodView::default());
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
            seq: self.feed.reader().newest() + 1,
            events: &events,
        });
        self.records.commit(key, &PodView::default());
        self.cache.remove(&pod.uid);
        self.publish(events);
        self.gauges();
        self.moved(key);
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
                self.hints.pod(&uid, Source::Relist);
            }
        }
    }

    /// Only a complete look can say that there is no trace of a pod. Who asked by a look of his own does not wait a period for it.
    pub(super) fn confirm_absence(&self, source: Source) {
        self.hints.all(source);
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
            .gauges(self.quarantined(), self.limiter.limit(), self.cache.reader().len());
    }
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
