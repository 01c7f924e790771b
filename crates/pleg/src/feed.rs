//! The event feed: never loses a change, never blocks the generator.
//!
//! The last events are kept in one ring. Each subscriber has a cursor of its own and reads at its own pace. Who falls so far behind
//! that the ring has moved on is told, in the way it chose:
//!
//! - [`Overflow::PodSync`]: a `PodSync` for each pod with a missed event. Level-triggered readers, who look at the cache anyway, lose
//!   nothing.
//! - [`Overflow::Gap`]: an explicit [`Item::Gap`]. Log readers know exactly what they missed.
//!
//! For that the ring remembers, for events it has dropped, which pods they were about: one entry a pod, a bounded number of them.
//! Should even that overflow, the subscriber gets a `Gap` and then a `PodSync` for every pod in the cache.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cache::Cache;
use crate::event::{Event, EventType, Source};
use crate::model::{PodRef, PodUid};

/// How many events a subscriber takes from the ring at once.
const BATCH: usize = 64;

/// What a subscriber reads.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// An event.
    Event(Arc<Event>),
    /// Events `from` to `to`, both included, are lost to this subscriber.
    Gap {
        /// The first lost one.
        from: u64,
        /// The last lost one.
        to: u64,
    },
}

/// Where a subscriber begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the next event.
    Now,
    /// With the oldest event still kept.
    Oldest,
    /// After the event of this number: what a reader says that comes back.
    After(u64),
}

/// What a subscriber wants when it fell too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// A `PodSync` for each pod it missed something of.
    PodSync,
    /// To be told which numbers it missed.
    Gap,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    capacity: usize,
    /// The number the next event gets.
    next: u64,
    /// Pods of dropped events, by the number of the last dropped one.
    dropped: BTreeMap<u64, PodRef>,
    dropped_by_pod: HashMap<PodUid, u64>,
    dropped_capacity: usize,
    /// `dropped` knows every pod with a dropped event of this number or later.
    dropped_from: u64,
}

impl Ring {
    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }

    fn push(&mut self, event: Event) {
        if self.events.len() == self.capacity
            && let Some(old) = self.events.pop_front()
        {
            self.drop_event(&old);
        }
        self.next += 1;
        self.events.push_back(Arc::new(event));
    }

    fn drop_event(&mut self, event: &Event) {
        let Some(pod) = &event.pod else { return };
        if let Some(before) = self.dropped_by_pod.insert(pod.uid.clone(), event.seq) {
            self.dropped.remove(&before);
        }
        self.dropped.insert(event.seq, pod.clone());
        if self.dropped.len() > self.dropped_capacity
            && let Some((seq, pod)) = self.dropped.pop_first()
        {
            self.dropped_by_pod.remove(&pod.uid);
            self.dropped_from = seq + 1;
        }
    }
}

#[derive(Debug)]
struct Shared {
    // Held for a push or for copying a batch; never across an await.
    ring: Mutex<Ring>,
    /// The number of the newest event; what subscribers wait on. Closed when the writer is gone.
    newest: watch::Receiver<u64>,
    cache: Cache,
    /// How often a subscriber had fallen too far behind.
    overflows: prometheus::IntCounter,
}

/// Where subscribers come from. Clones are the same feed.
#[derive(Debug, Clone)]
pub struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    /// The number of the newest event; 0 before the first.
    pub fn newest(&self) -> u64 {
        *self.shared.newest.borrow()
    }

    /// A new subscriber.
    pub fn subscribe(&self, start: Start, overflow: Overflow) -> Subscriber {
        let ring = self.shared.ring.lock();
        let next = match start {
            Start::Now => ring.next,
            Start::Oldest => ring.oldest(),
            // A number from the future is one of another generator: everything we have is new then.
            Start::After(seq) if seq >= ring.next => ring.oldest(),
            Start::After(seq) => seq + 1,
        };
        drop(ring);
        Subscriber {
            shared: Arc::clone(&self.shared),
            newest: self.shared.newest.clone(),
            next,
            overflow,
            batch: VecDeque::new(),
        }
    }
}

/// One reader of the feed.
#[derive(Debug)]
pub struct Subscriber {
    shared: Arc<Shared>,
    newest: watch::Receiver<u64>,
    /// The number of the event to read next.
    next: u64,
    overflow: Overflow,
    batch: VecDeque<Item>,
}

impl Subscriber {
    /// The next item; `None` once the generator is gone and everything was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.try_next() {
                return Some(item);
            }
            let next = self.next;
            if self.newest.wait_for(|&newest| newest >= next).await.is_err() {
                return self.try_next();
            }
        }
    }

    /// The next item, if there is one now.
    pub fn try_next(&mut self) -> Option<Item> {
        if self.batch.is_empty() {
            self.refill();
        }
        self.batch.pop_front()
    }

    fn refill(&mut self) {
        let mut ring = self.shared.ring.lock();
        let oldest = ring.oldest();
        if self.next < oldest {
            self.shared.overflows.inc();
            let (from, to) = (self.next, oldest - 1);
            self.next = oldest;
            match self.overflow {
                Overflow::Gap => self.batch.push_back(Item::Gap { from, to }),
                Overflow::PodSync if from >= ring.dropped_from => {
                    let syncs = ring.dropped.range(from..).map(|(&seq, pod)| sync(seq, pod));
                    self.batch.extend(syncs);
                }
                Overflow::PodSync => {
                    // Known pods first, so that their numbers stand; then everybody else.
                    drop(ring);
                    self.batch.push_back(Item::Gap { from, to });
                    let pods = self.shared.cache.entries();
                    self.batch.extend(pods.iter().map(|entry| sync(to, &entry.status.pod)));
                    ring = self.shared.ring.lock();
                }
            }
        }
        // The ring may have moved on while we looked at the cache; then the next refill says so.
        let oldest = ring.oldest();
        if self.next >= oldest {
            let skip = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
            for event in ring.events.iter().skip(skip).take(BATCH) {
                self.batch.push_back(Item::Event(Arc::clone(event)));
                self.next += 1;
            }
        }
    }
}

/// "Look again", made for one subscriber in place of an event it missed.
fn sync(seq: u64, pod: &PodRef) -> Item {
    Item::Event(Arc::new(Event {
        seq,
        time: Timestamp::now(),
        kind: EventType::PodSync,
        pod: Some(pod.clone()),
        subject: None,
        exit_code: None,
        reason: None,
        initial: false,
        source: Source::Relist,
        lag: None,
    }))
}

/// The write half. Only the generator holds it.
#[derive(Debug)]
pub(crate) struct FeedWriter {
    feed: Feed,
    newest: watch::Sender<u64>,
}

impl FeedWriter {
    /// A feed that keeps `capacity` events.
    pub(crate) fn new(capacity: usize, cache: Cache, overflows: prometheus::IntCounter) -> Self {
        let capacity = capacity.max(1);
        let ring = Ring {
            events: VecDeque::new(),
            capacity,
            next: 1,
            dropped: BTreeMap::new(),
            dropped_by_pod: HashMap::new(),
            dropped_capacity: capacity,
            dropped_from: 0,
        };
        let (newest, waited_on) = watch::channel(0);
        Self {
            feed: Feed {
                shared: Arc::new(Shared {
                    ring: Mutex::new(ring),
                    newest: waited_on,
                    cache,
                    overflows,
                }),
            },
            newest,
        }
    }

    pub(crate) fn reader(&self) -> Feed {
        self.feed.clone()
    }

    /// Appends events; their numbers are given here. Subscribers are woken once.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let shared = &self.feed.shared;
        let mut ring = shared.ring.lock();
        for mut event in events {
            event.seq = ring.next;
            ring.push(event);
        }
        let newest = ring.next - 1;
        drop(ring);
        self.newest
            .send_if_modified(|current| std::mem::replace(current, newest) != newest);
    }
}
