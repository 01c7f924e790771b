//! One reason for not being healthy: what is seen, where, what it usually means and what to type next. The same words everywhere.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::duration::seconds;
use pleg_cri::{Error, ErrorKind, Rpc};
use serde::{Deserialize, Serialize};

use crate::health::diagnosis::{About, Trouble};
use crate::model::{ObjectRef, PodRef};
use crate::runtime::shim::Shim;

/// In which part of the generator's work something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stage {
    /// The generator itself.
    Generator,
    /// Listing everything.
    List,
    /// Inspecting one pod.
    Inspect,
    /// Probing a pod that does not change: whether its shim and its containers answer.
    Probe,
    /// Reading the runtime's events.
    Stream,
    /// Comparing what the runtime says with what the kernel shows.
    Witness,
}

/// Which pod, which container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Who {
    /// The pod, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// The runtime's id of the container or sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The runtime's id of the pod's sandbox, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Arc<str>>,
    /// The process of the pod's shim, where it was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shim: Option<Shim>,
    /// The pod with its UID, and the object, as events name them.
    #[serde(skip)]
    pub about: Option<(PodRef, ObjectRef)>,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.container, &self.pod) {
            (Some(container), Some(pod)) => write!(f, "container {container} in pod {pod}"),
            (None, Some(pod)) => write!(f, "the sandbox of pod {pod}"),
            _ => f.write_str("an unknown pod"),
        }
    }
}

/// One reason for not being healthy.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cause {
    /// In which part of a relist.
    pub stage: Stage,
    /// What usually lies behind it.
    pub trouble: Trouble,
    /// What is seen, in one sentence.
    pub text: String,
    /// What that usually means.
    pub means: Cow<'static, str>,
    /// What to type next.
    pub next: String,
    /// The call, such as `ContainerStatus`; empty where it is about none.
    pub rpc: Cow<'static, str>,
    /// Who it is about.
    #[serde(flatten)]
    pub who: Who,
    /// For how long, in seconds.
    pub age_seconds: u64,
    /// Attempts so far; 0 while the first is in flight.
    pub attempts: u32,
    /// How the last attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Arc<str>>,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// A cause in the making: what is seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) stage: Stage,
    pub(super) trouble: Trouble,
    pub(super) rpc: Cow<'static, str>,
    pub(super) who: Who,
    pub(super) age: Duration,
}

impl Seen {
    /// The call failed.
    pub(super) fn failed(self, error: &Arc<str>, attempts: u32, endpoint: Option<&str>) -> Cause {
        let plural = if attempts == 1 { "" } else { "s" };
        let text = format!("{error} (for {}, {attempts} attempt{plural})", self.for_long());
        Cause {
            attempts,
            last_error: Some(Arc::clone(error)),
            ..self.say(text, endpoint)
        }
    }

    /// The call is in flight and has been for long.
    pub(super) fn waiting(self, endpoint: Option<&str>) -> Cause {
        let about = if self.who.pod.is_some() {
            format!(" of {}", self.who)
        } else {
            String::new()
        };
        let text = format!(
            "{}{about} has been waiting for an answer for {}",
            self.rpc,
            self.for_long()
        );
        self.say(text, endpoint)
    }

    /// What is seen is this.
    pub(super) fn say(self, text: String, endpoint: Option<&str>) -> Cause {
        Cause {
            stage: self.stage,
            trouble: self.trouble,
            text,
            means: self.trouble.meaning().into(),
            next: remedy(self.trouble, &self.who, endpoint),
            rpc: self.rpc,
            who: self.who,
            age_seconds: self.age.as_secs(),
            attempts: 0,
            last_error: None,
        }
    }

    /// For how long, as people say it.
    pub(super) fn for_long(&self) -> String {
        seconds(Duration::from_secs(self.age.as_secs()))
    }
}

/// What it usually means and what to type next.
pub(super) fn advice(trouble: Trouble, who: &Who, endpoint: Option<&str>) -> String {
    format!("{} {}", trouble.meaning(), remedy(trouble, who, endpoint))
}

fn remedy(trouble: Trouble, who: &Who, endpoint: Option<&str>) -> String {
    trouble.remedy(&About {
        endpoint,
        pod: who.pod.as_deref(),
        container: who.container.as_deref(),
        // Of a sandbox it is the sandbox's id that is known.
        id: who.container.as_ref().and(who.id.as_deref()),
        sandbox: who
            .sandbox
            .as_deref()
            .or(who.id.as_deref().filter(|_| who.container.is_none())),
        shim_pid: who.shim.map(|shim| shim.pid),
    })
}

impl Cause {
    /// All of it in one line: what is seen, what that usually means, what to type next.
    pub fn full(&self) -> String {
        format!("{}. {} {}", self.text, self.means, self.next)
    }

    /// It is about a list, not about one object; the object that blocks the list may be named.
    pub(crate) fn is_of_list(&self) -> bool {
        let of_object = [Rpc::ContainerStatus.name(), Rpc::PodSandboxStatus.name()];
        self.stage == Stage::List && !of_object.contains(&&*self.rpc)
    }

    /// Names an object that is involved, with these words.
    pub(super) fn name(&mut self, who: &Who, words: &str, endpoint: Option<&str>) {
        self.text.push_str(words);
        self.who = who.clone();
        self.next = remedy(self.trouble, who, endpoint);
    }
}

/// What a failed inspection usually means.
pub(crate) fn of_inspection(error: &ErrorKind) -> Trouble {
    match error {
        ErrorKind::Deadline(_) => Trouble::StuckInspection,
        error if error.is_unreachable() => Trouble::RuntimeDown,
        _ => Trouble::NotInspectable,
    }
}

/// What a failed list usually means. `alone`: other calls are answered.
pub(super) fn of_list(error: &Error, alone: bool) -> Trouble {
    match &error.kind {
        ErrorKind::TooLarge { .. } => Trouble::ListOverLimit,
        ErrorKind::Deadline(_) if alone => Trouble::LockedContainer,
        ErrorKind::Deadline(_) => Trouble::RuntimeStuck,
        error if error.is_unreachable() => Trouble::RuntimeDown,
        _ => Trouble::ListFails,
    }
}
