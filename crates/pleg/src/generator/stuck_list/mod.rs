//! While a list hangs: asks for everything that is known by id, and goes on with the list that answers.
//!
//! One locked container can hang every list of containers, for hours, while every other container still answers by its id and the
//! list of sandboxes answers as ever. So a list that takes far longer than lists usually do is waited for, but meanwhile the other
//! list is sent every period, and the known containers and sandboxes are asked for one by one, round after round. What is found goes
//! the usual way. An object that does not answer, while most others do, is the suspect.
//!
//! Containers that are created meanwhile are not seen, and no entry that is committed here counts as newer than the last complete
//! relist: it may lack such a container.

mod hang;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use pleg_cri::duration::seconds;
use pleg_cri::{Error, Subject};
use tokio::time::Instant;

use super::Generator;
use super::inspections::InspectTrigger;
use super::listing::{Arrived, ListKind, SingleList, list_containers, list_sandboxes};
use crate::health::Who;
use crate::health::diagnosis::Trouble;
use crate::model::event::Source;
use crate::recorder::line;
use crate::records::snapshot::{ContainerList, SandboxList};
use crate::records::{Alive, PodKey, Saw};
use crate::runtime::Runtime;
use hang::{Emptied, Hang, LOG_AFTER, OtherList, SUSPECT};

/// What goes on while a list hangs.
#[derive(Debug, Default)]
pub(super) struct StuckList {
    hang: Option<Hang>,
    calls: FuturesUnordered<BoxFuture<'static, Progress>>,
}

impl StuckList {
    /// A list hangs.
    pub(super) fn is_hanging(&self) -> bool {
        self.hang.is_some()
    }

    /// What comes next; never resolves where nothing is in flight.
    pub(super) async fn next(&mut self) -> Progress {
        match self.calls.next().await {
            Some(progress) => progress,
            None => std::future::pending().await,
        }
    }

    /// Nothing that was known of the pod is left. Returns whether a list of sandboxes that was sent since then has said so too: then
    /// the pod is gone.
    pub(super) fn is_emptied(&mut self, key: PodKey) -> bool {
        let Some(hang) = &mut self.hang else { return true };
        *hang.emptied.entry(key).or_insert(Emptied::Since(Instant::now())) == Emptied::Confirmed
    }

    /// A list of sandboxes that was `sent` then was taken in. Returns the pods of which nothing was left by then.
    fn confirm_emptied(&mut self, sent: Instant) -> Vec<PodKey> {
        let Some(hang) = &mut self.hang else { return Vec::new() };
        let mut confirmed = Vec::new();
        for (key, emptied) in &mut hang.emptied {
            if matches!(emptied, Emptied::Since(at) if *at <= sent) {
                *emptied = Emptied::Confirmed;
                confirmed.push(*key);
            }
        }
        confirmed
    }

    /// A list hangs and that was logged, with the object that blocks it if one stands out.
    pub(super) fn is_logged(&self) -> bool {
        self.hang.as_ref().is_some_and(|hang| hang.logged)
    }
}

/// Something that came meanwhile.
#[derive(Debug)]
pub(super) enum Progress {
    Answered(Answered),
    /// The list that answers.
    Listed(Arrived, Instant),
}

/// A call about an object that ended.
#[derive(Debug)]
pub(super) struct Answered {
    who: Alive,
    asked: Instant,
    answer: Result<Saw, Error>,
}

impl<R: Runtime> Generator<R> {
    /// Asks by id if the list in flight has been so for too long. Returns when to come again.
    pub(super) fn poll_known_objects(&mut self) -> Option<Instant> {
        let listing = self.lists.in_flight()?;
        let (now, since) = (Instant::now(), listing.relist.started);
        // Once a list has hung, the next one is not given that time again.
        if self.stuck_list.hang.is_none() {
            let patience = self.lists.patience();
            if now < since + patience {
                return Some(since + patience);
            }
            tracing::debug!("no answer to {} for {}", listing.waits_for(), seconds(patience));
            self.stuck_list.hang = Some(Hang::new(now, since));
        }
        self.take_in_answered_list();
        self.send_other_list(now);
        self.send_calls(now);
        self.name_suspects(now);
        self.stuck_list.hang.as_ref()?.next_wake(now)
    }

    /// One of the two lists has answered: it does not wait for the other one.
    fn take_in_answered_list(&mut self) {
        let Some(listing) = self.lists.in_flight_mut() else {
            return;
        };
        let started = listing.relist.started;
        let Some(list) = listing.take_answered_list() else {
            return;
        };
        if let Some(hang) = &mut self.stuck_list.hang {
            hang.other_list = OtherList::At(Instant::now() + self.config.period);
        }
        self.take_in_single_list(list, started);
    }

    /// Sends the list that answers, a period after it last did.
    fn send_other_list(&mut self, now: Instant) {
        let (Some(hang), Some(listing)) = (&mut self.stuck_list.hang, self.lists.in_flight()) else {
            return;
        };
        if !matches!(hang.other_list, OtherList::At(at) if now >= at) {
            return;
        }
        let runtime = Arc::clone(&self.runtime);
        let call = match listing.answering_list() {
            Some(ListKind::Sandboxes) => {
                let mut list = SandboxList::default();
                self.records.prepare_sandboxes(&mut list);
                list_sandboxes(runtime, None, list).boxed()
            }
            Some(ListKind::Containers) => {
                let mut list = ContainerList::default();
                self.records.prepare_containers(&mut list);
                list_containers(runtime, None, list).boxed()
            }
            // Both hang: nothing is sent behind them.
            None => {
                hang.other_list = OtherList::At(now + self.config.period);
                return;
            }
        };
        hang.other_list = OtherList::InFlight;
        let call = async move { Progress::Listed(call.await, now) };
        self.stuck_list.calls.push(call.boxed());
    }

    /// Asks for the next objects of the round.
    fn send_calls(&mut self, now: Instant) {
        let Some(hang) = &mut self.stuck_list.hang else { return };
        if hang.todo.is_empty() && now >= hang.next_round {
            hang.begin_round(now, self.records.alive());
        }
        let limit = hang.most_calls(now, self.limiter.limit(), self.config.inspections.most_late);
        while hang.in_flight < limit
            && let Some(who) = hang.todo.pop_front()
        {
            let Some(pod) = self.records.pod(who.pod) else { continue };
            hang.ask(now, &who);
            let (runtime, name) = (Arc::clone(&self.runtime), pod.full_name());
            self.stuck_list.calls.push(ask(runtime, name, who, now).boxed());
        }
    }

    /// Reports suspects to health and, once, to the log.
    fn name_suspects(&mut self, now: Instant) {
        let (Some(hang), Some(listing)) = (&mut self.stuck_list.hang, self.lists.in_flight()) else {
            return;
        };
        let mut named = Vec::new();
        let mut probe = Vec::new();
        for (id, open) in hang.suspects(now) {
            let Some(pod) = self.records.pod(open.who.pod) else {
                continue;
            };
            let who = Who {
                pod: Some(pod.full_name()),
                container: open.who.container.as_ref().map(|container| Arc::clone(&container.name)),
                id: Some(Arc::clone(id)),
                sandbox: Some(open.who.sandbox.shared()),
                shim: None,
                about: Some((pod.clone(), open.who.object())),
            };
            if !hang.probed.contains(id) {
                probe.push((Arc::clone(id), pod.uid.clone()));
            }
            named.push((who, open.since));
        }
        for (id, uid) in probe {
            self.prober.probe_soon(&uid);
            hang.probed.insert(id);
        }
        if !hang.logged && (!named.is_empty() || now >= hang.found + LOG_AFTER) {
            hang.logged = true;
            let (call, lasted) = (listing.waits_for(), seconds(whole_seconds(now - hang.since)));
            let (answering, asked) = (hang.answering(), hang.asked.len());
            if let Some((who, _)) = named.first() {
                let advice = self.health.advice(Trouble::LockedContainer, who);
                tracing::warn!(
                    %call,
                    %lasted,
                    pod = who.pod.as_deref(),
                    container = who.container.as_deref(),
                    suspects = named.len(),
                    answering,
                    asked,
                    "list hangs, and {who} does not answer by id either"
                );
                tracing::debug!("{advice}");
            } else {
                tracing::warn!(%call, %lasted, answering, asked, "list hangs, and no container or sandbox stands out");
            }
        }
        let others_answer = hang.others_answer(now);
        self.health.suspects(named, others_answer);
    }

    /// Takes in what came while a list hangs.
    pub(super) fn stuck_list_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Answered(answered) => self.answered_by_id(answered),
            Progress::Listed(arrived, sent) => self.other_list_arrived(arrived, sent),
        }
    }

    fn other_list_arrived(&mut self, arrived: Arrived, sent: Instant) {
        let Some(hang) = &mut self.stuck_list.hang else { return };
        hang.other_list = OtherList::At(Instant::now() + self.config.period);
        let list = match arrived {
            Arrived::Sandboxes(list, Ok(_)) => SingleList::Sandboxes(list),
            Arrived::Containers(list, Ok(_)) => SingleList::Containers(list),
            // It is sent again.
            _ => return,
        };
        self.limiter.alive(sent);
        let is_of_sandboxes = matches!(list, SingleList::Sandboxes(_));
        self.take_in_single_list(list, sent);
        if is_of_sandboxes {
            let token = self.publisher.complete();
            for key in self.stuck_list.confirm_emptied(sent) {
                self.schedule_inspection(key, token, Source::Relist, InspectTrigger::Asked);
            }
        }
    }

    fn answered_by_id(&mut self, answered: Answered) {
        let Some(hang) = &mut self.stuck_list.hang else { return };
        let Answered { who, asked, answer } = answered;
        let now = Instant::now();
        // Runtimes report hangs under several codes: an error that took long is not an answer.
        let told = match &answer {
            Ok(_) => true,
            Err(error) if error.kind.is_not_found() => true,
            Err(error) => {
                let silent = error.kind.is_deadline() || error.kind.is_unreachable();
                !silent && now.saturating_duration_since(asked) < SUSPECT
            }
        };
        hang.ended(&who.id(), asked, told, now);
        match answer {
            Ok(saw) => {
                if let Some(key) = self.records.note(&who, saw) {
                    self.found_by_id(key, false);
                }
            }
            // The inspection of the whole pod finds out what is left of it.
            Err(error) if error.kind.is_not_found() => self.found_by_id(who.pod, true),
            Err(_) => {}
        }
    }

    fn found_by_id(&mut self, key: PodKey, asked: bool) {
        let why = (line::Scope::Pods, Source::Relist);
        let since = self.lists.sent().map(|sent| sent.elapsed());
        self.recorder
            .relisted(&mut self.records, &[key], why, since.unwrap_or_default(), 0);
        self.census.note(true);
        // A container may exist that no list has shown yet, so this vouches for nothing beyond the last complete relist.
        let why = if asked {
            InspectTrigger::Asked
        } else {
            InspectTrigger::News
        };
        self.schedule_inspection(key, self.publisher.complete(), Source::Relist, why);
    }

    /// Lists are answered again, or the runtime is gone altogether.
    pub(super) fn end_stuck_list(&mut self, answered: bool) {
        let Some(hang) = self.stuck_list.hang.take() else {
            return;
        };
        self.stuck_list.calls = FuturesUnordered::new();
        self.health.suspects(Vec::new(), false);
        if answered && hang.logged {
            tracing::info!(
                lasted = %seconds(hang.since.elapsed()),
                answers_by_id = hang.answers,
                "the runtime answers lists again"
            );
        }
    }
}

/// Asks for one object.
async fn ask<R: Runtime>(runtime: Arc<R>, pod: Arc<str>, who: Alive, asked: Instant) -> Progress {
    let answer = if let Some(container) = &who.container {
        let subject = Subject::container(pod, Arc::clone(&container.name), container.id.shared());
        let call = runtime.container_status(&subject, &container.id, &container.name);
        call.await.map(|status| Saw::Container(status.state))
    } else {
        let subject = Subject::sandbox(pod, who.sandbox.shared());
        let call = runtime.sandbox_status(&subject, &who.sandbox);
        call.await.map(|status| Saw::Sandbox(status.state))
    };
    Progress::Answered(Answered { who, asked, answer })
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}
