//! The event stream: subscribers, the backlog for the next one, and the delivery of events.

use std::collections::VecDeque;

use bytes::Bytes;
use pleg_cri::v1::{self, ContainerEventType};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::World;
use super::encode::{field_of_event, put_number, put_text};
use super::queue::{Queue, Subscription};
use crate::clock::nanos;
use crate::config::SimConfig;
use crate::flavour::{Backlog, Flavour};

/// Subscribers at most.
const MOST_SUBSCRIBERS: usize = 64;
/// A queue is never longer than this.
const LONGEST_QUEUE: usize = 1 << 20;

/// Counters of the event stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStats {
    /// Subscribers now.
    pub subscribers: usize,
    /// Events handed to a subscriber's queue, once for each.
    pub sent: u64,
    /// Events that were dropped because a queue was full.
    pub dropped: u64,
    /// Events that wait to be read now, or for the next subscriber.
    pub waiting: usize,
    /// The longest time that an event waited for its subscriber, in milliseconds.
    pub longest_wait_ms: u64,
}

/// The subscribers, and the backlog for the next one.
#[derive(Debug)]
pub(crate) struct Events {
    flavour: Flavour,
    subscribers: Vec<Queue>,
    /// Events that a subscriber may be behind.
    room: usize,
    /// Each with the time at which it arrived.
    backlog: VecDeque<(i64, Bytes)>,
    keeps: Backlog,
    /// A subscriber without room blocks calls that create something, instead of losing events.
    blocks: bool,
    taken: watch::Sender<()>,
    /// Whose turn it is where each event goes to one subscriber only.
    turn: usize,
    sent: u64,
    dropped: u64,
    /// Of subscribers that left.
    longest_wait: i64,
}

impl Events {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let mut keeps = config.flavour.backlog();
        keeps.events = keeps.events.max(config.event_backlog).min(LONGEST_QUEUE);
        Self {
            flavour: config.flavour,
            subscribers: Vec::new(),
            room: config.event_queue.clamp(1, LONGEST_QUEUE),
            backlog: VecDeque::new(),
            keeps,
            blocks: false,
            taken: watch::Sender::new(()),
            turn: 0,
            sent: 0,
            dropped: 0,
            longest_wait: 0,
        }
    }

    /// Forgets subscribers that left.
    fn sweep(&mut self, now: i64) {
        let longest = &mut self.longest_wait;
        self.subscribers.retain(|queue| {
            let stays = !queue.left();
            if !stays {
                *longest = (*longest).max(queue.longest_wait(now));
            }
            stays
        });
    }

    /// There is no subscriber and no backlog: events need not be created.
    fn idle(&mut self, now: i64) -> bool {
        self.sweep(now);
        self.subscribers.is_empty() && self.keeps.events == 0
    }

    /// `event`: a [`v1::ContainerEventResponse`], encoded.
    fn send(&mut self, now: i64, event: Bytes) {
        if self.subscribers.is_empty() {
            self.forget_old(now);
            if self.backlog.len() >= self.keeps.events {
                self.dropped += 1;
            } else {
                self.backlog.push_back((now, event));
            }
            return;
        }
        let room = if self.blocks { LONGEST_QUEUE } else { self.room };
        if self.flavour.splits_events() {
            // The next subscriber with room; if there is none, the event is dropped.
            let (turn, count) = (self.turn, self.subscribers.len());
            let mut places = (turn..turn + count).map(|place| place % count);
            match places.find(|&place| self.subscribers[place].len() < room) {
                Some(place) => {
                    self.subscribers[place].push(now, event);
                    self.turn = place + 1;
                    self.sent += 1;
                }
                None => self.dropped += 1,
            }
            return;
        }
        for queue in &self.subscribers {
            if queue.len() < room {
                queue.push(now, event.clone());
                self.sent += 1;
            } else {
                self.dropped += 1;
            }
        }
    }

    fn forget_old(&mut self, now: i64) {
        let Some(age) = self.keeps.age else { return };
        let old = |at: i64| now.saturating_sub(at) > nanos(age);
        while self.backlog.front().is_some_and(|&(at, _)| old(at)) {
            self.backlog.pop_front();
            self.dropped += 1;
        }
    }

    fn stats(&self, now: i64) -> EventStats {
        let waits = self.subscribers.iter().map(|queue| queue.longest_wait(now));
        let longest = waits.fold(self.longest_wait, i64::max);
        EventStats {
            subscribers: self.subscribers.len(),
            sent: self.sent,
            dropped: self.dropped,
            waiting: self.backlog.len() + self.subscribers.iter().map(Queue::len).sum::<usize>(),
            longest_wait_ms: u64::try_from(longest / 1_000_000).unwrap_or(0),
        }
    }
}

impl World {
    /// Subscribes to all events from now on; the first subscriber after a time without any also gets the backlog.
    /// `None` if there are too many.
    pub fn subscribe(&mut self) -> Option<Subscription> {
        let now = self.clock.now();
        self.events.sweep(now);
        if self.events.subscribers.len() >= MOST_SUBSCRIBERS {
            return None;
        }
        self.events.forget_old(now);
        let (queue, subscription) = Queue::new(self.clock.clone(), self.events.taken.clone());
        // Time without a subscriber does not count as waiting.
        for (_, event) in std::mem::take(&mut self.events.backlog) {
            queue.push(now, event);
            self.events.sent += 1;
        }
        self.events.subscribers.push(queue);
        Some(subscription)
    }

    /// Counters of the event stream.
    pub fn event_stats(&mut self) -> EventStats {
        let now = self.clock.now();
        self.events.sweep(now);
        self.events.stats(now)
    }

    /// From now on a subscriber that does not read blocks `RunPodSandbox`, `CreateContainer` and `StartContainer` once its
    /// queue is full, as on containerd 2.1; otherwise the newest events are dropped.
    pub fn block_on_subscribers(&mut self, blocks: bool) {
        self.events.blocks = blocks;
        self.events.taken.send_replace(());
    }

    /// A subscriber has no room, and calls that create something have to wait for it.
    pub(crate) fn blocked(&mut self) -> bool {
        if !self.events.blocks {
            return false;
        }
        let now = self.clock.now();
        self.events.sweep(now);
        let room = self.events.room;
        self.events.subscribers.iter().any(|queue| queue.len() >= room)
    }

    /// Changes when [`World::blocked`] may have.
    pub(crate) fn subscribers_read(&self) -> watch::Receiver<()> {
        self.events.taken.subscribe()
    }

    /// Sends an event about a sandbox or container to the subscribers. `id` is the one it is about, `sandbox` the sandbox of its pod.
    pub(super) fn emit(&mut self, kind: ContainerEventType, id: &str, sandbox: &str) {
        if self.events.idle(self.clock.now()) {
            return;
        }
        let created_at = self.stamp();
        let status = self.sandboxes.get(sandbox).map(|sandbox| sandbox.told().into());
        self.emit_with(kind, id, sandbox, created_at, status);
    }

    /// Sends the event that a sandbox is gone, with its last status.
    pub(super) fn emit_deleted(&mut self, id: &str, status: Option<&v1::PodSandboxStatus>) {
        let created_at = self.stamp();
        let status = status.filter(|_| self.events.flavour.tells_deleted_status());
        let status = status.map(|status| field_of_event(4, status));
        self.emit_with(ContainerEventType::ContainerDeletedEvent, id, id, created_at, status);
    }

    fn emit_with(
        &mut self,
        kind: ContainerEventType,
        id: &str,
        sandbox: &str,
        created_at: i64,
        status: Option<Box<[u8]>>,
    ) {
        let now = self.clock.now();
        if self.events.idle(now) {
            return;
        }
        let mut event = Vec::with_capacity(2048);
        put_text(&mut event, 1, id);
        put_number(&mut event, 2, i32::from(kind).into());
        put_number(&mut event, 3, created_at);
        event.extend_from_slice(&status.unwrap_or_default());
        for container in self.containers_of(sandbox) {
            if let Some(container) = self.containers.get(&container) {
                event.extend_from_slice(container.told());
            }
        }
        self.events.send(now, event.into());
    }
}
