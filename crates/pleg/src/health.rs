//! Is the generator healthy, and if not, what is it waiting for?
//!
//! The rule is the kubelet's: a complete look within the threshold. Only [`Level::Unhealthy`] makes a node NotReady; a pod in
//! quarantine makes the generator [`Level::Degraded`], which hurts nobody but that pod. Every level below healthy has a cause with names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::error::seconds;
use pleg_cri::{Error, InFlight, Rpc};
use serde::Serialize;
use tokio::time::Instant;

use crate::cache::PodError;
use crate::model::{PodRef, PodUid};
use crate::snapshot::Oddities;

/// The kubelet's threshold.
pub const THRESHOLD: Duration = Duration::from_mins(3);
/// A call in flight for longer than this is worth a word.
const SLOW_CALL: Duration = Duration::from_secs(5);
/// Causes beyond this many are counted, not listed.
const MOST_CAUSES: usize = 20;

/// How well the generator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// All is seen.
    Healthy,
    /// Something is not seen; the node still works.
    Degraded,
    /// No complete look within the threshold: nothing is known any more.
    Unhealthy,
}

/// In which part of a look something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Listing everything.
    List,
    /// Inspecting one pod.
    Inspect,
}

/// One reason for not being healthy.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// In which part of a look.
    pub stage: Stage,
    /// The call, such as `ContainerStatus`.
    pub rpc: &'static str,
    /// The pod, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// The runtime's id of the container or sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
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
        let age = seconds(Duration::from_secs(self.age_seconds));
        if let Some(error) = &self.last_error {
            let plural = if self.attempts == 1 { "" } else { "s" };
            return write!(f, "{error} (for {age}, {} attempt{plural})", self.attempts);
        }
        f.write_str(self.rpc)?;
        match (&self.container, &self.pod) {
            (Some(container), Some(pod)) => write!(f, " of container {container} in pod {pod}")?,
            (None, Some(pod)) => write!(f, " of the sandbox of pod {pod}")?,
            _ => {}
        }
        write!(f, " has been waiting for an answer for {age}")
    }
}

/// The health at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How well.
    pub level: Level,
    /// In one line; in the kubelet's words where they are its own.
    pub message: String,
    /// Why not better; the longest-standing first.
    pub causes: Vec<Cause>,
    /// Causes that are not listed because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_causes: usize,
    /// Seconds since the last complete look; none before the first.
    pub last_seen_seconds: Option<f64>,
    /// The threshold, in seconds.
    pub threshold_seconds: u64,
    /// Looks completed so far.
    pub looks: u64,
    /// What made no sense in the last complete look. Never a reason for not being healthy.
    pub odd_objects: Oddities,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Debug, Default)]
struct State {
    looks: u64,
    last_complete: Option<Instant>,
    /// Looks that failed since the last complete one.
    failure: Option<ListFailure>,
    quarantine: BTreeMap<PodUid, (PodRef, Arc<PodError>)>,
    /// What made no sense in the last complete look.
    odd: Oddities,
}

#[derive(Debug)]
struct ListFailure {
    since: Instant,
    attempts: u32,
    error: Error,
}

/// A call by which the generator looks. Others share the table: a pull or a stop may take its minutes, a stream is meant to last.
fn is_look(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::Version
            | Rpc::ListPodSandbox
            | Rpc::StreamPodSandboxes
            | Rpc::ListContainers
            | Rpc::StreamContainers
            | Rpc::PodSandboxStatus
            | Rpc::ContainerStatus
    )
}

/// Answers for the generator's health. Clones answer the same.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Mutex<State>>,
    inflight: InFlight,
    threshold: Duration,
}

impl Health {
    pub(crate) fn new(threshold: Duration, inflight: InFlight) -> Self {
        Self {
            shared: Arc::default(),
            inflight,
            threshold,
        }
    }

    /// The calls in flight now.
    pub fn inflight(&self) -> &InFlight {
        &self.inflight
    }

    /// The health now.
    pub fn report(&self) -> Report {
        let state = self.shared.lock();
        let now = Instant::now();
        let age = |since: Instant| now.saturating_duration_since(since);
        let last_seen = state.last_complete.map(age);

        let mut causes = Vec::new();
        if let Some(failure) = &state.failure {
            causes.push(Cause {
                stage: Stage::List,
                rpc: failure.error.rpc.name(),
                pod: None,
                container: None,
                id: None,
                age_seconds: age(failure.since).as_secs(),
                attempts: failure.attempts,
                last_error: Some(failure.error.to_string().into()),
            });
        }
        for (pod, error) in state.quarantine.values() {
            causes.push(Cause {
                stage: Stage::Inspect,
                rpc: error.rpc,
                pod: Some(pod.full_name()),
                container: error.container.clone(),
                id: error.id.clone(),
                age_seconds: age(error.since).as_secs(),
                attempts: error.attempts,
                last_error: Some(Arc::clone(&error.message)),
            });
        }
        let (looks, odd_objects) = (state.looks, state.odd);
        let troubled = state.failure.is_some() || !state.quarantine.is_empty();
        drop(state);
        // What is still in flight has no error yet; it is told by its age.
        for call in self.inflight.calls() {
            let waiting = age(call.since);
            let known = |cause: &Cause| cause.id == call.subject.id && cause.rpc == call.rpc.name();
            if waiting >= SLOW_CALL && is_look(call.rpc) && !causes.iter().any(known) {
                causes.push(Cause {
                    stage: if call.subject.id.is_some() {
                        Stage::Inspect
                    } else {
                        Stage::List
                    },
                    rpc: call.rpc.name(),
                    pod: call.subject.pod,
                    container: call.subject.container,
                    id: call.subject.id,
                    age_seconds: waiting.as_secs(),
                    attempts: 0,
                    last_error: None,
                });
            }
        }
        causes.sort_by_key(|cause| (cause.stage == Stage::Inspect, std::cmp::Reverse(cause.age_seconds)));

        let level = match last_seen {
            None => Level::Unhealthy,
            Some(age) if age > self.threshold => Level::Unhealthy,
            Some(_) if troubled || !causes.is_empty() => Level::Degraded,
            Some(_) => Level::Healthy,
        };
        let message = self.message(level, last_seen, &causes);
        let more_causes = causes.len().saturating_sub(MOST_CAUSES);
        causes.truncate(MOST_CAUSES);
        Report {
            level,
            message,
            causes,
            more_causes,
            last_seen_seconds: last_seen.map(|age| (age.as_secs_f64() * 1e3).round() / 1e3),
            threshold_seconds: self.threshold.as_secs(),
            looks,
            odd_objects,
        }
    }

    fn message(&self, level: Level, last_seen: Option<Duration>, causes: &[Cause]) -> String {
        let mut message = match (level, last_seen) {
            (Level::Healthy, _) => return "PLEG is healthy".to_owned(),
            (Level::Degraded, _) => "PLEG is degraded".to_owned(),
            (Level::Unhealthy, None) => "PLEG is not healthy: pleg has yet to be successful".to_owned(),
            (Level::Unhealthy, Some(age)) => format!(
                "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
                seconds(Duration::from_secs(age.as_secs())),
                seconds(self.threshold)
            ),
        };
        if let Some(first) = causes.first() {
            message.push_str(": ");
            message.push_str(&first.to_string());
        }
        if causes.len() > 1 {
            // Writing to a string cannot fail.
            let _ = write!(message, "; and {} more", causes.len() - 1);
        }
        message
    }

    /// The moment after which the generator is unhealthy unless a look completes.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.shared.lock().last_complete.map(|last| last + self.threshold)
    }

    /// A full look is complete. Returns how long looks had failed before, and how often.
    pub(crate) fn look_complete(&self) -> Option<(Duration, u32)> {
        let mut state = self.shared.lock();
        state.looks += 1;
        state.last_complete = Some(Instant::now());
        state
            .failure
            .take()
            .map(|failure| (failure.since.elapsed(), failure.attempts))
    }

    /// A full look failed. Returns whether it is the first to fail.
    pub(crate) fn look_failed(&self, error: Error) -> bool {
        let mut state = self.shared.lock();
        if let Some(failure) = &mut state.failure {
            failure.attempts += 1;
            failure.error = error;
            return false;
        }
        state.failure = Some(ListFailure {
            since: Instant::now(),
            attempts: 1,
            error,
        });
        true
    }

    /// Takes in what made no sense in a complete look. Returns whether that is news.
    pub(crate) fn odd(&self, odd: Oddities) -> bool {
        std::mem::replace(&mut self.shared.lock().odd, odd) != odd
    }

    pub(crate) fn quarantine(&self, pod: &PodRef, error: Arc<PodError>) {
        self.shared
            .lock()
            .quarantine
            .insert(pod.uid.clone(), (pod.clone(), error));
    }

    pub(crate) fn release(&self, uid: &PodUid) {
        self.shared.lock().quarantine.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use pleg_cri::Subject;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_looks_that_wait_are_a_cause() {
        let inflight = InFlight::default();
        let health = Health::new(THRESHOLD, inflight.clone());
        health.look_complete();
        let long = Some(Duration::from_mins(4));
        let _pull = inflight.begin(Rpc::PullImage, Subject::NODE, long);
        let _stop = inflight.begin(Rpc::StopContainer, Subject::id("c"), long);
        let _events = inflight.begin(Rpc::GetContainerEvents, Subject::NODE, None);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(health.report().level, Level::Healthy);

        let _list = inflight.begin(Rpc::ListContainers, Subject::NODE, long);
        tokio::time::advance(SLOW_CALL).await;
        let report = health.report();
        assert_eq!((report.level, report.causes.len()), (Level::Degraded, 1));
        assert_eq!(report.causes[0].rpc, "ListContainers");
    }
}
