//! How far the event stream is trusted. A miss is a full relist that found changes which no event reported.
//!
//! One miss may be an accident, so the period of full relists starts again and grows more slowly than before. Misses that repeat are a
//! property of the stream: from the third remembered miss on it is lossy, relists stay frequent and health says so.
//!
//! A miss is forgotten after [`MEMORY`] of an uninterrupted stream without another miss, and only if an event arrived in that time: a
//! stream that reports nothing proves nothing. A reconnect clears no miss; it starts that time anew. Only a runtime of another name or
//! version starts with a clean record. Pure: the caller brings the time.

use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;

/// So many remembered misses make the stream lossy. No more are remembered, so one [`MEMORY`] is enough to recover.
const REPEATED: u32 = 3;
/// A miss is forgotten after this long.
pub(crate) const MEMORY: Duration = Duration::from_mins(15);
/// The longest period between full relists while the stream is lossy.
pub(crate) const LOSSY_PERIOD: Duration = Duration::from_secs(2);
/// With each remembered miss, one doubling of the period needs so many times as many clean full relists.
const CAUTION: u32 = 4;

/// How far the stream is trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Trust {
    /// No miss is remembered: the period doubles with each clean full relist.
    #[default]
    Full,
    /// One or two misses are remembered: the period grows to its full length, but slowly.
    Reduced(Remembered),
    /// Misses repeat: the period stays within [`LOSSY_PERIOD`], and health is degraded.
    Lossy(Remembered),
}

/// What is remembered of misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// Misses that are not forgotten; at most [`REPEATED`].
    misses: u32,
    /// How many changes were missed since trust was last full.
    pub(crate) changes: u64,
    /// The first miss since trust was last full.
    pub(crate) since: Instant,
    /// The last miss.
    pub(crate) last: Instant,
    /// The last miss, the last connect or the last time that a miss was forgotten, whichever was last.
    clean_since: Instant,
    /// An event has arrived since then.
    reported: bool,
}

impl Remembered {
    /// How much was missed, and when.
    pub(crate) fn text(&self, now: Instant) -> String {
        let ago = |then: Instant| seconds(Duration::from_secs(now.saturating_duration_since(then).as_secs()));
        format!(
            "the event stream failed to report {} changes in the last {}, the last one {} ago",
            self.changes,
            ago(self.since),
            ago(self.last)
        )
    }
}

impl Trust {
    fn of(remembered: Remembered) -> Self {
        match remembered.misses {
            0 => Self::Full,
            REPEATED.. => Self::Lossy(remembered),
            _ => Self::Reduced(remembered),
        }
    }

    fn remembered(&self) -> Option<&Remembered> {
        match self {
            Self::Full => None,
            Self::Reduced(remembered) | Self::Lossy(remembered) => Some(remembered),
        }
    }

    fn remembered_mut(&mut self) -> Option<&mut Remembered> {
        match self {
            Self::Full => None,
            Self::Reduced(remembered) | Self::Lossy(remembered) => Some(remembered),
        }
    }

    /// What is remembered, if the stream is lossy.
    pub(crate) fn lossy(&self) -> Option<&Remembered> {
        match self {
            Self::Lossy(remembered) => Some(remembered),
            Self::Full | Self::Reduced(_) => None,
        }
    }

    /// How many clean full relists one doubling of the period needs.
    pub(crate) fn relists_per_doubling(&self) -> u32 {
        CAUTION.pow(self.remembered().map_or(0, |remembered| remembered.misses))
    }

    /// The longest period, where trust sets one.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.lossy().map(|_| LOSSY_PERIOD)
    }

    /// A full relist found this many changes that no event reported. Returns true if that makes the stream lossy.
    pub(crate) fn missed(&mut self, changes: u64, now: Instant) -> bool {
        let was_lossy = self.lossy().is_some();
        let before = self.remembered().copied();
        *self = Self::of(Remembered {
            misses: before.map_or(1, |before| (before.misses + 1).min(REPEATED)),
            changes: before.map_or(0, |before| before.changes) + changes,
            since: before.map_or(now, |before| before.since),
            last: now,
            clean_since: now,
            reported: false,
        });
        !was_lossy && self.lossy().is_some()
    }

    /// The stream brought an event.
    pub(crate) fn reported(&mut self) {
        if let Some(remembered) = self.remembered_mut() {
            remembered.reported = true;
        }
    }

    /// The stream is connected again: time without it was not clean.
    pub(crate) fn connected(&mut self, now: Instant) {
        if let Some(remembered) = self.remembered_mut() {
            (remembered.clean_since, remembered.reported) = (now, false);
        }
    }

    /// Forgets a miss whose time has come. To be called while the stream is connected. Returns what was remembered if that was the end
    /// of a lossy stream.
    pub(crate) fn forget(&mut self, now: Instant) -> Option<Remembered> {
        let remembered = *self.remembered()?;
        if !remembered.reported || now < remembered.clean_since + MEMORY {
            return None;
        }
        let was_lossy = self.lossy().copied();
        *self = Self::of(Remembered {
            misses: remembered.misses - 1,
            clean_since: now,
            reported: false,
            ..remembered
        });
        was_lossy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to the stream, and when: in seconds.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Missed(u64),
        Reported,
        Connected,
        /// Nothing; only time passes.
        Clean,
    }
    use Step::{Clean, Connected, Missed, Reported};

    const M: u64 = MEMORY.as_secs();

    /// Remembered misses after the steps, whether the stream is lossy, how often it became so and recovered.
    fn after(steps: &[(u64, Step)]) -> (u32, bool, u32, u32) {
        let start = Instant::now();
        let (mut trust, mut began, mut ended) = (Trust::default(), 0, 0);
        for &(at, step) in steps {
            let now = start + Duration::from_secs(at);
            ended += u32::from(trust.forget(now).is_some());
            match step {
                Missed(changes) => began += u32::from(trust.missed(changes, now)),
                Reported => trust.reported(),
                Connected => trust.connected(now),
                Clean => {}
            }
        }
        let misses = trust.remembered().map_or(0, |remembered| remembered.misses);
        (misses, trust.lossy().is_some(), began, ended)
    }

    #[test]
    fn misses_are_remembered_and_forgotten() {
        let three = [(0, Missed(1)), (60, Missed(1)), (120, Missed(5))];
        let then = |more: &[(u64, Step)]| [&three[..], more].concat();
        for (name, steps, expected) in [
            ("one is an accident", vec![(0, Missed(1))], (1, false, 0, 0)),
            (
                "many changes at once are one miss",
                vec![(0, Missed(50))],
                (1, false, 0, 0),
            ),
            ("three are a property", three.to_vec(), (3, true, 1, 0)),
            (
                "no more than three are remembered",
                then(&[(180, Missed(1))]),
                (3, true, 1, 0),
            ),
            ("not yet", then(&[(130, Reported), (119 + M, Clean)]), (3, true, 1, 0)),
            (
                "one is forgotten",
                then(&[(130, Reported), (120 + M, Clean)]),
                (2, false, 1, 1),
            ),
            (
                "silence proves nothing",
                then(&[(120 + 100 * M, Clean)]),
                (3, true, 1, 0),
            ),
            (
                "each takes its own time, and its own proof",
                then(&[
                    (130, Reported),
                    (120 + M, Reported),
                    (121 + 2 * M, Clean),
                    (121 + 9 * M, Clean),
                ]),
                (1, false, 1, 1),
            ),
            (
                "and again",
                then(&[(130, Reported), (120 + M, Clean), (121 + M, Missed(1))]),
                (3, true, 2, 1),
            ),
            (
                "a reconnect clears nothing",
                then(&[(130, Reported), (100 + M, Connected), (130 + M, Clean)]),
                (3, true, 1, 0),
            ),
            (
                "and starts the time anew",
                then(&[(500, Connected), (501, Reported), (500 + M, Clean)]),
                (2, false, 1, 1),
            ),
            (
                "full trust in the end",
                vec![(0, Missed(1)), (5, Reported), (M, Clean)],
                (0, false, 0, 0),
            ),
        ] {
            assert_eq!(after(&steps), expected, "{name}");
        }
    }

    #[test]
    fn each_miss_makes_trust_grow_more_slowly() {
        let now = Instant::now();
        let mut trust = Trust::default();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push((trust.relists_per_doubling(), trust.longest().is_some()));
            trust.missed(2, now);
        }
        assert_eq!(seen, [(1, false), (4, false), (16, false), (64, true), (64, true)]);
        assert_eq!(trust.lossy().map(|remembered| remembered.changes), Some(10));
    }
}
