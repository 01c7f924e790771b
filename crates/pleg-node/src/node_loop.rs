//! The loop that ties sources, the generator and the workers together.
//!
//! It decides nothing about a pod: it gives each worker the desired state of its pod and wakes it when something may have changed. A pod
//! whose name is still used by a terminating one waits. The feed is read in every state of health, and there is no periodic sync of
//! everything: each worker wakes by itself when its back-off or deadline is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pleg::{Item, Overflow, Pleg, PodRef, PodUid, Start};
use pleg_cri::{Client, v1};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::executor::logs::{LogBounds, Logs};
use crate::executor::requests::{NODE_LABEL, Node};
use crate::manifest::NodeName;
use crate::metrics::Skip;
use crate::pod_workers::PodWorkers;
use crate::pod_workers::worker::Shared;
use crate::sources::{Change, Desired, Origin, Snapshot};
use crate::status::Stale;
use crate::status::reports::PodReports;
use crate::store::Store;

/// How often health is checked, so that statuses say when they are stale.
const HEALTH_TICK: Duration = Duration::from_secs(1);
/// How often the runtime is asked whether it is there at all, while full relists are rarer: [`pleg::Config::heartbeat`]. A
/// runtime that freezes right after a relist would otherwise look idle until the next one, a minute later.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How often orphaned pods are searched for.
const ORPHAN_TICK: Duration = Duration::from_mins(1);

/// Pods on this runtime that belong to another owner, such as a kubelet, which would compete with us.
pub async fn foreign_pods(client: &Client, node: &NodeName) -> Result<Vec<PodRef>, pleg_cri::Error> {
    let listed = client.call(v1::ListPodSandboxRequest::default()).await?;
    let foreign = |sandbox: &v1::PodSandbox| sandbox.labels.get(NODE_LABEL).map(String::as_str) != Some(node.as_str());
    Ok(listed.items.into_iter().filter(foreign).filter_map(pod_of).collect())
}

/// Pods on this runtime that are this node's, as their label says.
async fn ours(client: Client, node: String) -> Result<Vec<PodRef>, pleg_cri::Error> {
    let filter = v1::PodSandboxFilter {
        label_selector: [(NODE_LABEL.to_owned(), node)].into(),
        ..Default::default()
    };
    let listed = client.call(v1::ListPodSandboxRequest { filter: Some(filter) }).await?;
    let named = listed.items.into_iter().filter_map(pod_of);
    Ok(named.filter(|pod| !pod.uid.as_str().is_empty()).collect())
}

fn pod_of(sandbox: v1::PodSandbox) -> Option<PodRef> {
    let metadata = sandbox.metadata?;
    Some(PodRef {
        uid: metadata.uid.into(),
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
    })
}

/// A node: reconciles its pods with what sources desire. Built without side effects; [`NodeLoop::run`] starts it.
#[derive(Debug)]
pub struct NodeLoop {
    client: Client,
    name: NodeName,
    workers: PodWorkers,
    stale: watch::Sender<Option<Arc<Stale>>>,
    desired: Desired,
    store: Option<Store>,
    logs: LogBounds,
}

/// A search for pods that carry our label, beside the loop: a list may hang for minutes, and nothing may wait for it.
type Search = JoinSet<Result<Vec<PodRef>, pleg_cri::Error>>;

impl NodeLoop {
    /// For the runtime behind `client`, which the generator of `pleg` looks at, with a [`pleg::RuntimeMonitor`] that has a [`HEARTBEAT`]. `sources` are those who will send snapshots. Its
    /// metrics are the generator's too; fails only where those of another node are there already.
    pub fn new(
        client: Client,
        pleg: Pleg,
        node: Node,
        sources: impl IntoIterator<Item = Origin>,
        runtime: &str,
    ) -> prometheus::Result<Self> {
        let (stale, is_stale) = watch::channel(None);
        let name = node.name.clone();
        let shared = Shared::new(client.clone(), pleg, node, runtime, is_stale)?;
        Ok(Self {
            client,
            name,
            workers: PodWorkers::new(shared),
            stale,
            desired: Desired::new(sources),
            store: None,
            logs: LogBounds::default(),
        })
    }

    /// Begins with what is in this store, and keeps there what has to survive a restart.
    #[must_use]
    pub fn with_store(mut self, mut store: Store) -> Self {
        let kept = store.manifests(&self.name);
        self.workers.remember(store.take_remembered(), kept);
        self.workers.shared.keeper = Some(store.keeper());
        self.store = Some(store);
        self
    }

    /// How much of containers' logs is kept.
    #[must_use]
    pub fn with_logs(mut self, bounds: LogBounds) -> Self {
        self.logs = bounds;
        self
    }

    /// Where the node's pods are shown.
    pub fn board(&self) -> PodReports {
        self.workers.shared.board.clone()
    }

    /// Makes pods be what snapshots want, until it is shut down. What runs goes on running then.
    pub async fn run(mut self, mut snapshots: mpsc::Receiver<Snapshot>, shutdown: CancellationToken) {
        self.workers.ends_with(shutdown.child_token());
        let logs = Logs::new(self.workers.shared.clone(), self.logs).run(shutdown.child_token());
        let logs = tokio::spawn(logs);
        let pleg = self.workers.shared.pleg.clone();
        let mut feed = pleg.subscribe(Start::Now, Overflow::PodSync);
        // Which of two pods with one name runs can be told only after a relist of everything, and which of them are ours only after a
        // list by our label.
        let first = pleg.request_all();
        let (cache, mut seen, mut found) = (pleg.cache().clone(), false, false);
        let tick = |period: Duration| {
            let mut tick = interval_at(Instant::now() + period, period);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tick
        };
        let (mut health, mut orphans) = (tick(HEALTH_TICK), tick(ORPHAN_TICK));
        let (mut searched, mut spared, mut open) = (false, false, true);
        let mut search = Search::new();
        self.search(&mut search);
        loop {
            if seen && found && !searched && search.is_empty() && self.desired.is_complete() {
                searched = true;
                self.search(&mut search);
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                item = feed.next() => match item {
                    // What cannot be seen of a pod is no change of it.
                    Some(Item::Event(event)) if event.kind.is_trouble() => {}
                    Some(Item::Event(event)) => self.workers.tell(event.pod.as_ref()),
                    Some(Item::Gap(_)) => self.workers.tell(None),
                    None => break,
                },
                Some((id, ended)) = self.workers.next_end() => self.workers.ended(id, ended),
                Some(answer) = search.join_next() => match answer {
                    Ok(Ok(ours)) if !std::mem::replace(&mut found, true) => self.workers.found(ours),
                    // A source may have fallen silent since.
                    Ok(Ok(ours)) if self.desired.is_complete() => self.end_orphans(ours),
                    Ok(Ok(_)) => searched = false,
                    Ok(Err(error)) => warn!(%error, "cannot search for orphaned pods"),
                    Err(error) => warn!(%error, "cannot search for orphaned pods"),
                },
                _ = cache.synced(first, Duration::MAX), if !seen => seen = true,
                snapshot = snapshots.recv(), if seen && found && open => match snapshot {
                    Some(snapshot) => self.apply(snapshot),
                    None => open = false,
                },
                _ = health.tick() => {
                    self.look_at_health();
                    if !found && search.is_empty() {
                        self.search(&mut search);
                    }
                }
                _ = orphans.tick() => {
                    searched = false;
                    let spares = seen && found && self.desired.all_have_spoken() && !self.desired.is_complete();
                    if spares && !std::mem::replace(&mut spared, true) {
                        warn!("keeping orphaned pods: a manifest cannot be read, and they may belong to it; see `pleg node problems`");
                    }
                    spared &= spares;
                }
            }
        }
        self.workers.shut_down().await;
        // A panic is already in the log and affects nothing else.
        let _ = logs.await;
        if let Some(store) = self.store.take() {
            // It writes what is left.
            let _ = tokio::task::spawn_blocking(move || drop(store)).await;
        }
    }

    fn search(&self, search: &mut Search) {
        search.spawn(ours(self.client.clone(), self.name.to_string()));
    }

    fn end_orphans(&mut self, ours: Vec<PodRef>) {
        let wanted: BTreeSet<PodUid> = self.desired.pods().map(|offer| offer.pod.id.uid.clone()).collect();
        let refused = self.desired.refused();
        let spared = refused.iter().map(|refused| refused.id.full_name()).collect();
        self.workers.end_orphans(ours, &wanted, &spared);
    }

    fn apply(&mut self, snapshot: Snapshot) {
        let cache = self.workers.shared.pleg.cache().clone();
        let merged = self.desired.apply(snapshot, |uid| cache.get(uid).is_some());
        for conflict in &merged.new_conflicts {
            warn!(origin = %conflict.origin, "{}", conflict.what);
        }
        let spoken = self.desired.all_have_spoken();
        for change in merged.changes {
            match change {
                Change::Add(offer) => self.workers.begin(offer, spoken),
                Change::Update { old, new } => {
                    info!(pod = %new.pod.id, %old, new = %new.pod.id.uid, "manifest changed");
                    self.workers.end(&old);
                    self.workers.begin(new, spoken);
                }
                Change::Remove(pod) => {
                    info!(pod = %pod.id, "manifest removed");
                    self.workers.remove(&pod);
                }
                Change::Reconcile(offer) => self.workers.reconcile(&offer),
            }
        }
        self.workers.begin_waiting(spoken);
        let (shared, complaints) = (&self.workers.shared, self.desired.complaints());
        shared.metrics.wanted(self.desired.pods().count());
        shared.metrics.complaints(&shared.board.complaints(), &complaints);
        shared.board.set_complaints(complaints);
        shared.board.set_refused(self.desired.refused());
    }

    fn look_at_health(&mut self) {
        let pleg = &self.workers.shared.pleg;
        let report = pleg.health().report();
        let last_look = report.last_seen_seconds;
        let last_look = last_look.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        // How long nothing was heard of the runtime, neither by a relist nor by the monitor's heartbeat.
        let answered = pleg.readiness().since_last_answer();
        let quiet = answered.into_iter().chain(last_look).min();
        let why = report.why_stale();
        let bad = why.is_some();
        let metrics = &self.workers.shared.metrics;
        metrics.stale(bad);
        if bad {
            metrics.skip(Skip::Runtime);
        }
        self.stale.send_if_modified(|stale| {
            if stale.is_some() == bad {
                return false;
            }
            *stale = bad.then(|| {
                let now = self.workers.shared.clock.now();
                warn!("pausing all pods: their status is stale: {}", report.message);
                Arc::new(Stale {
                    // Before the first relist nothing is known, whoever answers.
                    as_of: last_look.and(quiet).and_then(|quiet| now.saturating_sub(quiet).ok()),
                    why: why.unwrap_or_default(),
                })
            });
            if !bad {
                info!("resuming all pods: their status is fresh again");
            }
            true
        });
    }
}
