//! Containers about which the kernel and the runtime disagree.

use std::fmt::Write as _;
use std::sync::Arc;

use pleg_cri::Rpc;
use tokio::time::Instant;

use super::Health;
use super::cause::{Cause, Seen, Stage, Who};
use crate::health::diagnosis::Trouble;
use crate::model::{ContainerId, ContainerRef, ObjectRef, PodRef, SandboxId};
use crate::runtime::shim::Shim;

/// Which of the two is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The process has exited, and the runtime says that the container runs.
    MissedExit {
        /// The process's exit code, where the kernel shows it.
        exit_code: Option<i32>,
    },
    /// The runtime says that the container has exited, and its process lives.
    LeftoverProcess,
}

impl Wrong {
    pub(crate) fn trouble(self) -> Trouble {
        match self {
            Self::MissedExit { .. } => Trouble::MissedExit,
            Self::LeftoverProcess => Trouble::LeftoverProcess,
        }
    }

    /// For a line of the log.
    pub(crate) fn headline(self) -> &'static str {
        match self {
            Self::MissedExit { .. } => "runtime has missed the exit of a container; it still reports it as running",
            Self::LeftoverProcess => "runtime reports a container as exited, but its process is alive",
        }
    }
}

/// A container about which the kernel and the runtime disagree.
#[derive(Debug, Clone)]
pub(crate) struct Disagreement {
    pub(crate) pod: PodRef,
    pub(crate) container: ContainerRef,
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) pid: u32,
    /// The parent of the process: its shim or monitor.
    pub(crate) shim: Option<Shim>,
    /// Its program, such as `conmon`.
    pub(crate) shim_name: Option<Arc<str>>,
    pub(crate) since: Instant,
    pub(crate) wrong: Wrong,
}

impl Disagreement {
    pub(crate) fn who(&self) -> Who {
        Who {
            pod: Some(self.pod.full_name()),
            container: Some(Arc::clone(&self.container.name)),
            id: Some(self.container.id.shared()),
            sandbox: self.sandbox.as_ref().map(SandboxId::shared),
            shim: self.shim,
            about: Some((self.pod.clone(), ObjectRef::Container(self.container.clone()))),
        }
    }

    /// What is seen, in words.
    pub(crate) fn text(&self) -> String {
        let (who, pid) = (self.who(), self.pid);
        let mut text = match self.wrong {
            Wrong::MissedExit { exit_code } => {
                let code = exit_code.map(|code| format!(" with code {code}")).unwrap_or_default();
                format!("process {pid} of {who} has exited{code}, but the runtime reports the container as running")
            }
            Wrong::LeftoverProcess => {
                format!("the runtime reports {who} as exited, but its process {pid} is alive")
            }
        };
        if let Some(shim) = self.shim {
            let (pid, word, state) = (shim.pid, shim.word(), shim.state);
            // Writing to a string cannot fail.
            let _ = match &self.shim_name {
                Some(name) => write!(text, "; its parent, {name} (process {pid}), is {word} ({state})"),
                None => write!(text, "; its parent, process {pid}, is {word} ({state})"),
            };
        }
        text
    }

    pub(super) fn cause(&self, now: Instant, endpoint: Option<&str>) -> Cause {
        let seen = Seen {
            stage: Stage::Witness,
            trouble: self.wrong.trouble(),
            rpc: Rpc::ContainerStatus.name().into(),
            who: self.who(),
            age: now.saturating_duration_since(self.since),
        };
        let text = format!("{} (for {})", self.text(), seen.for_long());
        seen.say(text, endpoint)
    }
}

impl Health {
    pub(crate) fn disagrees(&self, disagreement: Disagreement) {
        let id = disagreement.container.id.clone();
        let mut state = self.shared.lock();
        state.changes += 1;
        state.disagreements.insert(id, disagreement);
    }

    /// They agree. Returns what they disagreed about.
    pub(crate) fn agrees(&self, id: &ContainerId) -> Option<Disagreement> {
        let mut state = self.shared.lock();
        let disagreement = state.disagreements.remove(id)?;
        state.changes += 1;
        Some(disagreement)
    }
}
