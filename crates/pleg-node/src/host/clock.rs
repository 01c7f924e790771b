//! The wall clock of this crate: tokio's time, counted from the wall clock's at the start. So it stands still where tests stop tokio's,
//! and never jumps while a pod waits.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::reconcile::backoff::later;

/// Tells the time. Clones tell the same.
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
    /// Now.
    pub(crate) fn now(&self) -> Timestamp {
        later(self.wall, self.since.elapsed())
    }

    /// When tokio's clock will show this; now, if it is past.
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        let ahead = Duration::try_from(at.duration_since(self.now())).unwrap_or_default();
        let now = Instant::now();
        // A day is as good as never: whoever waits looks again then.
        now.checked_add(ahead).unwrap_or(now + Duration::from_hours(24))
    }
}
