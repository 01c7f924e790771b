//! The one clock of the simulator: nanoseconds since 1970, from a source that tests can stop.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Where timestamps and due times come from.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    /// The wall clock when the clock was made, and tokio's time since: with tokio's paused time it stands still too, and it
    /// never jumps back.
    Running { wall: i64, since: Instant },
    /// Advances only on request, until it is set running.
    Manual(Arc<Manual>),
    /// Advances by a millisecond each time it is read: whatever is done takes time.
    #[cfg(test)]
    Slow(Arc<AtomicI64>),
}

#[derive(Debug)]
struct Manual {
    /// Where it stands, or stood when it was set running.
    at: AtomicI64,
    /// Since when it runs.
    running: OnceLock<Instant>,
}

impl Manual {
    fn now(&self) -> i64 {
        let since = self.running.get().map_or(0, |since| nanos(since.elapsed()));
        self.at.load(Ordering::Relaxed).saturating_add(since)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, nanos);
        Self(Source::Running {
            wall,
            since: Instant::now(),
        })
    }

    /// A clock that stands at `start` (nanoseconds since 1970) until [`Clock::advance`]. A simulator on such a clock does
    /// nothing by itself: call [`crate::World::tick`] after each advance.
    pub fn manual(start: i64) -> Self {
        Self(Source::Manual(Arc::new(Manual {
            at: AtomicI64::new(start),
            running: OnceLock::new(),
        })))
    }

    /// A clock that advances by a millisecond each time it is read.
    #[cfg(test)]
    pub(crate) fn slow(start: i64) -> Self {
        Self(Source::Slow(Arc::new(AtomicI64::new(start))))
    }

    /// Nanoseconds since 1970.
    pub fn now(&self) -> i64 {
        match &self.0 {
            Source::Running { wall, since } => wall.saturating_add(nanos(since.elapsed())),
            Source::Manual(manual) => manual.now(),
            #[cfg(test)]
            Source::Slow(now) => now.fetch_add(1_000_000, Ordering::Relaxed),
        }
    }

    /// Moves a manual clock; a running one moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(manual) = &self.0 {
            manual.at.fetch_add(nanos(by), Ordering::Relaxed);
        }
    }

    /// Lets a manual clock run from where it stands: a simulator whose past was made on it lives on. What is due has to be rescheduled,
    /// as by [`crate::World::set_churn`]. A clock that runs already is not changed.
    pub fn run(&self) {
        if let Source::Manual(manual) = &self.0 {
            manual.running.get_or_init(Instant::now);
        }
    }

    /// When a running clock will show `at`; never, for one that stands.
    pub(crate) fn instant(&self, at: i64) -> Option<Instant> {
        let after = |wall: i64, since: &Instant| {
            let offset = u64::try_from(at.saturating_sub(wall)).unwrap_or(0);
            since.checked_add(Duration::from_nanos(offset))
        };
        match &self.0 {
            Source::Running { wall, since } => after(*wall, since),
            Source::Manual(manual) => after(manual.at.load(Ordering::Relaxed), manual.running.get()?),
            #[cfg(test)]
            Source::Slow(_) => None,
        }
    }
}

/// A duration as the world counts; more than 292 years is all the same.
pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_on_request() {
        let clock = Clock::manual(1_000);
        let same = clock.clone();
        clock.advance(Duration::from_nanos(5));
        assert_eq!(same.now(), 1_005);
        assert_eq!(clock.instant(2_000), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_manual_clock_can_be_set_running() {
        let clock = Clock::manual(1_000);
        clock.advance(Duration::from_nanos(5));
        clock.run();
        tokio::time::advance(Duration::from_nanos(100)).await;
        clock.run();
        assert_eq!(clock.now(), 1_105);
        assert_eq!(clock.instant(1_105), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_clock_follows_tokio() {
        let clock = Clock::system();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now() - before, 3_000_000_000);
        assert_eq!(clock.instant(clock.now()), Some(Instant::now()));
    }
}
