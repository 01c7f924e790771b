//! Which generator issued an event, and after which event a reader continues.
//!
//! Events are numbered 1, 2, 3, … by the generator that publishes them. A restarted daemon begins at 1 again; with a
//! [history](crate::FeedHistory) it continues, but after a crash some numbers may be used twice. So a number alone
//! says nothing: a reader that was at 15 and comes back to another instance that is at 45 would take 16 for its next event. A
//! [`Cursor`] is the number together with the [`InstanceId`] of its generator. Its text is `INSTANCE-SEQ`, as in
//! `5f0c2a9be1d34c77-15`.

use std::hash::BuildHasher as _;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hex digits of an [`InstanceId`].
const DIGITS: usize = 16;

/// The identity of one generator, from its creation to its end. Written as 16 hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(u64);

impl InstanceId {
    /// The identity with this number, for tests and for readers that have stored one.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number, for those who store it.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// An identity that no other generator has.
    pub(crate) fn random() -> Self {
        // std seeds `RandomState` from the operating system and changes its keys with every `new`. Time and process are added in case
        // a machine image without entropy starts twice in the same state.
        let salt = (Timestamp::now().as_nanosecond(), std::process::id());
        Self(std::hash::RandomState::new().hash_one(salt))
    }

    /// The cursor after event `seq` of this instance; 0 is before its first event.
    pub const fn at(self, seq: u64) -> Cursor {
        Cursor { instance: self, seq }
    }
}

/// The place of a reader in the events of one generator: after event `seq`; 0 is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Whose number it is.
    pub instance: InstanceId,
    /// The number of the last event that was read.
    pub seq: u64,
}

/// A text that is no [`Cursor`] or [`InstanceId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected INSTANCE-SEQ: the 16 hex digits of a generator instance, a hyphen and the number of an event")]
pub struct BadCursor;

impl std::fmt::Display for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

impl std::fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for InstanceId {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        // One text for one instance: readers may compare texts.
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != DIGITS || !text.bytes().all(digit) {
            return Err(BadCursor);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| BadCursor)
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.instance, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (instance, seq) = text.split_once('-').ok_or(BadCursor)?;
        // Of what `u64` reads, a sign is not ours.
        if !seq.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadCursor);
        }
        Ok(Self {
            instance: instance.parse()?,
            seq: seq.parse().map_err(|_| BadCursor)?,
        })
    }
}

impl Serialize for InstanceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InstanceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back() {
        for (cursor, text) in [
            (InstanceId::new(0).at(0), "0000000000000000-0"),
            (InstanceId::new(0x5f0c_2a9b_e1d3_4c77).at(15), "5f0c2a9be1d34c77-15"),
            (
                InstanceId::new(u64::MAX).at(u64::MAX),
                "ffffffffffffffff-18446744073709551615",
            ),
        ] {
            assert_eq!(cursor.to_string(), text);
            assert_eq!(text.parse(), Ok(cursor));
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in [
            "",
            "-",
            "15",
            "-15",
            "5f0c2a9be1d34c77",
            "5f0c2a9be1d34c77-",
            "5f0c2a9be1d34c77--1",
            "5f0c2a9be1d34c77-+1",
            "5f0c2a9be1d34c77-18446744073709551616",
            "5f0c2a9be1d34c77-1-2",
            "5F0C2A9BE1D34C77-15",
            "5f0c2a9be1d34c7-15",
            "+f0c2a9be1d34c77-15",
            " 5f0c2a9be1d34c77-15",
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(BadCursor), "{text:?}");
        }
    }

    #[test]
    fn no_two_instances_are_the_same() {
        let ids: std::collections::HashSet<_> = (0..1000).map(|_| InstanceId::random()).collect();
        assert_eq!(ids.len(), 1000);
    }
}
