//! Decides which events are written, and how: counted up, combined, or not at all. Pure: callers pass the time.
//!
//! The rules are the kubelet's. Equal events are one object with a count. Ten events of one object that differ only in their message, each
//! within ten minutes of the one before, are combined into one. Of each object and type, 25 are written at once, and then one every five
//! minutes; what is not written is counted all the same, so the next one that is written has the right count.
//!
//! What is to be written waits in a queue with one place for an event, whatever its count: an outage makes it no longer than there are
//! different events. If it is full, the oldest is dropped. Everything is bounded.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher as _;
use std::time::Duration;

use jiff::Timestamp;
use pleg_node::events::{Event, EventObject, EventType};
use prometheus::{IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use super::lru::Lru;
use super::object::{Record, event_name, reference};
use super::token_bucket::TokenBucket;

/// Objects and events that are remembered.
const REMEMBERED: usize = 4096;
/// Events that wait to be written.
const MAX_QUEUE: usize = 1000;
/// So many different messages within [`SIMILAR_WITHIN`] are combined.
const MAX_SIMILAR: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_mins(10);
/// Events of one object and type that are written at once, and then the time for one more.
const OBJECT_BURST: u32 = 25;
const OBJECT_PERIOD: Duration = Duration::from_mins(5);
/// The API server forgets events after an hour: then they need not be written any more.
const MAX_AGE: Duration = Duration::from_hours(1);
/// The beginning of the message of combined events.
const COMBINED: &str = "(combined from similar events): ";

/// Which event it is: equal ones are counted up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    similar: SimilarKey,
    /// Of the message and the part of the object; none for combined events.
    hash: Option<u64>,
}

/// All events of an object with this reason.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SimilarKey {
    object: ObjectKey,
    reason: String,
}

/// All events of an object of one type. An empty UID is this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ObjectKey {
    uid: String,
    kind: EventType,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    /// The API server has it.
    created: bool,
    /// It waits to be written.
    queued: bool,
    /// When it last happened.
    at: Instant,
}

#[derive(Debug)]
struct Similar {
    messages: HashSet<u64>,
    last: Instant,
}

/// What happened to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// It is going to be written.
    Queued,
    /// It was counted, and is not written: there are too many of its object.
    Filtered,
}

/// Why an event was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Too many waited, or happened.
    TooMany,
    /// It waited for so long that the API server would have forgotten it.
    TooOld,
    /// The API server does not want it.
    Refused,
}

impl Lost {
    const ALL: [Self; 3] = [Self::TooMany, Self::TooOld, Self::Refused];

    fn name(self) -> &'static str {
        match self {
            Self::TooMany => "too-many",
            Self::TooOld => "too-old",
            Self::Refused => "refused",
        }
    }
}

/// An event that is to be written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Write {
    pub(super) key: EventKey,
    pub(super) record: Record,
    /// It has to be created; else it is patched.
    pub(super) create: bool,
}

/// The state of all events.
#[derive(Debug)]
pub(super) struct Correlator {
    node: String,
    node_uid: Option<String>,
    events: Lru<EventKey, Entry>,
    similar: Lru<SimilarKey, Similar>,
    budgets: Lru<ObjectKey, TokenBucket>,
    queue: VecDeque<EventKey>,
    hasher: std::hash::RandomState,
    /// The number in the name of the last event.
    last_number: i128,
    /// Events that were lost, by [`Lost`].
    lost: [u64; Lost::ALL.len()],
    /// The same, once it is exported.
    exported: Option<IntCounterVec>,
}

impl Correlator {
    pub(super) fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            node_uid: None,
            events: Lru::new(REMEMBERED),
            similar: Lru::new(REMEMBERED),
            budgets: Lru::new(REMEMBERED),
            queue: VecDeque::new(),
            hasher: std::hash::RandomState::new(),
            last_number: 0,
            lost: [0; Lost::ALL.len()],
            exported: None,
        }
    }

    /// The name of the node.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The UID of the Node object, from now on.
    pub(super) fn set_node_uid(&mut self, uid: &str) {
        self.node_uid = Some(uid.to_owned());
    }

    /// Something happened: `now`, which is `at` by the wall clock.
    pub(super) fn observe(&mut self, event: Event, at: Timestamp, now: Instant) -> Observed {
        let object = ObjectKey {
            uid: match &event.object {
                EventObject::Pod { id, .. } => id.uid.to_string(),
                EventObject::Node => String::new(),
            },
            kind: event.kind,
        };
        let similar = SimilarKey {
            object: object.clone(),
            reason: event.reason.to_string(),
        };
        let combined = self.is_similar(&similar, &event, now);
        let key = EventKey {
            similar,
            hash: (!combined).then(|| self.hasher.hash_one((&event.message, field_path(&event.object)))),
        };
        self.count_up(&key, event, at, now);
        let full = || TokenBucket::new(OBJECT_BURST, OBJECT_PERIOD, now);
        if self.budgets.use_or_insert_with(&object, full).take(now).is_err() {
            return Observed::Filtered;
        }
        self.enqueue(key);
        Observed::Queued
    }

    /// Whether there are so many similar events that this one is combined with them.
    fn is_similar(&mut self, key: &SimilarKey, event: &Event, now: Instant) -> bool {
        let hash = self.hasher.hash_one(&event.message);
        let similar = self.similar.use_or_insert_with(key, || Similar {
            messages: HashSet::new(),
            last: now,
        });
        if now.duration_since(similar.last) > SIMILAR_WITHIN {
            similar.messages.clear();
        }
        similar.last = now;
        similar.messages.insert(hash);
        if similar.messages.len() < MAX_SIMILAR {
            return false;
        }
        similar.messages.remove(&hash);
        true
    }

    fn count_up(&mut self, key: &EventKey, event: Event, at: Timestamp, now: Instant) {
        // Two events of one nanosecond have different names.
        let number = at.as_nanosecond().max(self.last_number + 1);
        let involved = reference(&event.object, &self.node, self.node_uid.as_deref());
        let mut is_new = false;
        let entry = self.events.use_or_insert_with(key, || {
            is_new = true;
            let name = event_name(involved.name.as_deref().unwrap_or_default(), number);
            let record = Record {
                name,
                involved: involved.clone(),
                kind: event.kind,
                reason: event.reason.to_string(),
                message: String::new(),
                count: 0,
                first: at,
                last: at,
            };
            Entry {
                record,
                created: false,
                queued: false,
                at: now,
            }
        });
        entry.record.count = entry.record.count.saturating_add(1);
        entry.record.last = at;
        entry.at = now;
        entry.record.message = match key.hash {
            Some(_) => event.message,
            None => format!("{COMBINED}{}", event.message),
        };
        if is_new {
            self.last_number = number;
        }
    }

    fn enqueue(&mut self, key: EventKey) {
        let Some(entry) = self.events.get_mut(&key) else { return };
        if std::mem::replace(&mut entry.queued, true) {
            return;
        }
        if self.queue.len() >= MAX_QUEUE
            && let Some(oldest) = self.queue.pop_front()
        {
            self.lose(Lost::TooMany);
            if let Some(entry) = self.events.get_mut(&oldest) {
                entry.queued = false;
            }
        }
        self.queue.push_back(key);
    }

    /// The next event to write.
    pub(super) fn next(&mut self, now: Instant) -> Option<Write> {
        loop {
            let key = self.queue.pop_front()?;
            // Forgotten meanwhile, or too old to be of use.
            let Some(entry) = self.events.get_mut(&key) else {
                self.lose(Lost::TooMany);
                continue;
            };
            entry.queued = false;
            if now.duration_since(entry.at) > MAX_AGE {
                self.lose(Lost::TooOld);
                continue;
            }
            // It may have happened before the UID of the node was known.
            if !entry.created && entry.record.involved.kind.as_deref() == Some("Node") && self.node_uid.is_some() {
                entry.record.involved.uid.clone_from(&self.node_uid);
            }
            return Some(Write {
                record: entry.record.clone(),
                create: !entry.created,
                key,
            });
        }
    }

    /// The API server has it, or has it no longer.
    pub(super) fn set_created(&mut self, key: &EventKey, created: bool) {
        if let Some(entry) = self.events.get_mut(key) {
            entry.created = created;
        }
    }

    /// It could not be written: after the others.
    pub(super) fn retry(&mut self, key: EventKey) {
        self.enqueue(key);
    }

    /// An event will not be written.
    pub(super) fn lose(&mut self, why: Lost) {
        let lost = &mut self.lost[why as usize];
        *lost = lost.saturating_add(1);
        if let Some(exported) = &self.exported {
            exported.with_label_values(&[why.name()]).inc();
        }
    }

    /// Events that were lost.
    pub(super) fn dropped(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Exports how many, by cause.
    pub(super) fn export(&mut self, registry: &Registry) -> Result<(), prometheus::Error> {
        let options = Opts::new(
            "pleg_node_events_dropped_total",
            "Events that the API server never got, by cause.",
        );
        let exported = IntCounterVec::new(options, &["reason"])?;
        registry.register(Box::new(exported.clone()))?;
        for why in Lost::ALL {
            exported
                .with_label_values(&[why.name()])
                .inc_by(self.lost[why as usize]);
        }
        self.exported = Some(exported);
        Ok(())
    }

    /// Whether so much waits that events may soon be lost.
    pub(super) fn is_half_full(&self) -> bool {
        self.queue.len() >= MAX_QUEUE / 2
    }

    /// Whether nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

fn field_path(object: &EventObject) -> Option<&str> {
    match object {
        EventObject::Pod { field_path, .. } => field_path.as_deref(),
        EventObject::Node => None,
    }
}

#[cfg(test)]
mod tests;
