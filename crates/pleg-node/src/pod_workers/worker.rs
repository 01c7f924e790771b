//! The pod worker: waits for changes, decides, acts, and waits for a fresh status before it decides again.
//!
//! Decisions are made one after another, each on a status newer than the last completed action. So nothing is started twice, even if a call
//! failed and took effect anyway. Actions of one decision run in parallel, and later decisions ignore their objects until they are done: a
//! container that uses its grace period delays no other.

mod actions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use pleg::{ContainerState, ContainerStatus, Pleg, PodEntry, PodStatus, Token, WaitError};
use pleg_cri::Client;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::executor::requests::Node;
use crate::executor::{Done, Failed, RuntimeExecutor};
use crate::host::clock::Clock;
use crate::manifest::Pod;
use crate::metrics::{NodeMetrics, Operation, Skip};
use crate::pod_workers::ports::Ports;
use crate::probes::{Prober, Results, Subject};
use crate::reconcile::decide::{Action, Busy, Decision, Goal, Situation, Stage, decide};
use crate::reconcile::history::{PodFailure, PodHistory};
use crate::status::reports::{PodReports, Report};
use crate::status::{self, Stale, Status};
use crate::store::Keeper;

/// Decides again after this long, whatever happens.
const RESYNC: Duration = Duration::from_mins(1);
/// A pod in quarantine is asked for again after this long.
const UNSEEN_RETRY: Duration = Duration::from_secs(2);
/// A pod that is refused may be accepted after this long.
const REFUSED_RETRY: Duration = Duration::from_secs(1);
/// At shutdown, how long calls in flight may take to end.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// How many pods start at once. A runtime on two cores is no faster with more than four, and one of ours is usually being inspected.
const STARTS: usize = 5;

/// What all workers of a node share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) pleg: Pleg,
    pub(crate) hands: RuntimeExecutor,
    pub(crate) clock: Clock,
    pub(crate) board: PodReports,
    pub(crate) probes: Arc<Mutex<Results>>,
    pub(crate) node: Arc<status::Node>,
    /// Pods that come up. In the order in which they asked, so that the first ones run soon.
    pub(crate) starts: Arc<Semaphore>,
    /// Who writes down what has to survive us.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) ports: Ports,
    pub(crate) metrics: NodeMetrics,
    /// Set while the runtime cannot be observed.
    pub(crate) stale: watch::Receiver<Option<Arc<Stale>>>,
}

impl Shared {
    pub(crate) fn new(
        client: Client,
        pleg: Pleg,
        node: Node,
        runtime: &str,
        stale: watch::Receiver<Option<Arc<Stale>>>,
    ) -> prometheus::Result<Self> {
        let about = status::Node {
            ips: node.ips.clone(),
            runtime: runtime.to_owned(),
        };
        let metrics = NodeMetrics::new(pleg.metrics().registry())?;
        Ok(Self {
            hands: RuntimeExecutor::new(client, pleg.clone(), Arc::new(node)),
            ports: Ports::default(),
            metrics,
            pleg,
            clock: Clock::default(),
            board: PodReports::default(),
            probes: Arc::default(),
            node: Arc::new(about),
            starts: Arc::new(Semaphore::new(STARTS)),
            keeper: None,
            stale,
        })
    }
}

/// What others hold of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) pod: Arc<Pod>,
    pub(crate) goal: watch::Sender<Goal>,
    /// Something about the pod may have changed.
    pub(crate) news: Arc<Notify>,
    /// The history of the pod, in case the worker panics.
    pub(crate) memory: Arc<Mutex<PodHistory>>,
}

/// The worker of one pod.
pub(crate) struct Worker {
    pod: Arc<Pod>,
    shared: Shared,
    goal: watch::Receiver<Goal>,
    news: Arc<Notify>,
    memory: PodHistory,
    /// What was handed over to be kept.
    kept: Arc<Mutex<PodHistory>>,
    busy: Busy,
    /// Actions about the sandbox that are under way.
    at_sandbox: usize,
    /// By id, what could not be ended or removed: how often in a row, and until when it is left alone. Others go on.
    pauses: BTreeMap<String, (u32, Instant)>,
    /// Cancelled when the pod terminates: nothing waits for starts any more.
    ending: CancellationToken,
    slot: Option<Slot>,
    prober: Prober,
    last: Option<(Arc<PodStatus>, Decision)>,
    /// Set while only this pod cannot be observed.
    unseen: Option<Stale>,
    /// Why it is not started.
    refusal: Option<PodFailure>,
    /// Since when it starts; none once it runs, or if it ran before this run.
    coming: Option<Instant>,
    /// What it is at, since when.
    working: Option<(Operation, Instant)>,
    said: Option<Arc<Status>>,
}

/// A place among those that come up, and until when it is kept.
type Slot = (OwnedSemaphorePermit, Instant);
/// What an action leaves: how it went, and its place if it still has one.
type Acted = (Done, Option<Slot>);
type Acting = FuturesUnordered<BoxFuture<'static, Acted>>;

impl Worker {
    pub(crate) fn new(pod: Arc<Pod>, goal: Goal, memory: PodHistory, shared: Shared) -> (Self, Handle) {
        let (sender, goal) = watch::channel(goal);
        let news = Arc::new(Notify::new());
        let kept = Arc::new(Mutex::new(memory.clone()));
        let handle = Handle {
            pod: Arc::clone(&pod),
            goal: sender,
            news: Arc::clone(&news),
            memory: Arc::clone(&kept),
        };
        let prober = Prober::new(
            shared.hands.clone(),
            Arc::clone(&shared.probes),
            shared.metrics.clone(),
            Arc::clone(&news),
        );
        let worker = Self {
            prober,
            pod,
            shared,
            goal,
            news,
            kept,
            memory,
            busy: Busy::default(),
            at_sandbox: 0,
            pauses: BTreeMap::new(),
            ending: CancellationToken::new(),
            slot: None,
            last: None,
            unseen: None,
            refusal: None,
            coming: Some(Instant::now()),
            working: None,
            said: None,
        };
        (worker, handle)
    }

    /// Runs until the pod is gone, or until shutdown: then containers keep running.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Ended {
        let mut ended = Ended::Early;
        let uid = self.pod.id.uid.clone();
        let cache = self.shared.pleg.cache().clone();
        let mut acting = Acting::new();
        // Statuses observed before this worker started do not count.
        let mut token = self.shared.pleg.request_relist(&uid);
        let (mut look, mut wake) = (true, Wake::far());
        loop {
            let slot_ends = self.slot.as_ref().map(|(_, ends)| *ends);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(acted) = acting.next(), if !acting.is_empty() => {
                    self.acted(acted);
                    if let (Some((operation, since)), true) = (self.working, acting.is_empty()) {
                        self.working = None;
                        self.shared.metrics.worked(operation, since.elapsed());
                    }
                    self.keep();
                    token = self.shared.pleg.request_relist(&uid);
                    look = true;
                }
                changed = self.goal.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    if *self.goal.borrow() != Goal::Run {
                        self.ending.cancel();
                    }
                    look = true;
                }
                () = self.news.notified() => look = true,
                Ok(()) = self.shared.stale.changed() => self.publish_status(),
                () = sleep_until(slot_ends.unwrap_or_else(far)), if slot_ends.is_some() => self.slot = None,
                () = sleep_until(wake.at) => {
                    if wake.due {
                        token = self.shared.pleg.request_relist(&uid);
                    }
                    wake = Wake::far();
                    look = true;
                }
                seen = cache.newer_than(&uid, token, Duration::MAX), if look => {
                    look = false;
                    match seen {
                        Ok(entry) => {
                            let Some(next) = self.step(&entry, token, &mut acting) else {
                                ended = self.leave().await;
                                break;
                            };
                            wake = next;
                        }
                        Err(WaitError::Quarantined { error, last }) => {
                            self.shared.metrics.skip(Skip::Quarantined);
                            self.unseen(&last, &error.message);
                            wake = Wake { at: Instant::now() + UNSEEN_RETRY, due: true };
                        }
                        // It waits without a deadline, so only the end of the generator is left.
                        Err(_) => break,
                    }
                }
            }
        }
        // A call that is cut off may leave half of what it did.
        let _ = tokio::time::timeout(DRAIN, async { while acting.next().await.is_some() {} }).await;
        ended
    }

    /// Decides on a fresh status. Returns when to do so again; none when the pod is gone.
    fn step(&mut self, entry: &PodEntry, token: Token, acting: &mut Acting) -> Option<Wake> {
        debug_assert!(entry.observed >= token, "acted on something old");
        let now = self.shared.clock.now();
        if self.last.is_none() && !entry.status.sandboxes.is_empty() {
            self.coming = None;
        }
        if self.memory.started_at.is_none() {
            // A pod that was here before us was taken on by an earlier one of us.
            let oldest = entry
                .status
                .sandboxes
                .iter()
                .filter_map(|sandbox| sandbox.created_at)
                .min();
            self.memory.started_at = Some(oldest.unwrap_or(now).min(now));
        }
        self.memory.learn(&entry.status, now);
        let goal = *self.goal.borrow_and_update();
        self.probe(&entry.status, goal);
        self.busy.sandbox = self.at_sandbox > 0;
        let decision = decide(&Situation {
            pod: &self.pod,
            goal,
            status: &entry.status,
            memory: &self.memory,
            probes: &self.shared.probes.lock(),
            busy: &self.busy,
            now,
        });
        if let Some(failed) = &decision.failed {
            warn!(pod = %self.pod.id, reason = failed.reason, "{}", failed.message);
            self.memory.failed = Some(failed.clone());
        }
        self.forget_pauses(&entry.status);
        let mut due = decision.until.map(|until| self.shared.clock.instant(until));
        let mut refusal = None;
        for action in &decision.actions {
            if let Some(until) = self.paused(action) {
                due = Some(due.map_or(until, |due| due.min(until)));
                continue;
            }
            if matches!(action, Action::RunSandbox { .. })
                && let Err(taken) = self.shared.ports.take(&self.pod, false)
            {
                refusal = Some(taken);
                continue;
            }
            self.begin(action.clone(), &entry.status, acting);
        }
        self.refused(refusal);
        if decision.stage == Stage::Finished && decision.actions.is_empty() {
            self.shared.ports.release(&self.pod.id.uid);
        }
        self.measure(&entry.status, goal, acting);
        self.keep();
        if acting.is_empty() {
            // Up, or waiting for something that takes its time: the next one may begin.
            self.slot = None;
        }
        let gone = decision.stage == Stage::Gone && acting.is_empty();
        self.last = Some((Arc::clone(&entry.status), decision));
        self.unseen = None;
        if gone {
            return None;
        }
        self.publish_status();
        let resync = Instant::now() + if self.refusal.is_some() { REFUSED_RETRY } else { RESYNC };
        Some(match due {
            Some(at) if at < resync => Wake { at, due: true },
            _ => Wake { at: resync, due: false },
        })
    }

    /// Notes why the pod is not begun; says so once.
    fn refused(&mut self, refusal: Option<PodFailure>) {
        if let Some(refusal) = refusal.as_ref().filter(|_| refusal != self.refusal) {
            warn!(reason = refusal.reason, "{}", refusal.message);
        }
        self.refusal = refusal;
    }

    /// Notes what it is at, and that it is up.
    fn measure(&mut self, status: &PodStatus, goal: Goal, acting: &Acting) {
        if self.working.is_none() && !acting.is_empty() {
            let operation = match (goal, self.coming) {
                (Goal::End { .. }, _) => Operation::Terminate,
                (Goal::Run, Some(_)) => Operation::Create,
                (Goal::Run, None) => Operation::Sync,
            };
            self.working = Some((operation, Instant::now()));
        }
        let runs = |name: &str| {
            let mut all = status.containers.iter();
            all.any(|container| *container.name == *name && container.state == ContainerState::Running)
        };
        if let Some(since) = self.coming
            && self.pod.spec.containers.iter().all(|container| runs(&container.name))
        {
            self.coming = None;
            self.shared.metrics.pod_started(since.elapsed());
        }
    }

    /// Probes running containers, unless they are about to be stopped anyway.
    fn probe(&mut self, status: &PodStatus, goal: Goal) {
        let runs = |container: &&ContainerStatus| container.state == ContainerState::Running && goal == Goal::Run;
        let ip = status.ips.first().copied();
        // One that was there before us ran for as long as the runtime says. One that we see begin does so now: the runtime's clock may
        // have been set since ours was read.
        let adopted = self.last.is_none();
        let subject = |container: &ContainerStatus| {
            let ran = container
                .started_at
                .filter(|_| adopted)
                .map(|started| self.shared.clock.now().duration_since(started));
            let ran = ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default();
            let now = Instant::now();
            Subject {
                pod: Arc::clone(&self.pod),
                name: container.name.to_string(),
                id: container.id.clone(),
                ip,
                since: now.checked_sub(ran).unwrap_or(now),
            }
        };
        self.prober
            .keep(status.containers.iter().filter(runs).map(subject).collect());
    }

    /// Has written down what is remembered, if that changed.
    fn keep(&mut self) {
        if *self.kept.lock() == self.memory {
            return;
        }
        if let Some(keeper) = &self.shared.keeper {
            keeper.keep(&self.pod.id.uid, &self.memory);
        }
        self.kept.lock().clone_from(&self.memory);
    }

    /// Nothing of the pod is left in the runtime: its directories go too.
    async fn leave(&self) -> Ended {
        let cleaned = self.shared.hands.clean(&self.pod).await;
        self.shared.board.remove(&self.pod.id.uid);
        if let Err(Failed { message, .. }) = cleaned {
            // It stays in the store as well, so that another one of us tries again too.
            warn!(pod = %self.pod.id, "cannot remove the directories of the pod; retrying every minute: {message}");
            return Ended::Unclean;
        }
        if let Some(keeper) = &self.shared.keeper {
            keeper.forget(&self.pod.id.uid);
        }
        Ended::Gone
    }

    /// The runtime does not tell about this pod.
    fn unseen(&mut self, last: &PodEntry, why: &str) {
        let stale = Stale {
            as_of: last.inspected_at,
            why: why.to_owned(),
        };
        let decision = self.last.take().map(|(_, decision)| decision).unwrap_or_default();
        self.last = Some((Arc::clone(&last.status), decision));
        self.unseen = Some(stale);
        self.publish_status();
    }

    /// Puts the status on the board.
    fn publish_status(&mut self) {
        let node_stale = self.shared.stale.borrow_and_update().clone();
        let stale = self.unseen.clone().or_else(|| node_stale.as_deref().cloned());
        let Some((seen, decision)) = &self.last else { return };
        let status = Arc::new(status::compute(&status::Sources {
            pod: &self.pod,
            status: seen,
            memory: &self.memory,
            probes: &self.shared.probes.lock(),
            held: &decision.held,
            busy: &self.busy.containers,
            refusal: self.refusal.as_ref(),
            stale: stale.as_ref(),
            before: self.said.as_deref(),
            node: &self.shared.node,
            now: self.shared.clock.now(),
        }));
        let stage = decision.stage.clone();
        self.said = Some(Arc::clone(&status));
        self.shared.board.set(Report {
            pod: Arc::clone(&self.pod),
            status,
            stage,
            goal: *self.goal.borrow(),
            stale,
        });
    }
}

impl Drop for Worker {
    /// Also after a panic: the next worker claims them again.
    fn drop(&mut self) {
        self.shared.ports.release(&self.pod.id.uid);
    }
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing of the pod is left.
    Gone,
    /// Nothing of it is left in the runtime, but on the disk.
    Unclean,
    /// The pod is as it was: we are shut down.
    Early,
}

/// When to decide again.
#[derive(Debug, Clone, Copy)]
struct Wake {
    at: Instant,
    /// Something is to be done then, so a relist is worth its cost.
    due: bool,
}

impl Wake {
    fn far() -> Self {
        Self { at: far(), due: false }
    }
}

/// A moment that does not come while anybody waits.
fn far() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365)
}
