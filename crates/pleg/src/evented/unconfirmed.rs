//! Events that are ahead of the runtime's own answers.
//!
//! CRI-O reports that a container has started before its status does, and containerd that a sandbox is deleted while a plugin still blocks
//! it. An immediate inspection finds nothing then, and no other event follows. So the claim of an event is remembered and checked twice more,
//! after short delays, until it holds. Pure: the caller passes the time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::PodUid;

/// Delays after which a claim is checked again.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Most claims that wait. Beyond that, in a storm, they are left to the next full relist.
const LIMIT: usize = 4096;

/// The state that an event claims for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    /// It runs; of a sandbox, it is ready.
    Running,
    /// It has ended.
    Ended,
    /// It is gone.
    Gone,
}

/// What an event claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) id: Arc<str>,
    pub(crate) pod: PodUid,
    pub(crate) reached: Reached,
}

/// Claims to check later, in the order of their times, for each of the two delays.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedEvents {
    claims: [VecDeque<(Instant, Claim)>; AGAIN.len()],
}

impl UnconfirmedEvents {
    /// Remembers the claim of an event for later checks; the first check is immediate and happens elsewhere.
    pub(crate) fn claimed(&mut self, claim: Claim, now: Instant) {
        self.put(0, claim, now);
    }

    fn put(&mut self, time: usize, claim: Claim, now: Instant) {
        if self.claims[time].len() < LIMIT {
            self.claims[time].push_back((now + AGAIN[time], claim));
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.claims
            .iter()
            .filter_map(|claims| claims.front().map(|(at, _)| *at))
            .min()
    }

    /// Takes those that are due and not `so` by now. Each of them comes up twice at most.
    pub(crate) fn due(&mut self, now: Instant, mut so: impl FnMut(&Claim) -> bool) -> Vec<Claim> {
        let mut open = Vec::new();
        for time in (0..AGAIN.len()).rev() {
            while let Some((_, claim)) = self.claims[time].pop_front_if(|(at, _)| *at <= now) {
                if so(&claim) {
                    continue;
                }
                if time + 1 < AGAIN.len() {
                    self.put(time + 1, claim.clone(), now);
                }
                open.push(claim);
            }
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str) -> Claim {
        Claim {
            id: id.into(),
            pod: "p".into(),
            reached: Reached::Running,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_so_is_checked_twice() {
        let (mut ahead, start) = (UnconfirmedEvents::default(), Instant::now());
        assert_eq!(ahead.next(), None);
        ahead.claimed(claim("a"), start);
        ahead.claimed(claim("b"), start);
        assert_eq!(ahead.next(), Some(start + AGAIN[0]));
        assert_eq!(ahead.due(start, |_| false), []);
        let first = start + AGAIN[0];
        assert_eq!(ahead.due(first, |claim| &*claim.id == "b"), [claim("a")]);
        assert_eq!(ahead.next(), Some(first + AGAIN[1]));
        assert_eq!(ahead.due(first + AGAIN[1], |_| false), [claim("a")]);
        assert_eq!(ahead.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_leaves_no_more_than_fits() {
        let (mut ahead, now) = (UnconfirmedEvents::default(), Instant::now());
        for n in 0..3 * LIMIT {
            ahead.claimed(claim(&n.to_string()), now);
        }
        assert_eq!(ahead.due(now + AGAIN[0], |_| false).len(), LIMIT);
        assert_eq!(ahead.due(now + AGAIN[0] + AGAIN[1], |_| false).len(), LIMIT);
    }
}
