//! When a failed call is tried again, and what the log says meanwhile.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use crate::api::{Api, ApiError};

/// A back-off that doubles.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// From `first`, doubling up to `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            failures: 0,
        }
    }

    /// A call succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// A call failed: how long to wait. With up to 10 % of jitter, so that the nodes of a cluster do not return in step.
    pub fn next(&mut self) -> Duration {
        let delay = self.first.saturating_mul(1 << self.failures.min(16)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        delay.mul_f64(1.0 + fastrand::f64() / 10.0)
    }

    /// A call failed: waits, but no longer than until the API server can be reached again.
    pub async fn pause(&mut self, api: &Api, error: &ApiError) {
        let delay = self
            .next()
            .max(error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER));
        if error.code().is_some() {
            return sleep(delay).await;
        }
        tokio::select! {
            () = sleep(delay) => {}
            () = api.reach().recovered() => {}
        }
    }
}

/// The API server may ask us to wait, but not for longer than this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Logs a trouble once, and its end. That the API server cannot be reached, or does not accept our credentials, is logged by
/// [`crate::reach`], for all parts together.
#[derive(Debug, Default)]
pub struct TroubleLog {
    logged: Option<String>,
}

impl TroubleLog {
    /// The call failed. `next`: what to do about it, or what happens next.
    pub fn failed(&mut self, error: &ApiError, next: impl fmt::Display) {
        if error.code().is_some() && !error.is_unauthorized() {
            self.say(format!("{error}. {next}"));
        }
    }

    /// Something else is wrong.
    pub fn say(&mut self, what: String) {
        if self.logged.as_ref() != Some(&what) {
            warn!("{what}");
            self.logged = Some(what);
        }
    }

    /// All is well; `what` is logged if it was not.
    pub fn fine(&mut self, what: impl fmt::Display) {
        if self.logged.take().is_some() {
            info!("{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        for expected in [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000] {
            let delay = backoff.next().as_millis();
            assert!(
                (expected..=expected * 11 / 10).contains(&delay),
                "{delay} for {expected}"
            );
        }
        backoff.reset();
        assert!(backoff.next() < Duration::from_millis(111));
    }

    #[test]
    fn the_same_trouble_is_logged_once() {
        let mut log = TroubleLog::default();
        log.say("a".to_owned());
        assert_eq!(log.logged.as_deref(), Some("a"));
        log.fine("again");
        assert_eq!(log.logged, None);
    }
}
