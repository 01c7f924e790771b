//! What a colour means. On a terminal without colours the words say it.

use crate::output::{CYAN, DIM, GREEN, RED, YELLOW};

/// From the least to the worst, which is the order in which pods are sorted by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// Gone, or of no importance.
    Dim,
    Plain,
    Good,
    /// News.
    Note,
    /// Not there yet, or worth a look.
    Wait,
    Bad,
}

impl Tone {
    /// The meaning of a colour of the other commands, which choose it.
    pub(crate) fn of(colour: &str) -> Self {
        match colour {
            GREEN => Self::Good,
            YELLOW => Self::Wait,
            RED => Self::Bad,
            CYAN => Self::Note,
            DIM => Self::Dim,
            _ => Self::Plain,
        }
    }

    /// The meaning of a level of health.
    pub(crate) fn of_level(level: &str) -> Self {
        match level {
            "Healthy" => Self::Good,
            "Degraded" => Self::Wait,
            _ => Self::Bad,
        }
    }
}
