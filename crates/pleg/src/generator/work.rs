//! What is to be done about which pod: inspections that wait, run, or failed and will be tried again.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use hashbrown::HashSet;
use pleg_cri::Error;
use pleg_cri::error::seconds;
use tokio::time::Instant;

use super::Generator;
use crate::cache::{PodError, Token};
use crate::event::Source;
use crate::health::{Who, of_inspection};
use crate::inspect::{Inspected, inspect};
use crate::model::PodView;
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::status::PodStatus;

/// A pod with something to do.
#[derive(Debug)]
pub(super) struct Work {
    phase: Phase,
    /// The look that the next commit can vouch for.
    pub(super) token: Token,
    pub(super) source: Source,
    /// The pod was so before we came.
    pub(super) initial: bool,
    /// Somebody asked for it: an inspection is due even if there is no change.
    asked: bool,
    /// The next inspection is of the whole pod.
    pub(super) whole: bool,
    /// The next inspection is a look by itself, at these objects: what it says of their states counts.
    pub(super) by_id: HashSet<Arc<str>>,
    /// More was asked for or seen while the inspection ran: by which look, and on whose account.
    pub(super) again: Option<(Token, Source)>,
    pub(super) trouble: Option<Trouble>,
}

impl Work {
    /// What is or will be looked at by id.
    pub(super) fn by_ids(&self) -> HashSet<Arc<str>> {
        let mut ids = self.by_id.clone();
        if let Phase::Running { by_id, .. } = &self.phase {
            ids.extend(by_id.iter().cloned());
        }
        ids
    }
}

#[derive(Debug)]
enum Phase {
    /// In quarantine, until its time comes.
    Waiting { until: Instant },
    /// In the queue.
    Queued,
    /// Being asked about.
    Running {
        id: u64,
        abort: AbortHandle,
        since: Instant,
        view: PodView,
        by_id: HashSet<Arc<str>>,
    },
}

/// Why a pod is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// A look brought news of it.
    News,
    /// Somebody asked for it, and lists that were sent after that are in.
    Asked,
    /// An event was about objects of it: see [`Generator::ask_by_ids`].
    ById,
}

/// Why a pod is in quarantine.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) since: Instant,
    attempts: u32,
    /// It was logged, and so its end will be.
    pub(super) told: bool,
}

/// Pods whose inspection waits for its turn, in the order in which they came.
pub(super) type Queue = VecDeque<PodKey>;

/// An inspection that ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) key: PodKey,
    id: u64,
    pub(super) view: PodView,
    pub(super) known: Option<Arc<PodStatus>>,
    /// `None`: nobody wanted it any more.
    result: Option<Result<Inspected, Error>>,
}

impl Work {
    /// Since when an inspection runs that is a look by itself.
    pub(super) fn by_id_since(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Running { by_id, since, .. } if !by_id.is_empty() => Some(*since),
            _ => None,
        }
    }

    /// What the inspection that runs is to find out is left to the next one.
    pub(super) fn ask_again(&mut self) {
        if let Phase::Running { by_id, .. } = &mut self.phase
            && !by_id.is_empty()
        {
            self.by_id.extend(by_id.drain());
            self.whole = true;
            self.again.get_or_insert((self.token, self.source));
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Decides what to do about a pod that a look brought news of, or that somebody asked for.
    pub(super) fn evaluate(&mut self, key: PodKey, token: Token, source: Source, why: Why) {
        let asked = why != Why::News;
        let before = self.work.get(&key).map(|work| (work.asked, work.by_ids()));
        let (asked_before, by_id_before) = before.unwrap_or_default();
        let no_news = !asked && !self.records.is_dirty(key);
        if no_news {
            self.no_news(key);
            if !asked_before {
                return;
            }
        }
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        self.cache.hold(&pod);
        let view = self.records.listed(key);
        let initial = self.first;
        let work = self.work.entry(key).or_insert_with(|| {
            self.queue.push_back(key);
            Work {
                phase: Phase::Queued,
                token,
                source,
                initial,
                asked: false,
                whole: false,
                by_id: HashSet::new(),
                again: None,
                trouble: None,
            }
        });
        work.asked |= asked || asked_before;
        work.whole |= why != Why::ById;
        if no_news {
            // What was to be a look by itself when it was ended for lack of news still is.
            work.by_id.extend(by_id_before);
        }
        match &work.phase {
            // What is asked for needs an inspection that starts after the asking.
            Phase::Running { view: inspecting, .. } => {
                if asked || work.again.is_some() || *inspecting != view {
                    let token = work.again.map_or(token, |(again, _)| again.max(token));
                    work.again = Some((token, source));
                } else {
                    work.token = work.token.max(token);
                }
            }
            Phase::Queued => work.token = work.token.max(token),
            Phase::Waiting { .. } => {
                work.phase = Phase::Queued;
                (work.token, work.source) = (work.token.max(token), source);
                self.queue.push_back(key);
            }
        }
        if view.is_empty() {
            self.commit_removal(key);
        }
    }

    /// What was seen of the pod is what was committed.
    pub(super) fn no_news(&mut self, key: PodKey) {
        let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
            return;
        };
        self.forget_work(key);
        if self.records.sweep(key) {
            self.cache.release(&uid);
        } else {
            self.cache.remove(&uid);
        }
        self.gauges();
        self.moved(key);
    }

    /// Ends whatever is being done about the pod. Returns its work.
    pub(super) fn forget_work(&mut self, key: PodKey) -> Option<Work> {
        let work = self.work.remove(&key)?;
        match &work.phase {
            Phase::Running { abort, .. } => abort.abort(),
            Phase::Queued => self.queue.retain(|queued| *queued != key),
            Phase::Waiting { .. } => {}
        }
        if let Some(trouble) = &work.trouble
            && let Some(pod) = self.records.pod(key)
        {
            self.health.release(&pod.uid);
            let lasted = Some(trouble.since.elapsed());
            self.recorder.transition(Turn::Released, Some(pod), None, lasted);
        }
        Some(work)
    }

    /// An event was about these objects of the pod, all of them in the records: asks for them by id, without a list.
    pub(super) fn ask_by_ids(&mut self, key: PodKey, ids: Vec<Arc<str>>, token: Token) {
        self.evaluate(key, token, Source::Evented, Why::ById);
        if let Some(work) = self.work.get_mut(&key) {
            // Whatever happens to a sandbox happens to all that is in it.
            work.whole |= ids.iter().any(|id| self.records.is_sandbox(id));
            work.by_id.extend(ids);
        }
    }

    /// The pod is being looked at on account of an event, or will be once the inspection that runs has ended.
    pub(super) fn is_stirred(&self, key: PodKey) -> bool {
        let again = |work: &Work| work.again.is_some_and(|(_, source)| source == Source::Evented);
        let stirred = |work: &Work| work.source == Source::Evented || again(work);
        self.work.get(&key).is_some_and(stirred)
    }

    /// The pod is queued or being inspected.
    pub(super) fn has_open_work(&self, key: PodKey) -> bool {
        self.work
            .get(&key)
            .is_some_and(|work| !matches!(work.phase, Phase::Waiting { .. }))
    }

    /// Starts inspections while there is room. Late ones do not count, within bounds: hung pods do not keep others waiting.
    pub(super) fn start_inspections(&mut self) {
        while !self.queue.is_empty() && self.room() {
            let Some(key) = self.queue.pop_front() else { return };
            let Some(work) = self.work.get_mut(&key) else { continue };
            let Some(pod) = self.records.pod(key).cloned() else {
                continue;
            };
            let view = self.records.listed(key);
            self.recorder.inspecting(&pod.uid);
            let id = self.next_inspection;
            self.next_inspection += 1;
            let (abort, registration) = AbortHandle::new_pair();
            let by_id = std::mem::take(&mut work.by_id);
            // Whoever asked for the pod, or saw it change, wants all of it.
            let only = (!work.whole && !by_id.is_empty()).then(|| by_id.clone());
            work.whole = false;
            work.phase = Phase::Running {
                id,
                abort,
                since: Instant::now(),
                view: view.clone(),
                by_id: by_id.clone(),
            };

            let known = self.cache.known(&pod.uid);
            let restarted = self.restarted;
            let reused = only.is_some() && known.as_ref().is_some_and(|known| known.inspected >= restarted);
            self.cache.inspecting(&pod.uid, work.token, !reused);
            let (runtime, limiter) = (Arc::clone(&self.runtime), self.limiter.clone());
            let inspection = async move {
                let reusable = known
                    .as_ref()
                    .filter(|known| known.inspected >= restarted)
                    .map(|known| (&*known.status, known.at));
                let call = inspect(&*runtime, &limiter, &pod, &view, reusable, only.as_ref());
                let result = Abortable::new(call, registration).await.ok();
                Done {
                    key,
                    id,
                    view,
                    known: known.map(|known| known.status),
                    result,
                }
            };
            self.inspections.push(inspection.boxed());
        }
    }

    fn room(&self) -> bool {
        let limit = self.limiter.limit();
        if self.inspections.len() < limit {
            return true;
        }
        let late = self
            .running()
            .filter(|since| since.elapsed() >= self.config.inspections.late)
            .count();
        self.inspections.len() - late.min(self.config.inspections.most_late) < limit
    }

    fn running(&self) -> impl Iterator<Item = Instant> {
        self.work.values().filter_map(|work| match work.phase {
            Phase::Running { since, .. } => Some(since),
            _ => None,
        })
    }

    /// When the next running inspection becomes late and makes room for those that wait.
    pub(super) fn next_late_inspection(&self) -> Option<Instant> {
        if self.queue.is_empty() {
            return None;
        }
        let late = self.config.inspections.late;
        self.running()
            .map(|since| since + late)
            .filter(|late_at| *late_at > Instant::now())
            .min()
    }

    /// Takes in an inspection.
    pub(super) fn inspected(&mut self, done: Done) {
        let current = |work: &Work| matches!(work.phase, Phase::Running { id, .. } if id == done.id);
        // An aborted inspection comes back too; its place may be somebody else's by now.
        if !self.work.get(&done.key).is_some_and(current) {
            return;
        }
        match done.result {
            None => {}
            Some(Ok(inspected)) => self.commit(done.key, done.view, inspected, done.known.as_deref()),
            Some(Err(error)) => self.quarantine(done.key, &error),
        }
    }

    /// The inspection failed: the old record stays, so that the change is found again, and the pod is tried again on its own.
    fn quarantine(&mut self, key: PodKey, error: &Error) {
        let (Some(work), Some(pod)) = (self.work.get_mut(&key), self.records.pod(key)) else {
            return;
        };
        let now = Instant::now();
        let trouble = work.trouble.get_or_insert(Trouble {
            since: now,
            attempts: 0,
            told: false,
        });
        trouble.attempts += 1;
        // What it was to find out is not found out.
        work.whole = true;
        if let Phase::Running { by_id, .. } = &mut work.phase {
            work.by_id.extend(by_id.drain());
        }
        let doubled = self
            .config
            .retry_first
            .saturating_mul(1 << (trouble.attempts - 1).min(16));
        let pause = doubled.min(self.config.retry_most);
        let cause = PodError {
            message: error.to_string().into(),
            trouble: of_inspection(&error.kind),
            rpc: error.rpc.name(),
            container: error.subject.container.clone(),
            id: error.subject.id.clone(),
            attempts: trouble.attempts,
            since: trouble.since,
        };
        let cause = Arc::new(cause);
        if trouble.attempts == 1 {
            self.recorder
                .transition(Turn::Quarantined, Some(pod), Some(&cause.message), None);
        }
        self.cache.fail(&pod.uid, work.token, Arc::clone(&cause));
        let again = work.again.take();
        work.phase = match again {
            Some((token, source)) => {
                (work.token, work.source) = (token, source);
                Phase::Queued
            }
            None => Phase::Waiting { until: now + pause },
        };
        self.health.quarantine(pod, cause);
        if error.kind.is_deadline() {
            self.prober.suspect(&pod.uid);
        }
        // A runtime that is gone is reported once, not for each pod. One that lists, and says again and again that this pod cannot be
        // reached, is not gone.
        let gone = error.kind.is_unreachable() && (trouble.attempts == 1 || self.health.looks_fail());
        if !trouble.told && !gone {
            trouble.told = true;
            let who = Who {
                pod: Some(pod.full_name()),
                container: error.subject.container.clone(),
                id: error.subject.id.clone(),
                ..Who::default()
            };
            let advice = self.health.advice(of_inspection(&error.kind), &who);
            tracing::warn!(
                "pod {pod} is in quarantine: {error}; other pods are not affected; next attempt in {}. {advice}",
                seconds(pause)
            );
        }
        if gone {
            self.restarted = self.cache.reader().token();
            // The next look tells whether it is the runtime, and says so; why wait for it?
            self.hints.all(Source::Relist);
        }
        if again.is_some() {
            self.queue.push_back(key);
        }
        self.gauges();
        self.moved(key);
    }

    /// After a commit: is there more to do for the pod?
    pub(super) fn work_done(&mut self, key: PodKey, exists: bool) -> bool {
        let Some(work) = self.work.get_mut(&key) else {
            return false;
        };
        let asked = work.again.take();
        let again = exists && (asked.is_some() || self.records.is_dirty(key));
        if again {
            work.phase = Phase::Queued;
            if let Some((token, source)) = asked {
                (work.token, work.source) = (token, source);
            }
            work.trouble = None;
            // The first state was committed; what comes now is news.
            work.initial = false;
            self.queue.push_back(key);
        } else {
            self.work.remove(&key);
        }
        again
    }

    /// When the next pod in quarantine is to be tried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let due = |work: &Work| match work.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        };
        self.work.values().filter_map(due).min()
    }

    pub(super) fn queue_due_retries(&mut self) {
        let now = Instant::now();
        self.requeue(|until| until <= now);
    }

    /// The runtime is back: nobody has to wait for his time.
    pub(super) fn retry_all(&mut self) {
        self.requeue(|_| true);
    }

    fn requeue(&mut self, due: impl Fn(Instant) -> bool) {
        let token = self.cache.reader().complete();
        for (&key, work) in &mut self.work {
            if let Phase::Waiting { until } = work.phase
                && due(until)
            {
                work.phase = Phase::Queued;
                work.token = work.token.max(token);
                self.queue.push_back(key);
            }
        }
    }

    /// How many pods are in quarantine.
    pub(super) fn quarantined(&self) -> usize {
        self.work.values().filter(|work| work.trouble.is_some()).count()
    }
}
