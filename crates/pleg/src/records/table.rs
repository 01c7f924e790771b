//! Containers or sandboxes by id, laid out so that matching thousands of unchanged ones waits for memory as little as possible.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::PodKey;
use crate::snapshot::Oddities;

/// One container or sandbox. A look goes through all of them in random order, and every pointer followed is a wait for memory: so
/// what an unchanged item is recognised by stands in one place, and the rest behind a box.
#[derive(Debug)]
pub(super) struct Item<S> {
    /// The id, where it has the usual length.
    key: [u8; ID],
    usual: bool,
    /// Carries the label with its pod's UID, so a list filtered by that label shows it.
    pub(super) labelled: bool,
    /// The runtime said `NOT_FOUND` when asked by id. Holds until its listed state changes.
    pub(super) not_found: bool,
    /// What the newest look that covers it said; `None`: it is not there.
    pub(super) listed: Option<S>,
    /// What was last committed; `None`: never, or its removal was.
    pub(super) committed: Option<S>,
    /// The listed state that the flight recorder was told.
    pub(super) recorded: Option<S>,
    /// `not_found` was true when the recorder was last told, or since.
    pub(super) denied: bool,
    /// The look that last saw it.
    pub(super) seen: u32,
    pub(super) pod: PodKey,
    pub(super) about: Box<About>,
}

/// What never changes about an item.
#[derive(Debug)]
pub(super) struct About {
    pub(super) id: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) attempt: u32,
    pub(super) created_at: i64,
}

/// The length of the ids that runtimes make.
const ID: usize = 64;

impl<S> Item<S> {
    /// An item that `look` was the first to see.
    pub(super) fn new(about: About, pod: PodKey, state: S, look: u32, labelled: bool) -> Self {
        let key = about.id.as_bytes().try_into().ok();
        Self {
            key: key.unwrap_or([0; ID]),
            usual: key.is_some(),
            labelled,
            not_found: false,
            listed: Some(state),
            committed: None,
            recorded: None,
            denied: false,
            seen: look,
            pod,
            about: Box::new(about),
        }
    }
}

impl<S: Copy + PartialEq> Item<S> {
    pub(super) fn is_dirty(&self) -> bool {
        self.visible() != self.committed
    }

    /// The listed state, unless the runtime denied the object when asked by id.
    pub(super) fn visible(&self) -> Option<S> {
        self.listed.filter(|_| !self.not_found)
    }
}

/// Where an item stands. The tag is a part of its id's hash, so that a candidate is found without touching the items.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    slot: u32,
}

/// How many items are matched in one go.
const BLOCK: usize = 32;

/// Items by id.
#[derive(Debug)]
pub(super) struct Table<S> {
    hasher: DefaultHashBuilder,
    index: HashTable<Entry>,
    slots: Vec<Option<Item<S>>>,
    free: Vec<u32>,
    /// How many items have a listed state.
    pub(super) listed: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            listed: 0,
        }
    }
}

impl<S: Copy + Ord> Table<S> {
    /// The item of that id.
    pub(super) fn find(&self, id: &[u8]) -> Option<u32> {
        let (hash, tag) = self.hash(id);
        self.index
            .find(hash, |entry| entry.tag == tag && self.is(entry.slot, id))
            .map(|entry| entry.slot)
    }

    /// Matches the items of a list against the table and hands each on with its place. The candidates of a block are looked up
    /// before any of them is checked: the waits for memory of the checks overlap then.
    pub(super) fn match_all<'a>(
        &mut self,
        len: usize,
        id: impl Fn(usize) -> &'a [u8],
        mut each: impl FnMut(&mut Self, usize, Option<u32>),
    ) {
        let mut candidates = [u32::MAX; BLOCK];
        for first in (0..len).step_by(BLOCK) {
            let last = (first + BLOCK).min(len);
            for (candidate, i) in candidates.iter_mut().zip(first..last) {
                let (hash, tag) = self.hash(id(i));
                *candidate = self
                    .index
                    .find(hash, |entry| entry.tag == tag)
                    .map_or(u32::MAX, |entry| entry.slot);
            }
            for (&candidate, i) in candidates.iter().zip(first..last) {
                // Two ids with one tag, or an item that came in with this very block: look again, in full.
                let slot = if self.is(candidate, id(i)) {
                    Some(candidate)
                } else {
                    self.find(id(i))
                };
                each(self, i, slot);
            }
        }
    }

    fn hash(&self, id: &[u8]) -> (u64, u32) {
        let hash = self.hasher.hash_one(id);
        // The table itself uses the lowest and the highest bits.
        #[expect(clippy::cast_possible_truncation, reason = "a part of the hash is meant")]
        (hash, (hash >> 20) as u32)
    }

    fn is(&self, slot: u32, id: &[u8]) -> bool {
        self.get(slot).is_some_and(|item| match <&[u8; ID]>::try_from(id) {
            Ok(id) => item.usual && item.key == *id,
            Err(_) => item.about.id.as_bytes() == id,
        })
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Item<S>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Item<S>> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, item: Item<S>) -> u32 {
        self.listed += usize::from(item.listed.is_some());
        let (hash, tag) = self.hash(item.about.id.as_bytes());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Four billion containers do not fit into any list we accept.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.slots[slot as usize] = Some(item);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, Entry { tag, slot }, |entry| {
            slots[entry.slot as usize]
                .as_ref()
                .map_or(0, |item| hasher.hash_one(item.about.id.as_bytes()))
        });
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(item) = self.slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        let (hash, _) = self.hash(item.about.id.as_bytes());
        if let Ok(entry) = self.index.find_entry(hash, |other| other.slot == slot) {
            entry.remove();
        }
        self.listed -= usize::from(item.listed.is_some());
        self.free.push(slot);
        // Give the room of a storm back.
        if self.index.is_empty() {
            *self = Self::default();
        }
    }

    /// Notes that `look` saw the item in `state`. Returns whether that is news.
    pub(super) fn see(&mut self, slot: u32, state: S, look: u32, odd: &mut Oddities) -> Option<PodKey> {
        let item = self.slots.get_mut(slot as usize)?.as_mut()?;
        if item.seen == look {
            // The same id twice. Lists come in any order, so the choice must not depend on it.
            odd.duplicate_id += 1;
            if item.listed.is_some_and(|listed| listed >= state) {
                return None;
            }
        }
        item.seen = look;
        if item.listed == Some(state) {
            odd.listed_not_found += u32::from(item.not_found);
            return None;
        }
        self.listed += usize::from(item.listed.is_none());
        item.listed = Some(state);
        item.not_found = false;
        Some(item.pod)
    }

    /// Notes that the item is not there any more. Returns its pod if that is news.
    pub(super) fn vanish(&mut self, slot: u32) -> Option<PodKey> {
        let item = self.slots.get_mut(slot as usize)?.as_mut()?;
        item.listed.take()?;
        item.not_found = false;
        self.listed -= 1;
        Some(item.pod)
    }
}

impl<S: Copy + Ord> Table<S> {
    /// The places of everything listed that `look` has not seen.
    pub(super) fn unseen(&self, look: u32) -> Vec<u32> {
        let unseen = |item: &Item<S>| item.listed.is_some() && item.seen != look;
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, item)| item.as_ref().is_some_and(unseen))
            .map(|(slot, _)| slot)
            .collect()
    }

    /// The listed states of all items.
    pub(super) fn states(&self) -> impl Iterator<Item = S> {
        self.slots.iter().flatten().filter_map(|item| item.listed)
    }
}
