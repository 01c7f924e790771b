//! Retries what is in quarantine, and takes in what answers.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::Generator;
use super::super::inspections::InspectTrigger;
use super::{Arrival, Ended, Failure, Held, Phase};
use crate::health::of_inspection;
use crate::inspect::{Call, Outcome, Unanswered};
use crate::model::ObjectRef;
use crate::model::event::Source;
use crate::publish::cache::{PodError, Since, Token};
use crate::records::PodKey;
use crate::runtime::Runtime;

impl<R: Runtime> Generator<R> {
    /// Takes over what an inspection of the pod had no answer for.
    /// `asked`: a caller requested the pod while the inspection ran.
    pub(in crate::generator) fn take_over(
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
            self.quarantine.hold(key, object, listed, sent, arrival, asked);
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
    pub(in crate::generator) fn give_up_overtaken(&mut self) {
        if self.quarantine.over_budget == 0 {
            return;
        }
        let overtaken = self.quarantine.overtaken(&self.limiter);
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

    /// Retries the objects whose back-off is over, as far as the budget allows.
    pub(in crate::generator) fn start_retries(&mut self) {
        let now = Instant::now();
        self.quarantine.requeue_due(now);
        let complete = self.publisher.complete();
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

    /// A relist brought news of the pod, or somebody asked for it: what is listed no more is let go, and what is listed in another
    /// state, or was asked for, is tried at once.
    pub(in crate::generator) fn follow_quarantined(&mut self, key: PodKey, token: Token, source: Source, asked: bool) {
        if !self.quarantine.has_pod(key) {
            return;
        }
        for id in self.quarantine.ids_of(key) {
            let Some(held) = self.quarantine.objects.get_mut(&id) else {
                continue;
            };
            let state = self.records.object_state(&held.object);
            if state.is_none() {
                self.let_go(&id);
                if let Some(pod) = self.records.pod(key) {
                    self.publisher.cache.forget(&pod.uid, &id);
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

    /// Takes in a call that ended.
    pub(in crate::generator) fn retried(&mut self, ended: Ended) {
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
                if !self.inspections.is_running(key) {
                    self.take_in_answers(key);
                }
            }
        }
        self.give_up_overtaken();
    }

    /// Commits what objects of the pod have answered.
    pub(in crate::generator) fn take_in_answers(&mut self, key: PodKey) {
        for id in self.quarantine.ids_of(key) {
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
                self.quarantine.retry_all();
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
            self.prober.probe_soon(&pod.uid);
        }
        if failure.kind.is_unreachable() {
            self.identity.call_unreachable(self.publisher.token());
        }
        if asked.is_some() {
            self.quarantine.enqueue(id);
        }
        self.show_stale(key, Some(tried));
        self.gauges();
        self.inspection_settled(key);
    }
}
