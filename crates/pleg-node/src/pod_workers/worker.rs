//! The pod worker: waits for a fresh status, decides, acts, and reports.
//!
//! Decisions are made one after another, each on a status newer than the last completed action. So nothing is started twice, even if a call
//! failed and took effect anyway. Actions of one decision run in parallel, and later decisions leave their objects alone until they are
//! done: a container that uses its grace period delays no other.

mod actions;
mod admission;
mod deletion;
mod events;
mod refresh;
mod report;
mod retries;
mod termination_messages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::Mutex;
use pleg::{ContainerState, PodEntry, PodRef, PodStatus, SandboxState, Token, WaitError};
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::deletion::DeletionProgress;
use self::refresh::VolumeRefresh;
use self::retries::Retries;
use super::context::NodeContext;
use crate::error::with_causes;
use crate::eviction::manager::Eviction;
use crate::executor::ActionOutcome;
use crate::manifest::Pod;
use crate::metrics::Operation;
use crate::probes::PodProber;
use crate::reconcile::action::{Action, InFlight};
use crate::reconcile::backoff::later;
use crate::reconcile::decide::{Decision, DecisionInput, Goal, Stage, decide};
use crate::reconcile::history::{PodFailure, PodHistory};
use crate::reconcile::start_time::start_time;
use crate::status::Stale;
use crate::status::reports::StuckCall;

/// Longest time between two decisions.
const RESYNC: Duration = Duration::from_mins(1);
/// When a pod that was not admitted is tried again.
const ADMISSION_RETRY: Duration = Duration::from_secs(1);
/// Kills in flight are cut off only if that saves more than this.
const SHORTER_BY: Duration = Duration::from_secs(1);
/// At shutdown, how long calls in flight may take.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

/// What the registry holds of a worker.
#[derive(Debug)]
pub(crate) struct PodWorkerHandle {
    /// Its UID, namespace and name, which never change.
    pub(crate) id: PodRef,
    /// The pod as it is desired now.
    pub(crate) pod: watch::Sender<Arc<Pod>>,
    pub(crate) goal: watch::Sender<Goal>,
    /// Something about the pod may have changed.
    pub(crate) wake: Arc<Notify>,
    /// The history of the pod, for the next worker if this one panics.
    pub(crate) history: Arc<Mutex<PodHistory>>,
    /// Set to evict the pod; the worker takes it.
    pub(crate) eviction: Arc<Mutex<Option<Eviction>>>,
    /// Cancelled when another pod waits for the name of this one.
    pub(crate) hurry: CancellationToken,
}

/// The worker of one pod.
pub(crate) struct PodWorker {
    /// The pod as the last decision saw it.
    pod: Arc<Pod>,
    /// The pod as it is desired now.
    desired: watch::Receiver<Arc<Pod>>,
    context: NodeContext,
    goal: watch::Receiver<Goal>,
    wake: Arc<Notify>,
    history: PodHistory,
    /// The history as it was last saved.
    saved: Arc<Mutex<PodHistory>>,
    eviction: Arc<Mutex<Option<Eviction>>>,
    in_flight: InFlight,
    /// Number of actions on the sandbox that are in flight.
    sandbox_actions: usize,
    retries: Retries,
    /// Cancelled when the pod has failed or terminates: nothing is started, and no start waits for an image or a hook any more.
    no_starts: CancellationToken,
    /// By name: attempts that are being started, and what ends their post-start hooks.
    starting: BTreeMap<String, (u32, CancellationToken)>,
    /// Cancelled, and replaced, when kills in flight take longer than the pod may.
    cut_kills: CancellationToken,
    /// When the grace periods of kills in flight are over.
    kills_end: Option<Instant>,
    start_slot: Option<StartSlot>,
    /// Notified when a sandbox that is being removed is stopped.
    sandbox_stopped: Arc<Notify>,
    /// Cancelled when another pod waits for the name of this one.
    hurry: CancellationToken,
    refresh: VolumeRefresh,
    prober: PodProber,
    /// The last status, and the decision that was made on it.
    last: Option<(Arc<PodStatus>, Decision)>,
    /// Set while this pod cannot be observed.
    quarantined: Option<Stale>,
    /// The call because of which it cannot.
    stuck: Option<StuckCall>,
    /// Why the pod is not started.
    not_admitted: Option<PodFailure>,
    /// A node has accepted the pod before this run.
    was_accepted: bool,
    /// By container: the last back-off that was told.
    told_back_off: BTreeMap<String, Timestamp>,
    /// Whether the start in the history was compared with the clock of this run.
    start_is_checked: bool,
    /// Since when the pod starts; none once it runs, or if it existed before this run.
    starting_since: Option<Instant>,
    /// What the actions in flight are part of, and since when.
    operation: Option<(Operation, Instant)>,
    last_published: Option<Arc<k8s_openapi::api::core::v1::PodStatus>>,
    deletion: DeletionProgress,
}

/// A permit to start a pod, and when it is given up.
type StartSlot = (OwnedSemaphorePermit, Instant);
/// The outcome of an action, and its start slot if it still has one.
type Done = (ActionOutcome, Option<StartSlot>);
/// Actions in flight.
type Running = FuturesUnordered<BoxFuture<'static, Done>>;

impl PodWorker {
    pub(crate) fn new(pod: Arc<Pod>, goal: Goal, history: PodHistory, context: NodeContext) -> (Self, PodWorkerHandle) {
        let (sender, goal) = watch::channel(goal);
        let (desired_sender, desired) = watch::channel(Arc::clone(&pod));
        let wake = Arc::new(Notify::new());
        let saved = Arc::new(Mutex::new(history.clone()));
        let eviction = Arc::new(Mutex::new(None));
        let handle = PodWorkerHandle {
            id: pod.id.clone(),
            pod: desired_sender,
            goal: sender,
            wake: Arc::clone(&wake),
            history: Arc::clone(&saved),
            eviction: Arc::clone(&eviction),
            hurry: CancellationToken::new(),
        };
        let prober = PodProber::new(
            context.executor.clone(),
            Arc::clone(&context.probes),
            context.metrics.clone(),
            context.reports.probe_counts().clone(),
            Arc::clone(&wake),
        );
        // What the API server has: a terminal phase is final, and transitions are as old as it says.
        let last_published = pod.object.status.clone().map(Arc::new);
        let accepted = was_accepted(&pod, Some(&history));
        let worker = Self {
            prober,
            pod,
            desired,
            context,
            goal,
            wake,
            saved,
            eviction,
            history,
            in_flight: InFlight::default(),
            sandbox_actions: 0,
            retries: Retries::default(),
            no_starts: CancellationToken::new(),
            starting: BTreeMap::new(),
            cut_kills: CancellationToken::new(),
            kills_end: None,
            start_slot: None,
            refresh: VolumeRefresh::default(),
            last: None,
            quarantined: None,
            stuck: None,
            not_admitted: None,
            was_accepted: accepted,
            told_back_off: BTreeMap::new(),
            start_is_checked: false,
            starting_since: Some(Instant::now()),
            operation: None,
            last_published,
            sandbox_stopped: Arc::default(),
            hurry: handle.hurry.clone(),
            deletion: DeletionProgress::default(),
        };
        (worker, handle)
    }

    /// Runs until the pod has terminated, or until shutdown: then its containers keep running.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> WorkerExit {
        let uid = self.pod.id.uid.clone();
        let cache = self.context.pleg.cache().clone();
        let mut running = Running::new();
        self.register();
        // Statuses observed before this worker started do not count.
        let mut token = self.context.pleg.request_relist(&uid);
        let (mut sync_due, mut next) = (true, Wake::never());
        let exit = loop {
            let slot_ends = self.start_slot.as_ref().map(|(_, ends)| *ends);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break WorkerExit::ShutDown,
                Some(done) = running.next(), if !running.is_empty() => {
                    self.on_done(done, running.is_empty());
                    token = self.context.pleg.request_relist(&uid);
                    sync_due = true;
                }
                changed = self.goal.changed() => {
                    if changed.is_err() {
                        break WorkerExit::ShutDown;
                    }
                    self.on_goal_changed();
                    sync_due = true;
                }
                Ok(()) = self.desired.changed() => sync_due = true,
                () = self.wake.notified() => sync_due = true,
                () = self.sandbox_stopped.notified() => self.finish_deletion().await,
                refresh = self.refresh.next() => self.on_refresh(refresh),
                Ok(()) = self.context.stale.changed() => self.publish_status(),
                () = sleep_until(slot_ends.unwrap_or_else(far)), if slot_ends.is_some() => self.start_slot = None,
                () = sleep_until(next.at) => {
                    if next.relist {
                        token = self.context.pleg.request_relist(&uid);
                    }
                    next = Wake::never();
                    sync_due = true;
                }
                fresh = cache.newer_than(&uid, token, Duration::MAX), if sync_due => {
                    sync_due = false;
                    match fresh {
                        Ok(entry) => {
                            self.read_termination_messages(&entry.status).await;
                            match self.sync(&entry, token, &mut running) {
                                Some(wake) => next = wake,
                                None => break self.clean_up().await,
                            }
                        }
                        Err(WaitError::Quarantined { error, last }) => next = self.on_quarantine(&last, &error),
                        // It waits without a deadline, so only the end of the generator is left.
                        Err(_) => break WorkerExit::ShutDown,
                    }
                }
            }
        };
        // A call that is cut off may leave half of its effect.
        let drain = async {
            self.refresh.stop().await;
            while running.next().await.is_some() {}
        };
        let _ = tokio::time::timeout(DRAIN, drain).await;
        exit
    }

    /// Decides on a fresh status and acts. Returns when to do so again; none once the pod has terminated.
    fn sync(&mut self, entry: &PodEntry, token: Token, running: &mut Running) -> Option<Wake> {
        debug_assert!(entry.observed >= token, "acted on a status that is not fresh");
        let status = &entry.status;
        self.follow_update();
        self.observe(status);
        self.reject_forbidden(status);
        self.end_hooks_of_exited(status);
        let goal = *self.goal.borrow_and_update();
        // Reading it here may be what marks it as seen.
        self.on_goal_changed();
        self.take_eviction();
        self.probe(status, goal);
        if goal == Goal::Run {
            self.remember_probes(status);
        }
        let decision = self.decide(status, goal);
        self.on_stage(&decision.stage);
        self.tell_back_off(&decision);
        let retry_at = self.carry_out(&decision, status, running);
        // Nothing of it is left that could use them, not even an action that is about to start something.
        if decision.stage == Stage::Finished
            && decision.actions.is_empty()
            && running.is_empty()
            && !may_use_ports(status)
        {
            self.context.host_ports.release(&self.pod.id.uid);
            self.context.requested.release(&self.pod.id.uid);
            self.context.executor.cgroups().release(&self.pod.id.uid);
        }
        self.measure(status, goal, running);
        self.save_history();
        if running.is_empty() {
            // The pod runs, or waits for something slow: the next pod may start.
            self.start_slot = None;
        }
        let decide_at = decision.next_at.map(|at| self.context.clock.instant(at));
        let terminated = decision.stage == Stage::Terminated && running.is_empty();
        self.last = Some((Arc::clone(status), decision));
        self.quarantined = None;
        // What is fresh may still lack a part that the runtime does not answer about.
        self.set_stuck(entry.error.as_deref());
        if terminated {
            return None;
        }
        self.start_refresh_if_due();
        self.publish_status();
        Some(self.next_wake(decide_at.into_iter().chain(retry_at).min()))
    }

    /// Continues with the pod as it is desired now. Actions in flight complete with what they began with.
    fn follow_update(&mut self) {
        let desired = Arc::clone(&self.desired.borrow_and_update());
        if Arc::ptr_eq(&desired, &self.pod) {
            return;
        }
        if desired.spec != self.pod.spec {
            info!(pod = %self.pod.id, generation = desired.object.metadata.generation, "pod updated");
        }
        let before = std::mem::replace(&mut self.pod, desired);
        self.on_updated(&before);
    }

    /// The pod terminates, or has less time than it had.
    fn on_goal_changed(&mut self) {
        let Goal::Terminate { since, grace } = *self.goal.borrow() else {
            return;
        };
        self.no_starts.cancel();
        let ends = self.context.clock.instant(later(since, grace)) + SHORTER_BY;
        if self.kills_end.is_some_and(|kills_end| kills_end > ends) {
            self.cut_kills.cancel();
            self.cut_kills = CancellationToken::new();
            self.kills_end = None;
        }
    }

    /// Nothing is started once the pod has finished, and its containers share one grace period from then on.
    fn on_stage(&mut self, stage: &Stage) {
        match stage {
            Stage::Finished => {
                self.no_starts.cancel();
                let now = self.context.clock.now();
                self.history.finishing_since.get_or_insert(now);
            }
            Stage::Running => {
                self.history.finishing_since = None;
                if self.no_starts.is_cancelled() {
                    self.no_starts = CancellationToken::new();
                }
            }
            Stage::Terminating | Stage::Terminated => {}
        }
    }

    /// A container that has exited needs no post-start hook any more, however long that would take.
    fn end_hooks_of_exited(&self, status: &PodStatus) {
        for container in &status.containers {
            let starting = self.starting.get(&*container.name);
            if let Some((attempt, cancel)) = starting
                && *attempt == container.attempt
                && container.state == ContainerState::Exited
            {
                cancel.cancel();
            }
        }
    }

    /// Records a fresh status in the history.
    fn observe(&mut self, status: &PodStatus) {
        let now = self.context.clock.now();
        if self.last.is_none() && !status.sandboxes.is_empty() {
            self.starting_since = None;
            // Objects may have changed while no worker looked after this pod.
            self.refresh.set_due();
        }
        if !std::mem::replace(&mut self.start_is_checked, true) {
            // A pod that exists already was accepted by an earlier run of `pleg node`.
            let created = status.sandboxes.iter().filter_map(|sandbox| sandbox.created_at);
            let published = self
                .last_published
                .iter()
                .filter_map(|status| status.start_time.as_ref());
            let created = created.chain(published.map(|time| time.0));
            self.history.started_at = Some(start_time(self.history.started_at, created, now));
        }
        self.history.observe(status, now);
    }

    /// Fails the pod if it is to be evicted, unless it is over already.
    fn take_eviction(&mut self) {
        let Some(eviction) = self.eviction.lock().take() else {
            return;
        };
        let is_over = self
            .last
            .as_ref()
            .is_some_and(|(_, decision)| decision.stage != Stage::Running);
        if self.history.failed.is_none() && !is_over {
            self.history.failed = Some(eviction.why);
            self.history.eviction_grace = Some(eviction.grace);
        }
    }

    /// Whether the pod may get a sandbox: not without a network that it needs, nor under pressure if it never had one, nor while another pod
    /// has one of its host ports.
    fn admit(&self, status: &PodStatus) -> Result<(), PodFailure> {
        if !self.pod.spec.host_network {
            self.needs_network()?;
        }
        if status.sandboxes.is_empty() {
            self.context.reports.pressure().admit(&self.pod)?;
        }
        self.context.host_ports.claim(&self.pod)
    }

    fn needs_network(&self) -> Result<(), PodFailure> {
        match self.context.pleg.readiness().network_not_ready() {
            None => Ok(()),
            Some(why) => Err(PodFailure {
                reason: "NetworkNotReady".to_owned(),
                message: format!("network is not ready: {why}"),
            }),
        }
    }

    fn decide(&mut self, status: &PodStatus, goal: Goal) -> Decision {
        self.in_flight.sandbox = self.sandbox_actions > 0;
        let decision = decide(&DecisionInput {
            pod: &self.pod,
            goal,
            status,
            history: &self.history,
            probes: &self.context.probes.lock(),
            in_flight: &self.in_flight,
            now: self.context.clock.now(),
        });
        if let Some(failed) = &decision.failed {
            warn!(pod = %self.pod.id, reason = failed.reason, "{}", failed.message);
            self.tell_failed(failed);
            self.history.failed = Some(failed.clone());
        }
        decision
    }

    /// Starts the actions of a decision, except those that failed a moment ago. Returns when the first of these is retried.
    fn carry_out(&mut self, decision: &Decision, status: &PodStatus, running: &mut Running) -> Option<Instant> {
        self.retries.forget_gone(status);
        let (mut retry_at, mut not_admitted) = (None::<Instant>, None);
        for action in &decision.actions {
            if let Some(until) = self.retries.due(action) {
                retry_at = Some(retry_at.map_or(until, |at| at.min(until)));
                continue;
            }
            if matches!(action, Action::RunSandbox { .. })
                && let Err(conflict) = self.admit(status)
            {
                not_admitted = Some(conflict);
                continue;
            }
            self.start_action(action.clone(), status, running);
        }
        if let Some(failure) = not_admitted.as_ref().filter(|_| not_admitted != self.not_admitted) {
            warn!(pod = %self.pod.id, reason = failure.reason, "{}", failure.message);
            self.tell_failed(failure);
        }
        self.not_admitted = not_admitted;
        retry_at
    }

    /// The next decision: at `due` with a fresh status, or at the resync.
    fn next_wake(&self, due: Option<Instant>) -> Wake {
        let resync = if self.not_admitted.is_some() {
            ADMISSION_RETRY
        } else {
            RESYNC
        };
        let resync = Instant::now() + resync;
        match due {
            Some(at) if at < resync => Wake { at, relist: true },
            _ => Wake {
                at: resync,
                relist: false,
            },
        }
    }

    /// Saves the history, if it changed.
    fn save_history(&mut self) {
        if self.deletion.is_reported() || *self.saved.lock() == self.history {
            return;
        }
        if let Some(store) = &self.context.store {
            store.save_history(&self.pod.id.uid, &self.history);
        }
        self.saved.lock().clone_from(&self.history);
    }

    /// Nothing of the pod is left in the runtime: removes its directories.
    async fn clean_up(&mut self) -> WorkerExit {
        if self.deletion.is_reported() {
            return WorkerExit::Terminated;
        }
        self.refresh.stop().await;
        let removed = self.context.executor.clean_up(&self.pod).await;
        // Before it is reported: who hears of it may send the next pod at once.
        self.release();
        let store = self.context.store.clone().filter(|_| removed.is_ok());
        if let Some(report) = self.report(true) {
            self.context.reports.finish(report, store);
        }
        if let Err(error) = removed {
            // It stays in the store, so that another run of `pleg node` retries too.
            warn!(
                pod = %self.pod.id,
                reason = error.reason(),
                "cannot remove the directories of the pod; retrying every minute: {}",
                with_causes(&error)
            );
            return WorkerExit::DirectoriesLeft;
        }
        WorkerExit::Terminated
    }
}

impl PodWorker {
    /// Others may have its place.
    fn release(&self) {
        self.context.host_ports.release(&self.pod.id.uid);
        self.context.requested.release(&self.pod.id.uid);
    }
}

impl Drop for PodWorker {
    /// Also after a panic: the next worker claims them again.
    fn drop(&mut self) {
        self.release();
        self.context.executor.objects().unregister(&self.pod.id.uid);
    }
}

/// Whether a node has accepted this pod before: it is not rejected any more.
pub(super) fn was_accepted(pod: &Pod, history: Option<&PodHistory>) -> bool {
    let published = pod.object.status.as_ref().and_then(|status| status.start_time.as_ref());
    published.is_some() || history.is_some_and(|history| history.started_at.is_some())
}

/// Whether something of a pod may use its host ports.
pub(super) fn may_use_ports(status: &PodStatus) -> bool {
    let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
    let mut sandboxes = status.sandboxes.iter();
    sandboxes.any(|sandbox| sandbox.state == SandboxState::Ready)
        || status.containers.iter().any(|container| may_run(container.state))
}

/// How a worker exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// Nothing of the pod is left.
    Terminated,
    /// Nothing of the pod is left in the runtime, but its directories could not be removed.
    DirectoriesLeft,
    /// We shut down; the pod keeps running.
    ShutDown,
}

/// When to decide again.
#[derive(Debug, Clone, Copy)]
struct Wake {
    at: Instant,
    /// Something has to be done then, so a relist is worth its cost.
    relist: bool,
}

impl Wake {
    fn never() -> Self {
        Self {
            at: far(),
            relist: false,
        }
    }
}

/// Later than anything waits.
fn far() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365)
}
