//! The pause between full looks: grows while the stream proves itself, falls back when it does not.

use std::time::Duration;

/// The pause. Doubles from the shortest to the longest, one good full look after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    now: Duration,
    least: Duration,
    most: Duration,
}

impl Period {
    /// `least` is the generic mode's; `most` is bounded by half of the threshold, and never below `least`.
    pub(crate) fn new(least: Duration, most: Duration, threshold: Duration) -> Self {
        Self {
            now: least,
            least,
            most: most.min(threshold / 2).max(least),
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

    /// A full look found nothing that the stream had not told. Returns whether that changes anything.
    pub(crate) fn grow(&mut self) -> bool {
        let before = self.now;
        self.now = (self.now * 2).min(self.most);
        self.now != before
    }

    /// The stream cannot be trusted. Returns whether that changes anything.
    pub(crate) fn reset(&mut self) -> bool {
        std::mem::replace(&mut self.now, self.least) != self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_doubles_up_to_the_longest_and_falls_at_once() {
        let mut period = Period::new(s(1), s(60), s(180));
        let mut seen = vec![period.now().as_secs()];
        while period.grow() {
            seen.push(period.now().as_secs());
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 60]);
        assert!(period.is_grown() && period.reset() && !period.is_grown());
        assert_eq!(period.now(), s(1));
        assert!(!period.reset());
    }

    #[test]
    fn one_late_look_is_within_the_threshold() {
        for (least, most, threshold, longest) in [
            (1, 300, 180, 90),
            (1, 300, 600, 300),
            (1, 60, 180, 60),
            // Whoever looks seldom anyway does so.
            (120, 60, 180, 120),
            (1, 0, 180, 1),
        ] {
            let mut period = Period::new(s(least), s(most), s(threshold));
            while period.grow() {}
            assert_eq!(period.now(), s(longest), "{least} {most} {threshold}");
        }
    }
}
