//! Detects changes that a full relist found and the event stream did not report.
//!
//! A list may show a change a moment before its event arrives, and an event may arrive a moment before a list shows its change. So a
//! change without a hint is only noted, and cleared if a hint about its pod arrives within [`GRACE`].

use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::Instant;

use crate::model::{ContainerId, PodUid};

/// How far apart a change and its event may be seen.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// With more pods than this within the grace period, no miss is counted for a while. Bounds the memory.
const MOST: usize = 8192;

/// Pods with recent hints, and pods that changed without one.
#[derive(Debug, Default)]
pub(crate) struct Misses {
    hinted: HashMap<PodUid, Instant>,
    /// Hints beyond the limit came then.
    flooded: Option<Instant>,
    unreported: HashMap<PodUid, UnreportedChange>,
}

/// A change without a hint, so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreportedChange {
    since: Instant,
    /// The containers that ended without having been seen to run: if their start failed, there is no event.
    pub(crate) unstarted: Vec<ContainerId>,
    /// Something else changed, too.
    pub(crate) other: bool,
}

impl UnreportedChange {
    pub(crate) fn new(since: Instant) -> Self {
        Self {
            since,
            unstarted: Vec::new(),
            other: false,
        }
    }

    /// True if there is no change that an event should have reported.
    pub(crate) fn is_empty(&self) -> bool {
        self.unstarted.is_empty() && !self.other
    }
}

impl Misses {
    /// An event came about this pod.
    pub(crate) fn hinted(&mut self, uid: &PodUid, now: Instant) {
        self.unreported.remove(uid);
        if let Some(at) = self.hinted.get_mut(uid) {
            *at = now;
            return;
        }
        if self.hinted.len() >= MOST {
            self.forget_old(now);
        }
        if self.hinted.len() < MOST {
            self.hinted.insert(uid.clone(), now);
        } else {
            self.flooded = Some(now);
            self.unreported.clear();
        }
    }

    /// An event came that may be about any pod.
    pub(crate) fn hinted_all(&mut self, now: Instant) {
        self.flooded = Some(now);
        self.unreported.clear();
    }

    /// Whether an event came about this pod within the grace.
    pub(crate) fn is_hinted(&self, uid: &PodUid, now: Instant) -> bool {
        let recent = |at: Instant| now.saturating_duration_since(at) <= GRACE;
        self.flooded.is_some_and(recent) || self.hinted.get(uid).copied().is_some_and(recent)
    }

    /// A full relist found this change.
    pub(crate) fn unreported(&mut self, uid: &PodUid, change: UnreportedChange) {
        if self.unreported.len() < MOST && !change.is_empty() {
            self.unreported.entry_ref(uid).or_insert(change);
        }
    }

    /// True if no change waits for its hint.
    pub(crate) fn is_clear(&self) -> bool {
        self.unreported.is_empty()
    }

    /// When the next change becomes a certainty.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.unreported.values().map(|change| change.since + GRACE).min()
    }

    /// Changes for which no hint arrived in time.
    pub(crate) fn certain(&mut self, now: Instant) -> Vec<(PodUid, UnreportedChange)> {
        let late = |_: &PodUid, change: &mut UnreportedChange| now >= change.since + GRACE;
        self.unreported.extract_if(late).collect()
    }

    /// The stream ended: it had no chance to report these changes.
    pub(crate) fn forgive(&mut self) {
        *self = Self::default();
    }

    /// Forgets hints that do not count any more, and gives the room of a storm back.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.hinted.retain(|_, at| now.saturating_duration_since(*at) <= GRACE);
        if self.hinted.is_empty() {
            self.hinted = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(since: Instant) -> UnreportedChange {
        UnreportedChange {
            other: true,
            ..UnreportedChange::new(since)
        }
    }

    #[test]
    fn a_hint_within_the_grace_before_or_after_is_enough() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let uid = PodUid::from("a");
        // (hint at, change seen at, is it a miss)
        for (hint, change, miss) in [
            (None, 1000, true),
            (Some(0), 1999, false),
            (Some(0), 2001, true),
            (Some(3000), 1001, false),
            (Some(3100), 1000, true),
        ] {
            let mut misses = Misses::default();
            if let Some(hint) = hint.filter(|hint| *hint < change) {
                misses.hinted(&uid, at(hint));
            }
            if !misses.is_hinted(&uid, at(change)) {
                misses.unreported(&uid, other(at(change)));
            }
            let mut found = misses.certain(at(change + 1999));
            if let Some(hint) = hint.filter(|hint| *hint >= change && *hint < change + 2000) {
                misses.hinted(&uid, at(hint));
            }
            found.extend(misses.certain(at(change + 2000)));
            assert_eq!(found.len(), usize::from(miss), "{hint:?} {change}");
        }
    }

    #[test]
    fn a_flood_of_hints_is_bounded_and_names_no_container() {
        let now = Instant::now();
        let mut misses = Misses::default();
        for n in 0..2 * MOST {
            misses.hinted(&PodUid::from(format!("{n}").as_str()), now);
        }
        assert!(misses.hinted.len() <= MOST);
        assert!(misses.is_hinted(&PodUid::from("never heard of"), now));
        misses.forget_old(now + GRACE * 2);
        assert_eq!(misses.hinted.capacity(), 0);
    }

    #[test]
    fn a_stream_that_ended_is_not_to_blame() {
        let now = Instant::now();
        let mut misses = Misses::default();
        misses.unreported(&PodUid::from("a"), other(now));
        assert!(!misses.is_clear());
        misses.forgive();
        assert_eq!(misses.certain(now + GRACE * 2), []);
    }
}
