//! Known quirks of event streams, and why none of them does harm.
//!
//! | quirk | runtimes | handling |
//! |---|---|---|
//! | each event goes to one subscriber only | containerd before 2.0 | `auto` does not subscribe ([`Quirks::splits_events`]); a kubelet on the node would miss the events we receive |
//! | no `GetContainerEvents` at all | containerd 1.6, cri-dockerd | generic mode; checked again now and then |
//! | the stream ends at once, without an error | CRI-O with `enable_pod_events` off | the same; where there was a stream before, after three such ends in a row |
//! | no answer before the first event | every Go server | a subscription that is not refused within a second stands |
//! | `pod_sandbox_status` is missing | containerd 1.7 on a sandbox's DELETED; half-filled events | the id is looked up in the records; what is not there is found by a full relist |
//! | `created_at` in seconds, in nanoseconds, or 0 | CRI-O, containerd, others | never decides anything; [`made_at`] reads it for a metric |
//! | DELETED when a container only stopped | CRI-O before 1.26.2 | the pod is relisted, and what is listed counts |
//! | an event before the runtime's own answers say so | CRI-O on a start, containerd on a sandbox's end that a plugin holds up | its claim is checked again after 100 ms and after 1 s (`unconfirmed`) |
//! | no STOPPED after a failed start | containerd | found by a full relist; not counted as a miss |
//! | no STOPPED at all | some runtimes | found by a full relist and counted as a miss; if it repeats, relists come every 2 s at least and health is Degraded (`trust`) |
//! | no DELETED when a stopped sandbox is removed with its containers | CRI-O (`crictl rmp`) | a pod that has stopped is listed again after 0.5, 1, 2, 4 and 8 s (`stopped`); the removal of what has stopped is never counted as a miss, on any runtime |
//! | old events, kept for the next subscriber | containerd: 1000 in 1.7, five minutes in 2.x | a relist that finds no change publishes nothing |
//! | duplicated events | CRI-O | the same |
//! | a subscriber that reads slowly blocks `CreateContainer` | containerd 2.x | a task of its own reads the stream and waits for nothing else |
//! | nothing while a container's lock is held, then all at once | containerd | full relists continue: silence does not mean health |

use jiff::Timestamp;

/// What is known about the events of a runtime, by its name and version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Each event goes to one subscriber only, so that one more takes events away from the others.
    pub splits_events: bool,
}

impl Quirks {
    /// Those of the runtime of that name and version. A containerd whose version cannot be parsed is treated as an old one:
    /// then no subscriber loses an event.
    pub fn of(name: &str, version: &str) -> Self {
        let version = version.trim_start_matches('v');
        let major = version.split(|c: char| !c.is_ascii_digit()).next();
        let major = major.and_then(|digits| digits.parse::<u32>().ok());
        Self {
            splits_events: name.contains("containerd") && major.is_none_or(|major| major < 2),
        }
    }
}

/// When an event says it was made. Seconds and nanoseconds since 1970 cannot be mistaken for each other: the same number is a
/// time in this century as one of them only.
pub(crate) fn made_at(created_at: i64) -> Option<Timestamp> {
    /// 2001 in nanoseconds; as seconds, it is beyond what a [`Timestamp`] can hold.
    const LEAST_NANOSECONDS: i64 = 1_000_000_000_000_000_000;
    match created_at {
        ..=0 => None,
        seconds if seconds < LEAST_NANOSECONDS => Timestamp::from_second(seconds).ok(),
        nanoseconds => Timestamp::from_nanosecond(nanoseconds.into()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// containerd#7318, containerd#8892.
    #[test]
    fn containerd_before_2_splits_its_events() {
        for (name, version, splits) in [
            ("containerd", "1.7.24", true),
            ("containerd", "v1.7.24~ds1-6", true),
            ("containerd", "1.6.20", true),
            ("containerd", "2.0.0-rc.1", false),
            ("containerd", "v2.1.9", false),
            ("containerd", "10.0.0", false),
            ("containerd", "2", false),
            ("containerd", "", true),
            ("containerd", "main", true),
            ("cri-o", "1.31.0", false),
            ("pleg-sim", "0.1.0", false),
        ] {
            assert_eq!(Quirks::of(name, version).splits_events, splits, "{name} {version}");
        }
    }

    /// kubernetes#124297, #126414, #127195, #127814.
    #[test]
    fn seconds_and_nanoseconds_are_distinguished() {
        let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        for (created_at, made) in [
            (0, None),
            (-5, None),
            (i64::MIN, None),
            (1_700_000_000, time("2023-11-14T22:13:20Z")),
            (1_700_000_000_000_000_000, time("2023-11-14T22:13:20Z")),
            (1_700_000_000_123_456_789, time("2023-11-14T22:13:20.123456789Z")),
            // No runtime sends milliseconds; they are not taken for a time that is plausible.
            (i64::MAX, time("2262-04-11T23:47:16.854775807Z")),
        ] {
            assert_eq!(made_at(created_at), made, "{created_at}");
        }
    }
}
