//! When a certificate is replaced. Pure: callers pass the time and the chance.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::pair::CertificateInfo;

/// The part of its life after which a certificate is replaced, and how much later at most: nodes that joined together do not ask together.
const EARLIEST: f64 = 0.7;
const SPREAD: f64 = 0.2;

/// Delays before a failed request is made again: doubles with each failure in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RetryDelays {
    first: Duration,
    max: Duration,
}

impl RetryDelays {
    /// The API server does not answer, or not as it should.
    pub(super) const OUTAGE: Self = Self {
        first: Duration::from_secs(1),
        max: Duration::from_mins(1),
    };
    /// Somebody said no. More requests would only fill the list.
    pub(super) const REFUSED: Self = Self {
        first: Duration::from_mins(1),
        max: Duration::from_hours(1),
    };

    /// After so many failures in a row.
    pub(super) fn after(self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.max)
    }
}

/// When a certificate is replaced: between 70 % and 90 % of its life. `chance` is from 0 to 1, the same for one certificate.
pub(super) fn rotate_at(certificate: &CertificateInfo, chance: f64) -> Timestamp {
    let life = certificate.not_after.duration_since(certificate.not_before);
    let part = EARLIEST + SPREAD * chance.clamp(0.0, 1.0);
    let seconds = (life.as_secs_f64() * part).max(0.0);
    let after = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::ZERO);
    let at = certificate.not_before.checked_add(after);
    at.unwrap_or(certificate.not_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_certificate_is_replaced_in_the_last_third_of_its_life() {
        let certificate = |from, to| CertificateInfo {
            common_name: String::new(),
            not_before: at(from),
            not_after: at(to),
            names: Vec::new(),
            ips: Vec::new(),
        };
        for (from, to, chance, expected) in [
            (0, 1000, 0.0, 700),
            (0, 1000, 0.5, 800),
            (0, 1000, 1.0, 900),
            (0, 1000, 7.0, 900),
            (-300, 700, 0.0, 400),
            // Of no length, or of a negative one: at once.
            (5, 5, 0.5, 5),
            (5, 0, 0.5, 5),
        ] {
            assert_eq!(
                rotate_at(&certificate(from, to), chance),
                at(expected),
                "{from} to {to}, {chance}"
            );
        }
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let seconds = |delays: RetryDelays| [1, 2, 3, 7, 99].map(|failures| delays.after(failures).as_secs());
        assert_eq!(seconds(RetryDelays::OUTAGE), [1, 2, 4, 60, 60]);
        assert_eq!(seconds(RetryDelays::REFUSED), [60, 120, 240, 3600, 3600]);
    }
}
