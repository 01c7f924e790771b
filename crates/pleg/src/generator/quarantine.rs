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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use pleg_cri::error::seconds;
use pleg_cri::{Error, ErrorKind, Rpc, Subject};
use tokio::time::Instant;

use super::Generator;
use super::inspections::InspectTrigger;
use crate::health::{Who, of_inspection};
use crate::inspect::{Answered, Call, Outcome, Unanswered};
use crate::model::event::Source;
use crate::model::{ObjectRef, ObjectState, PodRef, PodUid};
use crate::publish::cache::{PodError, Since, StalePart, Token};
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;

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
    /// Is being asked for.
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
            rpc: error.rpc.clone(),
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

    /// Something of the pod is in here on account of an event.
    pub(super) fn is_stirred(&self, key: PodKey) -> bool {
        let evented = |source: Source| source == Source::Evented;
        self.of_pod(key).filter_map(|id| self.objects.get(id)).any(|held| {
            let asked = held.asked.map(|(_, source)| source);
            evented(held.source) || asked.is_some_and(evented)
        })
    }

    /// When the next one is to be tried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let until = self.objects.values().filter_map(|held| match held.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        });
        until.min()
    }

    /// The next call that ends; never resolves where there is none.
    pub(super) async fn next(&mut self) -> Ended {
        use futures_util::StreamExt as _;
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
}

impl<R: Runtime> Generator<R> {
    /// Takes over what an inspection of the pod had no answer for.
    /// `asked`: a caller requested the pod while the inspection ran.
    pub(super) fn take_over(
        &mut self,
        key: PodKey,
        unanswered: Vec<Unanswered>,
        arrival: Arrival,
        asked: Option<(Token, Source)>,
    ) {
        for Unanswered { object, sent, outcome } in unanswered {
            let id = Arc::clone(object.id());
            let listed = self.records.object_state(&object);
            if listed.is_none() {
                // A list has said meanwhile that it is gone.
                continue;
            }
            self.quarantine.by_pod.entry(key).or_default().push(Arc::clone(&id));
            let held = Held {
                pod: key,
                object,
                phase: Phase::Queued,
                since: sent,
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
            self.quarantine.objects.insert(Arc::clone(&id), held);
            match outcome {
                Outcome::Failed(error) => self.attempt_failed(&id, &Failure::from(&error)),
                Outcome::Open(call) => {
                    let over_budget = self.quarantine.calls.len() >= self.config.inspections.most_late;
                    if !over_budget {
                        call.give_up_place();
                    }
                    self.quarantine.send(&id, call, sent, over_budget);
                }
            }
        }
        self.give_up_overtaken();
    }

    /// Gives up calls that are beyond the budget and that others have overtaken: they keep places from others.
    pub(super) fn give_up_overtaken(&mut self) {
        if self.quarantine.over_budget == 0 {
            return;
        }
        let overtaken: Vec<_> = self
            .quarantine
            .objects
            .iter()
            .filter_map(|(id, held)| match held.phase {
                Phase::InFlight {
                    sent,
                    over_budget: true,
                    ..
                } if self.limiter.overtaken(sent) => Some((Arc::clone(id), sent)),
                _ => None,
            })
            .collect();
        for (id, sent) in overtaken {
            if let Some(failure) = self.no_answer(&id, sent.elapsed()) {
                self.attempt_failed(&id, &failure);
            }
        }
        if self.quarantine.over_budget > 0 {
            // Lists tell whether it is the runtime or these objects.
            self.reset_period("inspections hang");
        }
    }

    /// The call about the object was given up after it had waited so long.
    fn no_answer(&self, id: &Arc<str>, waited: Duration) -> Option<Failure> {
        let held = self.quarantine.objects.get(id)?;
        let pod = self.records.pod(held.pod)?.full_name();
        let (rpc, subject) = match &held.object {
            ObjectRef::Sandbox { id } => (Rpc::PodSandboxStatus, Subject::sandbox(pod, id.shared())),
            ObjectRef::Container(container) => {
                let subject = Subject::container(pod, Arc::clone(&container.name), container.id.shared());
                (Rpc::ContainerStatus, subject)
            }
        };
        let kind = ErrorKind::Deadline(Duration::from_millis(waited.as_millis().try_into().unwrap_or(u64::MAX)));
        let on = self
            .runtime
            .endpoint()
            .map_or(String::new(), |endpoint| format!(" on {endpoint}"));
        Some(Failure {
            text: format!("{rpc} of {subject}{on}: {kind}").into(),
            rpc,
            subject,
            kind,
        })
    }

    /// Retries the objects whose back-off is over, as far as the budget allows.
    pub(super) fn start_retries(&mut self) {
        let now = Instant::now();
        let due = |held: &Held| matches!(held.phase, Phase::Waiting { until } if until <= now);
        if self.quarantine.next_retry().is_some_and(|at| at <= now) {
            self.requeue(due);
        }
        let complete = self.cache.reader().complete();
        while self.quarantine.calls.len() < self.config.inspections.most_late
            && let Some(id) = self.quarantine.queue.pop_front()
        {
            let Some(held) = self.quarantine.objects.get_mut(&id) else {
                continue;
            };
            let Some(pod) = self.records.pod(held.pod) else {
                continue;
            };
            held.token = held.token.max(complete);
            held.listed = self.records.object_state(&held.object);
            if let Some((token, source)) = held.asked.take() {
                (held.token, held.source) = (held.token.max(token), source);
            }
            let object = held.object.clone();
            let call = Call::new(&self.runtime, &self.limiter, &pod.full_name(), object, false);
            self.quarantine.send(&id, call, now, false);
        }
    }

    /// The runtime is back, or one of them has answered: the others need not wait for their time.
    pub(super) fn retry_all(&mut self) {
        self.requeue(|held| matches!(held.phase, Phase::Waiting { .. }));
    }

    fn requeue(&mut self, due: impl Fn(&Held) -> bool) {
        let objects = self.quarantine.objects.iter();
        let mut due: Vec<_> = objects
            .filter(|(_, held)| due(held))
            .map(|(id, held)| (held.since, Arc::clone(id)))
            .collect();
        due.sort();
        for (_, id) in due {
            self.quarantine.enqueue(&id);
        }
    }

    /// A relist brought news of the pod, or somebody asked for it: what is listed no more is let go, and what is listed in another
    /// state, or was asked for, is tried at once.
    pub(super) fn follow_quarantined(&mut self, key: PodKey, token: Token, source: Source, asked: bool) {
        if !self.quarantine.has_pod(key) {
            return;
        }
        for id in self.quarantine.of_pod(key).cloned().collect::<Vec<_>>() {
            let Some(held) = self.quarantine.objects.get_mut(&id) else {
                continue;
            };
            let state = self.records.object_state(&held.object);
            if state.is_none() {
                self.let_go(&id);
                if let Some(pod) = self.records.pod(key) {
                    self.cache.forget(&pod.uid, &id);
                }
                continue;
            }
            let moved = std::mem::replace(&mut held.listed, state) != state;
            if asked {
                held.asked = Some((held.asked.map_or(token, |(before, _)| before.max(token)), source));
            }
            let at_once = match held.phase {
                Phase::Waiting { .. } => asked || moved,
                // It was asked for in a state that it has left.
                Phase::InFlight { sent, .. } => moved && sent.elapsed() >= self.limiter.patience(),
                Phase::Queued | Phase::Answered(_) => false,
            };
            if at_once {
                self.quarantine.enqueue(&id);
            }
        }
    }

    /// Lists of the pod that were `sent` then were taken in: what they still have is there, whatever the runtime says of its id.
    pub(super) fn listed_again(&mut self, key: PodKey, sent: Instant) {
        for id in self.quarantine.of_pod(key).cloned().collect::<Vec<_>>() {
            if let Some(held) = self.quarantine.objects.get_mut(&id)
                && matches!(held.denied, Denied::At(at) if at <= sent)
            {
                held.denied = Denied::ButListed;
            }
        }
    }

    /// Takes in a call that ended.
    pub(super) fn retried(&mut self, ended: Ended) {
        let Ended { id, call, answered } = ended;
        let current = |held: &Held| matches!(held.phase, Phase::InFlight { call: now, .. } if now == call);
        let Some(answered) = answered else { return };
        if !self.quarantine.objects.get(&id).is_some_and(current) {
            return;
        }
        let gone = matches!(&answered.object, ObjectRef::Container(_));
        match &answered.answer {
            Err(error) if !(gone && error.kind.is_not_found()) => {
                let failure = Failure::from(error);
                self.attempt_failed(&id, &failure);
            }
            _ => {
                let key = self.quarantine.objects[&id].pod;
                self.quarantine.set(&id, Phase::Answered(answered));
                if !self.is_inspecting(key) {
                    self.take_in_answers(key);
                }
            }
        }
        self.give_up_overtaken();
    }

    /// Commits what objects of the pod have answered.
    pub(super) fn take_in_answers(&mut self, key: PodKey) {
        for id in self.quarantine.of_pod(key).cloned().collect::<Vec<_>>() {
            let answered = |held: &Held| matches!(held.phase, Phase::Answered(_));
            if !self.quarantine.objects.get(&id).is_some_and(answered) {
                continue;
            }
            let Some(held) = self.let_go(&id) else { continue };
            let Phase::Answered(answered) = held.phase else {
                continue;
            };
            let arrival = Arrival {
                token: held.token,
                source: held.source,
                initial: held.initial,
            };
            self.commit_object(key, answered, arrival);
            self.containers_answer();
            if held.attempts > 0 {
                self.retry_all();
            }
            if let Some((token, source)) = held.asked {
                self.schedule_inspection(key, token, source, InspectTrigger::Asked);
            }
        }
    }

    /// A call about the object failed: the old record stays, so that the change is found again, and it is tried again by itself.
    fn attempt_failed(&mut self, id: &Arc<str>, failure: &Failure) {
        let now = Instant::now();
        let (first, most) = (self.config.retry_first, self.config.retry_most);
        let Some(held) = self.quarantine.objects.get_mut(id) else {
            return;
        };
        held.attempts += 1;
        let sandbox = match &held.object {
            ObjectRef::Container(container) => self.records.sandbox_of(container.id.as_str()),
            ObjectRef::Sandbox { id } => Some(id.clone()),
        };
        let pause = first.saturating_mul(1 << (held.attempts - 1).min(16)).min(most);
        held.error = Some(Arc::new(PodError {
            message: Arc::clone(&failure.text),
            trouble: of_inspection(&failure.kind),
            rpc: failure.rpc.name().into(),
            container: failure.subject.container.clone(),
            id: failure.subject.id.clone(),
            sandbox: sandbox.map(|sandbox| sandbox.shared()),
            attempts: held.attempts,
            since: Since::at(held.since),
        }));
        let (key, tried, asked) = (held.pod, held.token, held.asked);
        let Some(pod) = self.records.pod(key).cloned() else {
            return;
        };
        self.quarantine.set(id, Phase::Waiting { until: now + pause });
        self.announce_quarantined(&pod, id, failure, pause);
        if failure.kind.is_deadline() {
            self.prober.suspect(&pod.uid);
        }
        if failure.kind.is_unreachable() {
            self.restarted = self.cache.reader().token();
        }
        if asked.is_some() {
            self.quarantine.enqueue(id);
        }
        self.show_stale(key, Some(tried));
        self.gauges();
        self.moved(key);
    }

    /// Reports the object to health, recorder and log, unless it is too early to report.
    fn announce_quarantined(&mut self, pod: &PodRef, id: &Arc<str>, failure: &Failure, pause: Duration) {
        let was_announced = self
            .quarantine
            .objects
            .get(id)
            .is_some_and(|held| self.quarantine.is_announced(held.pod));
        let relists_fail = self.health.relists_fail();
        let Some(held) = self.quarantine.objects.get_mut(id) else {
            return;
        };
        if failure.kind.is_not_found() {
            if held.denied == Denied::Never {
                held.denied = Denied::At(Instant::now());
            }
            // Most likely the sandbox went away since it was listed. It is a trouble if a list that was sent later still has it.
            let listed_since = |at: Instant| self.sandboxes_listed.is_some_and(|sent| sent > at);
            if matches!(held.denied, Denied::At(at) if !listed_since(at)) {
                if held.source == Source::OnDemand {
                    self.hints.pod(&pod.uid, held.source);
                } else {
                    self.evented.wanted.pods.entry_ref(&pod.uid).or_default();
                }
                return;
            }
        }
        let Some(cause) = held.error.clone() else { return };
        held.announced = true;
        if !was_announced {
            self.recorder
                .transition(Turn::Quarantined, Some(pod), Some(&cause.message), None);
        }
        self.health.quarantine(pod, &held.object, Arc::clone(&cause));
        // A runtime that is gone is reported once, not for each pod. One that lists, and says again and again that this pod cannot be
        // reached, is not gone.
        let gone = failure.kind.is_unreachable() && (held.attempts == 1 || relists_fail);
        if gone {
            // The next relist shows whether the runtime is gone, and reports that; relist now.
            self.hints.all(Source::Relist);
        } else if !std::mem::replace(&mut held.logged, true) {
            let who = Who {
                pod: Some(pod.full_name()),
                container: failure.subject.container.clone(),
                id: failure.subject.id.clone(),
                sandbox: cause.sandbox.clone(),
                shim: None,
                about: None,
            };
            let advice = self.health.advice(cause.trouble, &who);
            tracing::warn!(
                pod = %pod,
                container = held.object.container_name().map(|name| &**name),
                call = %failure.rpc,
                error = %failure.kind,
                retry_in = %seconds(pause),
                "{} is in quarantine; others are not affected",
                kind_of(&held.object)
            );
            tracing::debug!("{advice}");
        }
    }

    /// Releases an object from quarantine, because it answered or is gone. Returns its entry.
    fn let_go(&mut self, id: &Arc<str>) -> Option<Held> {
        // An answer that waits stays with what is returned.
        let answered = match self.quarantine.objects.get_mut(id)?.phase {
            Phase::Answered(_) => Some(std::mem::replace(
                &mut self.quarantine.objects.get_mut(id)?.phase,
                Phase::Queued,
            )),
            _ => None,
        };
        let mut held = self.quarantine.remove(id)?;
        held.phase = answered.unwrap_or(held.phase);
        let pod = self.records.pod(held.pod).cloned()?;
        if held.announced {
            self.health.release(&pod.uid, id);
            if !self.quarantine.is_announced(held.pod) {
                let lasted = Some(held.since.elapsed());
                self.recorder.transition(Turn::Released, Some(&pod), None, lasted);
            }
        }
        if held.logged {
            tracing::info!(
                pod = %pod,
                container = held.object.container_name().map(|name| &**name),
                lasted = %seconds(held.since.elapsed()),
                "{} left quarantine",
                kind_of(&held.object)
            );
        }
        Some(held)
    }

    /// The pod is gone, and with it all that was held of it.
    pub(super) fn release_pod(&mut self, key: PodKey, uid: &PodUid) {
        for id in self.quarantine.of_pod(key).cloned().collect::<Vec<_>>() {
            self.let_go(&id);
            self.health.release(uid, &id);
        }
    }

    /// The stale parts of a pod, for its readers.
    pub(super) fn stale_parts(&self, key: PodKey) -> Arc<[StalePart]> {
        let parts = self.quarantine.of_pod(key).filter_map(|id| {
            let held = self.quarantine.objects.get(id)?;
            Some(StalePart {
                object: held.object.clone(),
                listed: self.records.object_state(&held.object),
                error: held.error.clone().filter(|_| held.announced),
            })
        });
        parts.collect()
    }

    /// Something of the pod is being asked for, in an inspection or again.
    pub(super) fn is_being_asked(&self, key: PodKey) -> bool {
        let open = |id: &Arc<str>| {
            let held = self.quarantine.objects.get(id);
            held.is_some_and(|held| !matches!(held.phase, Phase::Waiting { .. }))
        };
        self.has_open_work(key) || self.quarantine.of_pod(key).any(open)
    }

    /// Shows readers which parts of the pod are stale. `tried`: the look up to which one was asked for in vain.
    pub(super) fn show_stale(&mut self, key: PodKey, tried: Option<Token>) {
        let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
            return;
        };
        let inspecting = self.is_being_asked(key);
        self.cache.stale(&uid, self.stale_parts(key), tried, inspecting);
    }
}

fn kind_of(object: &ObjectRef) -> &'static str {
    match object {
        ObjectRef::Container(_) => "container",
        ObjectRef::Sandbox { .. } => "sandbox",
    }
}
