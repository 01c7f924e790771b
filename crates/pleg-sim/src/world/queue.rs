//! The events that wait for one subscriber, and how long they waited.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pleg_cri::v1::ContainerEventResponse;
use prost::Message;
use tokio::sync::{Notify, watch};

use crate::clock::Clock;

/// The world's end of a subscriber's queue.
#[derive(Debug)]
pub(super) struct Queue(Arc<EventBuffer>);

/// A subscriber's end of the stream.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<EventBuffer>,
    /// Notified after each event that was taken: a call may wait for room.
    taken: watch::Sender<()>,
    clock: Clock,
}

/// Both ends of a queue.
#[derive(Debug, Default)]
struct EventBuffer {
    state: Mutex<Buffered>,
    /// Notified of each event that is added.
    came: Notify,
    /// The subscriber is gone.
    left: AtomicBool,
}

/// Events that the subscriber has not read.
#[derive(Debug, Default)]
struct Buffered {
    /// Each with the time at which it arrived.
    waiting: VecDeque<(i64, Bytes)>,
    /// The longest time that an event waited before it was read.
    longest: i64,
}

impl Queue {
    pub(super) fn new(clock: Clock, taken: watch::Sender<()>) -> (Self, Subscription) {
        let shared = Arc::new(EventBuffer::default());
        let subscription = Subscription {
            shared: Arc::clone(&shared),
            taken,
            clock,
        };
        (Self(shared), subscription)
    }

    pub(super) fn left(&self) -> bool {
        self.0.left.load(Ordering::Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        self.0.state.lock().waiting.len()
    }

    pub(super) fn push(&self, now: i64, event: Bytes) {
        self.0.state.lock().waiting.push_back((now, event));
        self.0.came.notify_one();
    }

    /// The longest wait so far, of what was taken and of what still waits.
    pub(super) fn longest_wait(&self, now: i64) -> i64 {
        let state = self.0.state.lock();
        let oldest = state.waiting.front().map_or(0, |(at, _)| now.saturating_sub(*at));
        state.longest.max(oldest)
    }
}

impl Subscription {
    /// The next event, if there is one.
    pub fn try_recv(&mut self) -> Option<ContainerEventResponse> {
        // The world encoded it, so it can be decoded.
        ContainerEventResponse::decode(self.try_take()?).ok()
    }

    /// The next event as it goes over the wire, if there is one.
    pub(crate) fn try_take(&mut self) -> Option<Bytes> {
        let event = {
            let mut state = self.shared.state.lock();
            let (at, event) = state.waiting.pop_front()?;
            state.longest = state.longest.max(self.clock.now().saturating_sub(at));
            event
        };
        self.taken.send_replace(());
        Some(event)
    }

    /// The next event as it goes over the wire, when it comes. Cancel-safe.
    pub(crate) async fn take(&mut self) -> Bytes {
        loop {
            if let Some(event) = self.try_take() {
                return event;
            }
            self.shared.came.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.left.store(true, Ordering::Relaxed);
        self.taken.send_replace(());
    }
}
