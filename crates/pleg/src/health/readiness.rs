//! The node's Ready condition: what a kubelet on this node would post, and why.
//!
//! The rules are the kubelet's. The runtime is asked for its `Status` every [`STATUS_PERIOD`], or every other. An answer with `RuntimeReady` is a
//! sign of life; without one for [`RUNTIME_DOWN`] the runtime is down. An answer that is not ready, of the runtime or its network, is
//! an error in its own words and stays one until another answer comes; a call that fails changes nothing but the age of the last
//! sign of life. Beside that there is the PLEG check: [`Health`], unhealthy, in the words of its report. A pod in quarantine is no
//! reason for anything here.
//!
//! All errors joined are the message of [`NodeCondition`]; with none the node is ready.

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
use crate::runtime::{RuntimeCondition, RuntimeStatus};

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

/// What the runtime has said about itself, and for how long it has not.
#[derive(Debug)]
struct RuntimeState {
    /// The last answer, whatever it said.
    last_answer: Option<Instant>,
    /// The last answer with `RuntimeReady`.
    last_ready: Option<Instant>,
    /// The last answer that was not ready, in words.
    runtime: Option<String>,
    network: Option<String>,
    /// Calls that failed since the last answer.
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    since: Instant,
    attempts: u32,
    error: String,
}

impl Default for RuntimeState {
    fn default() -> Self {
        Self {
            last_answer: None,
            last_ready: None,
            runtime: None,
            network: Some(NETWORK_UNKNOWN.to_owned()),
            failure: None,
        }
    }
}

impl RuntimeState {
    fn answered(&mut self, status: &RuntimeStatus, now: Instant) {
        self.failure = None;
        self.last_answer = Some(now);
        self.network =
            not_ready(status.network.as_ref()).map(|what| format!("container runtime network not ready: {what}"));
        self.runtime = not_ready(status.runtime.as_ref()).map(|what| format!("container runtime not ready: {what}"));
        if self.runtime.is_none() {
            self.last_ready = Some(now);
        }
    }

    fn failed(&mut self, error: String, now: Instant) {
        let failure = self.failure.get_or_insert(Failure {
            since: now,
            attempts: 0,
            error: String::new(),
        });
        failure.attempts += 1;
        failure.error = error;
    }

    /// Why there is no recent sign of life.
    fn silence(&self, now: Instant) -> Option<&'static str> {
        match self.last_ready {
            None => Some("container runtime status check may not have completed yet"),
            Some(last) if now.saturating_duration_since(last) >= RUNTIME_DOWN => Some("container runtime is down"),
            Some(_) => None,
        }
    }

    /// The checks; `waiting`: for how long a `Status` has been in flight.
    fn checks(&self, waiting: Option<Duration>, now: Instant) -> RuntimeChecks {
        let waiting = waiting.map(|age| format!("Status has been waiting for an answer for {}", whole(age)));
        let failure = self.failure.as_ref().map(|failure| {
            let plural = if failure.attempts == 1 { "" } else { "s" };
            let age = whole(now.saturating_duration_since(failure.since));
            format!("{} (for {age}, {} attempt{plural})", failure.error, failure.attempts)
        });
        let silence = self.silence(now);
        let told = [silence.map(str::to_owned), failure, waiting];
        let told: Vec<_> = told.into_iter().flatten().collect();
        let told = (!told.is_empty()).then(|| told.join("; "));
        // Judged as the condition is: only silence keeps a node from being ready.
        let (status, late) = if silence.is_some() { (told, None) } else { (None, told) };
        RuntimeChecks {
            status,
            runtime: self.runtime.clone(),
            network: self.network.clone(),
            late,
        }
    }

    /// Everything that keeps a node from being ready, in the kubelet's order. `pleg` is why the generator is not healthy.
    fn errors(&self, pleg: Option<String>, now: Instant) -> Vec<String> {
        let silence = self.silence(now).map(str::to_owned);
        let own = [self.runtime.clone(), self.network.clone()];
        [silence, pleg].into_iter().chain(own).flatten().collect()
    }
}

/// The PLEG check of the kubelet: why the generator is unhealthy, if it is.
fn pleg_check(report: &Report) -> Option<String> {
    (!report.passes()).then(|| report.message.clone())
}

/// A condition that is false or missing, as the kubelet prints it.
fn not_ready(condition: Option<&RuntimeCondition>) -> Option<String> {
    match condition {
        None => Some("<nil>".to_owned()),
        Some(condition) if !condition.status => Some(condition.to_string()),
        Some(_) => None,
    }
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

fn whole(age: Duration) -> String {
    seconds(Duration::from_secs(age.as_secs()))
}

#[cfg(test)]
mod tests {
    use pleg_cri::{Endpoint, ErrorKind, InFlight, Subject};
    use tokio::time::advance;

    use super::*;
    use crate::health::THRESHOLD;

    const NEVER: &str = "container runtime status check may not have completed yet";
    const DOWN: &str = "container runtime is down";
    const PLEG: &str = "PLEG is not healthy: pleg has yet to be successful";

    fn condition(kind: &'static str, status: bool) -> RuntimeCondition {
        RuntimeCondition {
            kind,
            status,
            reason: "Why".into(),
            message: "what it says".into(),
        }
    }

    fn status(runtime: Option<bool>, network: Option<bool>) -> RuntimeStatus {
        RuntimeStatus {
            runtime: runtime.map(|is| condition("RuntimeReady", is)),
            network: network.map(|is| condition("NetworkReady", is)),
        }
    }

    type Row<'a> = (&'a [(Option<RuntimeStatus>, u64)], bool, &'a [&'a str]);

    /// Every branch: the answers so far with the seconds after each, whether the PLEG check fails, and what keeps the node from
    /// being ready.
    #[tokio::test(start_paused = true)]
    async fn the_table() {
        const RUNTIME: &str = "container runtime not ready: RuntimeReady=false reason:Why message:what it says";
        const NETWORK: &str = "container runtime network not ready: NetworkReady=false reason:Why message:what it says";
        const NO_RUNTIME: &str = "container runtime not ready: <nil>";
        const NO_NETWORK: &str = "container runtime network not ready: <nil>";
        let (yes, no) = (Some(true), Some(false));
        let answer = |runtime, network| Some(status(runtime, network));
        // An answer of none is a call that failed.
        let table: [Row<'_>; 17] = [
            (&[], false, &[NEVER, NETWORK_UNKNOWN]),
            (&[], true, &[NEVER, PLEG, NETWORK_UNKNOWN]),
            (&[(None, 0)], false, &[NEVER, NETWORK_UNKNOWN]),
            (&[(None, 60)], false, &[NEVER, NETWORK_UNKNOWN]),
            (&[(answer(yes, yes), 0)], false, &[]),
            (&[(answer(yes, yes), 0)], true, &[PLEG]),
            (&[(answer(yes, yes), 29)], false, &[]),
            (&[(answer(yes, yes), 30)], false, &[DOWN]),
            (&[(answer(yes, yes), 30)], true, &[DOWN, PLEG]),
            // What the last answer said stays until there is another.
            (&[(answer(yes, no), 29), (None, 0)], false, &[NETWORK]),
            (&[(answer(yes, no), 29), (None, 1)], true, &[DOWN, PLEG, NETWORK]),
            (&[(answer(yes, None), 0)], false, &[NO_NETWORK]),
            // A runtime that is not ready gives no sign of life, however promptly it says so.
            (&[(answer(no, yes), 0)], false, &[NEVER, RUNTIME]),
            (&[(answer(yes, yes), 5), (answer(no, yes), 24)], false, &[RUNTIME]),
            (
                &[(answer(yes, yes), 5), (answer(None, None), 25)],
                true,
                &[DOWN, PLEG, NO_RUNTIME, NO_NETWORK],
            ),
            (&[(answer(no, no), 0), (answer(yes, yes), 0)], false, &[]),
            (&[(answer(yes, yes), 99), (answer(yes, yes), 0)], false, &[]),
        ];
        for (n, (answers, unhealthy, expected)) in table.iter().enumerate() {
            let mut state = RuntimeState::default();
            for (answer, then) in *answers {
                match answer {
                    Some(status) => state.answered(status, Instant::now()),
                    None => state.failed("late".to_owned(), Instant::now()),
                }
                advance(Duration::from_secs(*then)).await;
            }
            let pleg = unhealthy.then(|| PLEG.to_owned());
            assert_eq!(state.errors(pleg, Instant::now()), *expected, "row {n}");
        }
    }

    #[test]
    fn errors_are_joined_as_the_kubelet_joins_them() {
        for (errors, message) in [
            (&["a"][..], "a"),
            (&["a", "b"], "[a, b]"),
            (&["a", "b", "a"], "[a, b]"),
            (&["a", "a"], "a"),
        ] {
            let errors: Vec<_> = errors.iter().map(|&error| error.to_owned()).collect();
            assert_eq!(joined(&errors), message);
        }
    }

    #[test]
    fn only_a_transition_moves_its_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let errors = |text: &str| [text.to_owned()];
        let one = NodeCondition::ready(None, &errors("a"), at(1));
        assert_eq!(
            (one.status, &*one.reason, &*one.message),
            (false, "KubeletNotReady", "a")
        );
        assert_eq!((one.last_heartbeat_time, one.last_transition_time), (at(1), at(1)));
        let two = NodeCondition::ready(Some(&one), &errors("b"), at(2));
        assert_eq!(&*two.message, "b");
        assert_eq!((two.last_heartbeat_time, two.last_transition_time), (at(2), at(1)));
        let three = NodeCondition::ready(Some(&two), &[], at(3));
        assert_eq!((three.status, &*three.reason), (true, "KubeletReady"));
        assert_eq!(&*three.message, "kubelet is posting ready status");
        assert_eq!((three.last_heartbeat_time, three.last_transition_time), (at(3), at(3)));
        let four = NodeCondition::ready(Some(&three), &[], at(4));
        assert_eq!((four.last_heartbeat_time, four.last_transition_time), (at(4), at(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_checks_tell_what_fails_and_for_how_long() {
        let inflight = InFlight::default();
        let health = Health::new(THRESHOLD, inflight.clone(), None);
        let readiness = Readiness::new(health.clone());
        health.relist_complete();
        readiness.answered(&status(Some(true), Some(true)));
        assert!(readiness.ready().status);
        let fine = RuntimeChecks {
            status: None,
            runtime: None,
            network: None,
            late: None,
        };
        assert_eq!(readiness.observe().runtime, fine);

        let error = Error {
            rpc: Rpc::Status,
            subject: Subject::NODE,
            endpoint: Endpoint::unix("/x.sock"),
            kind: ErrorKind::Deadline(Duration::from_secs(10)),
        };
        readiness.failed(&error);
        advance(Duration::from_secs(12)).await;
        let late = Some("Status on unix:///x.sock: no answer within 10s (for 12s, 1 attempt)".to_owned());
        assert_eq!(readiness.observe().runtime, RuntimeChecks { late, ..fine });
        advance(Duration::from_secs(19)).await;
        readiness.failed(&error);
        let _waiting = inflight.begin(Rpc::Status, Subject::NODE, None);
        advance(Duration::from_secs(6)).await;
        assert_eq!(
            readiness.observe().runtime.status.unwrap(),
            "container runtime is down; Status on unix:///x.sock: no answer within 10s (for 37s, 2 attempts); \
             Status has been waiting for an answer for 6s"
        );
        assert_eq!(readiness.ready().message, DOWN);
        readiness.answered(&status(Some(true), Some(true)));
        assert!(readiness.ready().status);
    }
}
