//! The published status of each pod, for the HTTP API and other readers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use parking_lot::RwLock;
use pleg::PodUid;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::activity::Activity;
use crate::eviction::admission::NodePressure;
use crate::manifest::Pod;
use crate::probes::ProbeCounts;
use crate::reconcile::backoff::later;
use crate::reconcile::decide::{Goal, Stage};
use crate::sources::{RefusedPod, SourceProblem};
use crate::status::model::{time, whole_second};
use crate::status::updates::{Queue, StatusUpdates};
use crate::status::{self, Phase, Stale};
use crate::store::StoreWriter;

/// The annotation of a pod whose status is stale: when it was last true.
pub const AS_OF: &str = "pleg.io/status-as-of";

/// A pod and its status. Serialised as a Kubernetes Pod.
#[derive(Debug, Clone)]
pub struct Report {
    /// The manifest.
    pub pod: Arc<Pod>,
    /// Its status.
    pub status: Arc<core::PodStatus>,
    /// Where it is in its life.
    pub stage: Stage,
    /// Its desired state.
    pub goal: Goal,
    /// Set while `status` is not fresh.
    pub stale: Option<Stale>,
    /// Set while the runtime does not answer about this pod, and answers about others.
    pub stuck: Option<StuckCall>,
}

/// A call of the runtime about one pod that fails or is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckCall {
    /// The call, such as `ContainerStatus`.
    pub rpc: String,
    /// The container that it is about; none for the sandbox.
    pub container: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// How the last attempt ended, with the object of the call.
    pub error: String,
}

impl fmt::Display for StuckCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.container {
            Some(container) => write!(f, "{} of container {container}", self.rpc)?,
            None => write!(f, "{} of the sandbox", self.rpc)?,
        }
        write!(f, " has failed since {:.0}: {}", self.since, self.error)
    }
}

impl Report {
    /// Its phase; Pending if it has none.
    pub fn phase(&self) -> Phase {
        Phase::of(&self.status).unwrap_or(Phase::Pending)
    }

    /// Its conditions.
    pub fn conditions(&self) -> &[core::PodCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// The statuses of `containers`.
    pub fn containers(&self) -> &[core::ContainerStatus] {
        self.status.container_statuses.as_deref().unwrap_or_default()
    }

    /// The statuses of `initContainers`.
    pub fn init_containers(&self) -> &[core::ContainerStatus] {
        self.status.init_container_statuses.as_deref().unwrap_or_default()
    }

    /// The statuses of `ephemeralContainers`.
    pub fn ephemeral_containers(&self) -> &[core::ContainerStatus] {
        self.status.ephemeral_container_statuses.as_deref().unwrap_or_default()
    }

    /// The pod as the Kubernetes API has it.
    pub fn object(&self) -> core::Pod {
        core::Pod {
            metadata: self.metadata(),
            spec: self.pod.object.spec.clone(),
            status: Some((*self.status).clone()),
        }
    }

    fn metadata(&self) -> ObjectMeta {
        let mut metadata = self.pod.object.metadata.clone();
        if metadata.creation_timestamp.is_none() {
            // When the node accepted it.
            metadata.creation_timestamp.clone_from(&self.status.start_time);
        }
        if let Goal::Terminate { since, grace } = self.goal {
            // When its grace period ends.
            metadata.deletion_timestamp = Some(time(later(since, grace)));
            metadata.deletion_grace_period_seconds = i64::try_from(grace.as_secs()).ok();
        }
        if let Some(as_of) = self.stale.as_ref().and_then(|stale| stale.as_of) {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(AS_OF.to_owned(), whole_second(as_of).to_string());
        }
        metadata
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.object().serialize(serializer)
    }
}

/// Pods, serialised as a Kubernetes `PodList`.
#[derive(Debug, Clone)]
pub struct PodList(pub Vec<Report>);

impl Serialize for PodList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let list = k8s_openapi::List {
            metadata: ListMeta::default(),
            items: self.0.iter().map(Report::object).collect(),
        };
        list.serialize(serializer)
    }
}

#[derive(Debug, Default)]
struct Published {
    queue: Queue,
    problems: Vec<SourceProblem>,
    refused: Vec<Report>,
}

/// The newest report of each pod. Clones share it.
#[derive(Debug, Clone)]
pub struct PodReports {
    // Held for a read or a write of one pod; never across an await.
    published: Arc<RwLock<Published>>,
    /// Grows with each change.
    version: watch::Sender<u64>,
    pressure: NodePressure,
    activity: Activity,
    probe_counts: ProbeCounts,
}

impl Default for PodReports {
    fn default() -> Self {
        Self {
            published: Arc::default(),
            version: watch::Sender::new(0),
            pressure: NodePressure::default(),
            activity: Activity::default(),
            probe_counts: ProbeCounts::default(),
        }
    }
}

impl PodReports {
    /// The report of one pod.
    pub fn get(&self, uid: &PodUid) -> Option<Report> {
        self.published.read().queue.get(uid).cloned()
    }

    /// The report of one pod by name. While a pod terminates and its successor waits for the name, this is the successor.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Report> {
        let published = self.published.read();
        let is = |report: &&Report| *report.pod.id.namespace == *namespace && *report.pod.id.name == *name;
        let all = published.refused.iter().chain(published.queue.reports());
        all.filter(is)
            .max_by_key(|report| matches!(report.goal, Goal::Run))
            .cloned()
    }

    /// All pods, ordered by name, including refused ones unless another pod has their name.
    pub fn pods(&self) -> Vec<Report> {
        let published = self.published.read();
        let mut pods: Vec<Report> = published.queue.reports().cloned().collect();
        let names: BTreeSet<Arc<str>> = pods.iter().map(|report| report.pod.id.full_name()).collect();
        let free = |report: &&Report| !names.contains(&report.pod.id.full_name());
        pods.extend(published.refused.iter().filter(free).cloned());
        drop(published);
        pods.sort_by(|a, b| (&a.pod.id.namespace, &a.pod.id.name).cmp(&(&b.pod.id.namespace, &b.pod.id.name)));
        pods
    }

    /// The static pods.
    pub fn static_pods(&self) -> Vec<Report> {
        let published = self.published.read();
        let all = published.queue.reports();
        all.filter(|report| report.pod.is_static()).cloned().collect()
    }

    /// Manifest problems that an operator has to fix.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.published.read().problems.clone()
    }

    /// The conditions of the node about its resources.
    pub fn pressure(&self) -> &NodePressure {
        &self.pressure
    }

    /// How busy the runtime is with these pods.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// How their probes went.
    pub fn probe_counts(&self) -> &ProbeCounts {
        &self.probe_counts
    }

    /// With the activity that the executor counts.
    pub(crate) fn with_activity(mut self, activity: Activity) -> Self {
        self.activity = activity;
        self
    }

    /// Statuses that change, for a publisher: from now on, the record of a terminated pod stays until its last status is acknowledged.
    /// There can be one publisher; another one takes over, and starts with all pods.
    pub fn publish(&self) -> StatusUpdates {
        self.published.write().queue.attach();
        StatusUpdates {
            version: self.version.subscribe(),
            reports: self.clone(),
        }
    }

    /// Whether no status waits for the publisher, or is on its way. True without one.
    pub fn is_published(&self) -> bool {
        self.published.read().queue.is_published()
    }

    /// Waits until the reports are as asked for. Cancel-safe.
    pub async fn wait_for(&self, is: impl Fn(&Self) -> bool) {
        let mut version = self.version.subscribe();
        // It cannot be closed: we have the sender.
        let _ = version.wait_for(|_| is(self)).await;
    }

    /// Puts in the newest report of a pod. Pod workers do that; others only in tests of publishers.
    pub fn set(&self, report: Report) {
        self.published.write().queue.set(report, Instant::now());
        self.changed();
    }

    /// Puts in the last report of a pod that has no record: for tests of publishers.
    pub fn set_last(&self, report: Report) {
        self.finish(report, None);
    }

    /// The pod has terminated; this is its last report. Its record is deleted from `store`, if given, once that is published.
    pub(crate) fn finish(&self, report: Report, store: Option<StoreWriter>) {
        self.published.write().queue.finish(report, store, Instant::now());
        self.changed();
    }

    /// The pod is desired again: its record stays.
    pub(crate) fn reopen(&self, uid: &PodUid) {
        self.published.write().queue.reopen(uid);
    }

    pub(super) fn with_queue<T>(&self, with: impl FnOnce(&mut Queue) -> T) -> T {
        with(&mut self.published.write().queue)
    }

    pub(crate) fn set_problems(&self, problems: Vec<SourceProblem>) {
        self.published.write().problems = problems;
        self.changed();
    }

    pub(crate) fn set_refused(&self, refused: Vec<RefusedPod>) {
        let report = |refused: RefusedPod| Report {
            status: Arc::new(status::refused(&refused.problem.to_string())),
            pod: Arc::new(Pod::without_manifest(refused.id)),
            stage: Stage::Finished,
            goal: Goal::Run,
            stale: None,
            stuck: None,
        };
        self.published.write().refused = refused.into_iter().map(report).collect();
        self.changed();
    }

    pub(super) fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}
