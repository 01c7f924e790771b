//! The wall clock of this crate: the wall clock's time at the start plus tokio's time since. So it is paused where tests pause tokio's time,
//! and never jumps while a pod waits.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::reconcile::backoff::later;

/// The clock. Clones show the same time.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    wall: Timestamp,
    since: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        let wall = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            wall,
            since: Instant::now(),
        }
    }
}

impl Clock {
    /// The time.
    pub(crate) fn now(&self) -> Timestamp {
        later(self.wall, self.since.elapsed())
    }

    /// A time as an instant of tokio's clock; now, if it is past.
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        let ahead = Duration::try_from(at.duration_since(self.now())).unwrap_or_default();
        let now = Instant::now();
        // A day is as good as never: callers check again then.
        now.checked_add(ahead).unwrap_or(now + Duration::from_hours(24))
    }
}
