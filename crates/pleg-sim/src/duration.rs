//! Durations as people write them: `400ms`, `5s`, `2m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Maximum duration that is accepted.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// A duration that is read and written as `400ms`, `5s` or `2m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a duration; expected a number and a unit, as in 400ms, 5s, 2m or 1h", pleg_cri::error::quoted(.0))]
pub struct SpanError(String);

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || SpanError(text.chars().take(40).collect());
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let seconds = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" if number == "0" => 0.0,
            _ => return Err(error()),
        };
        let number: f64 = number.parse().map_err(|_| error())?;
        Duration::try_from_secs_f64(number * seconds)
            .ok()
            .filter(|&d| d <= LONGEST)
            .map(Self)
            .ok_or_else(error)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        match micros {
            0 => f.write_str("0s"),
            m if m % 60_000_000 == 0 => write!(f, "{}m", m / 60_000_000),
            m if m % 1_000_000 == 0 => write!(f, "{}s", m / 1_000_000),
            m if m % 1000 == 0 => write!(f, "{}ms", m / 1000),
            m => write!(f, "{m}us"),
        }
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis) in [
            ("400ms", 400),
            ("5s", 5000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.0, Duration::from_millis(millis), "{text}");
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span, "{text}");
        }
        for text in ["", "5", "s", "-1s", "1e9s", "5 s", "99999999h", "..5s", "NaNs"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
