//! Pod workers: one task per pod that makes it what its manifest says.
//!
//! In: pods to run or terminate (from the node loop), hints that something changed. Out: CRI calls through the executor, and a report per
//! pod. Each worker owns the history of its pod; [`PodWorkers`] owns the registry: which pod has a worker, and which pod waits for its name.
//!
//! | module | job |
//! |---|---|
//! | this one | the registry: starts, wakes and terminates workers, and restarts panicked ones |
//! | `orphans` | pods of an earlier run of `pleg node`: adopted if desired, else terminated |
//! | `worker` | the task of one pod: wait for a fresh status, decide, act, report |
//! | `context` | what all workers share |
//! | `allocatable` | what pods may request in total |
//! | `preemption` | which pods make room for a critical one |
//! | `host_ports` | which pod has which host port |

pub(crate) mod allocatable;
pub(crate) mod context;
pub(crate) mod host_ports;
pub(crate) mod preemption;
pub(crate) mod worker;

mod orphans;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use pleg::{PodRef, PodUid};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use self::context::NodeContext;
use self::worker::{PodWorker, PodWorkerHandle, WorkerExit, may_use_ports, was_accepted};
use crate::eviction::manager::Eviction;
use crate::manifest::Pod;
use crate::reconcile::backoff::{doubling, later};
use crate::reconcile::decide::Goal;
use crate::reconcile::history::{PodFailure, PodHistory};
use crate::sources::DesiredPod;

/// Delay before a panicked pod worker is restarted, and its maximum; doubles with each panic.
const PANIC_BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Why a pod makes room for a critical one, in the kubelet's words.
const PREEMPTING: &str = "Preempting";
const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// The pod workers of a node.
#[derive(Debug)]
pub(crate) struct PodWorkers {
    pub(crate) context: NodeContext,
    workers: BTreeMap<PodUid, WorkerEntry>,
    /// By `namespace/name`: how many workers have that name. More than one while pods of an earlier run terminate.
    names: HashMap<Arc<str>, usize>,
    /// By `namespace/name`: pods that start when the name is free.
    waiting: BTreeMap<Arc<str>, DesiredPod>,
    running: JoinSet<WorkerExit>,
    /// The pod of each task: all that is known about a task that panicked.
    tasks: HashMap<Id, PodUid>,
    /// The stored history of pods that have no worker yet.
    histories: BTreeMap<PodUid, PodHistory>,
    /// The stored manifests of pods of an earlier run that have no worker, and of which something may be left.
    stored_pods: BTreeMap<PodUid, Arc<Pod>>,
    /// By `namespace/name`: our pods that existed before this run and have no worker, while they may still be desired.
    preexisting: BTreeMap<Arc<str>, BTreeMap<PodUid, PodRef>>,
    /// Desired pods that have terminated without being deleted.
    ended_undeleted: BTreeSet<PodUid>,
    shutdown: CancellationToken,
}

#[derive(Debug)]
struct WorkerEntry {
    handle: PodWorkerHandle,
    task: Id,
    /// How often the worker of this pod panicked.
    panics: u32,
}

impl PodWorkers {
    pub(crate) fn new(context: NodeContext) -> Self {
        Self {
            context,
            workers: BTreeMap::new(),
            names: HashMap::new(),
            waiting: BTreeMap::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            histories: BTreeMap::new(),
            stored_pods: BTreeMap::new(),
            preexisting: BTreeMap::new(),
            ended_undeleted: BTreeSet::new(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Workers that are started from now on stop with this token.
    pub(crate) fn stop_with(&mut self, shutdown: CancellationToken) {
        self.shutdown = shutdown;
    }

    /// Wakes the worker of a pod, or all workers: something may have changed.
    pub(crate) fn wake(&self, pod: Option<&PodRef>) {
        match pod {
            Some(pod) => {
                if let Some(worker) = self.workers.get(&pod.uid) {
                    worker.handle.wake.notify_one();
                }
            }
            None => self.workers.values().for_each(|worker| worker.handle.wake.notify_one()),
        }
    }

    /// Starts a pod, or makes it wait until its name is free. Another pod of that name terminates first, also if it existed before this
    /// run: its manifest was edited in between. Until `all_reported`, a source that is still missing may desire that other pod.
    pub(crate) fn start_pod(&mut self, desired: DesiredPod, all_reported: bool) {
        let name = desired.pod.id.full_name();
        self.waiting.remove(&name);
        let replaced = self.preexisting_of_name(&name, &desired.pod.id.uid);
        if !replaced.is_empty() && !all_reported {
            self.waiting.insert(name, desired);
            return;
        }
        for old in replaced {
            self.terminate_orphan(old, "its manifest changed while pleg node was not running");
        }
        if self.names.contains_key(&name) {
            self.hurry(&desired.pod.id);
            self.waiting.insert(name, desired);
        } else {
            self.save_manifest(&desired);
            let goal = self.goal_of(&desired.pod);
            self.spawn(desired.pod, goal);
        }
    }

    /// Another pod waits for this name: what is left of the one that has it is removed without delay.
    fn hurry(&self, waiting: &PodRef) {
        let workers = self.workers.values().map(|worker| &worker.handle);
        for worker in workers {
            if worker.id.name == waiting.name && worker.id.namespace == waiting.namespace {
                worker.hurry.cancel();
            }
        }
    }

    /// Starts the waiting pods whose names are free.
    pub(crate) fn start_waiting(&mut self, all_reported: bool) {
        for desired in std::mem::take(&mut self.waiting).into_values() {
            self.start_pod(desired, all_reported);
        }
    }

    /// Counts the pods that this node has accepted before, so that new ones cannot take their place.
    pub(crate) fn adopt<'a>(&self, pods: impl Iterator<Item = &'a Arc<Pod>>) {
        for pod in pods {
            let uid = &pod.id.uid;
            let stored = self.histories.get(uid);
            if self.context.pleg.cache().get(uid).is_some() || was_accepted(pod, stored) {
                self.context.requested.adopt(pod);
            }
        }
    }

    /// The same pod with other content. Its worker follows; a pod that has terminated does not start again.
    pub(crate) fn update(&mut self, desired: DesiredPod) {
        let uid = &desired.pod.id.uid;
        if let Some(waiting) = self.waiting.get_mut(&desired.pod.id.full_name())
            && waiting.pod.id.uid == *uid
        {
            *waiting = desired;
            return;
        }
        let Some(worker) = self.workers.get(uid) else {
            // It terminated before its deletion was known: its last status has to be published again for that.
            if desired.pod.deletion.is_some() && self.ended_undeleted.remove(uid) {
                self.start_pod(desired, true);
            }
            return;
        };
        self.save_manifest(&desired);
        worker.handle.pod.send_replace(Arc::clone(&desired.pod));
        if let Some(deletion) = &desired.pod.deletion {
            self.terminate_within(uid, deletion.grace);
        }
    }

    /// What is desired of a pod that starts now.
    fn goal_of(&self, pod: &Pod) -> Goal {
        match &pod.deletion {
            None => Goal::Run,
            Some(deletion) => Goal::Terminate {
                since: self.context.clock.now(),
                grace: deletion.grace,
            },
        }
    }

    /// The same pod, from another origin.
    pub(crate) fn reconcile(&self, desired: &DesiredPod) {
        if self.workers.contains_key(&desired.pod.id.uid) {
            self.save_manifest(desired);
        }
        self.wake(Some(&desired.pod.id));
    }

    /// Stores the manifest of a pod that starts. Not earlier: if a pod of the same content is terminating, it deletes the entry.
    fn save_manifest(&self, desired: &DesiredPod) {
        if let Some(store) = &self.context.store {
            store.save_manifest(desired);
        }
    }

    /// This pod is no longer desired.
    pub(crate) fn remove(&mut self, pod: &Pod) {
        self.waiting.remove(&pod.id.full_name());
        self.ended_undeleted.remove(&pod.id.uid);
        self.terminate(&pod.id.uid);
        if let (Some(store), false) = (&self.context.store, self.workers.contains_key(&pod.id.uid)) {
            store.delete(&pod.id.uid);
        }
    }

    /// Terminates a pod, if it has a worker, with the grace period of its manifest.
    pub(crate) fn terminate(&mut self, uid: &PodUid) {
        if let Some(worker) = self.workers.get(uid) {
            let grace = worker.handle.pod.borrow().spec.termination_grace;
            self.terminate_within(uid, grace);
        }
    }

    /// Terminates a pod, if it has a worker, within a grace period from now. A pod that is terminating can get a shorter one, and never a
    /// longer one.
    pub(crate) fn terminate_within(&self, uid: &PodUid, grace: Duration) {
        let Some(worker) = self.workers.get(uid) else { return };
        let since = self.context.clock.now();
        worker.handle.goal.send_if_modified(|goal| {
            let is_shorter = match *goal {
                Goal::Run => true,
                Goal::Terminate {
                    since: before,
                    grace: old,
                } => later(since, grace) < later(before, old),
            };
            if is_shorter {
                *goal = Goal::Terminate { since, grace };
            }
            is_shorter
        });
    }

    /// Evicts a pod, if it has a worker.
    pub(crate) fn evict(&self, eviction: Eviction) {
        if let Some(worker) = self.workers.get(&eviction.uid) {
            *worker.handle.eviction.lock() = Some(eviction);
            worker.handle.wake.notify_one();
        }
    }

    /// Ends a pod that has to make room for a critical one, within its own grace period.
    pub(crate) fn preempt(&self, uid: &PodUid) {
        let Some(worker) = self.workers.get(uid) else { return };
        let pod = Arc::clone(&worker.handle.pod.borrow());
        warn!(pod = %pod.id, reason = PREEMPTING, "{PREEMPTED}");
        self.context.events.pod_warning(&pod, PREEMPTING, PREEMPTED);
        self.evict(Eviction {
            uid: uid.clone(),
            why: PodFailure {
                reason: PREEMPTING.to_owned(),
                message: PREEMPTED.to_owned(),
            },
            grace: pod.spec.termination_grace,
        });
    }

    /// Whether anything is known about a pod: it has a worker, or existed before this run.
    pub(crate) fn knows(&self, uid: &PodUid) -> bool {
        self.workers.contains_key(uid)
            || self.stored_pods.contains_key(uid)
            || self.preexisting.values().any(|pods| pods.contains_key(uid))
            || self.waiting.values().any(|desired| desired.pod.id.uid == *uid)
    }

    fn spawn(&mut self, pod: Arc<Pod>, goal: Goal) {
        let uid = &pod.id.uid;
        // Its record is needed again, if it terminated a moment ago.
        self.context.reports.reopen(uid);
        let history = self.histories.remove(uid).unwrap_or_default();
        self.stored_pods.remove(uid);
        self.forget_preexisting(&pod.id);
        self.spawn_after(Duration::ZERO, pod, goal, history, 0);
    }

    fn spawn_after(&mut self, delay: Duration, pod: Arc<Pod>, goal: Goal, history: PodHistory, panics: u32) {
        let uid = pod.id.uid.clone();
        let entry = self.context.pleg.cache().get(&uid);
        if entry.is_some_and(|entry| may_use_ports(&entry.status)) {
            // A running pod already uses its ports: it gets them before others can claim them.
            self.context.host_ports.adopt(&pod);
            self.context.requested.adopt(&pod);
            self.context.executor.cgroups().count(&pod);
        }
        let (worker, handle) = PodWorker::new(pod, goal, history, self.context.clone());
        let shutdown = self.shutdown.clone();
        let task = self.running.spawn(async move {
            if !delay.is_zero() {
                let delay = tokio::time::sleep(delay);
                if shutdown.run_until_cancelled(delay).await.is_none() {
                    return WorkerExit::ShutDown;
                }
            }
            worker.run(shutdown).await
        });
        let task = task.id();
        self.tasks.insert(task, uid.clone());
        let name = handle.id.full_name();
        if self.workers.insert(uid, WorkerEntry { handle, task, panics }).is_none() {
            *self.names.entry(name).or_default() += 1;
        }
        self.context.metrics.active(self.workers.len());
    }

    /// Waits until a worker exits. None if there is none. Cancel-safe.
    pub(crate) async fn next_exit(&mut self) -> Option<(Id, Result<WorkerExit, JoinError>)> {
        let exited = self.running.join_next_with_id().await?;
        Some(match exited {
            Ok((id, exit)) => (id, Ok(exit)),
            Err(error) => (error.id(), Err(error)),
        })
    }

    /// A worker has exited: its pod has terminated, we shut down, or it panicked.
    pub(crate) fn on_exit(&mut self, id: Id, exit: Result<WorkerExit, JoinError>) {
        let Some(uid) = self.tasks.remove(&id) else { return };
        if self.workers.get(&uid).is_none_or(|worker| worker.task != id) {
            return;
        }
        let Some(worker) = self.workers.remove(&uid) else {
            return;
        };
        self.release_name(&worker.handle.id.full_name());
        self.context.metrics.active(self.workers.len());
        let pod = Arc::clone(&worker.handle.pod.borrow());
        match exit {
            Err(panic) => return self.restart_panicked(worker, &panic),
            // Its directories are retried with the orphaned pods.
            Ok(WorkerExit::DirectoriesLeft) => _ = self.stored_pods.insert(uid, Arc::clone(&pod)),
            Ok(WorkerExit::Terminated) if pod.deletion.is_none() && !pod.is_static() => {
                self.ended_undeleted.insert(uid);
            }
            Ok(WorkerExit::Terminated | WorkerExit::ShutDown) => {}
        }
        // If yet another pod of that name is still terminating, this one waits again.
        if let Some(next) = self.waiting.remove(&pod.id.full_name()) {
            self.start_pod(next, true);
        }
    }

    /// A worker of this name is gone.
    fn release_name(&mut self, name: &Arc<str>) {
        if let Some(workers) = self.names.get_mut(name) {
            *workers -= 1;
            if *workers == 0 {
                self.names.remove(name);
            }
        }
    }

    fn restart_panicked(&mut self, worker: WorkerEntry, panic: &JoinError) {
        let WorkerEntry { handle, panics, .. } = worker;
        let delay = doubling(PANIC_BACK_OFF.0, PANIC_BACK_OFF.1, panics);
        error!(
            pod = %handle.id,
            error = %panic,
            "pod worker panicked (a bug in pleg); restarting it in {} s",
            delay.as_secs()
        );
        self.context.metrics.worker_panic();
        let (goal, history) = (*handle.goal.borrow(), handle.history.lock().clone());
        let pod = Arc::clone(&handle.pod.borrow());
        self.spawn_after(delay, pod, goal, history, panics.saturating_add(1));
    }

    /// Stops all workers; pods keep running.
    pub(crate) async fn shut_down(&mut self) {
        self.shutdown.cancel();
        while self.running.join_next().await.is_some() {}
    }
}
