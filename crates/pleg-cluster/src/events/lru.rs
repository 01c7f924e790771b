//! A map with a bound: the entry that was not used for the longest time makes room.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The map.
#[derive(Debug)]
pub(super) struct Lru<K, V> {
    capacity: usize,
    entries: HashMap<K, (V, u64)>,
    /// By the time of the last use, which is a number that only grows.
    order: BTreeMap<u64, K>,
    clock: u64,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    /// For at most so many entries, and at least one.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            entries: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The entry of a key, which is created if need be. It is now the last one to go.
    pub(super) fn use_or_insert_with(&mut self, key: &K, value: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        let now = self.clock;
        if !self.entries.contains_key(key) && self.entries.len() >= self.capacity {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.entries.remove(&oldest);
            }
        }
        let (value, used) = self.entries.entry(key.clone()).or_insert_with(|| (value(), now));
        self.order.remove(used);
        *used = now;
        self.order.insert(now, key.clone());
        value
    }

    /// The entry of a key. That is no use of it.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.entries.len(), self.order.len());
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_the_longest_time_goes() {
        let mut lru = Lru::new(2);
        lru.use_or_insert_with(&"a", || 1);
        lru.use_or_insert_with(&"b", || 2);
        // It stays, since it is used.
        assert_eq!(*lru.use_or_insert_with(&"a", || 9), 1);
        lru.use_or_insert_with(&"c", || 3);
        assert_eq!(lru.get_mut(&"a").copied(), Some(1));
        assert_eq!(lru.get_mut(&"b"), None);
        assert_eq!(lru.len(), 2);
        for n in 0..1000 {
            lru.use_or_insert_with(&["x", "y", "z"][n % 3], || 0);
        }
        assert_eq!(lru.len(), 2);
    }
}
