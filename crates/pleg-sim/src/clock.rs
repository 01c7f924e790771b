//! The one clock of the simulator: nanoseconds since 1970, from a source that tests can stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
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
    /// Advances only on request.
    Manual(Arc<AtomicI64>),
    /// Advances by a millisecond each time it is read: whatever is done takes time.
    #[cfg(test)]
    Slow(Arc<AtomicI64>),
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
        Self(Source::Manual(Arc::new(AtomicI64::new(start))))
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
            Source::Manual(now) => now.load(Ordering::Relaxed),
            #[cfg(test)]
            Source::Slow(now) => now.fetch_add(1_000_000, Ordering::Relaxed),
        }
    }

    /// Moves a manual clock; a running one moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            now.fetch_add(nanos(by), Ordering::Relaxed);
        }
    }

    /// When a running clock will show `at`; never, for a manual one.
    pub(crate) fn instant(&self, at: i64) -> Option<Instant> {
        match &self.0 {
            Source::Running { wall, since } => {
                let offset = u64::try_from(at.saturating_sub(*wall)).unwrap_or(0);
                since.checked_add(Duration::from_nanos(offset))
            }
            Source::Manual(_) => None,
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
    async fn a_running_clock_follows_tokio() {
        let clock = Clock::system();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now() - before, 3_000_000_000);
        assert_eq!(clock.instant(clock.now()), Some(Instant::now()));
    }
}
