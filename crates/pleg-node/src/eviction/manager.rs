//! The task: observes, publishes conditions, reclaims, and evicts one pod at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerState, PodUid};
use pleg_cri::{Client, Subject, v1};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::EvictionConfig;
use super::message::{EVICTED, message};
use super::ranking::{self, CRITICAL, PodUsage, rank};
use super::signals::{Observation, Observations, Resource, Signal};
use super::state::PressureState;
use super::storage_limits::{self, Exceeded};
use super::thresholds::Threshold;
use super::usage;
use crate::error::with_causes;
use crate::executor::remove_unmounted_directory;
use crate::host::resources::{Filesystem, HostResources};
use crate::images::{DeleteUnused, image_mount_point};
use crate::manifest::Pod;
use crate::pod_workers::context::NodeContext;
use crate::reconcile::decide::Goal;
use crate::reconcile::history::PodFailure;
use crate::status::Phase;
use crate::status::reports::Report;

/// How often the machine is observed.
const PERIOD: Duration = Duration::from_secs(10);
/// How long an evicted pod may take until the next one is considered.
const POD_CLEANUP: Duration = Duration::from_secs(30);
/// The grace period of a pod that is evicted for a hard threshold.
const IMMEDIATE: Duration = Duration::from_secs(1);
/// How long the reclaim of images may take before pods are evicted.
const RECLAIM: Duration = Duration::from_mins(5);
/// Limits of local storage are checked again after this many times what the last check took, so that it takes a twentieth of the time at
/// most: it walks directories.
const STORAGE_SCAN_SHARE: u32 = 20;
const LONGEST_STORAGE_PAUSE: Duration = Duration::from_mins(2);
/// How long the runtime may take to say how large the writable layers of a pod are.
const STATS: Duration = Duration::from_secs(2);
/// Most dead containers that are removed in one reclaim.
const MAX_REMOVALS: usize = 256;

/// A pod to evict, for its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub(crate) uid: PodUid,
    pub(crate) why: PodFailure,
    /// Its grace period.
    pub(crate) grace: Duration,
}

/// Watches the machine, and evicts pods when it has to.
#[derive(Debug)]
pub(crate) struct EvictionManager {
    client: Client,
    context: NodeContext,
    host: Arc<dyn HostResources>,
    state: PressureState,
    max_pod_grace: Duration,
    /// Where the runtime keeps its images, once it has said so.
    image_path: Option<PathBuf>,
    /// Whether images have a filesystem of their own, when that was last seen.
    has_image_fs: bool,
    /// When limits of local storage are checked again.
    next_storage_scan: Instant,
    /// What was warned of since a threshold is met, or since the last eviction: it is not repeated every round.
    warned: BTreeSet<String>,
    images: mpsc::Sender<DeleteUnused>,
    evictions: mpsc::Sender<Eviction>,
}

/// What was read from the machine.
#[derive(Debug, Default)]
struct Figures {
    observations: Observations,
    /// Whether images have a filesystem of their own.
    has_image_fs: bool,
}

impl EvictionManager {
    pub(crate) fn new(
        client: Client,
        context: NodeContext,
        host: Arc<dyn HostResources>,
        config: EvictionConfig,
        images: mpsc::Sender<DeleteUnused>,
        evictions: mpsc::Sender<Eviction>,
    ) -> Self {
        Self {
            client,
            context,
            host,
            state: PressureState::new(config.thresholds, config.pressure_transition_period),
            max_pod_grace: config.max_pod_grace_period,
            image_path: None,
            has_image_fs: false,
            next_storage_scan: Instant::now(),
            warned: BTreeSet::new(),
            images,
            evictions,
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let working = async {
            loop {
                match self.synchronize().await {
                    // There may be more to evict.
                    Some(evicted) => self.wait_for_cleanup(&evicted).await,
                    None => sleep(PERIOD).await,
                }
            }
        };
        // Nothing here has to be finished.
        shutdown.run_until_cancelled(working).await;
    }

    /// One round. Returns the pod that was evicted.
    async fn synchronize(&mut self) -> Option<PodUid> {
        if let Some(evicted) = self.enforce_storage_limits().await {
            return Some(evicted);
        }
        if self.state.is_idle() {
            return None;
        }
        let figures = self.observe().await;
        let verdict = self.state.step(&figures.observations, Instant::now());
        let changed = self
            .context
            .reports
            .pressure()
            .set(&verdict.conditions, self.context.clock.now());
        for condition in changed {
            info!(
                condition = condition.kind,
                status = condition.status,
                reason = condition.reason,
                "{}",
                condition.message
            );
        }
        let Some(threshold) = verdict.act_on else {
            self.warned.clear();
            return None;
        };
        let resource = threshold.signal.resource();
        let message = format!("Attempting to reclaim {resource}");
        if self.is_news(&message) {
            warn!(
                reason = "EvictionThresholdMet",
                signal = threshold.signal.name(),
                "attempting to reclaim {resource}"
            );
            self.context.events.node_warning("EvictionThresholdMet", &message);
        }
        if resource.is_disk() && self.reclaim(&threshold, &figures).await {
            info!("disk pressure is reduced without evicting pods");
            return None;
        }
        self.evict_one(&threshold, &figures.observations).await
    }

    /// Whether this was not warned of yet.
    fn is_news(&mut self, what: &str) -> bool {
        self.warned.insert(what.to_owned())
    }

    async fn observe(&mut self) -> Figures {
        // Where images are does not change while a runtime runs, and it may be slow under pressure.
        if self.image_path.is_none() {
            self.image_path = image_mount_point(&self.client).await.unwrap_or_else(|error| {
                debug!(%error, "the image filesystem is not known");
                None
            });
        }
        let image_path = self.image_path.clone();
        let (host, pods) = (Arc::clone(&self.host), self.context.executor.node().pods.clone());
        let read = move || read_figures(&*host, &pods, image_path.as_deref());
        let figures: Figures = tokio::task::spawn_blocking(read).await.unwrap_or_default();
        self.has_image_fs = figures.has_image_fs;
        figures
    }

    /// Removes dead containers and unused images, where that helps. Returns whether no threshold is met any more.
    async fn reclaim(&mut self, threshold: &Threshold, before: &Figures) -> bool {
        // With an image filesystem of its own, images do not help the other one.
        if before.has_image_fs && !threshold.signal.is_image_fs() {
            return false;
        }
        self.remove_dead_containers().await;
        let (answer, freed) = oneshot::channel();
        if self.images.send(answer).await.is_ok() {
            if let Ok(Ok(bytes)) = timeout(RECLAIM, freed).await {
                info!(bytes, "removed unused images because of disk pressure");
            } else {
                warn!("unused images could not be removed in time");
            }
        }
        let after = self.observe().await;
        !self.state.any_met(&after.observations)
    }

    /// Removes exited attempts of containers, except the newest of each name, whose exit decides about a restart.
    async fn remove_dead_containers(&self) {
        let mut room = MAX_REMOVALS;
        for report in self.active_pods() {
            let Some(entry) = self.context.pleg.cache().get(&report.pod.id.uid) else {
                continue;
            };
            let containers = &entry.status.containers;
            let is_replaced = |name: &str, attempt: u32| {
                let mut same = containers.iter().filter(|other| *other.name == *name);
                same.any(|other| other.attempt > attempt)
            };
            for dead in containers.iter().filter(|one| one.state == ContainerState::Exited) {
                if room == 0 {
                    return;
                }
                if !is_replaced(&dead.name, dead.attempt) {
                    continue;
                }
                room -= 1;
                let executor = &self.context.executor;
                let removed = executor
                    .remove_dead(&report.pod, &dead.id, &dead.name, dead.attempt)
                    .await;
                if let Err(error) = removed {
                    warn!(pod = %report.pod.id, container = %dead.name, "cannot remove a dead container: {error}");
                }
            }
        }
    }

    /// Pods that run or start.
    fn active_pods(&self) -> Vec<Report> {
        let mut pods = self.context.reports.pods();
        pods.retain(|report| {
            let is_over = matches!(report.phase(), Phase::Failed | Phase::Succeeded);
            report.goal == Goal::Run && !is_over
        });
        pods
    }

    /// Whether any container of a pod runs.
    fn runs(&self, uid: &PodUid) -> bool {
        let entry = self.context.pleg.cache().get(uid);
        entry.is_some_and(|entry| {
            let mut containers = entry.status.containers.iter();
            containers.any(|container| container.state == ContainerState::Running)
        })
    }

    async fn evict_one(&mut self, threshold: &Threshold, observations: &Observations) -> Option<PodUid> {
        let resource = threshold.signal.resource();
        let mut pods = self.usage(resource).await;
        if pods.is_empty() {
            let nothing = "eviction thresholds have been met, but no pods are active to evict";
            if self.is_news(nothing) {
                warn!("{nothing}");
            }
            return None;
        }
        rank(&mut pods, resource);
        let Some((pod, usage)) = pods
            .iter()
            .find(|pod| !pod.is_critical())
            .and_then(|usage| Some((usage.pod.as_ref()?, usage)))
        else {
            let nothing = "unable to evict any pods from the node: all are critical";
            if self.is_news(nothing) {
                warn!("{nothing}");
            }
            return None;
        };
        let message = message(threshold, observations, usage);
        self.warned.clear();
        self.evict(pod, self.grace(threshold, pod), threshold.signal.name(), message)
            .await
    }

    async fn evict(&self, pod: &Pod, grace: Duration, signal: &str, message: String) -> Option<PodUid> {
        warn!(pod = %pod.id, reason = EVICTED, "{message}");
        self.context.events.pod_warning(pod, EVICTED, &message);
        self.context.metrics.evicted(signal);
        let why = PodFailure {
            reason: EVICTED.to_owned(),
            message,
        };
        let uid = pod.id.uid.clone();
        let eviction = Eviction {
            uid: uid.clone(),
            why,
            grace,
        };
        self.evictions.send(eviction).await.ok()?;
        Some(uid)
    }

    fn grace(&self, threshold: &Threshold, pod: &Pod) -> Duration {
        if threshold.is_hard() {
            IMMEDIATE
        } else {
            self.max_pod_grace.min(pod.spec.termination_grace)
        }
    }

    async fn usage(&self, resource: Resource) -> Vec<PodUsage> {
        // A pod of which nothing runs frees nothing.
        let active = self
            .active_pods()
            .into_iter()
            .filter(|report| self.runs(&report.pod.id.uid));
        let with_entry = |report: Report| {
            let entry = self.context.pleg.cache().get(&report.pod.id.uid);
            (report.pod, entry)
        };
        let pods: Vec<_> = active.map(with_entry).collect();
        let node = Arc::clone(self.context.executor.node());
        let read = move || {
            let of = |(pod, entry): (Arc<Pod>, Option<pleg::PodEntry>)| {
                let unknown = || Arc::new(pleg::PodStatus::empty(pod.id.clone()));
                let status = entry.map_or_else(unknown, |entry| entry.status);
                usage::of(&node, pod, &status, resource.is_disk())
            };
            pods.into_iter().map(of).collect()
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// Evicts a pod that exceeds one of its own limits of local storage, whatever the node has left.
    async fn enforce_storage_limits(&mut self) -> Option<PodUid> {
        let began = Instant::now();
        if began < self.next_storage_scan {
            return None;
        }
        let mut pods = self.active_pods();
        pods.retain(|report| storage_limits::has_limits(&report.pod) && ranking::priority(&report.pod) < CRITICAL);
        for report in pods {
            let Some(entry) = self.context.pleg.cache().get(&report.pod.id.uid) else {
                continue;
            };
            let layers = self.writable_layers(&report.pod, &entry.status).await;
            let (node, pod) = (Arc::clone(self.context.executor.node()), Arc::clone(&report.pod));
            let has_image_fs = self.has_image_fs;
            let read = move || {
                let usage = storage_limits::read(&node, &pod, &entry.status, &layers, has_image_fs);
                storage_limits::exceeded(&pod, &usage)
            };
            let found = tokio::task::spawn_blocking(read).await.unwrap_or_default();
            if let Some(Exceeded { signal, message }) = found {
                return self.evict(&report.pod, IMMEDIATE, signal, message).await;
            }
        }
        let pause = (began.elapsed() * STORAGE_SCAN_SHARE).clamp(PERIOD, LONGEST_STORAGE_PAUSE);
        self.next_storage_scan = Instant::now() + pause;
        None
    }

    /// The writable layers of the pod's running containers, as far as the runtime knows them, and only where a limit depends on them.
    async fn writable_layers(&self, pod: &Pod, status: &pleg::PodStatus) -> BTreeMap<String, u64> {
        let mut layers = BTreeMap::new();
        if !storage_limits::has_container_limits(pod) {
            return layers;
        }
        let running = status.containers.iter();
        let running = running.filter(|container| container.state == ContainerState::Running);
        let asked = async {
            for container in running {
                let about = Subject::container(pod.id.full_name(), Arc::clone(&container.name), container.id.shared());
                let request = v1::ContainerStatsRequest {
                    container_id: container.id.as_str().to_owned(),
                };
                match self.client.call_for(&about, request).await {
                    Ok(answer) => {
                        let layer = answer.stats.and_then(|stats| stats.writable_layer);
                        let used = layer.and_then(|layer| layer.used_bytes).map_or(0, |used| used.value);
                        layers.insert(container.name.to_string(), used);
                    }
                    Err(error) => debug!(%error, "the size of a writable layer is not known"),
                }
            }
        };
        // One hung shim must not keep others from being examined.
        if timeout(STATS, asked).await.is_err() {
            debug!(pod = %pod.id, "the sizes of writable layers are not known: no answer in time");
        }
        layers
    }

    /// Waits until nothing of an evicted pod runs, but not for long, and removes its volumes: it is not started again.
    async fn wait_for_cleanup(&self, uid: &PodUid) {
        let is_over = |reports: &crate::PodReports| {
            let failed = reports.get(uid).is_none_or(|report| report.phase() == Phase::Failed);
            failed && !self.runs(uid)
        };
        if timeout(POD_CLEANUP, self.context.reports.wait_for(is_over))
            .await
            .is_err()
        {
            warn!(%uid, "the evicted pod still runs; going on");
            if let Some(report) = self.context.reports.get(uid) {
                let message = "Container runtime did not kill the pod within specified grace period.";
                self.context
                    .events
                    .pod_warning(&report.pod, "ExceededGracePeriod", message);
            }
            return;
        }
        let volumes = self.context.executor.node().pod_directory(uid).join("volumes");
        let removed = tokio::task::spawn_blocking(move || remove_unmounted_directory(&volumes)).await;
        if let Ok(Err(error)) = removed {
            warn!(%uid, "the volumes of the evicted pod stay: {}", with_causes(&error));
        }
    }
}

fn read_figures(host: &dyn HostResources, pods: &Path, images: Option<&Path>) -> Figures {
    let mut figures = Figures::default();
    let mut add = |signal: Signal, capacity: u64, available: u64| {
        // A filesystem that creates inodes on demand has none to run out of.
        if capacity > 0 {
            figures.observations.insert(signal, Observation { capacity, available });
        }
    };
    let mut add_disk = |signals: [Signal; 2], disk: std::io::Result<Filesystem>| match disk {
        Ok(disk) => {
            add(signals[0], disk.capacity, disk.available);
            add(signals[1], disk.inodes, disk.inodes_free);
        }
        Err(error) => debug!(%error, signal = signals[0].name(), "the filesystem cannot be examined"),
    };
    let pods = existing(pods);
    add_disk(
        [Signal::NodeFsAvailable, Signal::NodeFsInodesFree],
        host.filesystem(&pods),
    );
    if let Some(images) = images {
        add_disk(
            [Signal::ImageFsAvailable, Signal::ImageFsInodesFree],
            host.filesystem(images),
        );
    }
    for (signal, read) in [
        (Signal::MemoryAvailable, host.memory()),
        (Signal::PidAvailable, host.processes()),
    ] {
        match read {
            Ok(amount) => add(signal, amount.capacity, amount.available),
            Err(error) => debug!(%error, signal = signal.name(), "cannot be read"),
        }
    }
    figures.has_image_fs = images.is_some_and(|images| !host.same_filesystem(&pods, images).unwrap_or(true));
    figures
}

/// The nearest directory that exists: that of pods is created with the first pod.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|path| path.exists());
    found.unwrap_or(Path::new("/")).to_owned()
}
