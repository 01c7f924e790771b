//! The scheduled exits and restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::script::Ending;

/// When, and which of those at the same time.
pub(crate) type DueKey = (i64, u64);

/// A scheduled change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Due {
    /// A container ends by itself.
    End { id: Arc<str>, ending: Ending },
    /// The runtime notices that the process of a container has died.
    Exited { id: Arc<str>, ending: Ending },
    /// A container writes to its log again.
    Write { id: Arc<str> },
    /// A container of one of our own pods is restarted as a new attempt.
    Restart { pod: Arc<str>, container: String },
}

/// All scheduled changes, by time.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: BTreeMap<DueKey, Due>,
    count: u64,
    /// The first entry may have changed: the task that waits for it has to check again.
    pub(crate) changed: bool,
}

impl Schedule {
    pub(crate) fn add(&mut self, at: i64, due: Due) -> DueKey {
        self.count += 1;
        let key = (at, self.count);
        self.entries.insert(key, due);
        self.changed = true;
        key
    }

    pub(crate) fn cancel(&mut self, key: DueKey) {
        self.entries.remove(&key);
    }

    pub(crate) fn next(&self) -> Option<i64> {
        self.entries.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Takes the first entry that is due.
    pub(crate) fn pop(&mut self, now: i64) -> Option<Due> {
        let first = self.entries.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
