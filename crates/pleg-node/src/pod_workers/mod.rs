//! The registry of pod workers: starts and ends them, makes a pod wait for its name, and restarts panicked workers.

pub(crate) mod ports;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use pleg::{PodEntry, PodRef, PodUid, SandboxState};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::manifest::Pod;
use crate::pod_workers::worker::{Ended, Handle, Shared, Worker};
use crate::reconcile::decide::Goal;
use crate::reconcile::history::PodHistory;
use crate::sources::DesiredPod;

/// Delay before a panicked pod worker is restarted; doubles with each panic.
const RISE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// The pod workers of a node.
#[derive(Debug)]
pub(crate) struct PodWorkers {
    pub(crate) shared: Shared,
    members: BTreeMap<PodUid, PodWorker>,
    /// By `namespace/name`: pods that start when the name is free.
    waiting: BTreeMap<Arc<str>, DesiredPod>,
    running: JoinSet<Ended>,
    /// The pod of each task: all that is known about a task that panicked.
    tasks: HashMap<Id, PodUid>,
    /// The history of pods that have no worker yet.
    remembered: BTreeMap<PodUid, PodHistory>,
    /// Manifests of pods of an earlier run of `pleg node`, of which something may be left.
    kept: BTreeMap<PodUid, Arc<Pod>>,
    /// Our pods that existed before this run and have no worker, while they may still be desired.
    found: Vec<PodRef>,
    shutdown: CancellationToken,
}

#[derive(Debug)]
struct PodWorker {
    handle: Handle,
    /// Its worker's.
    task: Id,
    /// How often its worker panicked.
    falls: u32,
}

impl PodWorkers {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            shared,
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            remembered: BTreeMap::new(),
            kept: BTreeMap::new(),
            found: Vec::new(),
            shutdown: CancellationToken::new(),
        }
    }

    /// The history from an earlier run of `pleg node`.
    pub(crate) fn remember(&mut self, remembered: BTreeMap<PodUid, PodHistory>, kept: Vec<DesiredPod>) {
        self.remembered = remembered;
        self.kept = kept
            .into_iter()
            .map(|offer| (offer.pod.id.uid.clone(), offer.pod))
            .collect();
    }

    /// These pods of ours existed before this run.
    pub(crate) fn found(&mut self, found: Vec<PodRef>) {
        self.found = found;
    }

    /// Workers end with this.
    pub(crate) fn ends_with(&mut self, shutdown: CancellationToken) {
        self.shutdown = shutdown;
    }

    /// Wakes the worker of a pod, or all workers: something may have changed.
    pub(crate) fn tell(&self, pod: Option<&PodRef>) {
        match pod {
            Some(pod) => {
                if let Some(member) = self.members.get(&pod.uid) {
                    member.handle.news.notify_one();
                }
            }
            None => self.members.values().for_each(|member| member.handle.news.notify_one()),
        }
    }

    /// Starts a pod, or makes it wait until its name is free. Another pod of that name terminates first, also if it existed before this
    /// run: its manifest was edited meanwhile. While not all sources have `spoken`, one of them may desire that other pod.
    pub(crate) fn begin(&mut self, offer: DesiredPod, spoken: bool) {
        let pod = &offer.pod;
        let name = pod.id.full_name();
        self.waiting.remove(&name);
        // A pod with several sandboxes was found several times.
        let before = |other: &&PodRef| {
            other.full_name() == name && other.uid != pod.id.uid && !self.members.contains_key(&other.uid)
        };
        let before = self.found.iter().filter(before);
        let before: BTreeMap<PodUid, PodRef> = before.map(|other| (other.uid.clone(), other.clone())).collect();
        if !before.is_empty() && !spoken {
            self.waiting.insert(name, offer);
            return;
        }
        for old in before.into_values() {
            self.end_unwanted(old, "its manifest changed while pleg node was not running");
        }
        let taken = |member: &PodWorker| member.handle.pod.id.full_name() == name;
        if self.members.values().any(taken) {
            self.waiting.insert(name, offer);
        } else {
            self.keep(&offer);
            self.spawn(offer.pod, Goal::Run);
        }
    }

    /// Starts the pods whose names are free.
    pub(crate) fn begin_waiting(&mut self, spoken: bool) {
        for offer in std::mem::take(&mut self.waiting).into_values() {
            self.begin(offer, spoken);
        }
    }

    /// The same pod comes from another place.
    pub(crate) fn reconcile(&self, offer: &DesiredPod) {
        if self.members.contains_key(&offer.pod.id.uid) {
            self.keep(offer);
        }
        self.tell(Some(&offer.pod.id));
    }

    /// Writes down where a pod comes from and how it is wanted. Not before it begins: an earlier one of the same content that ends
    /// would take that with it.
    fn keep(&self, offer: &DesiredPod) {
        if let Some(keeper) = &self.shared.keeper {
            keeper.keep_manifest(offer);
        }
    }

    /// This pod is no longer desired.
    pub(crate) fn remove(&mut self, pod: &Pod) {
        self.waiting.remove(&pod.id.full_name());
        self.end(&pod.id.uid);
        if let (Some(keeper), false) = (&self.shared.keeper, self.members.contains_key(&pod.id.uid)) {
            keeper.forget(&pod.id.uid);
        }
    }

    /// Ends a pod, if it has a worker.
    pub(crate) fn end(&mut self, uid: &PodUid) {
        let Some(member) = self.members.get(uid) else { return };
        let (since, grace) = (self.shared.clock.now(), member.handle.pod.spec.termination_grace);
        member.handle.goal.send_if_modified(|goal| {
            let runs = *goal == Goal::Run;
            if runs {
                *goal = Goal::End { since, grace };
            }
            runs
        });
    }

    fn spawn(&mut self, pod: Arc<Pod>, goal: Goal) {
        let uid = &pod.id.uid;
        let memory = self.remembered.remove(uid).unwrap_or_default();
        self.kept.remove(uid);
        // A pod with a worker is not orphaned.
        self.found.retain(|other| other.uid != *uid);
        self.spawn_after(Duration::ZERO, pod, goal, memory, 0);
    }

    fn spawn_after(&mut self, pause: Duration, pod: Arc<Pod>, goal: Goal, memory: PodHistory, falls: u32) {
        let uid = pod.id.uid.clone();
        // A running pod gets its ports before others can claim them.
        let seen = self.shared.pleg.cache().get(&uid);
        let ready = |entry: &PodEntry| {
            entry
                .status
                .sandboxes
                .iter()
                .any(|sandbox| sandbox.state == SandboxState::Ready)
        };
        if seen.is_some_and(|entry| ready(&entry)) {
            // It already uses the port, so it is not refused.
            let _ = self.shared.ports.take(&pod, true);
        }
        let (worker, handle) = Worker::new(pod, goal, memory, self.shared.clone());
        let shutdown = self.shutdown.clone();
        let task = self.running.spawn(async move {
            if !pause.is_zero() {
                let paused = tokio::time::sleep(pause);
                if shutdown.run_until_cancelled(paused).await.is_none() {
                    return Ended::Early;
                }
            }
            worker.run(shutdown).await
        });
        let task = task.id();
        self.tasks.insert(task, uid.clone());
        self.members.insert(uid, PodWorker { handle, task, falls });
        self.shared.metrics.active(self.members.len());
    }

    /// Waits until a worker ends. None if there is none. Cancel-safe.
    pub(crate) async fn next_end(&mut self) -> Option<(Id, Result<Ended, JoinError>)> {
        let ended = self.running.join_next_with_id().await?;
        Some(match ended {
            Ok((id, ended)) => (id, Ok(ended)),
            Err(error) => (error.id(), Err(error)),
        })
    }

    /// A worker has ended: its pod is gone, we shut down, or it panicked.
    pub(crate) fn ended(&mut self, id: Id, ended: Result<Ended, JoinError>) {
        let Some(uid) = self.tasks.remove(&id) else { return };
        if self.members.get(&uid).is_none_or(|member| member.task != id) {
            return;
        }
        let Some(member) = self.members.remove(&uid) else {
            return;
        };
        self.shared.metrics.active(self.members.len());
        let pod = member.handle.pod;
        match ended {
            Err(fell) => {
                let pause = RISE.0.saturating_mul(1 << member.falls.min(8)).min(RISE.1);
                error!(
                    pod = %pod.id,
                    error = %fell,
                    "pod worker panicked (a bug in pleg); restarting it in {} s",
                    pause.as_secs()
                );
                let (goal, memory) = (*member.handle.goal.borrow(), member.handle.memory.lock().clone());
                self.shared.metrics.fall();
                self.spawn_after(pause, pod, goal, memory, member.falls.saturating_add(1));
                return;
            }
            Ok(Ended::Unclean) => _ = self.kept.insert(uid, Arc::clone(&pod)),
            Ok(Ended::Gone | Ended::Early) => {}
        }
        // Another one with that name may be ending still.
        if let Some(next) = self.waiting.remove(&pod.id.full_name()) {
            self.begin(next, true);
        }
    }

    /// Terminates orphaned pods: their manifests were removed while we were not running. Their label identifies them as ours, so pods of
    /// other owners are not touched. Pods known only from an earlier run are checked too, because their directories may be left. Pods with
    /// names in `spared` are kept: their manifests exist, but are broken.
    pub(crate) fn end_orphans(&mut self, ours: Vec<PodRef>, wanted: &BTreeSet<PodUid>, spared: &BTreeSet<Arc<str>>) {
        self.found.retain(|pod| spared.contains(&pod.full_name()));
        let kept: Vec<PodRef> = self.kept.values().map(|pod| pod.id.clone()).collect();
        let mut stay = wanted.clone();
        for id in ours.into_iter().chain(kept) {
            if spared.contains(&id.full_name()) {
                stay.insert(id.uid);
            } else if !wanted.contains(&id.uid) && !self.members.contains_key(&id.uid) {
                self.end_unwanted(id, "no manifest defines it");
            }
        }
        // The history of other pods is no longer needed.
        self.remembered.retain(|uid, _| {
            let stays = stay.contains(uid);
            if let (Some(keeper), false) = (&self.shared.keeper, stays) {
                keeper.forget(uid);
            }
            stays
        });
    }

    fn end_unwanted(&mut self, id: PodRef, why: &str) {
        // As its manifest has it, if that is known: with its grace period and hooks.
        let kept = self.kept.get(&id.uid).cloned();
        let pod = kept.unwrap_or_else(|| Arc::new(Pod::forgotten(id)));
        info!(pod = %pod.id, "terminating pod: {why}");
        self.shared.metrics.orphan();
        let goal = Goal::End {
            since: self.shared.clock.now(),
            grace: pod.spec.termination_grace,
        };
        self.spawn(pod, goal);
    }

    /// Ends all workers; pods keep running.
    pub(crate) async fn shut_down(&mut self) {
        self.shutdown.cancel();
        while self.running.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
