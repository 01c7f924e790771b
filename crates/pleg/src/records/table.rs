//! Containers or sandboxes: what is listed, what was committed, and what never changes about each.

use std::sync::Arc;

use hashbrown::HashSet;

use super::PodKey;
use super::known::{Known, Seen};
use crate::records::snapshot::Oddities;

/// A state that lists show.
pub(super) trait State: Copy + Ord {
    /// The state as it is on the wire.
    fn to_wire(self) -> u8;

    /// How far on its way an object in this state is: of two answers the one that is further is the newer one.
    fn stage(self) -> u8 {
        self.to_wire()
    }
}

/// One container or sandbox.
#[derive(Debug)]
pub(super) struct Item<S> {
    /// Carries the label with its pod's UID, so a list filtered by that label shows it.
    pub(super) labelled: bool,
    /// The runtime said `NOT_FOUND` when asked by id. Holds until its listed state changes.
    pub(super) not_found: bool,
    /// What the newest relist that covers it said; `None`: it is not there.
    pub(super) listed: Option<S>,
    /// What was last committed; `None`: never, or its removal was.
    pub(super) committed: Option<S>,
    /// The listed state that the flight recorder has.
    pub(super) recorded: Option<S>,
    /// `not_found` was true at the last entry of the recorder, or since.
    pub(super) recorded_denied: bool,
    pub(super) pod: PodKey,
    /// The sandbox that a container is in; of a sandbox, nothing.
    pub(super) sandbox: Option<Arc<str>>,
    pub(super) id: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) attempt: u32,
    pub(super) created_at: i64,
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

/// A state that a list showed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<S> {
    pub(super) state: S,
    /// Nothing about the item was odd. What is odd is counted with every relist, so it is not for recognising at a glance.
    pub(super) clean: bool,
}

/// Items by id.
#[derive(Debug)]
pub(super) struct Table<S> {
    /// Shared with the lists that are being read. It changes when a relist is taken in, and none is being read then; and when
    /// something is dropped, or noted by id while a list hangs. Only in those cases it is copied.
    known: Arc<Known>,
    slots: Vec<Option<Item<S>>>,
    free: Vec<u32>,
    /// How many items have a listed state.
    pub(super) listed: usize,
    /// How many of those the runtime denied when asked by id.
    pub(super) denied: usize,
    /// Slots whose state a call by id reported since the last relist began: its lists may be older.
    noted: HashSet<u32>,
    /// How many items were removed so far: while a list is read, a slot that it has seen may become another item's.
    removals: u64,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            slots: Vec::new(),
            free: Vec::new(),
            listed: 0,
            denied: 0,
            noted: HashSet::new(),
            removals: 0,
        }
    }
}

impl<S: State> Table<S> {
    /// Lets a list recognise what is unchanged.
    pub(super) fn prepare(&self, seen: &mut Seen) {
        seen.begin(Arc::clone(&self.known), self.removals);
    }

    /// The item of that id.
    pub(super) fn find(&self, id: &[u8]) -> Option<u32> {
        let is = |slot| self.get(slot).is_some_and(|item| item.id.as_bytes() == id);
        self.known.find(id, is)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Item<S>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Item<S>> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Adds an item that was not there before, listed as `clean` or not.
    pub(super) fn insert(&mut self, item: Item<S>, clean: bool, seen: &mut Seen) -> u32 {
        self.listed += usize::from(item.listed.is_some());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Half a billion containers do not fit into any list we accept.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let (id, listed) = (Arc::clone(&item.id), item.listed);
        self.slots[slot as usize] = Some(item);
        let known = Arc::make_mut(&mut self.known);
        known.insert(slot, id.as_bytes());
        known.set(slot, id.as_bytes(), listed.filter(|_| clean).map(State::to_wire));
        seen.mark(slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(item) = self.slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        self.listed -= usize::from(item.listed.is_some());
        self.denied -= usize::from(item.not_found);
        self.noted.remove(&slot);
        self.removals += 1;
        let known = Arc::make_mut(&mut self.known);
        known.remove(slot, item.id.as_bytes());
        self.free.push(slot);
        // Give the room of a storm back.
        if known.is_empty() {
            *self = Self {
                removals: self.removals,
                ..Self::default()
            };
        }
    }

    /// Notes that a list showed the item. Returns its pod if that is news.
    pub(super) fn see(&mut self, slot: u32, shown: Shown<S>, seen: &mut Seen, odd: &mut Oddities) -> Option<PodKey> {
        let item = self.slots.get_mut(slot as usize)?.as_mut()?;
        if !seen.mark(slot) {
            // The same id twice. Lists come in any order, so the choice must not depend on it.
            odd.duplicate_id += 1;
            if item.listed.is_some_and(|listed| listed >= shown.state) {
                return None;
            }
        }
        // States only ever move on.
        if !self.noted.is_empty()
            && self.noted.contains(&slot)
            && item.listed.is_some_and(|it| it.stage() >= shown.state.stage())
        {
            return None;
        }
        let known = Some(shown.state.to_wire()).filter(|_| shown.clean);
        Arc::make_mut(&mut self.known).set(slot, item.id.as_bytes(), known);
        if item.listed == Some(shown.state) {
            return None;
        }
        self.listed += usize::from(item.listed.is_none());
        item.listed = Some(shown.state);
        self.denied -= usize::from(std::mem::take(&mut item.not_found));
        Some(item.pod)
    }

    /// Notes that the item is not there any more. Returns its pod if that is news.
    pub(super) fn vanish(&mut self, slot: u32) -> Option<PodKey> {
        let item = self.slots.get_mut(slot as usize)?.as_mut()?;
        item.listed.take()?;
        self.denied -= usize::from(std::mem::take(&mut item.not_found));
        self.listed -= 1;
        Arc::make_mut(&mut self.known).set(slot, item.id.as_bytes(), None);
        Some(item.pod)
    }

    /// Notes what the runtime said when asked by id, of an item that is listed, if that is ahead of what is known: states only move
    /// on, and answers may arrive late and in any order. Returns its pod if that is news.
    pub(super) fn note(&mut self, slot: u32, state: S) -> Option<PodKey> {
        if !self.is_behind(slot, state) {
            return None;
        }
        let item = self.slots.get_mut(slot as usize)?.as_mut()?;
        item.listed = Some(state);
        self.denied -= usize::from(std::mem::take(&mut item.not_found));
        Arc::make_mut(&mut self.known).set(slot, item.id.as_bytes(), None);
        self.noted.insert(slot);
        Some(item.pod)
    }

    /// What is listed is behind this state.
    pub(super) fn is_behind(&self, slot: u32, state: S) -> bool {
        let behind = |item: &Item<S>| item.listed.is_some_and(|listed| state.stage() > listed.stage());
        self.get(slot).is_some_and(behind)
    }

    /// A relist begins: it is newer than what was noted. Not when one is taken in: it may consist of several lists.
    pub(super) fn forget_notes(&mut self) {
        if !self.noted.is_empty() {
            self.noted = HashSet::new();
        }
    }

    /// Notes that the runtime knows nothing of an item that it lists.
    pub(super) fn deny(&mut self, slot: u32) {
        if let Some(item) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
            && item.listed.is_some()
        {
            self.denied += usize::from(!std::mem::replace(&mut item.not_found, true));
            item.recorded_denied = true;
        }
    }

    /// The places of everything listed that a complete list has not shown.
    pub(super) fn unseen(&self, seen: &Seen) -> Vec<u32> {
        // What was seen is listed: as many of the one as of the other is all of them.
        if seen.count() == self.listed && seen.removals() == self.removals {
            return Vec::new();
        }
        (0u32..)
            .zip(&self.slots)
            .filter(|(slot, item)| item.as_ref().is_some_and(|item| item.listed.is_some()) && !seen.has(*slot))
            .map(|(slot, _)| slot)
            .collect()
    }

    /// Everything that is listed.
    pub(super) fn items(&self) -> impl Iterator<Item = &Item<S>> {
        self.slots.iter().flatten().filter(|item| item.listed.is_some())
    }
}
