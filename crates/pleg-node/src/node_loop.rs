//! The loop that ties sources, the generator and the pod workers together.
//!
//! In: snapshots of sources, the generator's feed and health, exits of workers. Out: the desired state of each pod and wake-ups, to its
//! worker. The loop owns the stages (the merge of sources, the registry of workers, the search for orphans) and decides nothing about a
//! pod. A pod whose name is still used by a terminating one waits. The feed is read in every state of health, and there is no periodic sync
//! of all pods: each worker wakes by itself when its back-off or deadline is over.

mod graceful_shutdown;
mod health;
mod leftovers;
mod orphan_search;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pleg::{Item, Overflow, Pleg, PodRef, PodUid, Start};
use pleg_cri::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::graceful_shutdown::Ending;
use self::leftovers::{Leftover, Leftovers};
use self::orphan_search::{Listed, OrphanSearch};
use crate::events::{EventSink, Events};
use crate::eviction::EvictionConfig;
use crate::eviction::manager::{Eviction, EvictionManager};
use crate::executor::logs::{LogLimits, LogRotator};
use crate::executor::objects::ApiObjects;
use crate::executor::requests::NodeConfig;
use crate::host::resources::{HostResources, ThisMachine};
use crate::images::{ImageCollector, ImageGcPolicy};
use crate::manifest::NodeName;
use crate::metrics::MetricsError;
use crate::pod_workers::PodWorkers;
use crate::pod_workers::allocatable::{Allocatable, RequestedResources};
use crate::pod_workers::context::NodeContext;
use crate::sources::{Change, DesiredState, Origin, Snapshot};
use crate::status::Stale;
use crate::status::reports::PodReports;
use crate::store::Store;

pub use self::graceful_shutdown::GracefulShutdown;
pub use self::orphan_search::foreign_pods;

/// How often health is checked, so that statuses say when they are stale.
const HEALTH_TICK: Duration = Duration::from_secs(1);
/// Period of the runtime monitor's heartbeat while full relists are rarer: [`pleg::Config::heartbeat`]. Without it, a runtime
/// that freezes right after a relist looks idle until the next one, a minute later.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How often orphaned pods are searched for.
const ORPHAN_TICK: Duration = Duration::from_mins(1);

/// A node: reconciles its pods with what sources desire. Built without side effects; [`NodeLoop::run`] starts it.
#[derive(Debug)]
pub struct NodeLoop {
    name: NodeName,
    workers: PodWorkers,
    stale: watch::Sender<Option<Arc<Stale>>>,
    desired: DesiredState,
    orphans: OrphanSearch,
    /// It was logged that orphaned pods are kept because a source is incomplete.
    logged_kept_orphans: bool,
    store: Option<Store>,
    log_limits: LogLimits,
    client: Client,
    host: Arc<dyn HostResources>,
    image_gc: ImageGcPolicy,
    eviction: EvictionConfig,
    leftovers: Leftovers,
    graceful_shutdown: Option<GracefulShutdown>,
}

impl NodeLoop {
    /// For the runtime behind `client`, which the generator of `pleg` observes, with a [`pleg::RuntimeMonitor`] that has a [`HEARTBEAT`].
    /// `sources` are those that will send snapshots. Its metrics are registered with the generator's; fails only if those of another node
    /// are registered already.
    pub fn new(
        client: Client,
        pleg: Pleg,
        node: NodeConfig,
        sources: impl IntoIterator<Item = Origin>,
        runtime: &str,
    ) -> Result<Self, MetricsError> {
        let (stale, is_stale) = watch::channel(None);
        let name = node.name.clone();
        let host = Arc::new(ThisMachine {
            cgroup_mount: node.cgroup_mount.clone(),
        });
        let context = NodeContext::new(client.clone(), pleg, node, runtime, is_stale)?;
        Ok(Self {
            leftovers: Leftovers::new(Arc::clone(context.executor.node())),
            eviction: EvictionConfig::default(),
            orphans: OrphanSearch::new(client.clone(), &name),
            name,
            workers: PodWorkers::new(context),
            stale,
            desired: DesiredState::new(sources),
            logged_kept_orphans: false,
            store: None,
            log_limits: LogLimits::default(),
            client,
            host,
            image_gc: ImageGcPolicy::default(),
            graceful_shutdown: None,
        })
    }

    /// Starts with what is in this store, and saves there what has to survive a restart.
    #[must_use]
    pub fn with_store(mut self, mut store: Store) -> Self {
        let pods = store.manifests(&self.name);
        self.workers.restore(store.take_histories(), pods);
        self.workers.context.store = Some(store.writer());
        self.store = Some(store);
        self
    }

    /// Where objects that pods refer to come from. Without it, this node has no API server.
    #[must_use]
    pub fn with_objects(mut self, objects: Arc<dyn ApiObjects>) -> Self {
        self.workers.context.executor.set_objects(objects);
        self
    }

    /// How much of container logs is kept.
    #[must_use]
    pub fn with_logs(mut self, limits: LogLimits) -> Self {
        self.log_limits = limits;
        self
    }

    /// When unused images are removed.
    #[must_use]
    pub fn with_image_gc(mut self, policy: ImageGcPolicy) -> Self {
        self.image_gc = policy;
        self
    }

    /// What pods may request in total; everything, without it.
    #[must_use]
    pub fn with_allocatable(mut self, allocatable: Allocatable) -> Self {
        self.workers.context.requested = RequestedResources::limited(allocatable);
        self
    }

    /// When pods are evicted.
    #[must_use]
    pub fn with_eviction(mut self, config: EvictionConfig) -> Self {
        self.eviction = config;
        self
    }

    /// Where it is told what happens to pods and to the node.
    #[must_use]
    pub fn with_events(mut self, sink: Arc<dyn EventSink>) -> Self {
        self.workers.context.set_events(Events::new(sink));
        self
    }

    /// Where figures about the machine come from, if not from the machine.
    #[must_use]
    pub fn with_host(mut self, host: Arc<dyn HostResources>) -> Self {
        self.host = host;
        self
    }

    /// The published status of the node's pods.
    pub fn reports(&self) -> PodReports {
        self.workers.context.reports.clone()
    }

    /// Makes pods what snapshots say, until shutdown. Pods keep running then, unless the node [shuts down](GracefulShutdown) before.
    pub async fn run(mut self, mut snapshots: mpsc::Receiver<Snapshot>, shutdown: CancellationToken) {
        self.workers.stop_with(shutdown.child_token());
        // They end with the loop, which may end before everything else is told to.
        let stop_tasks = shutdown.child_token();
        let (tasks, mut evictions) = self.spawn_tasks(&stop_tasks);
        let pleg = self.workers.context.pleg.clone();
        let mut feed = pleg.subscribe(Start::Now, Overflow::PodSync);
        // Which of two pods with one name runs is known only after a full relist, and which pods are ours only after a list by our label.
        let first_relist = pleg.request_all();
        let (cache, mut relisted, mut open) = (pleg.cache().clone(), false, true);
        let (mut health_tick, mut orphan_tick) = (every(HEALTH_TICK), every(ORPHAN_TICK));
        self.orphans.start();
        let (reports, graceful_shutdown) = (self.reports(), self.graceful_shutdown.clone());
        let preemptions = self.workers.context.preemptions.clone();
        let mut ending: Option<Ending> = None;
        loop {
            let ready = relisted && self.orphans.knows_preexisting();
            if ready && self.desired.is_complete() {
                self.orphans.start_if_due();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = Self::shutdown_requested(graceful_shutdown.as_ref()), if ending.is_none() => {
                    ending = self.next_ending(None);
                }
                item = feed.next() => match item {
                    // That the node cannot be observed is no change of a pod; about one pod, its status says so.
                    Some(Item::Event(event)) if event.kind.is_trouble() && event.pod.is_none() => {}
                    Some(Item::Event(event)) => self.workers.wake(event.pod.as_ref()),
                    Some(Item::Gap(_)) => self.workers.wake(None),
                    None => break,
                },
                Some((id, exit)) = self.workers.next_exit() => self.workers.on_exit(id, exit),
                Some(listed) = self.orphans.next() => self.on_listed(listed),
                Some(found) = self.leftovers.next() => self.on_leftovers(found),
                Some(eviction) = evictions.recv() => self.workers.evict(eviction),
                uid = preemptions.next() => self.workers.preempt(&uid),
                _ = cache.synced(first_relist, Duration::MAX), if !relisted => relisted = true,
                // Nothing is started while the node shuts down.
                snapshot = snapshots.recv(), if ready && open && ending.is_none() => match snapshot {
                    Some(snapshot) => self.apply(snapshot),
                    None => open = false,
                },
                _ = health_tick.tick() => {
                    self.check_health();
                    self.orphans.retry_preexisting();
                }
                _ = orphan_tick.tick() => {
                    self.orphans.set_due();
                    self.log_kept_orphans(ready);
                }
                () = is_over(ending.as_ref(), &reports), if ending.is_some() => match self.next_ending(ending.as_ref()) {
                    Some(next) => ending = Some(next),
                    None => break,
                },
            }
        }
        stop_tasks.cancel();
        self.stop(tasks).await;
    }

    /// Starts the tasks that look after the machine. They end at shutdown.
    fn spawn_tasks(&self, shutdown: &CancellationToken) -> (JoinSet<()>, mpsc::Receiver<Eviction>) {
        let mut tasks = JoinSet::new();
        let context = &self.workers.context;
        tasks.spawn(LogRotator::new(context.clone(), self.log_limits).run(shutdown.child_token()));
        let (images, delete_unused) = ImageCollector::new(
            self.client.clone(),
            Arc::clone(&self.host),
            context.metrics.clone(),
            context.events.clone(),
            self.image_gc,
        );
        tasks.spawn(images.run(shutdown.child_token()));
        // One pod at a time.
        let (evict, evictions) = mpsc::channel(1);
        let manager = EvictionManager::new(
            self.client.clone(),
            context.clone(),
            Arc::clone(&self.host),
            self.eviction.clone(),
            delete_unused,
            evict,
        );
        tasks.spawn(manager.run(shutdown.child_token()));
        (tasks, evictions)
    }

    async fn stop(mut self, mut tasks: JoinSet<()>) {
        self.workers.shut_down().await;
        // A panic is already in the log and affects nothing else.
        while tasks.join_next().await.is_some() {}
        if let Some(store) = self.store.take() {
            // Writes what is left: blocking.
            let _ = tokio::task::spawn_blocking(move || drop(store)).await;
        }
    }

    fn apply(&mut self, snapshot: Snapshot) {
        let cache = self.workers.context.pleg.cache().clone();
        let merged = self.desired.apply(snapshot, |uid| cache.get(uid).is_some());
        for conflict in &merged.new_conflicts {
            warn!(origin = %conflict.origin, "{}", conflict.what);
        }
        let all_reported = self.desired.all_reported();
        self.workers
            .adopt(merged.changes.iter().filter_map(|change| match change {
                Change::Add(desired) => Some(&desired.pod),
                _ => None,
            }));
        for change in merged.changes {
            match change {
                Change::Add(desired) => self.workers.start_pod(desired, all_reported),
                Change::Replace { old, new } => {
                    info!(pod = %new.pod.id, %old, new = %new.pod.id.uid, "manifest changed");
                    self.workers.terminate(&old);
                    self.workers.start_pod(new, all_reported);
                }
                Change::Update(desired) => self.workers.update(desired),
                Change::Remove(pod) => {
                    info!(pod = %pod.id, "manifest removed");
                    self.workers.remove(&pod);
                }
                Change::Reconcile(desired) => self.workers.reconcile(&desired),
            }
        }
        self.workers.start_waiting(all_reported);
        let (context, problems) = (&self.workers.context, self.desired.problems());
        context.metrics.desired(self.desired.pods().count());
        context.metrics.problems(&context.reports.problems(), &problems);
        context.reports.set_problems(problems);
        context.reports.set_refused(self.desired.refused());
    }

    fn on_listed(&mut self, listed: Listed) {
        match listed {
            Listed::Preexisting(ours) => self.workers.set_preexisting(ours),
            Listed::Ours(ours) if self.desired.is_complete() => self.terminate_orphans(ours),
            // A source has become incomplete meanwhile.
            Listed::Ours(_) => self.orphans.set_due(),
            Listed::Failed => {}
        }
    }

    fn terminate_orphans(&mut self, ours: Vec<PodRef>) {
        let desired: BTreeSet<PodUid> = self.desired.pods().map(|desired| desired.pod.id.uid.clone()).collect();
        let refused = self.desired.refused();
        let spared = refused.iter().map(|refused| refused.id.full_name()).collect();
        self.workers.terminate_orphans(ours, &desired, &spared);
        self.leftovers.start();
    }

    /// Removes directories of pods that exist nowhere else.
    fn on_leftovers(&mut self, found: Vec<Leftover>) {
        if !self.desired.is_complete() {
            return;
        }
        let desired: BTreeSet<PodUid> = self.desired.pods().map(|desired| desired.pod.id.uid.clone()).collect();
        for Leftover { uid, id } in found {
            if desired.contains(&uid)
                || self.workers.knows(&uid)
                || self.workers.context.pleg.cache().get(&uid).is_some()
            {
                continue;
            }
            match id {
                Some(id) => self.workers.terminate_orphan(id, "only its directories are left"),
                None => self.leftovers.remove(&uid),
            }
        }
    }

    /// Logs once that orphaned pods are kept.
    fn log_kept_orphans(&mut self, ready: bool) {
        let kept = ready && self.desired.all_reported() && !self.desired.is_complete();
        if kept && !self.logged_kept_orphans {
            warn!(
                "keeping orphaned pods: a manifest cannot be read, and they may belong to it; see `pleg node problems`"
            );
        }
        self.logged_kept_orphans = kept;
    }
}

async fn is_over(ending: Option<&Ending>, reports: &PodReports) {
    if let Some(ending) = ending {
        ending.is_over(reports).await;
    }
}

fn every(period: Duration) -> Interval {
    let mut tick = interval_at(Instant::now() + period, period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}
