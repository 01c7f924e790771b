//! Starts the actions of a decision, and records how they went.

use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerId, PodStatus};
use pleg_cri::duration::seconds;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::{Done, PodWorker, Running, StartSlot};
use crate::error::with_causes;
use crate::executor::objects::Objects;
use crate::executor::{ActionContext, ActionError, ActionOutcome, RuntimeExecutor};
use crate::manifest::{Pod, Role};
use crate::pod_workers::context::StartSlots;
use crate::reconcile::action::{Action, KillReason, MIN_GRACE};
use crate::reconcile::backoff::StartFailure;
use crate::reconcile::observed::newest_first;
use crate::reconcile::resize::SetResources;

/// A pod that takes longer than this to start lets the next one start.
const START_SLOT: Duration = Duration::from_secs(3);

impl PodWorker {
    pub(super) fn start_action(&mut self, action: Action, status: &PodStatus, running: &mut Running) {
        self.log_start(&action);
        self.tell_start(&action);
        self.set_in_flight(&action, true);
        self.record_intent(&action, status);
        if let Action::PreStop { grace, .. } | Action::Kill { grace, .. } = &action {
            let ends = Instant::now() + *grace;
            self.kills_end = Some(self.kills_end.map_or(ends, |other| other.max(ends)));
        }
        let no_starts = self.no_starts.child_token();
        if let Action::Start { name, attempt, .. } = &action {
            self.starting.insert(name.clone(), (*attempt, no_starts.clone()));
        }
        let newest = newest_first(status).into_iter().next();
        let context = ActionContext {
            sandbox_attempt: newest.map_or(0, |sandbox| sandbox.attempt),
            ips: newest.map(|sandbox| sandbox.ips.clone()).unwrap_or_default(),
            target: self.target(&action, status),
            no_starts,
            cut_kills: self.cut_kills.clone(),
            volume_writes: self.refresh.writes(),
            volume_objects: Objects::default(),
            sandbox_stopped: Arc::clone(&self.sandbox_stopped),
            hurry: self.hurry.clone(),
        };
        let (executor, pod) = (self.context.executor.clone(), Arc::clone(&self.pod));
        // A pod takes a start slot with its sandbox, and keeps it until its containers run.
        let slots = matches!(action, Action::RunSandbox { .. }).then(|| self.context.start_slots.clone());
        running.push(Box::pin(async move {
            match slots {
                None => (executor.execute(&pod, action, &context).await, None),
                Some(slots) => run_in_turn(&slots, &executor, &pod, action, context).await,
            }
        }));
    }

    /// The container whose processes an ephemeral container sees.
    fn target(&self, action: &Action, status: &PodStatus) -> Option<ContainerId> {
        let Action::Start { name, .. } = action else {
            return None;
        };
        let target = self.pod.spec.container(name)?.target.as_ref()?;
        let attempts = status.containers.iter().filter(|container| *container.name == **target);
        let newest = attempts.max_by_key(|container| (container.attempt, container.created_at))?;
        Some(newest.id.clone())
    }

    fn set_in_flight(&mut self, action: &Action, starts: bool) {
        fn set<T: Ord + Clone>(set: &mut std::collections::BTreeSet<T>, item: &T, insert: bool) {
            if insert {
                set.insert(item.clone());
            } else {
                set.remove(item);
            }
        }
        match action {
            Action::RemoveContainer { id, .. } => set(&mut self.in_flight.removals, id, starts),
            Action::RemoveOldSandbox(id) => set(&mut self.in_flight.old_sandboxes, id, starts),
            Action::Start { name, .. } => {
                set(&mut self.in_flight.containers, name, starts);
                set(&mut self.in_flight.starts, name, starts);
            }
            Action::Resize { name, .. } => set(&mut self.in_flight.resizes, name, starts),
            Action::PreStop { name, .. } | Action::Kill { name, .. } => {
                set(&mut self.in_flight.containers, name, starts);
            }
            Action::RunSandbox { .. } | Action::StopSandbox(_) | Action::RemoveSandbox(_) if starts => {
                self.sandbox_actions += 1;
            }
            Action::RunSandbox { .. } | Action::StopSandbox(_) | Action::RemoveSandbox(_) => self.sandbox_actions -= 1,
        }
    }

    /// Records what an action is about to do, so that the next decision knows even if the action takes effect and its answer is lost.
    fn record_intent(&mut self, action: &Action, status: &PodStatus) {
        let now = self.context.clock.now();
        match action {
            Action::Kill { id, name, reason, .. } => {
                self.context.metrics.kill(*reason);
                let killed = status.containers.iter().find(|container| container.id == *id);
                if let (Some(killed), true) = (killed, reason.is_replacement()) {
                    let history = self.history.container_mut(name);
                    history.record_replacement(killed.attempt);
                    if matches!(reason, KillReason::ImageChanged | KillReason::ResourcesChanged) {
                        history.updated = Some(killed.attempt);
                    }
                }
            }
            Action::Start {
                name,
                attempt,
                sandbox,
                created,
            } => {
                let history = self.history.container_mut(name);
                history.record_sandbox(*attempt, sandbox);
                if let Some(container) = self.pod.spec.container(name) {
                    history.record_image(*attempt, &container.image);
                    history.record_resources(*attempt, SetResources::from(&container.resources));
                }
                if created.is_none() {
                    history.record_start(now);
                }
            }
            _ => {}
        }
    }

    /// Records how an action went. `last` if no other action is in flight.
    pub(super) fn on_done(&mut self, (outcome, slot): Done, last: bool) {
        self.set_in_flight(&outcome.action, false);
        if let Action::Start { name, .. } = &outcome.action {
            self.starting.remove(name);
        }
        if let Some(slot) = slot {
            self.start_slot = Some(slot);
        }
        if let (Action::PreStop { id, name, .. } | Action::Kill { id, name, .. }, true) =
            (&outcome.action, outcome.pre_stopped)
        {
            self.history.container_mut(name).record_pre_stop(id);
        }
        if !outcome.is_cancelled() {
            self.record(&outcome);
        }
        if last {
            self.kills_end = None;
        }
        if let (Some((operation, since)), true) = (self.operation, last) {
            self.operation = None;
            self.context.metrics.operation(operation, since.elapsed());
        }
        self.save_history();
    }

    fn record(&mut self, outcome: &ActionOutcome) {
        let ActionOutcome {
            action,
            created,
            result,
            ..
        } = outcome;
        if let Err(error) = result {
            let reason = error.reason();
            warn!(pod = %self.pod.id, reason, "cannot {}: {}", describe(action), with_causes(error));
            self.tell_failure(action, error);
        }
        self.count(action, result.as_ref().err());
        match action {
            Action::Start { name, attempt, .. } => self.record_start(name, *attempt, *created, result.as_ref().err()),
            Action::RunSandbox { .. } => self.record_sandbox(result.as_ref().err()),
            Action::Resize {
                name,
                attempt,
                resources,
                ..
            } => {
                let now = self.context.clock.now();
                let history = self.history.container_mut(name);
                match result {
                    Ok(()) => history.record_resources(*attempt, *resources),
                    Err(error) => history.record_resize_failure(&with_causes(error), now),
                }
            }
            _ => self.retries.record(action, result.is_ok()),
        }
    }

    fn record_start(&mut self, name: &str, attempt: u32, created: bool, error: Option<&ActionError>) {
        let now = self.context.clock.now();
        let history = self.history.container_mut(name);
        if created {
            history.record_created(attempt);
        }
        match error {
            None => history.record_started(),
            Some(error) => {
                history.record_failure(error.reason(), &with_causes(error), now);
                if matches!(error, ActionError::PostStartHook(_)) {
                    history.record_failed_hook(attempt);
                }
            }
        }
        let is_main = self.pod.spec.containers.iter().any(|main| main.name == *name);
        if is_main && self.in_flight.containers.is_empty() {
            // The pod runs, or is in back-off: the next pod need not wait for our next decision.
            self.start_slot = None::<StartSlot>;
        }
    }

    fn record_sandbox(&mut self, error: Option<&ActionError>) {
        let before = self.history.sandbox_failure.take();
        if let Some(error) = error {
            let (now, message) = (self.context.clock.now(), with_causes(error));
            self.history.sandbox_failure = Some(StartFailure::after(before.as_ref(), error.reason(), &message, now));
            self.start_slot = None;
        }
    }

    fn count(&self, action: &Action, error: Option<&ActionError>) {
        match action {
            Action::RunSandbox { .. } => self.context.metrics.sandbox(error.is_none()),
            Action::Start { name, attempt, .. } => {
                let container = self.pod.spec.container(name);
                let role = container.map_or(Role::Main, |container| container.role);
                self.context
                    .metrics
                    .container(role, *attempt, error.map(ActionError::reason));
            }
            _ => {}
        }
    }

    fn log_start(&self, action: &Action) {
        let pod = &self.pod.id;
        match action {
            Action::RunSandbox { attempt, .. } => info!(%pod, attempt, "creating sandbox"),
            Action::StopSandbox(id) => info!(%pod, sandbox = %id, "stopping sandbox"),
            Action::RemoveSandbox(id) => info!(%pod, sandbox = %id, "removing sandbox"),
            Action::RemoveOldSandbox(id) => info!(%pod, sandbox = %id, "removing old sandbox"),
            Action::RemoveContainer { name, attempt, .. } => {
                info!(%pod, container = name, attempt, "removing exited container");
            }
            Action::Start {
                name, attempt, created, ..
            } => {
                let exists = created.is_some();
                info!(%pod, container = name, attempt, exists, "starting container");
            }
            Action::Resize { name, .. } => info!(%pod, container = name, "resizing container"),
            Action::PreStop { name, grace, .. } => {
                let grace = seconds(rounded(*grace));
                info!(%pod, container = name, %grace, "running pre-stop hook");
            }
            Action::Kill {
                name, reason, grace, ..
            } => {
                let grace = seconds(rounded((*grace).max(MIN_GRACE)));
                info!(%pod, container = name, %grace, %reason, "stopping container");
            }
        }
    }
}

/// Creates a sandbox when it is this pod's turn. What its volumes contain is fetched before that, while other pods start: start slots are for
/// the runtime.
async fn run_in_turn(
    slots: &StartSlots,
    executor: &RuntimeExecutor,
    pod: &Pod,
    action: Action,
    mut context: ActionContext,
) -> Done {
    let turn = async {
        let preparation = slots.preparations.acquire().await;
        let mut fetching = std::pin::pin!(executor.volume_objects(pod));
        let (fetched, preparation) = if let Ok(fetched) = timeout(START_SLOT, &mut fetching).await {
            (fetched, Some(preparation))
        } else {
            // The API server is slow with this pod: the next one may prepare.
            drop(preparation);
            (fetching.await, None)
        };
        let objects = fetched?;
        let permit = Arc::clone(&slots.starts).acquire_owned().await;
        drop(preparation);
        // An error means that the semaphore is closed, which it never is.
        Ok((objects, permit.ok()))
    };
    let turn = tokio::select! {
        turn = turn => turn,
        () = context.no_starts.cancelled() => Err(ActionError::Cancelled),
    };
    let permit = match turn {
        Ok((objects, permit)) => {
            context.volume_objects = objects;
            permit
        }
        Err(error) => return (ActionOutcome::failed(action, error), None),
    };
    let ends = Instant::now() + START_SLOT;
    let mut executing = std::pin::pin!(executor.execute(pod, action, &context));
    if let Ok(outcome) = timeout_at(ends, &mut executing).await {
        (outcome, permit.map(|permit| (permit, ends)))
    } else {
        // The runtime is slow with this pod: the next one may start.
        drop(permit);
        (executing.await, None)
    }
}

/// What an action does, after "cannot".
fn describe(action: &Action) -> String {
    match action {
        Action::RunSandbox { attempt, .. } => format!("create sandbox, attempt {attempt}"),
        Action::StopSandbox(id) => format!("stop sandbox {id}"),
        Action::RemoveSandbox(id) => format!("remove sandbox {id}"),
        Action::RemoveOldSandbox(id) => format!("remove old sandbox {id}"),
        Action::RemoveContainer { name, attempt, .. } => format!("remove container {name}, attempt {attempt}"),
        Action::Start { name, attempt, .. } => format!("start container {name}, attempt {attempt}"),
        Action::Resize { name, .. } => format!("resize container {name}"),
        Action::PreStop { name, .. } => format!("run the pre-stop hook of container {name}"),
        Action::Kill { name, .. } => format!("stop container {name}"),
    }
}

/// The rest of a grace period is a fraction of a millisecond less than a round number.
fn rounded(grace: Duration) -> Duration {
    if grace < Duration::from_secs(1) {
        return grace;
    }
    Duration::from_secs((grace + Duration::from_millis(500)).as_secs())
}
