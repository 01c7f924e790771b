//! The event feed: never loses a change, never blocks the generator.
//!
//! The last events are kept in one ring. Each subscriber has a cursor of its own and reads at its own pace. A subscriber that falls so far
//! behind that the ring has moved on learns of it, in the way it chose:
//!
//! - [`Overflow::PodSync`]: a `PodSync` for each pod with a missed event, the last missed event about the generator's health, and the
//!   last missed event about a trouble of the whole node. Level-triggered readers, who read the cache anyway, lose nothing.
//! - [`Overflow::Gap`]: an explicit [`Item::Gap`]. Log readers know exactly what they missed.
//!
//! For that the ring remembers, for events it has dropped, which pods they were about: one entry a pod, a bounded number of them.
//! Should even that overflow, the subscriber gets a `Gap` and then the state, as below.
//!
//! # Continuing
//!
//! A reader that comes back names its [`Cursor`] with [`Start::After`]. One of this instance continues: with the next event, or with
//! what a subscriber gets that fell behind. One of another instance, or beyond the newest event, gets
//!
//! 1. a `Gap` with [`GapReason::Restarted`], and then
//! 2. the *current state*. For [`Overflow::Gap`] that is every event of this instance, if the ring still holds the first one: they
//!    begin with the `initial` events. Else it is a `PodSync` for every pod in the cache and the last events about the
//!    node that were dropped; the events that are held follow. For [`Overflow::PodSync`] it is always the `PodSync`s and the last events
//!    about the node, and only newer events follow.
//!
//! A reader at number 0 of this instance has no state to build on either: if the first event is no longer held, it gets the same after
//! a `Gap` of [`GapReason::Overflow`].
//!
//! With a [history](FeedHistory), a reader that chose [`Overflow::Gap`] gets all of that from there instead: what the feed no longer holds, and what
//! earlier instances published after its cursor, up to the events of this instance. There is a `Gap` only for what the history does not
//! have. Numbers then continue from one instance to the next: the first event of an instance has the number after the last one of the
//! instance before. A number is still only unique together with its instance, since an instance that crashed may have published
//! more than was kept. When the instance changes, the `initial` events that follow are the whole state: what they do not name is gone.
//!
//! A reader that stops while it reads the state has to get it again, in full. So a `Gap` is no cursor, and the `PodSync`s of the state have
//! the number before the gap: a reader that continues from one of them gets the gap once more.
//!
//! To continue after a restart of its own, a reader stores the cursor of the last event that it has dealt with, as text: [`Cursor`] has
//! `Display`, `FromStr` and serde.
//!
//! # Initial events
//!
//! The first relist finds containers that started and died long ago, and reports them with [`Event::initial`], so that a reader that
//! builds its state from events alone has all of it. A reader that acts on news, such as one that alerts on deaths, would alert on
//! history: it starts with [`Start::AfterFirstRelist`], or skips them.

mod ring;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::ReusableBoxFuture;

use crate::model::cursor::{Cursor, InstanceId};
use crate::model::event::{Event, Gap, GapReason};
use crate::publish::cache::Cache;
use crate::publish::filter::{EventFilter, Filtering};
use crate::publish::past::{EventHistory, FeedHistory, Past, PastReading, PastState};
use ring::{Ring, sync};

/// How many events a subscriber takes from the ring at once.
const BATCH: usize = 64;

/// What a subscriber reads. Its JSON is a line of the HTTP API's events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// An event.
    Event(Arc<Event>),
    /// Events that this subscriber does not get.
    Gap(Gap),
}

impl Item {
    /// Where a reader continues that has read everything up to this; none for a gap, which is no such place.
    pub fn cursor(&self) -> Option<Cursor> {
        match self {
            Self::Event(event) => Some(event.cursor()),
            Self::Gap(_) => None,
        }
    }
}

/// Where a subscriber begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the next event. Before the first relist is complete, that includes its [initial](self#initial-events) events.
    Now,
    /// With the next event that is not [initial](self#initial-events): only with what happens after the first relist, however early the
    /// subscriber comes.
    AfterFirstRelist,
    /// With the oldest event still kept.
    Oldest,
    /// After the last event that was read, for a reader that comes back. See the [module's text](self#continuing).
    After(Cursor),
}

/// What a subscriber wants when it fell too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// A `PodSync` for each pod of which it missed an event, and the last events about the node if it missed those.
    PodSync,
    /// To get the numbers that it missed.
    Gap,
}

#[derive(Debug)]
struct SharedFeed {
    instance: InstanceId,
    // Held for a push or for copying a batch; never across an await.
    ring: Mutex<Ring>,
    /// The number of the newest event; what subscribers wait on. Closed when the writer is gone.
    newest: watch::Receiver<u64>,
    cache: Cache,
    /// The number of the first event.
    first: u64,
    history: Option<Arc<dyn EventHistory>>,
    /// How often a subscriber had fallen too far behind.
    overflows: prometheus::IntCounter,
}

/// Where subscribers come from. Clones are the same feed.
#[derive(Debug, Clone)]
pub struct Feed {
    shared: Arc<SharedFeed>,
}

impl Feed {
    /// The generator whose events these are.
    pub fn instance(&self) -> InstanceId {
        self.shared.instance
    }

    /// The number of the newest event; before the first, one less than [`Feed::first`].
    pub fn newest(&self) -> u64 {
        *self.shared.newest.borrow()
    }

    /// The number of the first event of this instance: 1, unless a [history](FeedHistory) has events of earlier instances.
    pub fn first(&self) -> u64 {
        self.shared.first
    }

    /// A new subscriber.
    pub fn subscribe(&self, start: Start, overflow: Overflow) -> Subscriber {
        let ring = self.shared.ring.lock();
        let first = self.shared.first;
        let has_past = overflow == Overflow::Gap && self.shared.history.is_some();
        let is_own = |cursor: Cursor| cursor.instance == self.shared.instance;
        // Where one begins that has nothing of this instance is known when it reads.
        let (next, past, restarted) = match start {
            Start::Now | Start::AfterFirstRelist => (ring.next, None, None),
            Start::Oldest => (ring.oldest(), None, None),
            Start::After(cursor) if is_own(cursor) && cursor.seq >= ring.next => (first, None, Some(cursor)),
            Start::After(cursor) if is_own(cursor) && cursor.seq == 0 => (first, None, None),
            Start::After(cursor) if is_own(cursor) && cursor.seq + 1 >= first => (cursor.seq + 1, None, None),
            Start::After(cursor) if has_past => (first, Some(PastReading::from(cursor)), None),
            Start::After(cursor) => (first, None, Some(cursor)),
        };
        drop(ring);
        Subscriber {
            shared: Arc::clone(&self.shared),
            newest: self.shared.newest.clone(),
            next,
            past: match past {
                Some(reading) => PastState::Reading(reading),
                None if has_past => PastState::IfNeeded,
                None => PastState::Never,
            },
            restarted,
            continues: matches!(start, Start::After(_)),
            skips_initial: start == Start::AfterFirstRelist,
            overflow,
            batch: VecDeque::new(),
            filtering: None,
            waiting: None,
        }
    }
}

/// One reader of the feed. Also a [`Stream`], which ends with the generator.
#[derive(Debug)]
pub struct Subscriber {
    shared: Arc<SharedFeed>,
    newest: watch::Receiver<u64>,
    /// The number of the event to read next.
    next: u64,
    /// Whether it reads in the history.
    past: PastState,
    /// The cursor of another instance that it came with, until it got the gap.
    restarted: Option<Cursor>,
    /// It came with a cursor.
    continues: bool,
    /// It reads no initial events.
    skips_initial: bool,
    overflow: Overflow,
    batch: VecDeque<Item>,
    filtering: Option<Filtering>,
    /// Resolves with the next event, to false if there will be none; for [`Stream`], which cannot hold a future in its caller.
    waiting: Option<ReusableBoxFuture<'static, bool>>,
}

impl Subscriber {
    /// Reads only what matches. Numbers and gaps are those of the whole feed, so that a cursor works with any filter.
    #[must_use]
    pub fn with_filter(mut self, filter: EventFilter) -> Self {
        self.filtering = Some(Filtering::new(filter));
        self
    }

    /// Reads nothing from a [history](FeedHistory): for the history itself.
    #[must_use]
    pub fn without_history(mut self) -> Self {
        self.past = PastState::Never;
        self
    }

    /// The generator is gone: what [`Subscriber::try_next`] still has is all there will be.
    pub fn is_closed(&self) -> bool {
        self.newest.has_changed().is_err()
    }

    /// The next item; `None` once the generator is gone and everything was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.try_next() {
                return Some(item);
            }
            if self.reads_history() {
                std::future::poll_fn(|cx| self.poll_past(cx)).await;
                continue;
            }
            let next = self.next;
            if self.newest.wait_for(|&newest| newest >= next).await.is_err() {
                match self.try_next() {
                    None if self.reads_history() => {}
                    last => return last,
                }
            }
        }
    }

    /// There is more to read, which a [history](FeedHistory) has: [`Subscriber::next`] waits for it, and [`Subscriber::try_next`] has nothing
    /// until then.
    pub fn reads_history(&self) -> bool {
        matches!(self.past, PastState::Reading(_))
    }

    /// The next item, if there is one now.
    pub fn try_next(&mut self) -> Option<Item> {
        loop {
            if self.batch.is_empty() {
                self.refill();
            }
            let item = self.batch.pop_front()?;
            if self.wants(&item) {
                return Some(item);
            }
        }
    }

    fn wants(&mut self, item: &Item) -> bool {
        let Item::Event(event) = item else {
            return true;
        };
        if self.skips_initial && event.initial {
            return false;
        }
        let filtering = self.filtering.as_mut();
        filtering.is_none_or(|filtering| filtering.matches(event, &self.shared.cache))
    }

    /// Where a reader continues that has read everything it was given; none while there is more to give.
    pub fn caught_up(&self) -> Option<Cursor> {
        let all_read = self.batch.is_empty() && self.restarted.is_none() && !self.reads_history();
        all_read.then(|| self.shared.instance.at(self.next - 1))
    }

    /// Waits for the history's answer, and takes it in.
    fn poll_past(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (PastState::Reading(past), Some(history)) = (&mut self.past, &self.shared.history) else {
            return Poll::Ready(());
        };
        let (at, place) = (past.at, past.place);
        let answer = past.answer.get_or_insert_with(|| history.after(at, place));
        let found = ready!(answer.as_mut().poll(cx));
        self.past = PastState::IfNeeded;
        self.take_in(at, found);
        Poll::Ready(())
    }

    /// Takes in what the history has after a cursor, and decides where to go on.
    fn take_in(&mut self, at: Cursor, found: Option<Past>) {
        let this = self.shared.instance;
        let Some(past) = found else {
            if at.instance == this && at.seq + 1 >= self.shared.first {
                self.past = PastState::Ended;
            } else {
                (self.next, self.restarted) = (self.shared.first, Some(at));
            }
            return;
        };
        let progress = past.next != at || !past.items.is_empty();
        self.batch.extend(past.items);
        let next = past.next;
        if next.instance == this && next.seq + 1 >= self.shared.first {
            self.next = next.seq + 1;
            let held = self.next >= self.shared.ring.lock().oldest();
            if held {
                return;
            }
            if !progress {
                self.past = PastState::Ended;
                return;
            }
        } else if !progress {
            (self.next, self.restarted) = (self.shared.first, Some(at));
            return;
        }
        self.past = PastState::Reading(PastReading {
            place: past.place,
            ..PastReading::from(next)
        });
    }

    fn refill(&mut self) {
        if self.reads_history() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut ring = shared.ring.lock();
        match self.past {
            PastState::IfNeeded if self.restarted.is_none() && self.next < ring.oldest() => {
                let at = shared.instance.at(self.next - 1);
                self.past = PastState::Reading(PastReading::from(at));
                return;
            }
            PastState::Ended => self.past = PastState::IfNeeded,
            _ => {}
        }
        if let Some(gap) = self.gap(&ring) {
            // A reader with nothing of this instance needs the state, also one that reads a log.
            let needs_state = gap.reason == GapReason::Restarted || (self.continues && gap.from == shared.first);
            match self.overflow {
                _ if needs_state => ring = self.state(gap, &shared, ring),
                Overflow::Gap => self.batch.push_back(Item::Gap(gap)),
                Overflow::PodSync => match ring.in_place_of(&gap) {
                    Some(items) => self.batch.extend(items),
                    None => ring = self.state(gap, &shared, ring),
                },
            }
        }
        // The ring may have moved on while the cache was read; then the next refill says so.
        let oldest = ring.oldest();
        if self.next >= oldest {
            let skip = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
            for event in ring.events.iter().skip(skip).take(BATCH) {
                self.batch.push_back(Item::Event(Arc::clone(event)));
                self.next += 1;
            }
        }
    }

    /// What it does not get of the events so far, if anything. It goes on behind that.
    fn gap(&mut self, ring: &Ring) -> Option<Gap> {
        let oldest = ring.oldest();
        let (reason, after) = match self.restarted.take() {
            Some(after) => (GapReason::Restarted, Some(after)),
            None if self.next < oldest => {
                self.shared.overflows.inc();
                (GapReason::Overflow, None)
            }
            None => return None,
        };
        let from = self.next;
        self.next = match (reason, self.overflow) {
            // The state says it all: a reader of the cache wants no history.
            (GapReason::Restarted, Overflow::PodSync) => ring.next,
            _ => oldest,
        };
        Some(Gap {
            from,
            to: self.next - 1,
            instance: self.shared.instance,
            reason,
            after,
        })
    }

    /// The gap, and what is so after it. The cache has a lock of its own, so the ring's is given back meanwhile.
    fn state<'a>(&mut self, gap: Gap, shared: &'a SharedFeed, ring: MutexGuard<'a, Ring>) -> MutexGuard<'a, Ring> {
        let of_node = ring.node_events_within(&gap);
        drop(ring);
        self.batch.push_back(Item::Gap(gap));
        // Without a missed event the state is what the events say.
        if gap.from <= gap.to {
            let before = gap.instance.at(gap.from - 1);
            let pods = shared.cache.entries();
            self.batch
                .extend(pods.iter().map(|entry| sync(before, &entry.status.pod)));
            // With their own numbers, so they are last: a reader that continues from one of them has the state.
            self.batch.extend(of_node.into_iter().map(Item::Event));
        }
        shared.ring.lock()
    }
}

impl Stream for Subscriber {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let this = self.get_mut();
        loop {
            if let Some(item) = this.try_next() {
                return Poll::Ready(Some(item));
            }
            if this.reads_history() {
                ready!(this.poll_past(cx));
                continue;
            }
            let (mut newest, next) = (this.newest.clone(), this.next);
            let waiting = this.waiting.get_or_insert_with(|| {
                ReusableBoxFuture::new(async move { newest.wait_for(|&newest| newest >= next).await.is_ok() })
            });
            let more = ready!(waiting.poll(cx));
            this.waiting = None;
            if !more {
                match this.try_next() {
                    None if this.reads_history() => {}
                    last => return Poll::Ready(last),
                }
            }
        }
    }
}

/// The write half. Only the generator holds it.
#[derive(Debug)]
pub(crate) struct FeedWriter {
    feed: Feed,
    newest: watch::Sender<u64>,
}

impl FeedWriter {
    /// The feed of this generator; keeps `capacity` events.
    pub(crate) fn new(
        instance: InstanceId,
        capacity: usize,
        history: Option<FeedHistory>,
        cache: Cache,
        overflows: prometheus::IntCounter,
    ) -> Self {
        let first = history.as_ref().map_or(1, |history| history.first_seq.max(1));
        let (newest, waited_on) = watch::channel(first - 1);
        Self {
            feed: Feed {
                shared: Arc::new(SharedFeed {
                    instance,
                    ring: Mutex::new(Ring::new(capacity.max(1), first)),
                    newest: waited_on,
                    cache,
                    first,
                    history: history.map(|history| history.events),
                    overflows,
                }),
            },
            newest,
        }
    }

    pub(crate) fn reader(&self) -> Feed {
        self.feed.clone()
    }

    /// Appends events; their numbers and instance are given here. Subscribers are woken once.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let shared = &self.feed.shared;
        let mut ring = shared.ring.lock();
        for mut event in events {
            (event.seq, event.instance) = (ring.next, shared.instance);
            ring.push(event);
        }
        let newest = ring.next - 1;
        drop(ring);
        self.newest
            .send_if_modified(|current| std::mem::replace(current, newest) != newest);
    }
}

#[cfg(test)]
#[path = "feed/past/tests.rs"]
mod past_tests;
#[cfg(test)]
mod tests;
