//! The period of full relists: grows while every change is announced, as fast as that is trusted, and falls back when it does not.

use std::time::Duration;

use super::trust::Trust;

/// A pause that is short enough to find everything, whatever is announced.
const FREQUENT: Duration = Duration::from_secs(1);

/// The pause between full relists. Doubles from the shortest to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    now: Duration,
    least: Duration,
    most: Duration,
    /// Clean full relists since the pause last changed.
    clean: u32,
}

impl Period {
    /// `least` is the generic mode's; `most` is bounded by half of the threshold, and never below `least`.
    pub(crate) fn new(least: Duration, most: Duration, threshold: Duration) -> Self {
        Self {
            now: least,
            least,
            most: most.min(threshold / 2).max(least),
            clean: 0,
        }
    }

    /// The pause now.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// The shortest pause.
    pub(crate) fn least(&self) -> Duration {
        self.least
    }

    /// It is longer than the shortest.
    pub(crate) fn is_grown(&self) -> bool {
        self.now > self.least
    }

    /// Full relists are rare: what nothing announces has to be looked for in between.
    pub(crate) fn is_rare(&self) -> bool {
        self.now > FREQUENT
    }

    /// A full relist found nothing that the stream had not reported. Returns whether that changes the pause.
    pub(crate) fn clean(&mut self, trust: &Trust) -> bool {
        self.clean = self.clean.saturating_add(1);
        if self.clean < trust.relists_per_doubling() {
            return false;
        }
        self.clean = 0;
        let most = trust
            .longest()
            .map_or(self.most, |longest| longest.clamp(self.least, self.most));
        let before = self.now;
        self.now = (self.now * 2).min(most);
        self.now != before
    }

    /// The stream cannot be relied on now. Returns whether that changes the pause.
    pub(crate) fn reset(&mut self) -> bool {
        self.clean = 0;
        std::mem::replace(&mut self.now, self.least) != self.least
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The pauses of clean full relists, with so many misses before.
    fn pauses(mut period: Period, misses: u32, relists: usize) -> Vec<u64> {
        let mut trust = Trust::default();
        for _ in 0..misses {
            trust.missed(1, Instant::now());
        }
        let pause = |_| {
            period.clean(&trust);
            period.now().as_secs()
        };
        (0..relists).map(pause).collect()
    }

    #[test]
    fn it_doubles_up_to_the_longest_and_falls_at_once() {
        let mut period = Period::new(s(1), s(60), s(180));
        assert_eq!(pauses(period, 0, 8), [2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!period.is_grown() && period.clean(&Trust::Full) && period.is_grown());
        assert!(period.reset() && !period.is_grown());
        assert_eq!(period.now(), s(1));
        assert!(!period.reset());
    }

    #[test]
    fn relists_are_rare_because_they_grew_so_or_are_configured_so() {
        let mut period = Period::new(s(1), s(60), s(180));
        assert!(!period.is_rare() && period.clean(&Trust::Full) && period.is_rare());
        assert!(Period::new(s(10), s(60), s(180)).is_rare());
    }

    #[test]
    fn after_misses_it_grows_slowly_and_on_a_lossy_stream_hardly() {
        let period = Period::new(s(1), s(60), s(180));
        assert_eq!(pauses(period, 1, 12), [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8]);
        let twice = pauses(period, 2, 100);
        assert_eq!((twice[14], twice[15], twice[31], twice[95]), (1, 2, 4, 60));
        let lossy = pauses(period, 3, 1000);
        assert_eq!((lossy[62], lossy[63], lossy[999]), (1, 2, 2));
        // A node that relists seldom anyway does so.
        assert_eq!(pauses(Period::new(s(5), s(60), s(180)), 3, 1000)[999], 5);
        assert_eq!(pauses(Period::new(s(1), s(1), s(180)), 3, 1000)[999], 1);
    }

    /// A miss in between takes all that was gained.
    #[test]
    fn a_reset_starts_the_count_anew() {
        let mut period = Period::new(s(1), s(60), s(180));
        let mut trust = Trust::default();
        trust.missed(1, Instant::now());
        for _ in 0..3 {
            assert!(!period.clean(&trust));
        }
        period.reset();
        for _ in 0..3 {
            assert!(!period.clean(&trust));
        }
        assert!(period.clean(&trust));
    }

    #[test]
    fn one_late_relist_is_within_the_threshold() {
        for (least, most, threshold, longest) in [
            (1, 300, 180, 90),
            (1, 300, 600, 300),
            (1, 60, 180, 60),
            // A node that relists seldom anyway does so.
            (120, 60, 180, 120),
            (1, 0, 180, 1),
        ] {
            let period = Period::new(s(least), s(most), s(threshold));
            assert_eq!(pauses(period, 0, 20)[19], longest, "{least} {most} {threshold}");
        }
    }
}
