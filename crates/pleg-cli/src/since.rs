//! After which event a reader begins: `--since` of `pleg watch` and `?since=` of the API.

use std::str::FromStr;

use pleg::{Cursor, InstanceId, Start};

/// What `--since` and `?since=` accept, for those who wrote something else.
pub(crate) const ACCEPTED: [&str; 3] = ["a cursor, INSTANCE-SEQ", "a number from 0 on", "now"];

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// With what is new.
    Now,
    /// After the event of this number, of whichever instance answers. Only 0 is safe across a restart.
    Seq(u64),
    /// After this event of this instance.
    Cursor(Cursor),
}

impl Since {
    /// The same, for a feed of this instance.
    pub(crate) fn start(self, instance: InstanceId) -> Start {
        match self {
            Self::Now => Start::Now,
            Self::Seq(seq) => Start::After(instance.at(seq)),
            Self::Cursor(cursor) => Start::After(cursor),
        }
    }
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        let cursor = text.parse().map(Self::Cursor);
        let [cursors, numbers, now] = ACCEPTED;
        cursor
            .or_else(|_| text.parse().map(Self::Seq))
            .map_err(|_| format!("expected {cursors}, {numbers}, or {now}"))
    }
}

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::Seq(seq) => write!(f, "{seq}"),
            Self::Cursor(cursor) => write!(f, "{cursor}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_read_back() {
        let (running, other) = (InstanceId::new(1), InstanceId::new(2));
        for (text, since, start) in [
            ("now", Since::Now, Start::Now),
            ("0", Since::Seq(0), Start::After(running.at(0))),
            ("12", Since::Seq(12), Start::After(running.at(12))),
            (
                "0000000000000002-12",
                Since::Cursor(other.at(12)),
                Start::After(other.at(12)),
            ),
        ] {
            assert_eq!(text.parse(), Ok(since));
            assert_eq!(since.to_string(), text);
            assert_eq!(since.start(running), start);
        }
        for text in ["", "Now", "-1", "99999999999999999999", "2-12", "0000000000000002-"] {
            assert!(text.parse::<Since>().is_err(), "{text:?}");
        }
    }
}
