//! What waits to be sent: bounded, and never waited for by those who observe.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue with a bound.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    // Held for a push or a removal; never across an await.
    items: Mutex<VecDeque<T>>,
    most: usize,
    /// Something was added.
    added: Notify,
    /// There is room again.
    room: Notify,
}

impl<T> Queue<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            items: Mutex::new(VecDeque::new()),
            most,
            added: Notify::new(),
            room: Notify::new(),
        }
    }

    /// Adds an item; false if there is no room.
    pub(crate) fn push(&self, item: T) -> bool {
        let mut items = self.items.lock();
        if items.len() >= self.most {
            return false;
        }
        items.push_back(item);
        drop(items);
        self.added.notify_one();
        true
    }

    /// Waits for room. For one caller.
    pub(crate) async fn has_room(&self) {
        while self.items.lock().len() >= self.most {
            self.room.notified().await;
        }
    }

    /// Waits until there are so many. For one caller.
    pub(crate) async fn has(&self, count: usize) {
        while self.items.lock().len() < count.min(self.most) {
            self.added.notified().await;
        }
    }

    /// Takes the oldest, up to so many.
    pub(crate) fn take(&self, most: usize) -> Vec<T> {
        let mut items = self.items.lock();
        let count = items.len().min(most);
        let taken = items.drain(..count).collect();
        if items.is_empty() {
            // The room of a storm is given back.
            items.shrink_to(64);
        }
        drop(items);
        self.room.notify_one();
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_bounded_and_wakes_those_who_wait() {
        let queue = Arc::new(Queue::new(3));
        assert!((0..3).all(|n| queue.push(n)) && !queue.push(3));
        // More than fit are never there: what is full is enough.
        queue.has(100).await;
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.has_room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        assert_eq!(queue.take(2), [0, 1]);
        waiting.await.unwrap();
        assert_eq!(queue.take(9), [2]);
        assert_eq!(queue.take(9), Vec::<i32>::new());
    }
}
