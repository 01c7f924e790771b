//! Event-driven generation: events of the runtime are hints, and nothing else.
//!
//! ```text
//!              GetContainerEvents          event hints                one writer
//! runtime ───────────────────────▶ stream ─────────────▶ requests ──────────────▶ generator
//!    ▲                             (this module's task)                               │
//!    └──────────── by id · one pod's lists · both lists in full ◀─────────────────────┘
//! ```
//!
//! The task in `stream` reads the stream as fast as events arrive, in every state of the generator: a slow reader blocks the runtime. It
//! writes only hints. Cache, records and events have one writer, the generator, so an event that is late, duplicated, half empty or
//! from the future costs a relist and does no harm. [`quirks`] lists what runtimes are known to do to their events.
//!
//! An event may be ahead of the runtime's own answers: its claim is checked again a moment later (`unconfirmed`). The removal of a stopped pod may
//! have no event: the pod is listed again soon (`stopped`).
//!
//! Trust, but verify: while the stream is up the period of full relists grows (`period`). A full relist that finds a change
//! without a hint (`misses`) resets it to the shortest, as does a stream that ends. Misses are remembered (`trust`): the period grows
//! more slowly after each, and a stream that keeps missing is never relied on for more than 2 s.

pub(crate) mod link;
pub(crate) mod misses;
pub(crate) mod period;
pub(crate) mod stopped;
pub(crate) mod stream;
pub(crate) mod trust;
pub(crate) mod unconfirmed;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use link::{Link, StreamState};
pub(crate) use stream::Stream;
pub use unconfirmed::Reached;

use crate::witness::WitnessReport;

/// How changes are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By full relists, once a period.
    Generic,
    /// By the runtime's events, and full relists now and then.
    Evented,
    /// By events if the runtime has them and no other subscriber loses any.
    #[default]
    Auto,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Evented, Self::Generic];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Evented => "evented",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a mode; expected generic, evented or auto", pleg_cri::error::quoted(.0))]
pub struct BadMode(String);

impl FromStr for Mode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| BadMode(text.chars().take(40).collect()))
    }
}

/// How events are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventedConfig {
    /// Whether they are.
    pub mode: Mode,
    /// The longest pause between full relists while the stream is good; never more than half of the health threshold, so that
    /// one late relist does not make a node NotReady.
    pub most_period: Duration,
    /// There is no other subscriber on this runtime, so [`Mode::Auto`] may subscribe even if each event goes to one subscriber only.
    pub exclusive_subscriber: bool,
}

impl Default for EventedConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            most_period: Duration::from_mins(1),
            exclusive_subscriber: false,
        }
    }
}

/// How changes are found now, and why so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModeReport {
    /// What is done: [`Mode::Generic`] or [`Mode::Evented`].
    pub mode: Mode,
    /// What was asked for.
    pub configured: Mode,
    /// Why, in a few words.
    pub reason: Arc<str>,
    /// The pause between full relists, now.
    #[serde(rename = "full_look_period_seconds")]
    pub full_relist_period_seconds: f64,
    /// Changes found by a full relist that the stream should have reported, or the kernel.
    pub missed_changes: u64,
    /// Whether the kernel announces changes too.
    #[serde(default)]
    pub witness: WitnessReport,
}

impl Default for ModeReport {
    fn default() -> Self {
        Self {
            mode: Mode::Generic,
            configured: Mode::Auto,
            reason: "not started yet".into(),
            full_relist_period_seconds: 1.0,
            missed_changes: 0,
            witness: WitnessReport::default(),
        }
    }
}

impl fmt::Display for ModeReport {
    /// As in `evented (a full relist every 60s): the event stream of containerd 2.1.9 is up`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may have been read from another process, with any number.
        let period = Duration::try_from_secs_f64(self.full_relist_period_seconds).unwrap_or_default();
        let period = pleg_cri::duration::seconds(period);
        write!(f, "{} (a full relist every {period}): {}", self.mode, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_back() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert_eq!(
            "fast".parse::<Mode>().unwrap_err().to_string(),
            "\"fast\" is not a mode; expected generic, evented or auto"
        );
    }
}
