//! What a worker does: begins an action, and notes how it went.

use std::sync::Arc;
use std::time::Duration;

use pleg::PodStatus;
use pleg_cri::error::seconds;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::{Acted, Acting, Worker};
use crate::executor::{Done, Failed, POST_START_HOOK};
use crate::manifest::Role;
use crate::reconcile::decide::Action;
use crate::reconcile::history::Failure;
use crate::reconcile::observed::newest_first;

/// What could not be ended or removed is tried again after this long, and twice as long with each failure in a row.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A pod that takes longer than this to come up lets the next one begin.
const SLOT: Duration = Duration::from_secs(3);

impl Worker {
    /// Until when an action is left alone because it failed a moment ago.
    pub(super) fn paused(&self, action: &Action) -> Option<Instant> {
        let (_, until) = self.pauses.get(ended_by(action)?)?;
        Some(*until).filter(|until| *until > Instant::now())
    }

    /// What is gone needs no pause any more.
    pub(super) fn forget_pauses(&mut self, status: &PodStatus) {
        self.pauses.retain(|id, _| {
            let sandbox = status.sandboxes.iter().any(|sandbox| sandbox.id.as_str() == id);
            sandbox || status.containers.iter().any(|container| container.id.as_str() == id)
        });
    }

    pub(super) fn begin(&mut self, action: Action, status: &PodStatus, acting: &mut Acting) {
        info!(pod = %self.pod.id, "{}", describe(&action));
        match &action {
            Action::RemoveContainer { id, .. } => _ = self.busy.removals.insert(id.clone()),
            Action::RemoveOldSandbox(id) => _ = self.busy.old_sandboxes.insert(id.clone()),
            Action::Start { name, .. } | Action::Kill { name, .. } => _ = self.busy.containers.insert(name.clone()),
            Action::RunSandbox { .. } | Action::StopSandbox(_) | Action::RemoveSandbox(_) => self.at_sandbox += 1,
        }
        self.note(&action, status);
        let newest = newest_first(status).into_iter().next();
        let attempt = newest.map_or(0, |sandbox| sandbox.attempt);
        let ips = newest.map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
        let (hands, pod, cancel) = (self.shared.hands.clone(), Arc::clone(&self.pod), self.ending.clone());
        // A pod takes its place with its sandbox, and keeps it until its containers are up.
        let starts = matches!(action, Action::RunSandbox { .. }).then(|| Arc::clone(&self.shared.starts));
        acting.push(Box::pin(async move {
            let Some(starts) = starts else {
                return (hands.act(&pod, action, attempt, &ips, &cancel).await, None);
            };
            let place = tokio::select! {
                place = starts.acquire_owned() => place.ok(),
                () = cancel.cancelled() => {
                    let (made, result) = (false, Err(Failed::cancelled()));
                    return (Done { action, made, result }, None);
                }
            };
            let ends = Instant::now() + SLOT;
            let mut acting = std::pin::pin!(hands.act(&pod, action, attempt, &ips, &cancel));
            if let Ok(done) = timeout_at(ends, &mut acting).await {
                (done, place.map(|place| (place, ends)))
            } else {
                // The runtime takes its time with this one: the next one may begin.
                drop(place);
                (acting.await, None)
            }
        }));
    }

    /// Notes what an action is about to do: should it take effect without our learning of it, the next decision knows.
    fn note(&mut self, action: &Action, status: &PodStatus) {
        let now = self.shared.clock.now();
        match action {
            Action::Kill { id, name, why, .. } => {
                self.shared.metrics.kill(*why);
                let killed = status.containers.iter().find(|container| container.id == *id);
                if let (Some(killed), true) = (killed, why.replaces()) {
                    let memory = self.memory.containers.entry(name.clone()).or_default();
                    memory.replacing(killed.attempt);
                }
            }
            Action::Start {
                name,
                attempt,
                sandbox,
                made,
            } => {
                let memory = self.memory.containers.entry(name.clone()).or_default();
                memory.making(*attempt, sandbox);
                if made.is_none() {
                    memory.starting(now);
                }
            }
            _ => {}
        }
    }

    /// Notes how an action went.
    pub(super) fn acted(&mut self, (done, slot): Acted) {
        let now = self.shared.clock.now();
        if slot.is_some() {
            self.slot = slot;
        }
        match &done.action {
            Action::RemoveContainer { id, .. } => _ = self.busy.removals.remove(id),
            Action::RemoveOldSandbox(id) => _ = self.busy.old_sandboxes.remove(id),
            Action::Start { name, .. } | Action::Kill { name, .. } => _ = self.busy.containers.remove(name),
            Action::RunSandbox { .. } | Action::StopSandbox(_) | Action::RemoveSandbox(_) => self.at_sandbox -= 1,
        }
        if done.result.as_ref().is_err_and(Failed::is_cancelled) {
            return;
        }
        if let Err(Failed { reason, message }) = &done.result {
            warn!(pod = %self.pod.id, reason, "{} failed: {message}", describe(&done.action));
        }
        self.count(&done);
        match (&done.action, &done.result) {
            (Action::Start { name, attempt, .. }, result) => {
                let memory = self.memory.containers.entry(name.clone()).or_default();
                if done.made {
                    memory.created(*attempt);
                }
                match result {
                    Ok(()) => memory.started(),
                    Err(failed) => {
                        memory.failed(failed.reason, &failed.message, now);
                        if failed.reason == POST_START_HOOK {
                            // It was killed for that, and may have ended with 0.
                            memory.replacing(*attempt);
                        }
                    }
                }
                let is_main = self.pod.spec.containers.iter().any(|main| main.name == *name);
                if is_main && self.busy.containers.is_empty() {
                    // Up, or about to wait: the next one need not wait for our look at it.
                    self.slot = None;
                }
            }
            (Action::RunSandbox { .. }, Ok(())) => {
                self.memory.sandbox_failure = None;
            }
            (Action::RunSandbox { .. }, Err(failed)) => {
                let before = self.memory.sandbox_failure.as_ref();
                self.memory.sandbox_failure = Some(Failure::after(before, failed.reason, &failed.message, now));
                self.slot = None;
            }
            (action, Ok(())) => {
                if let Some(id) = ended_by(action) {
                    self.pauses.remove(id);
                }
            }
            (action, Err(_)) => {
                if let Some(id) = ended_by(action) {
                    let row = self.pauses.get(id).map_or(0, |(row, _)| *row);
                    let pause = RETRY.0.saturating_mul(1 << row.min(8)).min(RETRY.1);
                    let entry = (row.saturating_add(1), Instant::now() + pause);
                    self.pauses.insert(id.to_owned(), entry);
                }
            }
        }
    }

    fn count(&self, done: &Done) {
        let failed = done.result.as_ref().err().map(|failed| failed.reason);
        match &done.action {
            Action::RunSandbox { .. } => self.shared.metrics.sandbox(failed.is_none()),
            Action::Start { name, attempt, .. } => {
                let role = self
                    .pod
                    .spec
                    .container(name)
                    .map_or(Role::Main, |container| container.role);
                self.shared.metrics.container(role, *attempt, failed);
            }
            _ => {}
        }
    }
}

/// The id of what an action ends or removes.
fn ended_by(action: &Action) -> Option<&str> {
    match action {
        Action::Kill { id, .. } | Action::RemoveContainer { id, .. } => Some(id.as_str()),
        Action::StopSandbox(id) | Action::RemoveSandbox(id) | Action::RemoveOldSandbox(id) => Some(id.as_str()),
        Action::RunSandbox { .. } | Action::Start { .. } => None,
    }
}

fn describe(action: &Action) -> String {
    match action {
        Action::RunSandbox { attempt, .. } => format!("create sandbox, attempt {attempt}"),
        Action::StopSandbox(id) => format!("stop sandbox {id}"),
        Action::RemoveSandbox(id) => format!("remove sandbox {id}"),
        Action::RemoveOldSandbox(id) => format!("remove the old sandbox {id}"),
        Action::RemoveContainer { name, attempt, .. } => format!("remove container {name}, attempt {attempt}"),
        Action::Start {
            name,
            attempt,
            made: None,
            ..
        } => format!("start container {name}, attempt {attempt}"),
        Action::Start { name, .. } => format!("start container {name}, which exists already"),
        Action::Kill { name, why, grace, .. } => {
            format!("stop container {name}, grace period {}: {why}", seconds(whole(*grace)))
        }
    }
}

/// What is left of a grace period is a fraction of a millisecond less than a round number.
fn whole(grace: Duration) -> Duration {
    if grace < Duration::from_secs(1) {
        return grace;
    }
    Duration::from_secs((grace + Duration::from_millis(500)).as_secs())
}
