//! How often the API server is asked: attempts are spaced, and those that fail are spaced wider. Never long: once the API server is back,
//! everything has to be known within 10 s.

use std::time::Duration;

use tokio::time::Instant;

/// Least time between the beginnings of two attempts: also of those that go well, such as watches that are cut.
const SPACING: Duration = Duration::from_secs(1);
/// The wait after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait that the API server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// An attempt that has lasted this long went well, however it ended.
const WENT_WELL: Duration = Duration::from_secs(5);

/// When the next attempt may begin.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    failures: u32,
    longest: Duration,
}

impl Pace {
    /// The longest wait after a failure, unless there is a reason for another.
    pub(crate) const LONGEST: Duration = Duration::from_secs(5);

    /// The first attempt may begin at once.
    pub(crate) fn new() -> Self {
        Self::up_to(Self::LONGEST)
    }

    /// The same, with another longest wait.
    pub(crate) fn up_to(longest: Duration) -> Self {
        Self {
            began: Instant::now(),
            failures: 0,
            longest,
        }
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// The attempt went well. Returns when the next one may begin.
    pub(crate) fn went_well(&mut self) -> Instant {
        self.failures = 0;
        self.began + SPACING
    }

    /// The attempt failed. Returns when the next one may begin.
    pub(crate) fn failed(&mut self, retry_after: Option<Duration>) -> Instant {
        if self.began.elapsed() >= WENT_WELL {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let wait = retry_after.map_or(Duration::ZERO, |wait| wait.min(MAX_RETRY_AFTER));
        (Instant::now() + wait.max(back_off(self.failures, self.longest))).max(self.began + SPACING)
    }
}

/// How long to wait after so many failures in a row: up to a quarter less, so that the nodes of a cluster do not come all at once.
pub(crate) fn back_off(failures: u32, longest: Duration) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(longest).mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_are_spaced_and_failures_wider() {
        let mut pace = Pace::new();
        pace.begin();
        assert_eq!(pace.went_well(), Instant::now() + SPACING);
        let mut waits = Vec::new();
        for _ in 0..6 {
            pace.begin();
            let next = pace.failed(None);
            waits.push(next - Instant::now());
            tokio::time::sleep_until(next).await;
        }
        assert!(waits.iter().all(|wait| *wait >= SPACING), "{waits:?}");
        assert!(
            waits[5] > Duration::from_secs(3) && waits[5] <= Pace::LONGEST,
            "{waits:?}"
        );
        pace.begin();
        let asked = pace.failed(Some(Duration::from_hours(1))) - Instant::now();
        assert_eq!(asked, MAX_RETRY_AFTER);
        // A watch that has lasted begins anew.
        pace.begin();
        tokio::time::advance(WENT_WELL).await;
        assert!(pace.failed(None) - Instant::now() <= FIRST_PAUSE);
    }
}
