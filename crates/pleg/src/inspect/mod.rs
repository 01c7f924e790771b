//! Asks the runtime about one pod: each sandbox and each container by the ids that the lists gave.
//!
//! The unit of trust is the object, not the pod. An inspection returns what answered; an object that takes far longer than the
//! runtime usually needs is returned as [`Unanswered`], with its call still in flight, so that no other call waits for it.

pub(crate) mod limiter;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hashbrown::{HashMap, HashSet};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use pleg_cri::{Error, Subject};
use tokio::time::Instant;

use crate::inspect::limiter::{Limiter, Place};
use crate::model::status::{ContainerStatus, PodStatus, SandboxStatus};
use crate::model::{ContainerId, ContainerState, ObjectRef, PodRef, PodView, SandboxState};
use crate::records::Records;
use crate::runtime::Runtime;

/// The exit code of a process that was ended by SIGKILL.
const KILLED: i32 = 137;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// If the runtime ever learns the reason of an exit, it does so within this time.
const REASON_ARRIVES: SignedDuration = SignedDuration::from_secs(30);

/// What to inspect.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub(crate) pod: PodRef,
    /// The pod as the lists show it.
    pub(crate) view: PodView,
    /// The last status of each object, and when it was inspected. Containers that have exited are taken over from here: they do not
    /// change while the runtime runs, but for [what was killed a moment ago](may_learn_more).
    pub(crate) known: Option<(Arc<PodStatus>, Option<Timestamp>)>,
    /// Objects of `known` that were not answered for: what it says of them counts for nothing.
    pub(crate) stale: HashSet<Arc<str>>,
    /// Only these are asked for, if there are any; the rest is taken over from `known`.
    pub(crate) only: Option<HashSet<Arc<str>>>,
    /// These are not asked for: they are in quarantine, which has calls of its own.
    pub(crate) skip: HashSet<Arc<str>>,
}

/// What the runtime said about a pod, by the places that the objects have in the inspected view.
#[derive(Debug, Default)]
pub(crate) struct Inspected {
    pub(crate) sandboxes: Vec<Option<SandboxStatus>>,
    pub(crate) containers: Vec<Option<ContainerStatus>>,
    /// Listed, but gone when asked for: they went away meanwhile.
    pub(crate) gone_containers: Vec<ContainerId>,
    /// Asked for, without an answer so far.
    pub(crate) unanswered: Vec<Unanswered>,
}

/// A container or sandbox that was asked for and has not been described.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) object: ObjectRef,
    /// When the call was sent.
    pub(crate) sent: Instant,
    pub(crate) outcome: Outcome,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The call is still in flight.
    Open(Call),
    /// The call failed.
    Failed(Error),
}

/// What the runtime said about one object.
#[derive(Debug)]
pub(crate) enum Answer {
    Sandbox(SandboxStatus),
    Container(ContainerStatus),
}

/// A call about one object.
pub(crate) struct Call {
    pub(crate) object: ObjectRef,
    /// Where the object stands in the view.
    place: usize,
    flight: Arc<Flight>,
    answer: BoxFuture<'static, Result<Answer, Error>>,
}

#[derive(Debug, Default)]
struct Flight {
    sent: OnceLock<Instant>,
    // Held for an exchange only.
    place: Mutex<Option<Place>>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.object).finish()
    }
}

impl Call {
    /// A call about an object of the pod of that name. `limited`: it waits for a place of the limiter first.
    pub(crate) fn new<R: Runtime>(
        runtime: &Arc<R>,
        limiter: &Limiter,
        pod: &Arc<str>,
        object: ObjectRef,
        limited: bool,
    ) -> Self {
        let flight = Arc::new(Flight::default());
        let answer = {
            let (runtime, limiter, pod) = (Arc::clone(runtime), limiter.clone(), Arc::clone(pod));
            let (flight, object) = (Arc::clone(&flight), object.clone());
            async move {
                if limited {
                    let place = limiter.place().await;
                    *flight.place.lock() = Some(place);
                }
                let sent = *flight.sent.get_or_init(Instant::now);
                let answer = match &object {
                    ObjectRef::Sandbox { id } => {
                        let subject = Subject::sandbox(pod, id.shared());
                        runtime.sandbox_status(&subject, id).await.map(Answer::Sandbox)
                    }
                    ObjectRef::Container(container) => {
                        let subject = Subject::container(pod, Arc::clone(&container.name), container.id.shared());
                        let call = runtime.container_status(&subject, &container.id, &container.name);
                        call.await.map(Answer::Container)
                    }
                };
                if is_answer(&answer) {
                    limiter.answered(sent);
                }
                flight.place.lock().take();
                answer
            }
            .boxed()
        };
        Self {
            object,
            place: 0,
            flight,
            answer,
        }
    }

    /// When it was sent; none while it waits for its place.
    pub(crate) fn sent(&self) -> Option<Instant> {
        self.flight.sent.get().copied()
    }

    /// Gives its place among the calls in flight to others.
    pub(crate) fn give_up_place(&self) {
        self.flight.place.lock().take();
    }
}

/// How a call about one object ended.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) object: ObjectRef,
    place: usize,
    pub(crate) sent: Instant,
    pub(crate) answer: Result<Answer, Error>,
}

impl Future for Call {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let answer = std::task::ready!(self.answer.poll_unpin(context));
        Poll::Ready(Answered {
            object: self.object.clone(),
            place: self.place,
            sent: self.sent().unwrap_or_else(Instant::now),
            answer,
        })
    }
}

/// The runtime said something about the object, be it that there is none.
fn is_answer<T>(answer: &Result<T, Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => !error.kind.is_deadline() && !error.kind.is_unreachable(),
    }
}

impl Inspection {
    /// Asks. Returns when every object was answered for, or when those that are left stand out: each of them was sent, and has
    /// taken far longer than a call usually does.
    pub(crate) async fn run<R: Runtime>(&self, runtime: &Arc<R>, limiter: &Limiter) -> Inspected {
        let mut inspected = Inspected {
            sandboxes: vec![None; self.view.sandboxes.len()],
            containers: vec![None; self.view.containers.len()],
            ..Inspected::default()
        };
        let mut open = self.calls(runtime, limiter, &mut inspected);
        let patience = limiter.patience();
        let overdue = tokio::time::sleep(patience);
        tokio::pin!(overdue);
        loop {
            tokio::select! {
                biased;
                answered = open.next() => match answered {
                    Some(answered) => inspected.take_in(answered),
                    None => return inspected,
                },
                () = overdue.as_mut() => {
                    let now = Instant::now();
                    // A call that waits for its place is not late yet.
                    let late_at = |call: &Call| call.sent().unwrap_or(now) + patience;
                    match open.iter().map(late_at).max().filter(|at| *at > now) {
                        Some(at) => overdue.as_mut().reset(at),
                        None => break,
                    }
                }
            }
        }
        for call in open {
            let Some(sent) = call.sent() else { continue };
            inspected.unanswered.push(Unanswered {
                object: call.object.clone(),
                sent,
                outcome: Outcome::Open(call),
            });
        }
        inspected
    }

    /// The calls that are needed. What is taken over from the last status is put into `inspected`.
    fn calls<R: Runtime>(
        &self,
        runtime: &Arc<R>,
        limiter: &Limiter,
        inspected: &mut Inspected,
    ) -> FuturesUnordered<Call> {
        let open = FuturesUnordered::new();
        let name = self.pod.full_name();
        let ask = |object, place| {
            open.push(Call {
                place,
                ..Call::new(runtime, limiter, &name, object, true)
            });
        };
        let known = self.known.as_ref().map(|(status, _)| &**status);
        let asked = |id: &Arc<str>| self.only.as_ref().is_none_or(|only| only.contains(id));
        for (place, (id, state)) in self.view.sandboxes.iter().enumerate() {
            let object = ObjectRef::Sandbox { id: id.clone() };
            if self.skip.contains(object.id()) {
                continue;
            }
            let same = known.and_then(|known| known.sandboxes.iter().find(|known| known.id == *id));
            let same =
                same.filter(|same| same.state == *state && !asked(object.id()) && !self.stale.contains(object.id()));
            match same {
                Some(same) => inspected.sandboxes[place] = Some(same.clone()),
                None => ask(object, place),
            }
        }
        let known: HashMap<_, _> = known.map(PodStatus::by_id).unwrap_or_default();
        let inspected_at = self.known.as_ref().and_then(|(_, at)| *at);
        for (place, (container, state)) in self.view.containers.iter().enumerate() {
            let object = ObjectRef::Container(container.clone());
            if self.skip.contains(object.id()) {
                continue;
            }
            let settled = *state == ContainerState::Exited || !asked(object.id());
            let final_word = |same: &&ContainerStatus| inspected_at.is_none_or(|at| !may_learn_more(same, at));
            let same = known.get(&container.id).copied();
            let same = same.filter(|same| same.state == *state && settled && !self.stale.contains(object.id()));
            match same.filter(final_word) {
                Some(same) => inspected.containers[place] = Some(same.clone()),
                None => ask(object, place),
            }
        }
        open
    }
}

/// Whether the runtime may know more about this exit now than it did `then`. It learns of an exit and of its reason separately: an
/// OOM-killed container may first be reported with `Error`, and with `OOMKilled` once that message has arrived.
pub(crate) fn may_learn_more(status: &ContainerStatus, then: Timestamp) -> bool {
    let recent = |at: Timestamp| then.duration_since(at).abs() < REASON_ARRIVES;
    status.exit_code == Some(KILLED) && &*status.reason != OUT_OF_MEMORY && status.finished_at.is_some_and(recent)
}

impl Inspected {
    /// What was answered about one object of the view, and nothing else.
    pub(crate) fn single(view: &PodView, answered: Answered) -> Self {
        let mut inspected = Self {
            sandboxes: vec![None; view.sandboxes.len()],
            containers: vec![None; view.containers.len()],
            ..Self::default()
        };
        let id = answered.object.id();
        let place = match &answered.object {
            ObjectRef::Sandbox { .. } => view.sandboxes.iter().position(|(other, _)| other.as_str() == &**id),
            ObjectRef::Container(_) => view.containers.iter().position(|(other, _)| other.id.as_str() == &**id),
        };
        // One that is not listed any more was not waited for.
        if let Some(place) = place {
            inspected.take_in(Answered { place, ..answered });
        }
        inspected
    }

    fn take_in(&mut self, answered: Answered) {
        let Answered {
            object,
            place,
            sent,
            answer,
        } = answered;
        match (answer, object) {
            (Ok(Answer::Sandbox(status)), _) => self.sandboxes[place] = Some(status),
            (Ok(Answer::Container(status)), _) => self.containers[place] = Some(status),
            (Err(error), ObjectRef::Container(container)) if error.kind.is_not_found() => {
                self.gone_containers.push(container.id);
            }
            // That a sandbox is gone, and with it maybe the pod, only the list of sandboxes can establish.
            (Err(error), object) => self.unanswered.push(Unanswered {
                object,
                sent,
                outcome: Outcome::Failed(error),
            }),
        }
    }

    /// Everything in the view is gone.
    pub(crate) fn leaves_nothing_of(&self, view: &PodView) -> bool {
        view.sandboxes.is_empty() && self.gone_containers.len() == view.containers.len()
    }

    /// The runtime does not know something that was listed.
    pub(crate) fn misses_something(&self) -> bool {
        let denied = |unanswered: &Unanswered| match &unanswered.outcome {
            Outcome::Failed(error) => error.kind.is_not_found(),
            Outcome::Open(_) => false,
        };
        !self.gone_containers.is_empty() || self.unanswered.iter().any(denied)
    }

    /// Takes what is gone from the view.
    pub(crate) fn correct(&self, view: &mut PodView) {
        if self.gone_containers.is_empty() {
            return;
        }
        let gone: HashSet<_> = self.gone_containers.iter().collect();
        view.containers.retain(|(container, _)| !gone.contains(&container.id));
    }

    /// The pod's status: what was answered, else what was known, else what the lists say. Where nothing is ready and no address is
    /// known, the last known ones are kept.
    pub(crate) fn into_status(
        self,
        pod: PodRef,
        view: &PodView,
        known: Option<&PodStatus>,
        records: &Records,
    ) -> PodStatus {
        let gone: HashSet<_> = self.gone_containers.iter().collect();
        let sandboxes = view.sandboxes.iter().zip(self.sandboxes).map(|((id, state), answer)| {
            let known = || known?.sandboxes.iter().find(|known| known.id == *id).cloned();
            answer
                .or_else(known)
                .unwrap_or_else(|| records.listed_sandbox(id, *state))
        });
        let sandboxes: Box<[SandboxStatus]> = sandboxes.collect();
        let complete = self.containers.iter().flatten().count() + gone.len() == self.containers.len();
        let known_containers = known.filter(|_| !complete).map(PodStatus::by_id).unwrap_or_default();
        let containers = view.containers.iter().zip(self.containers);
        let containers = containers.filter(|((container, _), _)| !gone.contains(&container.id));
        let containers = containers.map(|((container, state), answer)| {
            let known = || known_containers.get(&container.id).copied().cloned();
            answer
                .or_else(known)
                .unwrap_or_else(|| records.listed_container(container, *state))
        });
        PodStatus {
            ips: ips(&sandboxes, known),
            containers: containers.collect(),
            sandboxes,
            pod,
        }
    }
}

fn ips(sandboxes: &[SandboxStatus], known: Option<&PodStatus>) -> Box<[IpAddr]> {
    let ready = sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready);
    let newest = ready.or(sandboxes.first());
    let ips = newest.map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
    match known {
        Some(known) if ips.is_empty() && ready.is_none() => known.ips.clone(),
        _ => ips,
    }
}
