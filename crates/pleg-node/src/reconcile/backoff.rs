//! When a restart may happen: the delays between attempts. Pure: callers pass in the time.
//!
//! | what failed | delay | kept in |
//! |---|---|---|
//! | a container exited | none, then 10 s doubling to 5 min: [`BackOff`] | [`ContainerHistory::back_off`](super::history::ContainerHistory::back_off) |
//! | an image could not be pulled | 10 s doubling to 5 min: [`StartFailure`] | `ContainerHistory::failure` |
//! | anything else failed at a start | 1 s doubling to 1 min: [`StartFailure`] | `ContainerHistory::failure`, `PodHistory::sandbox_failure` |
//!
//! Whether a container is restarted at all is decided in `restart.rs`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::history::shorten;

/// The delay before the second restart of a container. The first restart happens at once.
pub const INITIAL_BACK_OFF: Duration = Duration::from_secs(10);
/// The longest delay between two starts of a container.
pub const MAX_BACK_OFF: Duration = Duration::from_mins(5);
/// The reason of an image pull that failed.
pub(crate) const PULL_FAILED: &str = "ErrImagePull";
/// How long a failed image pull is shown as `ErrImagePull`, before it is shown as `ImagePullBackOff`.
const PULL_ERROR_SHOWN: Duration = Duration::from_secs(5);
/// A container that ran for this long since its last start begins again without a delay.
pub const BACK_OFF_RESET: Duration = Duration::from_mins(10);

/// The crash loop back-off of a container: 10 s, 20 s, … 5 min.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackOff {
    /// Delay of the next start, counted from the exit before it.
    pub delay: Duration,
    /// Time of the last start.
    pub since: Timestamp,
}

impl BackOff {
    /// Until when a container waits that exited at `exited`; none if it may start now. Without a back-off (`this` is none) it may.
    pub fn until(this: Option<&Self>, exited: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let this = this.filter(|this| !this.is_over(exited))?;
        let until = later(exited, this.delay);
        // An exit in the future: the clock was set back while we were not running, and no container waits for it to catch up.
        (until > now && exited <= now).then_some(until)
    }

    /// The back-off of a container that is started now and exited at `exited`.
    pub fn next(this: Option<&Self>, exited: Timestamp, now: Timestamp) -> Self {
        let delay = match this.filter(|this| !this.is_over(exited)) {
            Some(this) => this.delay.saturating_mul(2).min(MAX_BACK_OFF),
            None => INITIAL_BACK_OFF,
        };
        Self { delay, since: now }
    }

    /// The container ran long enough to forget earlier crashes.
    fn is_over(&self, exited: Timestamp) -> bool {
        exited.duration_since(self.since) > SignedDuration::try_from(BACK_OFF_RESET).unwrap_or(SignedDuration::MAX)
    }
}

/// A start of a container or sandbox that failed, and is retried with growing delays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// The kubelet's word for it: `ErrImagePull`, `CreateContainerError`, …
    pub reason: String,
    /// What went wrong, in a sentence.
    pub message: String,
    /// How often in a row.
    pub count: u32,
    /// Time of the last failure.
    pub at: Timestamp,
}

impl StartFailure {
    /// Counts one more failure. A failure for another reason starts at one again.
    pub fn after(before: Option<&Self>, reason: &str, message: &str, now: Timestamp) -> Self {
        let row = before.filter(|before| before.reason == reason);
        Self {
            reason: reason.to_owned(),
            message: shorten(message).to_owned(),
            count: row.map_or(1, |before| before.count.saturating_add(1)),
            at: now,
        }
    }

    /// Until when the failure of an image pull is shown as such. Later it is shown as back-off.
    pub(crate) fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        let until = later(self.at, PULL_ERROR_SHOWN);
        (self.reason == PULL_FAILED && until > now && self.at <= now).then_some(until)
    }

    /// When the start is retried. Image pulls wait as long as the kubelet's; other failures are retried sooner, because the runtime may
    /// accept a moment later what it refused.
    pub fn until(&self, now: Timestamp) -> Timestamp {
        if self.at > now {
            // The clock was set back while we were not running.
            return now;
        }
        let (initial, max) = match self.reason.as_str() {
            PULL_FAILED | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" => {
                (INITIAL_BACK_OFF, MAX_BACK_OFF)
            }
            _ => (Duration::from_secs(1), Duration::from_mins(1)),
        };
        later(self.at, doubling(initial, max, self.count.saturating_sub(1)))
    }
}

/// `initial`, doubled that many times, but at most `max`.
pub(crate) fn doubling(initial: Duration, max: Duration, times: u32) -> Duration {
    initial.saturating_mul(1 << times.min(16)).min(max)
}

/// `at` plus `by`; the end of time if that overflows.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::history::ContainerHistory;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    /// A container that exits right after each start: the delays before its restarts.
    #[test]
    fn a_crash_loop_waits_longer_and_longer() {
        let (mut back_off, mut now, mut waits) = (None, at(0), Vec::new());
        for _ in 0..8 {
            let exited = now;
            let start = BackOff::until(back_off.as_ref(), exited, now).unwrap_or(now);
            waits.push(start.duration_since(exited).as_secs());
            back_off = Some(BackOff::next(back_off.as_ref(), exited, start));
            now = start;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        // More than ten minutes of running reset the back-off; ten minutes do not.
        let back_off = back_off.unwrap();
        let (short, long) = (
            later(back_off.since, BACK_OFF_RESET),
            later(back_off.since, BACK_OFF_RESET + Duration::from_secs(1)),
        );
        assert_eq!(
            BackOff::until(Some(&back_off), short, short),
            Some(later(short, MAX_BACK_OFF))
        );
        assert_eq!(BackOff::until(Some(&back_off), long, long), None);
        assert_eq!(BackOff::next(Some(&back_off), long, long).delay, INITIAL_BACK_OFF);
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_restart() {
        let back_off = BackOff {
            delay: INITIAL_BACK_OFF,
            since: at(0),
        };
        // The clock was set back by an hour while we were not running.
        assert_eq!(BackOff::until(Some(&back_off), at(300), at(-3300)), None);
        let mut history = ContainerHistory::default();
        history.record_failure("ErrImagePull", "no", at(300));
        let until = history.failure.as_ref().unwrap().until(at(-3300));
        assert_eq!(until, at(-3300));
    }

    /// A machine without a battery boots in 1970. Once it learns the time, the runtime's timestamps and ours are decades apart.
    #[test]
    fn two_clocks_make_no_hot_loop_and_no_endless_wait() {
        use crate::testing::Case;
        for runtime_ahead in [-3600, 0, 3600] {
            let mut case = Case::new("containers: [{name: app, image: i}]").sandbox(true, 0);
            let mut starts = Vec::new();
            for _ in 0..4 {
                // It exits one second after its start, and that is observed at once.
                case.now += 1;
                case = case.clone().exited("app", case.now + runtime_ahead, 3).observed();
                while case.decide().actions.iter().all(|action| action.container().is_none()) {
                    case.now += 1;
                    assert!(case.now < 5000, "it waits for ever");
                }
                starts.push(case.now);
                let now = crate::testing::at(case.now);
                case.history.containers.get_mut("app").unwrap().record_start(now);
            }
            let waits: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(waits, [11, 21, 41], "{runtime_ahead}");
        }
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let mut history = ContainerHistory::default();
        let mut waits = |reason: &str| {
            let mut waits = Vec::new();
            for _ in 0..8 {
                history.record_failure(reason, "no", at(0));
                let failure = history.failure.as_ref().unwrap();
                waits.push(failure.until(at(0)).duration_since(at(0)).as_secs());
            }
            waits
        };
        assert_eq!(waits("ErrImagePull"), [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(waits("CreateContainerError"), [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
