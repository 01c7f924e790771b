//! The node's Ready condition: what a kubelet on this node would post, and why.
//!
//! The rules are the kubelet's. The runtime is asked for its `Status` every [`STATUS_PERIOD`], or every other. An answer with `RuntimeReady` is a
//! sign of life; without one for [`RUNTIME_DOWN`] the runtime is down. An answer that is not ready, of the runtime or its network, is
//! an error in its own words and stays one until another answer comes; a call that fails changes nothing but the age of the last
//! sign of life. Beside that there is the PLEG check: [`Health`], unhealthy, in the words of its report. A pod in quarantine is no
//! reason for anything here.
//!
//! All errors joined are the message of [`NodeCondition`]; with none the node is ready.

mod runtime_state;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use pleg_cri::duration::seconds;
use pleg_cri::{Error, Rpc};
use serde::{Deserialize, Serialize, Serializer};
use tokio::time::Instant;

use crate::health::node_health::NodeHealth;
use crate::health::{Health, Report};
use crate::runtime::RuntimeStatus;
use runtime_state::{RuntimeState, whole};

/// How often the runtime is asked for its status.
pub const STATUS_PERIOD: Duration = Duration::from_secs(5);
/// Without a sign of life for this long the runtime is down.
pub const RUNTIME_DOWN: Duration = Duration::from_secs(30);
/// What the kubelet says of a network that it has not heard of.
const NETWORK_UNKNOWN: &str = "network state unknown";
/// A `Status` in flight for longer than this is worth a word.
const SLOW: Duration = Duration::from_secs(5);

/// A condition in the shape that Kubernetes gives it in the status of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NodeCondition {
    /// `Ready`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// `True` or `False`.
    #[serde(with = "capitalised")]
    pub status: bool,
    /// When it was last found to be so.
    #[serde(serialize_with = "whole_seconds")]
    pub last_heartbeat_time: Timestamp,
    /// Since when `status` is what it is. Another reason or message does not move it.
    #[serde(serialize_with = "whole_seconds")]
    pub last_transition_time: Timestamp,
    /// `KubeletReady` or `KubeletNotReady`.
    pub reason: Cow<'static, str>,
    /// Why not, in the kubelet's words where they are its own.
    pub message: String,
}

/// `True` and `False`, as Kubernetes writes them.
mod capitalised {
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(status: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *status { "True" } else { "False" })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        match &*String::deserialize(deserializer)? {
            "True" => Ok(true),
            // `Unknown` too: nothing is known to be ready.
            _ => Ok(false),
        }
    }
}

/// Kubernetes' times have no fractions.
fn whole_seconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

impl NodeCondition {
    /// What follows on `before` when `errors` are found at `now`.
    fn ready(before: Option<&Self>, errors: &[String], now: Timestamp) -> Self {
        let status = errors.is_empty();
        let last_transition_time = before
            .filter(|before| before.status == status)
            .map_or(now, |before| before.last_transition_time);
        let (reason, message) = if status {
            ("KubeletReady", "kubelet is posting ready status".to_owned())
        } else {
            ("KubeletNotReady", joined(errors))
        };
        Self {
            kind: "Ready".into(),
            status,
            last_heartbeat_time: now,
            last_transition_time,
            reason: reason.into(),
            message,
        }
    }
}

/// One error is itself, several are `[a, b]`; what is said twice is said once.
fn joined(errors: &[String]) -> String {
    let mut said: Vec<&str> = Vec::new();
    for error in errors {
        if !said.contains(&error.as_str()) {
            said.push(error);
        }
    }
    match said[..] {
        [only] => only.to_owned(),
        _ => format!("[{}]", said.join(", ")),
    }
}

/// The PLEG check of the kubelet: why the generator is unhealthy, if it is.
fn pleg_check(report: &Report) -> Option<String> {
    (!report.passes()).then(|| report.message.clone())
}

/// The runtime's own checks, for `/readyz`: what is wrong, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuntimeChecks {
    /// `Status` was answered recently enough; if not, also how the calls since then ended.
    pub status: Option<String>,
    /// `RuntimeReady` is true.
    pub runtime: Option<String>,
    /// `NetworkReady` is true.
    pub network: Option<String>,
    /// A `Status` that failed or waits, while the last answer is recent enough: nothing fails for it yet.
    pub late: Option<String>,
    /// As `status`, without ages: the text stays the same as long as the cause does.
    #[serde(skip)]
    pub silence: Option<String>,
}

/// Answers whether the node is ready. Clones answer the same.
#[derive(Debug, Clone)]
pub struct Readiness {
    shared: Arc<Mutex<Shared>>,
    health: Health,
}

#[derive(Debug, Default)]
struct Shared {
    runtime: RuntimeState,
    /// As it was last found.
    ready: Option<NodeCondition>,
}

impl Readiness {
    pub(crate) fn new(health: Health) -> Self {
        Self {
            shared: Arc::default(),
            health,
        }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// The Ready condition now. A transition is dated by the first call after it: the [monitor](crate::RuntimeMonitor) does so every
    /// [`STATUS_PERIOD`].
    pub fn ready(&self) -> NodeCondition {
        self.observe().ready
    }

    /// Everything there is to say about the node now, from one report.
    pub fn observe(&self) -> NodeHealth {
        let report = self.health.report();
        let now = Instant::now();
        let waiting = self.health.inflight().calls().into_iter().find_map(|call| {
            let age = now.saturating_duration_since(call.since);
            (call.rpc == Rpc::Status && age >= SLOW).then_some(age)
        });
        let mut shared = self.shared.lock();
        let runtime = shared.runtime.checks(waiting, now);
        let errors = shared.runtime.errors(pleg_check(&report), now);
        let ready = NodeCondition::ready(shared.ready.as_ref(), &errors, Timestamp::now());
        shared.ready = Some(ready.clone());
        NodeHealth { report, ready, runtime }
    }

    /// How long ago the runtime last answered `Status`, whatever it said; none before the first time.
    pub fn since_last_answer(&self) -> Option<Duration> {
        self.shared.lock().runtime.last_answer.map(|at| at.elapsed())
    }

    /// Why the runtime's network is not ready, in the kubelet's words. None if it is, and as long as nothing is known about it.
    pub fn network_not_ready(&self) -> Option<String> {
        let network = self.shared.lock().runtime.network.clone();
        network.filter(|network| network != NETWORK_UNKNOWN)
    }

    /// The runtime answered.
    pub(crate) fn answered(&self, status: &RuntimeStatus) {
        let mut shared = self.shared.lock();
        let heard_of = |network: &String| network != NETWORK_UNKNOWN;
        let before = (
            shared.runtime.runtime.take(),
            shared.runtime.network.take().filter(heard_of),
        );
        let failing = shared.runtime.failure.take();
        shared.runtime.answered(status, Instant::now());
        let after = (shared.runtime.runtime.clone(), shared.runtime.network.clone());
        drop(shared);
        if let Some(failure) = failing {
            tracing::debug!(
                "the runtime answers Status again after {}",
                whole(failure.since.elapsed())
            );
        }
        for (before, after, what) in [
            (before.0, after.0, "container runtime"),
            (before.1, after.1, "container runtime network"),
        ] {
            match after {
                Some(error) if before.as_ref() != Some(&error) => tracing::warn!("{error}"),
                None if before.is_some() => tracing::info!("{what} ready"),
                _ => {}
            }
        }
    }

    /// The runtime did not answer. That it is gone is reported by the generator, once.
    pub(crate) fn failed(&self, error: &Error) {
        let mut shared = self.shared.lock();
        shared.runtime.failed(error.to_string(), Instant::now());
        let first = shared
            .runtime
            .failure
            .as_ref()
            .is_some_and(|failure| failure.attempts == 1);
        drop(shared);
        if first && !error.kind.is_unreachable() {
            tracing::warn!(
                "cannot ask the runtime for its status: {error}; trying again every {}",
                seconds(STATUS_PERIOD)
            );
        }
    }
}

#[cfg(test)]
mod tests;
