//! While a list hangs: asks for everything that is known by id.
//!
//! One locked container can hang every list, for hours, while every other container still answers by its id. So after
//! [`Config::list_patience`](super::Config::list_patience) the known containers and sandboxes are asked one by one, round after
//! round, while the list is still waited for. Who answers in another state than was listed is looked at as if a list had said so; who
//! does not answer while others do is the suspect. What appeared meanwhile comes with the next complete list, and no entry that is
//! committed here counts as newer than the last complete look: it may lack a container that nobody has listed yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::{HashMap, HashSet};
use pleg_cri::error::seconds;
use pleg_cri::{Error, Subject};
use tokio::time::Instant;

use super::Generator;
use super::work::Why;
use crate::event::Source;
use crate::health::Who;
use crate::recorder::line;
use crate::records::{Alive, PodKey, Saw};
use crate::runtime::Runtime;
use crate::trouble::Trouble;

/// Who has not answered for this long is a suspect.
const SUSPECT: Duration = Duration::from_millis(1500);
/// From the start of one round to the next, at least; and at least four times as long as a round takes.
const ROUND: Duration = Duration::from_secs(2);
/// So many are asked at once while nobody answers: a runtime that answers nobody is not asked by everybody.
const SCOUTS: usize = 8;
/// Who does not answer is asked again after this long, then after twice as long, up to the last.
const AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_mins(1)];
/// More suspects than this are not named.
const MOST_SUSPECTS: usize = 20;

/// What goes on while a list hangs.
#[derive(Debug, Default)]
pub(super) struct ById {
    hang: Option<Hang>,
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
}

#[derive(Debug)]
struct Hang {
    since: Instant,
    todo: VecDeque<Alive>,
    /// Who was asked and has not answered since.
    open: HashMap<Arc<str>, Open>,
    round_started: Instant,
    next_round: Instant,
    /// When the newest call that was answered had been made, and when the last answer came.
    answered: Option<(Instant, Instant)>,
    answers: u64,
    /// The suspects that were told.
    told: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Open {
    /// When it was asked first.
    since: Instant,
    in_flight: bool,
    /// How often the call was given up, and when to make it again.
    failed: u32,
    again: Instant,
    who: Alive,
}

/// A call that ended.
#[derive(Debug)]
pub(super) struct Answered {
    who: Alive,
    asked: Instant,
    answer: Result<Saw, Error>,
}

impl ById {
    /// The next call that ends; never resolves where there is none.
    pub(super) async fn next(&mut self) -> Answered {
        use futures_util::StreamExt as _;
        match self.calls.next().await {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }
}

impl Hang {
    fn new(now: Instant, since: Instant) -> Self {
        Self {
            since,
            todo: VecDeque::new(),
            open: HashMap::new(),
            round_started: now,
            next_round: now,
            answered: None,
            answers: 0,
            told: Vec::new(),
        }
    }

    /// Somebody has answered within the last rounds. If nobody has, it is the runtime that does not.
    fn others_answer(&self, now: Instant) -> bool {
        let rounds = 3 * (self.next_round - self.round_started).max(ROUND);
        self.answered
            .is_some_and(|(_, at)| now.saturating_duration_since(at) < rounds)
    }

    /// Who does not answer while somebody who was asked no earlier does.
    fn suspects(&self, now: Instant) -> impl Iterator<Item = (&Arc<str>, &Open)> {
        let newest = self
            .answered
            .map(|(asked, _)| asked)
            .filter(|_| self.others_answer(now));
        self.open.iter().filter(move |(_, open)| {
            newest.is_some_and(|newest| open.since <= newest) && now.saturating_duration_since(open.since) >= SUSPECT
        })
    }

    /// Those to ask in a round that begins.
    fn begin_round(&mut self, now: Instant, alive: impl Iterator<Item = Alive>) {
        let mut still = HashSet::new();
        for alive in alive {
            let id = alive.id();
            if self
                .open
                .get(&id)
                .is_none_or(|open| !open.in_flight && now >= open.again)
            {
                self.todo.push_back(alive);
            }
            still.insert(id);
        }
        // What is gone since it was asked for is nobody to wait for.
        self.open.retain(|id, open| open.in_flight || still.contains(id));
        self.round_started = now;
        self.next_round = now + ROUND;
    }

    /// Takes in how a call ended. `answered`: the runtime said something about the object, in time.
    fn ended(&mut self, id: &Arc<str>, asked: Instant, answered: bool, now: Instant) {
        if !answered {
            if let Some(open) = self.open.get_mut(id) {
                let pause = AGAIN[0].saturating_mul(1 << open.failed.min(16)).min(AGAIN[1]);
                open.failed += 1;
                (open.in_flight, open.again) = (false, now + pause);
            }
            return;
        }
        self.open.remove(id);
        self.answers += 1;
        let newest = self.answered.map_or(asked, |(newest, _)| newest.max(asked));
        self.answered = Some((newest, now));
        let in_time = asked >= self.round_started && now.saturating_duration_since(asked) < SUSPECT;
        if in_time && self.todo.is_empty() {
            // A large node gets its pause.
            let took = now - self.round_started;
            self.next_round = self.next_round.max(self.round_started + took * 4);
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Asks by id if the list in flight has been so for too long. Returns when to come again.
    pub(super) fn ask_by_id(&mut self) -> Option<Instant> {
        let listing = self.listing_since?;
        let now = Instant::now();
        // Once a list has hung, the next one is not given that time again.
        if self.by_id.hang.is_none() && now < listing + self.config.list_patience {
            return Some(listing + self.config.list_patience);
        }
        if self.by_id.hang.is_none() {
            let (known, patience) = (self.records.alive().count(), seconds(self.config.list_patience));
            if known == 0 {
                return None;
            }
            self.by_id.hang = Some(Hang::new(now, listing));
            tracing::warn!(
                "no list of the runtime's containers for {patience}: asking for the {known} known containers and \
                 sandboxes by id meanwhile"
            );
        }
        let hang = self.by_id.hang.as_mut()?;
        if hang.todo.is_empty() && now >= hang.next_round {
            hang.begin_round(now, self.records.alive());
        }
        let late = |open: &&Open| open.in_flight && now.saturating_duration_since(open.since) >= SUSPECT;
        let late = hang.open.values().filter(late).count();
        // Inspections have the limiter's places; this is half as much beside them.
        let limit = if hang.others_answer(now) {
            (self.limiter.limit() / 2).max(SCOUTS) + late.min(self.config.inspections.most_late)
        } else {
            SCOUTS + late.min(SCOUTS)
        };
        while self.by_id.calls.len() < limit
            && let Some(who) = hang.todo.pop_front()
        {
            let Some(pod) = self.records.pod(who.pod) else { continue };
            let name = pod.full_name();
            hang.open
                .entry(who.id())
                .and_modify(|open| open.in_flight = true)
                .or_insert_with(|| Open {
                    since: now,
                    in_flight: true,
                    failed: 0,
                    again: now,
                    who: who.clone(),
                });
            let runtime = Arc::clone(&self.runtime);
            let call = async move {
                let answer = if let Some(container) = &who.container {
                    let subject = Subject::container(name, Arc::clone(&container.name), container.id.shared());
                    let call = runtime.container_status(&subject, &container.id, &container.name);
                    call.await.map(|status| Saw::Container(status.state))
                } else {
                    let subject = Subject::sandbox(name, who.sandbox.shared());
                    let call = runtime.sandbox_status(&subject, &who.sandbox);
                    call.await.map(|status| Saw::Sandbox(status.state))
                };
                Answered {
                    who,
                    asked: now,
                    answer,
                }
            };
            self.by_id.calls.push(call.boxed());
        }
        let next_suspect = hang
            .open
            .values()
            .map(|open| open.since + SUSPECT)
            .filter(|at| *at > now)
            .min();
        let next_round = hang.todo.is_empty().then_some(hang.next_round);
        self.tell_suspects(now);
        [next_suspect, next_round.filter(|at| *at > now)]
            .into_iter()
            .flatten()
            .min()
    }

    fn tell_suspects(&mut self, now: Instant) {
        let Some(hang) = &mut self.by_id.hang else { return };
        let mut suspects: Vec<_> = hang
            .suspects(now)
            .map(|(id, open)| (Arc::clone(id), open.since))
            .collect();
        suspects.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        suspects.truncate(MOST_SUSPECTS);
        let mut named = Vec::new();
        for (id, since) in &suspects {
            let Some(open) = hang.open.get(id) else { continue };
            let Some(pod) = self.records.pod(open.who.pod) else {
                continue;
            };
            let who = Who {
                pod: Some(pod.full_name()),
                container: open.who.container.as_ref().map(|container| Arc::clone(&container.name)),
                id: Some(Arc::clone(id)),
                sandbox: Some(open.who.sandbox.shared()),
                shim: None,
            };
            if !hang.told.contains(id) {
                let advice = self.health.advice(Trouble::LockedContainer, &who);
                tracing::warn!(
                    "{who} does not answer by id while others do, so the list probably waits for it. {advice}"
                );
                self.prober.suspect(&pod.uid);
            }
            named.push((who, *since));
        }
        hang.told = suspects.into_iter().map(|(id, _)| id).collect();
        self.health.suspects(named, hang.others_answer(now));
    }

    /// Takes in an answer by id.
    pub(super) fn answered_by_id(&mut self, answered: Answered) {
        let Some(hang) = &mut self.by_id.hang else { return };
        let Answered { who, asked, answer } = answered;
        let now = Instant::now();
        // Hangs come under several codes: what takes long is no answer, whatever it says.
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
        let lasted = self.listing_since.map(|since| since.elapsed()).unwrap_or_default();
        self.recorder.look(&mut self.records, &[key], why, lasted, 0);
        self.uncounted = true;
        // A container that nobody has listed yet may be missing, so this vouches for nothing beyond the last complete look.
        let why = if asked { Why::Asked } else { Why::News };
        self.evaluate(key, self.cache.reader().complete(), Source::Relist, why);
    }

    /// Lists are answered again, or the runtime is gone altogether.
    pub(super) fn end_by_id(&mut self, answered: bool) {
        let Some(hang) = self.by_id.hang.take() else { return };
        self.by_id.calls = FuturesUnordered::new();
        self.health.suspects(Vec::new(), false);
        if answered {
            tracing::info!(
                "the runtime lists its containers again after {} ({} answers by id meanwhile)",
                seconds(hang.since.elapsed()),
                hang.answers
            );
        }
    }
}
