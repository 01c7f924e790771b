//! What the runtime has said about itself, and how a kubelet judges it. Pure: the caller passes the time.

use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::{NETWORK_UNKNOWN, RUNTIME_DOWN, RuntimeChecks};
use crate::runtime::{RuntimeCondition, RuntimeStatus};

/// What the runtime has said about itself, and for how long it has not.
#[derive(Debug)]
pub(super) struct RuntimeState {
    /// The last answer, whatever it said.
    pub(super) last_answer: Option<Instant>,
    /// The last answer with `RuntimeReady`.
    last_ready: Option<Instant>,
    /// The last answer that was not ready, in words.
    pub(super) runtime: Option<String>,
    pub(super) network: Option<String>,
    /// Calls that failed since the last answer.
    pub(super) failure: Option<Failure>,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) since: Instant,
    pub(super) attempts: u32,
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
    pub(super) fn answered(&mut self, status: &RuntimeStatus, now: Instant) {
        self.failure = None;
        self.last_answer = Some(now);
        self.network =
            not_ready(status.network.as_ref()).map(|what| format!("container runtime network not ready: {what}"));
        self.runtime = not_ready(status.runtime.as_ref()).map(|what| format!("container runtime not ready: {what}"));
        if self.runtime.is_none() {
            self.last_ready = Some(now);
        }
    }

    pub(super) fn failed(&mut self, error: String, now: Instant) {
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
    pub(super) fn checks(&self, waiting: Option<Duration>, now: Instant) -> RuntimeChecks {
        let waiting = waiting.map(|age| format!("Status has been waiting for an answer for {}", whole(age)));
        let failure = self.failure.as_ref().map(|failure| {
            let plural = if failure.attempts == 1 { "" } else { "s" };
            let age = whole(now.saturating_duration_since(failure.since));
            format!("{} (for {age}, {} attempt{plural})", failure.error, failure.attempts)
        });
        let silence = self.silence(now);
        let why = match (&self.failure, &waiting) {
            (Some(failure), _) => Some(failure.error.clone()),
            (None, Some(_)) => Some("Status is not answered".to_owned()),
            (None, None) => None,
        };
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
            silence: silence.map(|silence| why.map_or(silence.to_owned(), |why| format!("{silence}: {why}"))),
        }
    }

    /// Everything that keeps a node from being ready, in the kubelet's order. `pleg` is why the generator is not healthy.
    pub(super) fn errors(&self, pleg: Option<String>, now: Instant) -> Vec<String> {
        let silence = self.silence(now).map(str::to_owned);
        let own = [self.runtime.clone(), self.network.clone()];
        [silence, pleg].into_iter().chain(own).flatten().collect()
    }
}

/// A condition that is false or missing, as the kubelet prints it.
fn not_ready(condition: Option<&RuntimeCondition>) -> Option<String> {
    match condition {
        None => Some("<nil>".to_owned()),
        Some(condition) if !condition.status => Some(condition.to_string()),
        Some(_) => None,
    }
}

/// Without fractions of a second.
pub(super) fn whole(age: Duration) -> String {
    seconds(Duration::from_secs(age.as_secs()))
}
