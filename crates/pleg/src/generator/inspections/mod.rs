//! Which pods are inspected: inspections that wait for their turn, and inspections that run.
//!
//! Fresh news has this queue and the limiter's places for itself. What does not answer is handed to the
//! [quarantine](super::quarantine), object by object, so that an inspection never lasts much longer than a call usually takes.

mod scheduling;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, AbortRegistration, BoxFuture};
use futures_util::stream::FuturesUnordered;
use hashbrown::HashSet;
use hashbrown::hash_map::{Entry, HashMap};
use tokio::time::Instant;

use super::quarantine::Arrival;
use crate::inspect::Inspected;
use crate::model::PodView;
use crate::model::event::Source;
use crate::model::status::PodStatus;
use crate::publish::cache::Token;
use crate::records::PodKey;

/// Pods with something to inspect, and only those.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    pods: HashMap<PodKey, PodInspection>,
    /// Pods whose inspection waits for its turn, in the order in which they came.
    queue: VecDeque<PodKey>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    next_id: u64,
}

/// A pod that is to be inspected, or is being inspected.
#[derive(Debug)]
pub(super) struct PodInspection {
    phase: Phase,
    /// The relist that the next commit can vouch for.
    token: Token,
    pub(super) source: Source,
    /// The first relist found the pod in this state.
    initial: bool,
    /// A caller requested it: an inspection is due even without a change.
    asked: bool,
    /// The next inspection is of the whole pod.
    whole: bool,
    /// The next inspection is a relist by itself, at these objects: what it says of their states counts.
    by_id: HashSet<Arc<str>>,
    /// More was asked for or seen while the inspection ran: by which relist, and on whose account.
    pub(super) again: Option<(Token, Source)>,
}

#[derive(Debug)]
enum Phase {
    /// In the queue.
    Queued,
    /// Its status calls are in flight.
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
    /// An event was about objects of it: see [`super::Generator::inspect_objects`].
    ById,
}

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

impl Inspections {
    pub(super) fn get(&self, key: PodKey) -> Option<&PodInspection> {
        self.pods.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: PodKey) -> Option<&mut PodInspection> {
        self.pods.get_mut(&key)
    }

    /// The pod is queued or being inspected.
    pub(super) fn has(&self, key: PodKey) -> bool {
        self.pods.contains_key(&key)
    }

    /// An inspection of the pod runs.
    pub(super) fn is_running(&self, key: PodKey) -> bool {
        self.get(key)
            .is_some_and(|pod| matches!(pod.phase, Phase::Running { .. }))
    }

    /// An inspection runs.
    pub(super) fn any_runs(&self) -> bool {
        !self.running.is_empty()
    }

    /// The pod is inspected on account of a hint, or will be once the inspection that runs has ended.
    pub(super) fn is_hinted(&self, key: PodKey) -> bool {
        let again = |pod: &PodInspection| pod.again.is_some_and(|(_, source)| source.is_hint());
        self.get(key).is_some_and(|pod| pod.source.is_hint() || again(pod))
    }

    /// The next inspection that ends; never resolves while none runs.
    pub(super) async fn next(&mut self) -> Done {
        match self.running.next().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// An aborted inspection comes back too; its place may belong to another one by now.
    fn is_current(&self, done: &Done) -> bool {
        let current = |pod: &PodInspection| matches!(pod.phase, Phase::Running { id, .. } if id == done.id);
        self.get(done.key).is_some_and(current)
    }

    /// The pod's entry, which is queued if there was none.
    fn enqueue(&mut self, key: PodKey, token: Token, source: Source, initial: bool) -> &mut PodInspection {
        match self.pods.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.queue.push_back(key);
                entry.insert(PodInspection {
                    phase: Phase::Queued,
                    token,
                    source,
                    initial,
                    asked: false,
                    whole: false,
                    by_id: HashSet::new(),
                    again: None,
                })
            }
        }
    }

    /// Ends whatever is being done about the pod. Returns its entry.
    pub(super) fn forget(&mut self, key: PodKey) -> Option<PodInspection> {
        let pod = self.pods.remove(&key)?;
        match &pod.phase {
            Phase::Running { abort, .. } => abort.abort(),
            Phase::Queued => self.queue.retain(|queued| *queued != key),
        }
        Some(pod)
    }

    /// The next pod in the queue, as long as fewer than `limit` inspections run.
    fn take_next(&mut self, limit: usize) -> Option<PodKey> {
        (self.running.len() < limit).then(|| self.queue.pop_front()).flatten()
    }

    /// An inspection of the pod was committed. Queues the next one if it is needed, because of `news` or because it was asked for
    /// meanwhile; `exists`: there is something left to inspect. Returns whether it is.
    fn finish(&mut self, key: PodKey, exists: bool, news: bool) -> bool {
        let Some(pod) = self.pods.get_mut(&key) else {
            return exists && news;
        };
        let asked = pod.again.take();
        let again = exists && (asked.is_some() || news);
        if again {
            pod.phase = Phase::Queued;
            if let Some((token, source)) = asked {
                (pod.token, pod.source) = (token, source);
            }
            // The first state was committed; what comes now is news.
            pod.initial = false;
            self.queue.push_back(key);
        } else {
            self.pods.remove(&key);
        }
        again
    }
}

/// A pod's inspection that begins.
struct Begun {
    id: u64,
    registration: AbortRegistration,
    token: Token,
    /// Only these objects are asked for; none: the whole pod is.
    only: Option<HashSet<Arc<str>>>,
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

    /// What is or will be asked for by id.
    fn by_ids(&self) -> HashSet<Arc<str>> {
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

    /// A relist that began with `token` saw the pod as `view`. Decides whether the inspection that runs covers that, or another one
    /// has to follow it; `asked`: one that starts after the request has to.
    fn relisted(&mut self, token: Token, source: Source, asked: bool, view: &PodView) {
        match &self.phase {
            Phase::Running { view: inspecting, .. } if asked || self.again.is_some() || inspecting != view => {
                let token = self.again.map_or(token, |(again, _)| again.max(token));
                self.again = Some((token, source));
            }
            Phase::Running { .. } | Phase::Queued => self.token = self.token.max(token),
        }
    }

    /// The inspection starts.
    fn begin(&mut self, id: u64, view: &PodView) -> Begun {
        let (abort, registration) = AbortHandle::new_pair();
        let by_id = std::mem::take(&mut self.by_id);
        // A request or a listed change needs the whole pod.
        let whole = std::mem::take(&mut self.whole);
        let only = (!whole && !by_id.is_empty()).then(|| by_id.clone());
        self.phase = Phase::Running {
            id,
            abort,
            since: Instant::now(),
            view: view.clone(),
            by_id,
        };
        Begun {
            id,
            registration,
            token: self.token,
            only,
        }
    }
}
