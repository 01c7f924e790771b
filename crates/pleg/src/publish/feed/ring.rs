//! The events that are held, and what is remembered of those that were dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;

use super::Item;
use crate::model::cursor::Cursor;
use crate::model::event::{Event, EventType, Gap};
use crate::model::{PodRef, PodUid};

/// The last events, oldest first.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) events: VecDeque<Arc<Event>>,
    capacity: usize,
    /// The number the next event gets.
    pub(super) next: u64,
    /// Pods of dropped events, by the number of the last dropped one.
    dropped: BTreeMap<u64, PodRef>,
    dropped_by_pod: HashMap<PodUid, u64>,
    dropped_capacity: usize,
    /// `dropped` knows every pod with a dropped event of this number or later.
    dropped_from: u64,
    /// The last dropped event about the generator's health.
    dropped_health: Option<Arc<Event>>,
    /// The last dropped event about a trouble of the whole node.
    dropped_trouble: Option<Arc<Event>>,
}

impl Ring {
    /// Keeps `capacity` events; the first one gets the number `first`.
    pub(super) fn new(capacity: usize, first: u64) -> Self {
        Self {
            events: VecDeque::new(),
            capacity,
            next: first,
            dropped: BTreeMap::new(),
            dropped_by_pod: HashMap::new(),
            dropped_capacity: capacity,
            dropped_from: 0,
            dropped_health: None,
            dropped_trouble: None,
        }
    }

    /// The number of the oldest event that is held.
    pub(super) fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() == self.capacity
            && let Some(old) = self.events.pop_front()
        {
            self.drop_event(old);
        }
        self.next += 1;
        self.events.push_back(Arc::new(event));
    }

    /// The newest event about the health and the newest about a trouble of the node that are within the gap, in their order.
    pub(super) fn node_events_within(&self, gap: &Gap) -> Vec<Arc<Event>> {
        let held = usize::try_from((gap.to + 1).saturating_sub(self.oldest())).unwrap_or(usize::MAX);
        let newest = |dropped: &Option<Arc<Event>>, health: bool| {
            let mut held = self.events.iter().take(held).rev();
            held.find(|event| event.pod.is_none() && event.kind.is_health() == health)
                .or(dropped.as_ref())
                .filter(|event| event.seq >= gap.from)
                .cloned()
        };
        let of_node = [newest(&self.dropped_health, true), newest(&self.dropped_trouble, false)];
        let mut events: Vec<_> = of_node.into_iter().flatten().collect();
        events.sort_unstable_by_key(|event| event.seq);
        events
    }

    /// What a level-triggered reader gets in place of the events it missed, in their order; none if too many pods were dropped to know.
    pub(super) fn in_place_of(&self, gap: &Gap) -> Option<Vec<Item>> {
        if gap.from < self.dropped_from {
            return None;
        }
        let pods = self.dropped.range(gap.from..);
        let mut items: Vec<_> = pods.map(|(&seq, pod)| (seq, sync(gap.instance.at(seq), pod))).collect();
        let of_node = self.node_events_within(gap).into_iter();
        items.extend(of_node.map(|event| (event.seq, Item::Event(event))));
        items.sort_by_key(|(seq, _)| *seq);
        Some(items.into_iter().map(|(_, item)| item).collect())
    }

    fn drop_event(&mut self, event: Arc<Event>) {
        let Some(pod) = &event.pod else {
            let newest = if event.kind.is_health() {
                &mut self.dropped_health
            } else {
                &mut self.dropped_trouble
            };
            *newest = Some(event);
            return;
        };
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

/// "Sync this pod", made for one subscriber in place of an event it missed.
pub(super) fn sync(at: Cursor, pod: &PodRef) -> Item {
    Item::Event(Arc::new(Event {
        seq: at.seq,
        instance: at.instance,
        pod: Some(pod.clone()),
        ..Event::of_generator(EventType::PodSync)
    }))
}
