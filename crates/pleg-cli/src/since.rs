//! Where an event stream begins: `--since` of `pleg watch` and `?since=` of the API.

use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use pleg::{Cursor, Gap, GapReason, InstanceId, Item, Start};

use crate::text::{parse_duration, zone};

/// What `--since` and `?since=` accept, for error messages.
pub(crate) const ACCEPTED: [&str; 5] = [
    "a cursor, INSTANCE-SEQ",
    "a number from 0 on",
    "now",
    "a duration, as in 10m",
    "a time, as in 2026-11-16T18:00:00Z or 2026-11-16T18:00",
];

/// The beginning of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// With the next new event.
    Now,
    /// After the event with this number, in whichever instance answers. Only 0 is safe across a restart.
    Seq(u64),
    /// After this event of this instance.
    Cursor(Cursor),
    /// With the first held event at or after this time.
    Time(Timestamp),
}

impl Since {
    /// The start in a feed of this instance.
    pub(crate) fn start(self, instance: InstanceId) -> Start {
        match self {
            Self::Now => Start::Now,
            Self::Seq(seq) => Start::After(instance.at(seq)),
            Self::Cursor(cursor) => Start::After(cursor),
            Self::Time(_) => Start::Oldest,
        }
    }

    /// The filter for events before the time, if a time was given.
    pub(crate) fn beginning(self) -> Option<FromTime> {
        match self {
            Self::Time(since) => Some(FromTime { since, first: true }),
            Self::Now | Self::Seq(_) | Self::Cursor(_) => None,
        }
    }
}

/// Drops events before a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FromTime {
    since: Timestamp,
    /// No event has been offered yet.
    first: bool,
}

impl FromTime {
    /// For a reader that begins with the first event at or after the time: nothing before it is missing.
    pub(crate) fn without_gap(self) -> Self {
        Self { first: false, ..self }
    }

    /// Whether this event is passed on.
    pub(crate) fn admits(&self, item: &Item) -> bool {
        match item {
            Item::Event(event) => event.time >= self.since,
            Item::Gap(_) => true,
        }
    }

    /// The gap before the first event: if the first held event is already after the time, earlier ones may have been dropped.
    pub(crate) fn missed(&mut self, item: &Item) -> Option<Gap> {
        let Item::Event(event) = item else {
            return None;
        };
        let first = std::mem::replace(&mut self.first, false);
        (first && event.seq > 1 && event.time >= self.since).then(|| Gap {
            from: 1,
            to: event.seq - 1,
            instance: event.instance,
            reason: GapReason::Overflow,
            after: None,
        })
    }
}

/// A time with a zone, or in the zone in which times are shown.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let local: DateTime = text.parse().ok()?;
    local.to_zoned(zone()).ok().map(|zoned| zoned.timestamp())
}

/// A moment in the past, for those who look back: a duration before now, a time of the day (the last one that has been), or a time.
pub(crate) fn parse_moment(text: &str) -> Result<Timestamp, String> {
    moment(text, Timestamp::now(), &zone()).ok_or_else(|| {
        "expected a duration before now, as in 10m or 7d; a time of the day, as in 02:50; or a time, as in 2026-11-16T18:00".to_owned()
    })
}

fn moment(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    if text == "now" {
        return Some(now);
    }
    // Before durations, for which 02:50:30 is one too.
    if let Some(of_day) = time_of_day(text) {
        let local = now.to_zoned(zone.clone());
        let today = local.date().to_datetime(of_day).to_zoned(zone.clone()).ok()?;
        let last = if today.timestamp() <= now {
            today
        } else {
            let yesterday = local.date().yesterday().ok()?;
            yesterday.to_datetime(of_day).to_zoned(zone.clone()).ok()?
        };
        return Some(last.timestamp());
    }
    if let Some(ago) = parse_days(text).or_else(|| parse_duration(text).ok()) {
        return now.checked_sub(ago).ok();
    }
    parse_time(text)
}

/// `7d`.
fn parse_days(text: &str) -> Option<Duration> {
    let days: u32 = text.strip_suffix('d')?.parse().ok()?;
    (1..=365)
        .contains(&days)
        .then(|| Duration::from_hours(24 * u64::from(days)))
}

/// `02:50` or `02:50:30`.
fn time_of_day(text: &str) -> Option<Time> {
    let is_time = text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || c == ':');
    text.parse().ok().filter(|_| is_time)
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        if let Ok(cursor) = text.parse() {
            return Ok(Self::Cursor(cursor));
        }
        if let Ok(seq) = text.parse() {
            return Ok(Self::Seq(seq));
        }
        let ago = parse_duration(text).ok();
        let ago = ago.and_then(|ago| Timestamp::now().checked_sub(ago).ok());
        let time = ago.or_else(|| parse_time(text)).map(Self::Time);
        time.ok_or_else(|| format!("expected {}", ACCEPTED.join("; ")))
    }
}

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::Seq(seq) => write!(f, "{seq}"),
            Self::Cursor(cursor) => write!(f, "{cursor}"),
            Self::Time(time) => write!(f, "{time}"),
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
        let time = "2026-11-16T18:00:00Z".parse().unwrap();
        assert_eq!("2026-11-16T18:00:00Z".parse(), Ok(Since::Time(time)));
        assert_eq!("2026-11-16T19:00+01:00".parse(), Ok(Since::Time(time)));
        assert_eq!(Since::Time(time).to_string(), "2026-11-16T18:00:00Z");
        assert!(matches!("2026-11-16T18:00".parse(), Ok(Since::Time(_))));
        assert!(matches!("2026-11-16 18:00:05".parse(), Ok(Since::Time(_))));
        let Ok(Since::Time(ago)) = "10m".parse() else {
            panic!("a duration")
        };
        let ago = Timestamp::now().duration_since(ago).as_secs();
        assert!((600..610).contains(&ago), "{ago}");
        for text in ["", "Now", "-1", "99999999999999999999", "2-12", "0000000000000002-"] {
            assert!(text.parse::<Since>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn moments_are_in_the_past() {
        let now: Timestamp = "2026-11-18T03:30:00Z".parse().unwrap();
        let east = TimeZone::fixed(jiff::tz::offset(1));
        for (text, zone, expected) in [
            ("10m", &TimeZone::UTC, "2026-11-18T03:20:00Z"),
            ("7d", &TimeZone::UTC, "2026-11-11T03:30:00Z"),
            ("02:50", &TimeZone::UTC, "2026-11-18T02:50:00Z"),
            ("02:50:30", &TimeZone::UTC, "2026-11-18T02:50:30Z"),
            ("03:30", &TimeZone::UTC, "2026-11-18T03:30:00Z"),
            // It has not been today.
            ("03:31", &TimeZone::UTC, "2026-11-17T03:31:00Z"),
            ("04:31", &east, "2026-11-17T03:31:00Z"),
            ("04:29", &east, "2026-11-18T03:29:00Z"),
            ("2026-11-16T18:00:00Z", &east, "2026-11-16T18:00:00Z"),
            ("now", &east, "2026-11-18T03:30:00Z"),
        ] {
            assert_eq!(moment(text, now, zone), expected.parse().ok(), "{text}");
        }
        for text in ["", "0", "12", "25:00", "02:5x", "-10m", "5f0c2a9be1d34c77-15"] {
            assert_eq!(moment(text, now, &TimeZone::UTC), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_older_than_the_time_is_left_out() {
        let time = |second| Timestamp::from_second(second).unwrap();
        let event = |seq: u64, second| {
            Item::Event(std::sync::Arc::new(pleg::Event {
                seq,
                instance: InstanceId::new(1),
                time: time(second),
                kind: pleg::EventType::PodSync,
                pod: None,
                subject: None,
                pid: None,
                exit_code: None,
                reason: None,
                initial: false,
                source: pleg::Source::Relist,
                trouble: None,
                lasted: None,
                lag: None,
            }))
        };
        let mut from = Since::Time(time(100)).beginning().unwrap();
        assert!(!from.admits(&event(7, 99)) && from.admits(&event(8, 100)));
        // An older event is still held, so nothing is missing.
        assert_eq!(from.missed(&event(7, 99)), None);
        assert_eq!(from.missed(&event(8, 100)), None);
        let missed = |seq| Since::Time(time(100)).beginning().unwrap().missed(&event(seq, 101));
        assert_eq!(missed(1), None);
        assert_eq!(missed(8).map(|gap| (gap.from, gap.to)), Some((1, 7)));
        assert!(Since::Now.beginning().is_none());
    }
}
