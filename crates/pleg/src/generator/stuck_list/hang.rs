//! A list that hangs: the rounds in which known objects are asked for by id, and which of them stands out. Pure: the caller brings the time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use crate::records::{Alive, PodKey};

/// An object that has not answered for this long may be a suspect, and so may one that has taken twice as long as the slowest answer.
pub(super) const SUSPECT: Duration = Duration::from_millis(1500);
/// From the start of one round to the next, at least; and at least four times as long as a round takes.
pub(super) const ROUND: Duration = Duration::from_secs(2);
/// So many are asked at once while nothing answers: a runtime that does not answer is not flooded.
pub(super) const SCOUTS: usize = 8;
/// An object that does not answer is asked again after this long, then after twice as long, up to the last.
pub(super) const AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_mins(1)];
/// More suspects than this are not named.
pub(super) const MOST_SUSPECTS: usize = 20;
/// A hang is logged as soon as there is a suspect, and after this long without one.
pub(super) const LOG_AFTER: Duration = Duration::from_secs(5);

/// What goes on while a list hangs.
#[derive(Debug)]
pub(super) struct Hang {
    /// When the list was sent, and when it was found to hang.
    pub(super) since: Instant,
    pub(super) found: Instant,
    pub(super) todo: VecDeque<Alive>,
    /// Everything that was asked for so far.
    pub(super) asked: HashSet<Arc<str>>,
    /// What was asked for and has not answered since.
    pub(super) open: HashMap<Arc<str>, Open>,
    pub(super) round_started: Instant,
    pub(super) next_round: Instant,
    /// When the newest call that was answered had been made, and when the last answer came.
    pub(super) answered: Option<(Instant, Instant)>,
    pub(super) answers: u64,
    /// The slowest answer so far.
    pub(super) slowest: Duration,
    /// Calls about objects that are in flight.
    pub(super) in_flight: usize,
    /// The other list is in flight, or is to be sent then.
    pub(super) other_list: OtherList,
    /// Pods of which nothing that was known is left.
    pub(super) emptied: HashMap<PodKey, Emptied>,
    /// It was logged, and so its end will be.
    pub(super) logged: bool,
    /// The suspects whose shims are probed.
    pub(super) probed: HashSet<Arc<str>>,
}

/// The list that answers while the other one hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherList {
    /// In flight.
    InFlight,
    /// To be sent then.
    At(Instant),
}

/// What is known of a pod of which nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emptied {
    /// Its objects were not found by their ids.
    Since(Instant),
    /// A list of sandboxes that was sent later was taken in.
    Confirmed,
}

/// An object that was asked for and has not answered since.
#[derive(Debug)]
pub(super) struct Open {
    /// When it was asked first.
    pub(super) since: Instant,
    pub(super) in_flight: bool,
    /// How often the call was given up, and when to make it again.
    pub(super) failed: u32,
    pub(super) again: Instant,
    pub(super) who: Alive,
}

impl Hang {
    pub(super) fn new(now: Instant, since: Instant) -> Self {
        Self {
            since,
            found: now,
            todo: VecDeque::new(),
            asked: HashSet::new(),
            open: HashMap::new(),
            round_started: now,
            next_round: now,
            answered: None,
            answers: 0,
            slowest: Duration::ZERO,
            in_flight: 0,
            other_list: OtherList::At(now),
            emptied: HashMap::new(),
            logged: false,
            probed: HashSet::new(),
        }
    }

    /// Something has answered within the last rounds. If nothing has, it is the runtime that does not.
    pub(super) fn others_answer(&self, now: Instant) -> bool {
        let rounds = 3 * (self.next_round - self.round_started).max(ROUND).max(self.slowest);
        self.answered
            .is_some_and(|(_, at)| now.saturating_duration_since(at) < rounds)
    }

    /// How long an object may take before it stands out.
    pub(super) fn patience(&self) -> Duration {
        SUSPECT.max(self.slowest * 2)
    }

    /// How many of the objects that were asked for have answered when they were last asked.
    pub(super) fn answering(&self) -> usize {
        self.asked.len() - self.open.len()
    }

    /// What does not answer while most others, asked no earlier, do.
    pub(super) fn suspects(&self, now: Instant) -> Vec<(&Arc<str>, &Open)> {
        let newest = self.answered.map(|(asked, _)| asked);
        let newest = newest.filter(|_| self.others_answer(now));
        let stands_out = |open: &Open| {
            newest.is_some_and(|newest| open.since <= newest)
                && now.saturating_duration_since(open.since) >= self.patience()
        };
        let mut suspects: Vec<_> = self.open.iter().filter(|(_, open)| stands_out(open)).collect();
        if suspects.len() > self.answering() {
            return Vec::new();
        }
        suspects.sort_by(|a, b| a.1.since.cmp(&b.1.since).then_with(|| a.0.cmp(b.0)));
        suspects.truncate(MOST_SUSPECTS);
        suspects
    }

    /// Those to ask in a round that begins.
    pub(super) fn begin_round(&mut self, now: Instant, alive: impl Iterator<Item = Alive>) {
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
        // What is gone since it was asked for is not waited for.
        self.open.retain(|id, open| open.in_flight || still.contains(id));
        self.asked.retain(|id| still.contains(id) || self.open.contains_key(id));
        self.round_started = now;
        self.next_round = now + ROUND;
    }

    pub(super) fn ask(&mut self, now: Instant, who: &Alive) {
        self.in_flight += 1;
        self.asked.insert(who.id());
        self.open
            .entry(who.id())
            .and_modify(|open| open.in_flight = true)
            .or_insert_with(|| Open {
                since: now,
                in_flight: true,
                failed: 0,
                again: now,
                who: who.clone(),
            });
    }

    /// Takes in how a call ended. `answered`: the runtime said something about the object, in time.
    pub(super) fn ended(&mut self, id: &Arc<str>, asked: Instant, answered: bool, now: Instant) {
        self.in_flight -= 1;
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
        let took = now.saturating_duration_since(asked);
        self.slowest = self.slowest.max(took);
        let newest = self.answered.map_or(asked, |(newest, _)| newest.max(asked));
        self.answered = Some((newest, now));
        if asked >= self.round_started && took < SUSPECT && self.todo.is_empty() {
            // A large node gets its pause.
            let round = now - self.round_started;
            self.next_round = self.next_round.max(self.round_started + round * 4);
        }
    }

    /// How many calls about objects may be in flight: half of the limit of inspections, which have their places beside it.
    pub(super) fn most_calls(&self, now: Instant, limit: usize, most_late: usize) -> usize {
        let late = |open: &&Open| open.in_flight && now.saturating_duration_since(open.since) >= SUSPECT;
        let late = self.open.values().filter(late).count();
        if self.others_answer(now) {
            (limit / 2).max(SCOUTS) + late.min(most_late)
        } else {
            SCOUTS + late.min(SCOUTS)
        }
    }

    /// When there is something to do even if nothing comes.
    pub(super) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let suspect = self.open.values().map(|open| open.since + self.patience());
        let round = self.todo.is_empty().then_some(self.next_round);
        let other_list = match self.other_list {
            OtherList::At(at) => Some(at),
            OtherList::InFlight => None,
        };
        let log = (!self.logged).then_some(self.found + LOG_AFTER);
        let wakes = suspect.chain([round, other_list, log].into_iter().flatten());
        wakes.filter(|at| *at > now).min()
    }
}
