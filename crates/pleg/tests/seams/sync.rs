//! Locks, atomics and notifications as `src/sync.rs` has them, which let shuttle decide at every step who runs next.
//!
//! Outside of shuttle they are plain ones: the unit tests in the included files run here as well.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
pub(crate) use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

thread_local! {
    /// Shuttle runs all its threads on one.
    static SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `scenario` under shuttle, with these primitives.
pub(crate) fn scheduled(scenario: impl Fn() + Send + Sync + 'static, check: impl FnOnce(Box<dyn Fn() + Send + Sync>)) {
    SCHEDULED.set(true);
    check(Box::new(scenario));
    SCHEDULED.set(false);
}

fn is_scheduled() -> bool {
    SCHEDULED.get()
}

/// The turn is shuttle's, so that the other lock is always free.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    turn: shuttle::sync::Mutex<()>,
    value: parking_lot::Mutex<T>,
}

/// The value goes before the turn does.
pub(crate) struct Guard<'a, T> {
    value: parking_lot::MutexGuard<'a, T>,
    _turn: Option<shuttle::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            turn: shuttle::sync::Mutex::new(()),
            value: parking_lot::Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let turn = is_scheduled().then(|| self.turn.lock().unwrap());
        let value = self.value.try_lock().unwrap();
        Guard { value, _turn: turn }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// One at a time, readers too: they do nothing between which a reader could be told from a writer.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(Mutex<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    pub(crate) fn write(&self) -> Guard<'_, T> {
        self.0.lock()
    }
}

#[derive(Debug, Default)]
pub(crate) struct AtomicU64(Mutex<u64>);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn load(&self, _: Ordering) -> u64 {
        *self.0.lock()
    }

    pub(crate) fn fetch_add(&self, more: u64, _: Ordering) -> u64 {
        let mut value = self.0.lock();
        *value += more;
        *value - more
    }
}

/// The rules of tokio's: one permit is kept; who has enrolled is woken in order; all who have begun to wait are woken together; and
/// who was chosen and leaves hands it on.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<Enrolled>);

#[derive(Debug, Default)]
struct Enrolled {
    permit: bool,
    /// How often all were woken.
    calls: u64,
    next: u64,
    queue: VecDeque<(u64, Option<Waker>)>,
    chosen: BTreeSet<u64>,
}

#[derive(Debug)]
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    /// The calls that there were when this one began to wait.
    calls: u64,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Enrolled(u64),
    Done,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        let mut enrolled = self.0.lock();
        let first = enrolled.queue.pop_front();
        match &first {
            Some((id, _)) => drop(enrolled.chosen.insert(*id)),
            None => enrolled.permit = true,
        }
        let woken = first.and_then(|(_, waker)| waker);
        drop(enrolled);
        woken.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn notify_waiters(&self) {
        let mut enrolled = self.0.lock();
        enrolled.calls += 1;
        let woken = std::mem::take(&mut enrolled.queue);
        drop(enrolled);
        woken.into_iter().filter_map(|(_, waker)| waker).for_each(Waker::wake);
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            calls: self.0.lock().calls,
            place: Place::Outside,
        }
    }
}

impl Notified<'_> {
    /// Begins to wait. Returns whether that is over already.
    pub(crate) fn enable(mut self: Pin<&mut Self>) -> bool {
        self.step(None).is_ready()
    }

    fn step(&mut self, waker: Option<&Waker>) -> Poll<()> {
        let mut enrolled = self.notify.0.lock();
        let over = match self.place {
            Place::Done => true,
            Place::Enrolled(id) => enrolled.chosen.remove(&id) || enrolled.calls != self.calls,
            Place::Outside => enrolled.calls != self.calls || std::mem::take(&mut enrolled.permit),
        };
        if over {
            self.place = Place::Done;
            return Poll::Ready(());
        }
        if let Place::Enrolled(id) = self.place {
            if let Some((_, kept)) = enrolled.queue.iter_mut().find(|(other, _)| *other == id) {
                *kept = waker.cloned().or(kept.take());
            }
        } else {
            let id = enrolled.next;
            enrolled.next += 1;
            enrolled.queue.push_back((id, waker.cloned()));
            self.place = Place::Enrolled(id);
        }
        Poll::Pending
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.step(Some(context.waker()))
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        // A failed schedule is being torn down.
        if std::thread::panicking() {
            return;
        }
        if let Place::Enrolled(id) = self.place {
            let mut enrolled = self.notify.0.lock();
            enrolled.queue.retain(|(other, _)| *other != id);
            let chosen = enrolled.chosen.remove(&id) && enrolled.calls == self.calls;
            drop(enrolled);
            if chosen {
                self.notify.notify_one();
            }
        }
    }
}
