//! What the newest relist listed, in the form by which an unchanged item is recognised while a list is still being read.
//!
//! A relist goes through thousands of items of which none has changed, in random order. So all that such an item is recognised by
//! stands close together here, and the lists that are being read share it ([`Seen`]): of an unchanged item nothing is kept but a bit.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

/// How an item is recognised without looking at anything else: every further place would be a wait for memory. Two ids are taken for
/// the same here if they begin with the same 4 bytes and have the same 64 bits of a hash whose seed nobody knows.
#[derive(Debug, Clone, Copy)]
struct Entry {
    print: Print,
    place: Place,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Print {
    hash: u64,
    head: [u8; 4],
}

/// A slot, and the state in which the newest relist listed the item there, as it is on the wire: in one word, so that four entries fit
/// into a line of the cache.
#[derive(Debug, Clone, Copy)]
struct Place(u32);

impl Place {
    /// A state by which nothing is recognised. Wire states are below it.
    const NONE: u32 = 7;

    fn new(slot: u32, state: Option<u8>) -> Self {
        Self(slot << 3 | state.map_or(Self::NONE, u32::from) & 7)
    }

    fn slot(self) -> u32 {
        self.0 >> 3
    }

    /// The state; that of an item that is not for recognising is no state at all.
    fn state(self) -> i32 {
        match self.0 & 7 {
            Self::NONE => -1,
            state => state.cast_signed(),
        }
    }
}

/// Items by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    hasher: DefaultHashBuilder,
    index: HashTable<Entry>,
    /// Slots are below this.
    slots: usize,
}

impl Known {
    #[inline]
    fn print(&self, id: &[u8]) -> Print {
        let mut head = [0; 4];
        match id.first_chunk() {
            Some(first) => head = *first,
            None => head[..id.len()].copy_from_slice(id),
        }
        let hash = self.hasher.hash_one(id);
        Print { hash, head }
    }

    /// The item of that id, where `is` confirms it.
    pub(super) fn find(&self, id: &[u8], is: impl Fn(u32) -> bool) -> Option<u32> {
        let print = self.print(id);
        let entry = self
            .index
            .find(print.hash, |entry| entry.print == print && is(entry.place.slot()))?;
        Some(entry.place.slot())
    }

    /// The item of that print, if it is listed in that very state.
    #[inline]
    fn recognise(&self, print: Print, state: i32) -> Option<u32> {
        let entry = self.index.find(print.hash, |entry| entry.print == print)?;
        (state >= 0 && entry.place.state() == state).then_some(entry.place.slot())
    }

    /// Adds an item, which is not recognised yet.
    pub(super) fn insert(&mut self, slot: u32, id: &[u8]) {
        let entry = Entry {
            print: self.print(id),
            place: Place::new(slot, None),
        };
        self.index
            .insert_unique(entry.print.hash, entry, |entry| entry.print.hash);
        self.slots = self.slots.max(slot as usize + 1);
    }

    pub(super) fn remove(&mut self, slot: u32, id: &[u8]) {
        let hash = self.print(id).hash;
        if let Ok(entry) = self.index.find_entry(hash, |entry| entry.place.slot() == slot) {
            entry.remove();
        }
    }

    /// Notes by which state the item is recognised from now on.
    pub(super) fn set(&mut self, slot: u32, id: &[u8], state: Option<u8>) {
        let hash = self.print(id).hash;
        if let Some(entry) = self.index.find_mut(hash, |entry| entry.place.slot() == slot) {
            entry.place = Place::new(slot, state);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

/// The id and state of an item, where a glance shows them.
pub(crate) type Glance<'a> = Option<(&'a [u8], i32)>;

/// What a list recognised an item as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recognised {
    /// It is new, in another state, or unusual.
    No,
    /// It is as it was.
    Same,
    /// It is as it was, and this list has shown it before.
    Again,
}

/// Which items a list has shown so far. Recognises those that are as the relist before left them.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    known: Option<Arc<Known>>,
    bits: Vec<u64>,
    count: usize,
    removals: u64,
}

impl Seen {
    /// Begins a list. `removals`: how many items had been removed by then.
    pub(super) fn begin(&mut self, known: Arc<Known>, removals: u64) {
        self.clear();
        self.removals = removals;
        self.bits.resize(known.slots.div_ceil(64), 0);
        self.known = Some(known);
    }

    pub(crate) fn clear(&mut self) {
        self.known = None;
        self.bits.clear();
        self.count = 0;
    }

    /// The list is read: the records are the generator's alone again.
    pub(super) fn end(&mut self) {
        self.known = None;
    }

    /// Notes those of the items (id and state) that are as they were, and says of each what it is. Items come in random order, so
    /// that each is a wait for memory; taken in one go these waits overlap.
    pub(crate) fn recognise<const N: usize>(&mut self, items: &[Glance<'_>; N]) -> [Recognised; N] {
        let mut recognised = [Recognised::No; N];
        let Some(known) = self.known.take() else {
            return recognised;
        };
        let mut prints = [Print::default(); N];
        for (print, item) in prints.iter_mut().zip(items) {
            if let Some((id, _)) = item {
                *print = known.print(id);
            }
        }
        for ((recognised, print), item) in recognised.iter_mut().zip(prints).zip(items) {
            if let Some((_, state)) = item
                && let Some(slot) = known.recognise(print, *state)
            {
                *recognised = if self.mark(slot) {
                    Recognised::Same
                } else {
                    Recognised::Again
                };
            }
        }
        self.known = Some(known);
        recognised
    }

    /// Notes that the item was seen. False: it was before.
    #[inline]
    pub(super) fn mark(&mut self, slot: u32) -> bool {
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.count += usize::from(new);
        new
    }

    pub(super) fn has(&self, slot: u32) -> bool {
        self.bits
            .get(slot as usize / 64)
            .is_some_and(|word| word & (1u64 << (slot % 64)) != 0)
    }

    /// How many items had been removed when the list began.
    pub(super) fn removals(&self) -> u64 {
        self.removals
    }

    /// How many items were seen.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}
