//! Containers and sandboxes that do not answer: each is retried by itself, and nothing waits for them.
//!
//! ```text
//!  inspection ── no answer ──▶ InFlight ── fails ──▶ Waiting (back-off) ──▶ Queued ──▶ InFlight …
//!                                 └────── answers ──▶ committed, and out
//! ```
//!
//! What is in here has a queue and a budget of its own ([`LimiterConfig::most_late`](crate::inspect::limiter::LimiterConfig)): fresh changes,
//! also those of other containers of the same pod, are inspected beside it. A call that is moved here gives up its place in the
//! limiter. Once the budget is used up, a call that others have overtaken is given up and tried again later; while nothing
//! overtakes it, it is the runtime that does not answer, and the call keeps its place.

mod report;
mod retries;

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hashbrown::HashMap;
use pleg_cri::{Error, ErrorKind, Rpc, Subject};
use tokio::time::Instant;

use crate::inspect::limiter::Limiter;
use crate::inspect::{Answered, Call};
use crate::model::event::Source;
use crate::model::{ObjectRef, ObjectState};
use crate::publish::cache::{PodError, Token};
use crate::records::PodKey;

/// Everything that does not answer.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    objects: HashMap<Arc<str>, Held>,
    by_pod: HashMap<PodKey, Vec<Arc<str>>>,
    /// Objects whose back-off is over, in that order.
    queue: VecDeque<Arc<str>>,
    calls: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Calls that keep their place in the limiter, because the budget is used up.
    over_budget: usize,
    next_call: u64,
}

/// One container or sandbox.
#[derive(Debug)]
struct Held {
    pod: PodKey,
    object: ObjectRef,
    phase: Phase,
    /// When the first call was sent that was not answered.
    since: Instant,
    /// Calls that failed.
    attempts: u32,
    denied: Denied,
    /// How the last of them did; none before the first.
    error: Option<Arc<PodError>>,
    /// Health and recorder know of it.
    announced: bool,
    /// It was logged, and so its end will be.
    logged: bool,
    /// The state in which it was listed when it was last asked for.
    listed: Option<ObjectState>,
    /// The relist that an answer to the call in flight, or to the next one, can vouch for.
    token: Token,
    source: Source,
    initial: bool,
    /// A caller requested the pod after the call in flight was sent.
    asked: Option<(Token, Source)>,
}

/// Whether the runtime has said that it does not know the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Denied {
    /// It has not.
    Never,
    /// It first said so then.
    At(Instant),
    /// It said so, and a list of the pod that was sent later still has the object.
    ButListed,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few objects are held, and an answer waits only for a moment"
)]
enum Phase {
    /// Waits for the end of its back-off.
    Waiting { until: Instant },
    /// Waits for room in the budget.
    Queued,
    /// Its status call is in flight.
    InFlight {
        call: u64,
        sent: Instant,
        abort: AbortHandle,
        /// It keeps its place in the limiter.
        over_budget: bool,
    },
    /// Has answered, while an inspection of its pod runs: that one is committed first.
    Answered(Answered),
}

/// Why a call about an object did not bring its status.
#[derive(Debug)]
struct Failure {
    rpc: Rpc,
    subject: Subject,
    kind: ErrorKind,
    text: Arc<str>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            rpc: error.rpc,
            subject: error.subject.clone(),
            kind: error.kind.clone(),
            text: error.to_string().into(),
        }
    }
}

/// A call that ended.
#[derive(Debug)]
pub(super) struct Ended {
    id: Arc<str>,
    call: u64,
    /// `None`: it was aborted because it was no longer needed.
    answered: Option<Answered>,
}

/// How an object entered quarantine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) token: Token,
    pub(super) source: Source,
    pub(super) initial: bool,
}

impl Quarantine {
    /// The object is in here.
    pub(super) fn has(&self, id: &Arc<str>) -> bool {
        self.objects.contains_key(id)
    }

    /// Something of the pod is in here.
    pub(super) fn has_pod(&self, key: PodKey) -> bool {
        self.by_pod.contains_key(&key)
    }

    /// What of the pod is in here.
    pub(super) fn of_pod(&self, key: PodKey) -> impl Iterator<Item = &Arc<str>> {
        self.by_pod.get(&key).into_iter().flatten()
    }

    /// How many pods have something in here that was announced.
    pub(super) fn pods(&self) -> usize {
        self.by_pod.keys().filter(|key| self.is_announced(**key)).count()
    }

    fn is_announced(&self, key: PodKey) -> bool {
        let announced = |id: &Arc<str>| self.objects.get(id).is_some_and(|held| held.announced);
        self.of_pod(key).any(announced)
    }

    /// Something of the pod is in here on account of a hint.
    pub(super) fn is_hinted(&self, key: PodKey) -> bool {
        self.of_pod(key).filter_map(|id| self.objects.get(id)).any(|held| {
            let asked = held.asked.map(|(_, source)| source);
            held.source.is_hint() || asked.is_some_and(Source::is_hint)
        })
    }

    /// When the next back-off is over.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let until = self.objects.values().filter_map(|held| match held.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        });
        until.min()
    }

    /// The next call that ends; never resolves where there is none.
    pub(super) async fn next(&mut self) -> Ended {
        match self.calls.next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    /// Puts a call in flight.
    fn send(&mut self, id: &Arc<str>, call: Call, sent: Instant, over_budget: bool) {
        let Some(held) = self.objects.get_mut(id) else { return };
        let (abort, registration) = AbortHandle::new_pair();
        let number = self.next_call;
        self.next_call += 1;
        self.over_budget += usize::from(over_budget);
        held.phase = Phase::InFlight {
            call: number,
            sent,
            abort,
            over_budget,
        };
        let id = Arc::clone(id);
        let ended = async move {
            let answered = Abortable::new(call, registration).await.ok();
            Ended {
                id,
                call: number,
                answered,
            }
        };
        self.calls.push(ended.boxed());
    }

    /// Sets the phase of an object, and ends the call that was in flight for it.
    fn set(&mut self, id: &Arc<str>, phase: Phase) {
        let Some(held) = self.objects.get_mut(id) else { return };
        if let Phase::InFlight { abort, over_budget, .. } = std::mem::replace(&mut held.phase, phase) {
            abort.abort();
            self.over_budget -= usize::from(over_budget);
        }
    }

    fn remove(&mut self, id: &Arc<str>) -> Option<Held> {
        self.set(id, Phase::Queued);
        let held = self.objects.remove(id)?;
        self.queue.retain(|queued| queued != id);
        if let Some(ids) = self.by_pod.get_mut(&held.pod) {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.by_pod.remove(&held.pod);
            }
        }
        Some(held)
    }

    fn enqueue(&mut self, id: &Arc<str>) {
        self.set(id, Phase::Queued);
        self.queue.push_back(Arc::clone(id));
    }

    /// Puts an object in here that is to be asked for again. `since`: when it was first asked for in vain.
    fn hold(
        &mut self,
        pod: PodKey,
        object: ObjectRef,
        listed: Option<ObjectState>,
        since: Instant,
        arrival: Arrival,
        asked: Option<(Token, Source)>,
    ) {
        let id = Arc::clone(object.id());
        self.by_pod.entry(pod).or_default().push(Arc::clone(&id));
        let held = Held {
            pod,
            object,
            phase: Phase::Queued,
            since,
            attempts: 0,
            denied: Denied::Never,
            error: None,
            announced: false,
            logged: false,
            listed,
            token: arrival.token,
            source: arrival.source,
            initial: arrival.initial,
            asked,
        };
        self.objects.insert(id, held);
    }

    /// What of the pod is in here, as a list that does not borrow.
    fn ids_of(&self, key: PodKey) -> Vec<Arc<str>> {
        self.of_pod(key).cloned().collect()
    }

    /// Something of the pod is asked for now, or as soon as there is room.
    fn is_asking(&self, key: PodKey) -> bool {
        let open = |id: &Arc<str>| {
            let held = self.objects.get(id);
            held.is_some_and(|held| !matches!(held.phase, Phase::Waiting { .. }))
        };
        self.of_pod(key).any(open)
    }

    /// Calls beyond the budget that others have overtaken, and when they were sent.
    fn overtaken(&self, limiter: &Limiter) -> Vec<(Arc<str>, Instant)> {
        let overtaken = self.objects.iter().filter_map(|(id, held)| match held.phase {
            Phase::InFlight {
                sent,
                over_budget: true,
                ..
            } if limiter.overtaken(sent) => Some((Arc::clone(id), sent)),
            _ => None,
        });
        overtaken.collect()
    }

    /// Lists of the pod that were `sent` then were taken in: what they still have is there, whatever the runtime says of its id.
    pub(super) fn listed_again(&mut self, key: PodKey, sent: Instant) {
        for id in self.ids_of(key) {
            if let Some(held) = self.objects.get_mut(&id)
                && matches!(held.denied, Denied::At(at) if at <= sent)
            {
                held.denied = Denied::ButListed;
            }
        }
    }

    /// The runtime is back, or one of them has answered: the others need not wait for their time.
    pub(super) fn retry_all(&mut self) {
        self.requeue(|held| matches!(held.phase, Phase::Waiting { .. }));
    }

    /// Queues the objects whose back-off is over.
    fn requeue_due(&mut self, now: Instant) {
        if self.next_wake().is_some_and(|at| at <= now) {
            self.requeue(|held| matches!(held.phase, Phase::Waiting { until } if until <= now));
        }
    }

    fn requeue(&mut self, due: impl Fn(&Held) -> bool) {
        let objects = self.objects.iter();
        let mut due: Vec<_> = objects
            .filter(|(_, held)| due(held))
            .map(|(id, held)| (held.since, Arc::clone(id)))
            .collect();
        due.sort();
        for (_, id) in due {
            self.enqueue(&id);
        }
    }
}
