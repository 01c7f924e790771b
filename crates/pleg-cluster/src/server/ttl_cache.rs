//! A bounded cache of answers that expire. Keys come from clients, so there is a limit; beyond it, the answer that expires first is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct TtlCache<K, V> {
    // Held for one lookup or change, never across an await.
    entries: Mutex<HashMap<K, (Instant, V)>>,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> TtlCache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Mutex::default(),
            capacity,
        }
    }

    /// The answer, if it has not expired.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let (expires, value) = entries.get(key)?;
        (Instant::now() < *expires).then(|| value.clone())
    }

    pub(super) fn insert(&self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if entries.len() >= self.capacity && !entries.contains_key(&key) {
            entries.retain(|_, (expires, _)| now < *expires);
            let first = entries.iter().min_by_key(|(_, (expires, _))| *expires);
            if let Some(first) = first
                .map(|(key, _)| key.clone())
                .filter(|_| entries.len() >= self.capacity)
            {
                entries.remove(&first);
            }
        }
        entries.insert(key, (now + ttl, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_expire_and_are_bounded() {
        let cache = TtlCache::new(2);
        cache.insert("a", 1, Duration::from_secs(10));
        cache.insert("b", 2, Duration::from_secs(5));
        assert_eq!(
            (cache.get(&"a"), cache.get(&"b"), cache.get(&"c")),
            (Some(1), Some(2), None)
        );
        // No room: the one that expires first is dropped.
        cache.insert("c", 3, Duration::from_secs(20));
        assert_eq!(
            (cache.get(&"a"), cache.get(&"b"), cache.get(&"c")),
            (Some(1), None, Some(3))
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((cache.get(&"a"), cache.get(&"c")), (None, Some(3)));
        cache.insert("d", 4, Duration::from_secs(1));
        assert_eq!(
            (cache.get(&"c"), cache.get(&"d"), cache.entries.lock().len()),
            (Some(3), Some(4), 2)
        );
    }
}
