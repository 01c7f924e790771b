//! The seam to a history: events that the feed no longer holds, and those of earlier instances.
//!
//! The feed holds the last events of one instance. A history, which is an ordinary subscriber that keeps what it reads, has more; this crate
//! knows nothing of how. With one, a reader that fell behind or comes back with an old [`Cursor`] first reads there, and then
//! continues in the feed.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use crate::model::cursor::Cursor;
use crate::publish::feed::Item;

/// What a history has after a cursor.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    /// The next events, in their order, with a gap wherever some are missing. Empty if there are none.
    pub items: Vec<Item>,
    /// Where the reader is after them: the cursor of the last event; or, if the cursor's instance has ended and all of it was read,
    /// the beginning of the next instance. The same cursor if the history has nothing more.
    pub next: Cursor,
    /// The history's own name for that place, for the next call.
    pub place: u64,
}

/// The answer of an [`EventHistory`]; none if it does not know the cursor.
pub type PastFuture = Pin<Box<dyn Future<Output = Option<Past>> + Send>>;

/// Keeps events for longer than the feed does.
pub trait EventHistory: Debug + Send + Sync {
    /// The events after a cursor, of its instance and then of later ones, at most a few hundred. `place`: where the history said that the
    /// reader is; 0 if it did not. A number of the running instance that is less than its first one is a number of an earlier
    /// instance: numbers continue from one instance to the next.
    fn after(&self, cursor: Cursor, place: u64) -> PastFuture;
}

/// The history behind a feed.
#[derive(Debug, Clone)]
pub struct FeedHistory {
    /// The number that the first event gets: one more than that of the last event of the instance before. At least 1.
    pub first_seq: u64,
    /// Where older events are.
    pub events: Arc<dyn EventHistory>,
}

/// Whether a subscriber reads in the history.
#[derive(Debug)]
pub(super) enum PastState {
    /// There is none, or it wants none.
    Never,
    /// Once its next event is no longer held.
    IfNeeded,
    /// It does, until it is where the feed begins.
    Reading(PastReading),
    /// The history has no more of what comes before the events that are held.
    Ended,
}

/// A subscriber that reads in the history.
pub(super) struct PastReading {
    /// Where it is.
    pub(super) at: Cursor,
    pub(super) place: u64,
    /// The answer that it waits for.
    pub(super) answer: Option<PastFuture>,
}

impl PastReading {
    pub(super) fn from(at: Cursor) -> Self {
        Self {
            at,
            place: 0,
            answer: None,
        }
    }
}

impl Debug for PastReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PastReading")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
