//! The kernel as a witness: it knows that a container's process has exited before the runtime does, and when the runtime never does.
//!
//! ```text
//!                 pidfds of containers' processes     announcements
//! kernel ────────────────────────────────────────────▶ witness ─────▶ generator ──▶ asks the runtime
//!                 inotify on their cgroups
//! ```
//!
//! A witness announces, it never decides: the runtime's answer is committed, and what the kernel shows is evidence. A witness that is late,
//! early, duplicated, wrong or silent makes the generator ask sooner or later, and does no other harm. [`Kernel`] is the real one; the
//! trait is small so that a test can be the witness, with paused time.

mod alive;
mod cgroups;
mod kernel;
mod names;
mod places;
pub(crate) mod process;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::PodUid;
pub use alive::alive_in;
pub use kernel::Kernel;

/// Whether the kernel is used as a witness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WitnessMode {
    /// Where the processes of containers can be seen.
    #[default]
    Auto,
    /// It is not.
    Off,
}

impl WitnessMode {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Off];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for WitnessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not a mode of the witness.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a mode of the witness; expected auto or off", pleg_cri::error::quoted(.0))]
pub struct BadWitnessMode(String);

impl FromStr for WitnessMode {
    type Err = BadWitnessMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| BadWitnessMode(text.chars().take(40).collect()))
    }
}

/// What the kernel shows. `id` is the runtime's id of a container or sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// The watched process has exited. It is not watched any more.
    Exited {
        /// Whose process.
        id: Arc<str>,
        /// The process.
        pid: u32,
        /// When this was noticed.
        at: Timestamp,
        /// Its exit code, 128 + N for signal N, as long as the process is not reaped.
        exit_code: Option<i32>,
    },
    /// A cgroup was made for a container or sandbox: it is about to start.
    CgroupMade {
        /// Whose cgroup.
        id: Arc<str>,
        /// Its pod, where the path names it.
        pod: Option<PodUid>,
    },
    /// The cgroup of a container or sandbox was removed: it has ended.
    CgroupRemoved {
        /// Whose cgroup.
        id: Arc<str>,
    },
    /// The kernel killed a process of the container for lack of memory; not necessarily its first one.
    OomKilled {
        /// Whose cgroup.
        id: Arc<str>,
    },
    /// The kernel dropped announcements: anything may have changed.
    Overflow,
}

/// Why a process is not watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// There is no such process: it has exited already, or it is in a PID namespace that is not visible here.
    #[error("no process {0} is visible here")]
    NotFound(u32),
    /// The process is not in a cgroup of the container.
    #[error("process {0} is not in a cgroup of the container")]
    Mismatch(u32),
    /// Half of the open files or of the watches that this process may have are in use.
    #[error("{0}")]
    Limit(&'static str),
    /// The kernel refuses.
    #[error("{0}")]
    Refused(Arc<str>),
}

/// A process that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent when it was seen first, which is the shim or the monitor of its container, where that can be read.
    pub parent: Option<u32>,
}

/// How much is watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watched {
    /// Processes.
    pub processes: usize,
    /// Directories of cgroups.
    pub cgroups: usize,
    /// No more directories can be watched, so there may be others.
    pub limited: bool,
}

/// Watches processes and cgroups. Every call returns at once.
pub trait Witness: fmt::Debug + Send + 'static {
    /// Why nothing can be watched at all; none if something can.
    fn unavailable(&self) -> Option<Arc<str>>;

    /// Watches the first process of a container or sandbox, and the places where its cgroup and those of its siblings are. A process
    /// that is not in a cgroup with the id in its name is refused: a process id may have been reused.
    fn watch(&mut self, id: &Arc<str>, pid: u32) -> Result<Process, WatchError>;

    /// The watched process is alive, by what the kernel says now; false if it is not watched.
    fn lives(&self, id: &str) -> bool;

    /// What to announce next. Registers the waker if there is nothing.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Announcement>;

    /// How much is watched.
    fn watched(&self) -> Watched;
}

/// Whether the kernel is used as a witness, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WitnessReport {
    /// Something is watched.
    pub on: bool,
    /// Everything that runs is, so full relists may be rare.
    pub complete: bool,
    /// Why, in a few words.
    pub reason: Arc<str>,
    /// Processes that are watched.
    pub processes: usize,
    /// Directories of cgroups that are watched.
    pub cgroups: usize,
}

impl Default for WitnessReport {
    fn default() -> Self {
        Self::off("not started yet")
    }
}

impl WitnessReport {
    /// Nothing is watched.
    pub(crate) fn off(reason: &str) -> Self {
        Self {
            on: false,
            complete: false,
            reason: reason.into(),
            processes: 0,
            cgroups: 0,
        }
    }
}

impl fmt::Display for WitnessReport {
    /// As in `on (12 processes, 7 cgroups): every running container is watched`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.on {
            return write!(f, "off: {}", self.reason);
        }
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let (processes, cgroups) = (self.processes, self.cgroups);
        let (process, cgroup) = (if processes == 1 { "process" } else { "processes" }, plural(cgroups));
        write!(
            f,
            "on ({processes} {process}, {cgroups} cgroup{cgroup}): {}",
            self.reason
        )
    }
}
