//! The queue of what `pleg node` did, for the thread that writes the history.
//!
//! Whoever records never waits: a full queue drops the newest, and what repeats itself, such as a probe that fails every second, is queued
//! once a minute.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::entry::NodeEvent;

/// Events that wait to be written.
const MOST: usize = 1024;
/// The same event is not queued again before this.
const QUIET: Duration = Duration::from_mins(1);
/// Events that are remembered, to know the same ones.
const REMEMBERED: usize = 1024;

/// Takes events of a node. Clones share one queue.
#[derive(Debug, Clone, Default)]
pub struct NodeEvents(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<(Timestamp, NodeEvent)>,
    /// When events like these were last queued.
    last: HashMap<Key, Instant>,
}

/// Pod, container and reason, and the message, which names the probe.
type Key = (Option<String>, Option<String>, String, String);

impl NodeEvents {
    /// Queues an event, unless the same one was queued a moment ago. Never blocks.
    pub fn record(&self, event: NodeEvent) {
        let now = Instant::now();
        let mut queue = self.0.queue.lock();
        let pod = event.pod.as_ref().map(ToString::to_string);
        let key = (
            pod,
            event.container.clone(),
            event.reason.clone(),
            event.message.clone(),
        );
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < QUIET;
        if queue.last.get(&key).is_some_and(is_fresh) || queue.events.len() >= MOST {
            return;
        }
        if queue.last.len() >= REMEMBERED {
            queue.last.retain(|_, at| is_fresh(at));
        }
        if queue.last.len() < REMEMBERED {
            queue.last.insert(key, now);
        }
        queue.events.push_back((Timestamp::now(), event));
        drop(queue);
        self.0.filled.notify_one();
    }

    /// The next event, if there is one.
    pub(crate) fn take(&self) -> Option<(Timestamp, NodeEvent)> {
        self.0.queue.lock().events.pop_front()
    }

    /// Waits until something was queued. Cancel-safe.
    pub(crate) async fn filled(&self) {
        self.0.filled.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(reason: &str) -> NodeEvent {
        NodeEvent {
            pod: None,
            container: None,
            warning: true,
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_queued_once_a_minute() {
        let events = NodeEvents::default();
        for reason in ["Unhealthy", "Unhealthy", "Killing"] {
            events.record(event(reason));
        }
        events.filled().await;
        let mut taken = Vec::new();
        while let Some((_, event)) = events.take() {
            taken.push(event.reason);
        }
        assert_eq!(taken, ["Unhealthy", "Killing"]);
        tokio::time::advance(QUIET).await;
        events.record(event("Unhealthy"));
        assert!(events.take().is_some() && events.take().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_and_forgets() {
        let events = NodeEvents::default();
        for n in 0..5000 {
            events.record(event(&n.to_string()));
        }
        let queue = events.0.queue.lock();
        assert_eq!((queue.events.len(), queue.last.len()), (MOST, REMEMBERED));
    }
}
