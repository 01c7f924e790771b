//! When a pod was accepted, as far as clocks can be trusted. Deadlines count from there.
//!
//! A machine without a battery boots in 1970, accepts its pods, and learns the time later. After a restart of `pleg node` a start in 1970
//! would be decades ago, and pods with a deadline would fail for a clock that was wrong.
//!
//! | stored start | clock now | start |
//! |---|---|---|
//! | plausible | not plausible | as stored: the clock is wrong |
//! | not after now, and plausible | plausible | as stored |
//! | none, after now, or not plausible | plausible | when the oldest sandbox was created, if that is plausible; else now |
//! | none, or not plausible | not plausible | the same, with times up to now: there is no better clock |

use jiff::Timestamp;

/// A time before this is not plausible: 2024-01-01, which is before any pod of ours.
const PLAUSIBLE_SINCE: i64 = 1_704_067_200;

/// When a pod was accepted, given what is stored, when its sandboxes were created, and the time.
pub(crate) fn start_time(
    stored: Option<Timestamp>,
    sandboxes: impl Iterator<Item = Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let is_recent = |at: Timestamp| at.as_second() >= PLAUSIBLE_SINCE;
    if let Some(stored) = stored.filter(|stored| is_recent(*stored) && !is_recent(now)) {
        return stored;
    }
    let is_plausible = |at: &Timestamp| *at <= now && (is_recent(*at) || !is_recent(now));
    stored
        .filter(is_plausible)
        .or_else(|| sandboxes.filter(is_plausible).min())
        .unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_bad_clock_makes_no_pod_old() {
        let bad = |seconds| Timestamp::from_second(seconds).unwrap();
        // What is stored, when the sandboxes were created, the time, and the start.
        let rows: &[(Option<Timestamp>, &[Timestamp], Timestamp, Timestamp)] = &[
            (None, &[], at(9), at(9)),
            (None, &[at(5), at(3)], at(9), at(3)),
            (Some(at(1)), &[at(3)], at(9), at(1)),
            // Accepted in 1970.
            (Some(bad(40)), &[], at(9), at(9)),
            (Some(bad(40)), &[bad(41)], at(9), at(9)),
            (Some(bad(40)), &[bad(41), at(3)], at(9), at(3)),
            (None, &[bad(41)], at(9), at(9)),
            // It is still 1970, or again.
            (Some(bad(40)), &[bad(41)], bad(50), bad(40)),
            (Some(at(1)), &[at(3)], bad(50), at(1)),
            (None, &[], bad(50), bad(50)),
            // The clock was set back.
            (Some(at(20)), &[at(21)], at(9), at(9)),
        ];
        for (stored, sandboxes, now, wanted) in rows {
            let found = start_time(*stored, sandboxes.iter().copied(), *now);
            assert_eq!(found, *wanted, "{stored:?} {sandboxes:?} {now}");
        }
    }
}
