//! What is to be done about which pod: inspections that wait for their turn, and inspections that run.
//!
//! Fresh news has this queue and the limiter's places for itself. What does not answer is handed to the
//! [quarantine](super::quarantine), object by object, so that an inspection never lasts much longer than a call usually takes.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use hashbrown::HashSet;
use tokio::time::Instant;

use super::Generator;
use super::quarantine::Arrival;
use crate::inspect::{Inspected, Inspection};
use crate::model::event::Source;
use crate::model::status::PodStatus;
use crate::model::{ObjectRef, ObjectState, PodView};
use crate::publish::cache::{StalePart, Token};
use crate::records::PodKey;
use crate::runtime::Runtime;

/// A pod with something to do.
#[derive(Debug)]
pub(super) struct PodInspection {
    phase: Phase,
    /// The relist that the next commit can vouch for.
    pub(super) token: Token,
    pub(super) source: Source,
    /// The first relist found the pod in this state.
    pub(super) initial: bool,
    /// A caller requested it: an inspection is due even without a change.
    asked: bool,
    /// The next inspection is of the whole pod.
    pub(super) whole: bool,
    /// The next inspection is a relist by itself, at these objects: what it says of their states counts.
    pub(super) by_id: HashSet<Arc<str>>,
    /// More was asked for or seen while the inspection ran: by which look, and on whose account.
    pub(super) again: Option<(Token, Source)>,
}

impl PodInspection {
    /// What a commit of the inspection can say of itself.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival {
            token: self.token,
            source: self.source,
            initial: self.initial,
        }
    }

    /// What is or will be looked at by id.
    pub(super) fn by_ids(&self) -> HashSet<Arc<str>> {
        let mut ids = self.by_id.clone();
        if let Phase::Running { by_id, .. } = &self.phase {
            ids.extend(by_id.iter().cloned());
        }
        ids
    }

    /// Since when an inspection runs that is a relist by itself.
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

#[derive(Debug)]
enum Phase {
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

/// Why a pod is inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InspectTrigger {
    /// A relist brought news of it.
    News,
    /// A caller requested it, and lists that were sent after that have arrived.
    Asked,
    /// An event was about objects of it: see [`Generator::inspect_objects`].
    ById,
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
    /// Objects that were in quarantine when it began: it did not ask for them.
    pub(super) skipped: HashSet<Arc<str>>,
    /// `None`: it was aborted because it was no longer needed.
    pub(super) inspected: Option<Inspected>,
}

impl<R: Runtime> Generator<R> {
    /// Decides what to do about a pod that a relist brought news of, or that somebody asked for.
    pub(super) fn schedule_inspection(&mut self, key: PodKey, token: Token, source: Source, why: InspectTrigger) {
        let asked = why != InspectTrigger::News;
        self.follow_quarantined(key, token, source, asked);
        let before = self.work.get(&key).map(|work| (work.asked, work.by_ids()));
        let (asked_before, by_id_before) = before.unwrap_or_default();
        let clear_unchanged = !asked && !self.has_fresh_news(key);
        if clear_unchanged {
            self.clear_unchanged(key);
            if !asked_before {
                return;
            }
        }
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        let view = self.records.listed(key);
        let records = &self.records;
        self.cache
            .hold(&pod, || (records.listed_status(pod.clone(), &view), uninspected(&view)));
        let initial = self.schedule.is_first();
        let work = self.work.entry(key).or_insert_with(|| {
            self.queue.push_back(key);
            PodInspection {
                phase: Phase::Queued,
                token,
                source,
                initial,
                asked: false,
                whole: false,
                by_id: HashSet::new(),
                again: None,
            }
        });
        work.asked |= asked || asked_before;
        work.whole |= why != InspectTrigger::ById;
        if clear_unchanged {
            // What was to be a relist by itself when it was ended for lack of news still is.
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
        }
        if view.is_empty() {
            self.commit_removal(key);
        }
    }

    /// Something was seen of the pod that is neither committed nor in quarantine.
    pub(super) fn has_fresh_news(&self, key: PodKey) -> bool {
        self.records.is_dirty_beside(key, |id| self.quarantine.has(id))
    }

    /// What was seen of the pod is what was committed, but for what is in quarantine.
    pub(super) fn clear_unchanged(&mut self, key: PodKey) {
        let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
            return;
        };
        self.forget_work(key);
        if !self.records.sweep(key) {
            self.release_pod(key, &uid);
            self.cache.remove(&uid);
        } else if self.quarantine.has_pod(key) {
            self.show_stale(key, None);
        } else {
            self.cache.release(&uid);
        }
        self.gauges();
        self.inspection_settled(key);
    }

    /// Ends whatever is being done about the pod. Returns its work.
    pub(super) fn forget_work(&mut self, key: PodKey) -> Option<PodInspection> {
        let work = self.work.remove(&key)?;
        match &work.phase {
            Phase::Running { abort, .. } => abort.abort(),
            Phase::Queued => self.queue.retain(|queued| *queued != key),
        }
        Some(work)
    }

    /// An event was about these objects of the pod, all of them in the records: asks for them by id, without a list.
    pub(super) fn inspect_objects(&mut self, key: PodKey, ids: Vec<Arc<str>>, token: Token) {
        self.schedule_inspection(key, token, Source::Evented, InspectTrigger::ById);
        if let Some(work) = self.work.get_mut(&key) {
            // Whatever happens to a sandbox happens to all that is in it.
            work.whole |= ids.iter().any(|id| self.records.is_sandbox(id));
            work.by_id.extend(ids);
        }
    }

    /// The pod is being looked at on account of an event, or will be once the inspection that runs has ended.
    pub(super) fn is_stirred(&self, key: PodKey) -> bool {
        let again = |work: &PodInspection| work.again.is_some_and(|(_, source)| source == Source::Evented);
        let stirred = |work: &PodInspection| work.source == Source::Evented || again(work);
        self.work.get(&key).is_some_and(stirred) || self.quarantine.is_stirred(key)
    }

    /// The pod is queued or being inspected.
    pub(super) fn has_open_work(&self, key: PodKey) -> bool {
        self.work.contains_key(&key)
    }

    /// An inspection of the pod runs.
    pub(super) fn is_inspecting(&self, key: PodKey) -> bool {
        self.work
            .get(&key)
            .is_some_and(|work| matches!(work.phase, Phase::Running { .. }))
    }

    /// Starts inspections while there is room.
    pub(super) fn start_inspections(&mut self) {
        while self.inspections.len() < self.limiter.limit()
            && let Some(key) = self.queue.pop_front()
        {
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
            // A request or a listed change needs the whole pod.
            let only = (!work.whole && !by_id.is_empty()).then(|| by_id.clone());
            work.whole = false;
            work.phase = Phase::Running {
                id,
                abort,
                since: Instant::now(),
                view: view.clone(),
                by_id,
            };
            let known = self.cache.known(&pod.uid);
            let reusable = known.as_ref().filter(|known| self.identity.may_reuse(known.inspected));
            let taken_over = only.is_some() && reusable.is_some();
            self.cache.inspecting(&pod.uid, work.token, !taken_over);
            let inspection = Inspection {
                pod,
                view,
                known: reusable.map(|known| (Arc::clone(&known.status), known.at)),
                stale: known.iter().flat_map(|known| ids(&known.stale)).collect(),
                only,
                skip: self.quarantine.of_pod(key).cloned().collect(),
            };
            let (runtime, limiter) = (Arc::clone(&self.runtime), self.limiter.clone());
            let run = async move {
                let inspected = Abortable::new(inspection.run(&runtime, &limiter), registration).await;
                Done {
                    key,
                    id,
                    inspected: inspected.ok(),
                    view: inspection.view,
                    skipped: inspection.skip,
                    known: known.map(|known| known.status),
                }
            };
            self.inspections.push(run.boxed());
        }
    }

    /// Takes in an inspection.
    pub(super) fn inspected(&mut self, done: Done) {
        let current = |work: &PodInspection| matches!(work.phase, Phase::Running { id, .. } if id == done.id);
        // An aborted inspection comes back too; its place may belong to another one by now.
        if self.work.get(&done.key).is_some_and(current) {
            let key = done.key;
            self.commit(done);
            self.take_in_answers(key);
        }
    }

    /// After a commit: is there more to do for the pod?
    pub(super) fn work_done(&mut self, key: PodKey, exists: bool) -> bool {
        let fresh_news = self.has_fresh_news(key);
        let Some(work) = self.work.get_mut(&key) else {
            return exists && fresh_news;
        };
        let asked = work.again.take();
        let again = exists && (asked.is_some() || fresh_news);
        if again {
            work.phase = Phase::Queued;
            if let Some((token, source)) = asked {
                (work.token, work.source) = (token, source);
            }
            // The first state was committed; what comes now is news.
            work.initial = false;
            self.queue.push_back(key);
        } else {
            self.work.remove(&key);
        }
        again
    }
}

fn ids(stale: &[StalePart]) -> impl Iterator<Item = Arc<str>> {
    stale.iter().map(|part| Arc::clone(part.object.id()))
}

/// Every part of a pod that was never inspected.
fn uninspected(view: &PodView) -> Arc<[StalePart]> {
    let sandboxes = view.sandboxes.iter().map(|(id, state)| StalePart {
        object: ObjectRef::Sandbox { id: id.clone() },
        listed: Some(ObjectState::Sandbox(*state)),
        error: None,
    });
    let containers = view.containers.iter().map(|(container, state)| StalePart {
        object: ObjectRef::Container(container.clone()),
        listed: Some(ObjectState::Container(*state)),
        error: None,
    });
    sandboxes.chain(containers).collect()
}
