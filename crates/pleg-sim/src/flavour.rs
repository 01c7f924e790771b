//! Which runtime the simulator imitates, where clients can see a difference.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The runtime that is taken after. Measured on containerd 1.6.20, 1.7.24 and 2.1.9.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Flavour {
    /// Its own: every subscriber gets every event, none is kept unless the configuration says so.
    #[default]
    Sim,
    /// No events and no `RuntimeConfig`.
    Containerd1_6,
    /// Each event goes to one subscriber only, 1000 are kept while there is none, and the deletion of a sandbox is reported without
    /// its status. No `RuntimeConfig`.
    Containerd1_7,
    /// Every subscriber gets every event; while there is none, five minutes of them are kept for the next.
    Containerd2_1,
    /// Every subscriber gets every event, none is kept.
    CriO,
}

/// What is kept for the next subscriber while there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) events: usize,
    /// Older ones are forgotten.
    pub(crate) age: Option<Duration>,
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Sim,
        Self::Containerd1_6,
        Self::Containerd1_7,
        Self::Containerd2_1,
        Self::CriO,
    ];

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Containerd1_6 => "containerd-1.6",
            Self::Containerd1_7 => "containerd-1.7",
            Self::Containerd2_1 => "containerd-2.1",
            Self::CriO => "crio",
        }
    }

    /// The runtime's name and version, as `Version` answers.
    pub(crate) const fn runtime(self) -> (&'static str, &'static str) {
        match self {
            Self::Sim => ("pleg-sim", env!("CARGO_PKG_VERSION")),
            Self::Containerd1_6 => ("containerd", "1.6.20"),
            Self::Containerd1_7 => ("containerd", "1.7.24"),
            Self::Containerd2_1 => ("containerd", "2.1.9"),
            Self::CriO => ("cri-o", "1.31.0"),
        }
    }

    pub(crate) const fn has_events(self) -> bool {
        !matches!(self, Self::Containerd1_6)
    }

    pub(crate) const fn has_runtime_config(self) -> bool {
        !matches!(self, Self::Containerd1_6 | Self::Containerd1_7)
    }

    /// Each event goes to one subscriber only.
    pub(crate) const fn splits_events(self) -> bool {
        matches!(self, Self::Containerd1_7)
    }

    /// The event that a sandbox was deleted has its status.
    pub(crate) const fn tells_deleted_status(self) -> bool {
        !matches!(self, Self::Containerd1_7)
    }

    pub(crate) const fn backlog(self) -> Backlog {
        let (events, age) = match self {
            Self::Sim | Self::Containerd1_6 | Self::CriO => (0, None),
            Self::Containerd1_7 => (1000, None),
            // Bounded by time alone in containerd; by memory too here.
            Self::Containerd2_1 => (100_000, Some(Duration::from_mins(5))),
        };
        Backlog { events, age }
    }
}

/// Why a text is no flavour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a flavour; expected sim, containerd-1.6, containerd-1.7, containerd-2.1 or crio", pleg_cri::error::quoted(.0))]
pub struct BadFlavour(String);

impl FromStr for Flavour {
    type Err = BadFlavour;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| BadFlavour(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<String> for Flavour {
    type Error = BadFlavour;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Flavour> for String {
    fn from(flavour: Flavour) -> Self {
        flavour.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for flavour in Flavour::ALL {
            assert_eq!(flavour.name().parse(), Ok(flavour));
        }
        assert!("containerd".parse::<Flavour>().is_err());
    }
}
