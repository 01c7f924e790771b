//! The event stream: every subscriber gets every event, as on containerd 2.

use std::collections::VecDeque;

use pleg_cri::v1::{self, ContainerEventType};
use tokio::sync::mpsc;

use super::World;

/// Subscribers at most.
const MOST_SUBSCRIBERS: usize = 64;
/// A queue is never longer than this.
const LONGEST_QUEUE: usize = 1 << 20;

/// Who listens, and what waits for the next listener.
#[derive(Debug)]
pub(crate) struct Events {
    subscribers: Vec<mpsc::Sender<v1::ContainerEventResponse>>,
    queue: usize,
    backlog: VecDeque<v1::ContainerEventResponse>,
    backlog_limit: usize,
    sent: u64,
    dropped: u64,
}

/// A subscriber's end of the stream.
pub type Subscription = mpsc::Receiver<v1::ContainerEventResponse>;

impl Events {
    pub(crate) fn new(queue: usize, backlog_limit: usize) -> Self {
        Self {
            subscribers: Vec::new(),
            queue: queue.clamp(1, LONGEST_QUEUE),
            backlog: VecDeque::new(),
            backlog_limit: backlog_limit.min(LONGEST_QUEUE),
            sent: 0,
            dropped: 0,
        }
    }

    /// Nobody listens and nothing is kept: no need to make events.
    fn idle(&mut self) -> bool {
        self.subscribers.retain(|subscriber| !subscriber.is_closed());
        self.subscribers.is_empty() && self.backlog_limit == 0
    }

    fn send(&mut self, event: &v1::ContainerEventResponse) {
        if self.subscribers.is_empty() {
            if self.backlog.len() >= self.backlog_limit {
                self.dropped += 1;
            } else {
                self.backlog.push_back(event.clone());
            }
            return;
        }
        for subscriber in &self.subscribers {
            match subscriber.try_send(event.clone()) {
                Ok(()) => self.sent += 1,
                Err(_) => self.dropped += 1,
            }
        }
    }
}

impl World {
    /// Subscribes to all events from now on; the first subscriber after a time without any also gets the backlog.
    /// `None` if there are too many.
    pub fn subscribe(&mut self) -> Option<Subscription> {
        self.events.idle();
        if self.events.subscribers.len() >= MOST_SUBSCRIBERS {
            return None;
        }
        let backlog = std::mem::take(&mut self.events.backlog);
        let (sender, receiver) = mpsc::channel(self.events.queue.max(backlog.len()));
        for event in backlog {
            match sender.try_send(event) {
                Ok(()) => self.events.sent += 1,
                Err(_) => self.events.dropped += 1,
            }
        }
        self.events.subscribers.push(sender);
        Some(receiver)
    }

    /// Events sent (once for each subscriber) and dropped.
    pub fn event_counts(&self) -> (u64, u64) {
        (self.events.sent, self.events.dropped)
    }

    /// Tells the subscribers about a sandbox or container. `id` is the one it is about, `sandbox` the sandbox of its pod.
    pub(super) fn emit(&mut self, kind: ContainerEventType, id: &str, sandbox: &str) {
        if self.events.idle() {
            return;
        }
        let created_at = self.stamp();
        let status = self.sandboxes.get(sandbox).map(super::Sandbox::status);
        self.emit_with(kind, id, sandbox, created_at, status);
    }

    pub(super) fn emit_with(
        &mut self,
        kind: ContainerEventType,
        id: &str,
        sandbox: &str,
        created_at: i64,
        status: Option<v1::PodSandboxStatus>,
    ) {
        if self.events.idle() {
            return;
        }
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at,
            pod_sandbox_status: status,
            containers_statuses: self.statuses_of(sandbox),
        };
        self.events.send(&event);
    }
}
