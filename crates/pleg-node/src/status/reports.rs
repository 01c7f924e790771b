//! The published status of each pod, for the HTTP API and other readers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use pleg::PodUid;
use serde::{Serialize, Serializer};
use tokio::sync::watch;

use crate::eviction::admission::NodePressure;
use crate::manifest::Pod;
use crate::reconcile::backoff::later;
use crate::reconcile::decide::{Goal, Stage};
use crate::sources::{RefusedPod, SourceProblem};
use crate::status::updates::{Queue, StatusUpdates};
use crate::status::{self, ApiPodStatus, Stale};
use crate::store::StoreWriter;

/// The annotation of a pod whose status is stale: when it was last true.
pub const AS_OF: &str = "pleg.io/status-as-of";

/// A pod and its status. Serialised as a Kubernetes Pod.
#[derive(Debug, Clone)]
pub struct Report {
    /// The manifest.
    pub pod: Arc<Pod>,
    /// Its status.
    pub status: Arc<ApiPodStatus>,
    /// Where it is in its life.
    pub stage: Stage,
    /// Its desired state.
    pub goal: Goal,
    /// Set while `status` is not fresh.
    pub stale: Option<Stale>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape<'a> {
            api_version: &'a str,
            kind: &'a str,
            metadata: Metadata<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            spec: Option<&'a k8s_openapi::api::core::v1::PodSpec>,
            status: &'a ApiPodStatus,
        }
        let shape = Shape {
            api_version: "v1",
            kind: "Pod",
            metadata: Metadata::of(self),
            spec: self.pod.object.spec.as_ref(),
            status: &self.status,
        };
        shape.serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a PodUid,
    /// When the node accepted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<String>,
    /// When its grace period ends, once it terminates.
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deletion_grace_period_seconds: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, Cow<'a, str>>,
}

impl<'a> Metadata<'a> {
    fn of(report: &'a Report) -> Self {
        let pod = &*report.pod;
        let time = |at: Timestamp| Timestamp::from_second(at.as_second()).unwrap_or(at).to_string();
        let (since, grace) = match report.goal {
            Goal::Terminate { since, grace } => (Some(since), Some(grace)),
            Goal::Run => (None, None),
        };
        let written = pod.annotations.iter();
        let mut annotations: BTreeMap<&str, Cow<'_, str>> =
            written.map(|(key, value)| (key.as_str(), Cow::from(value))).collect();
        if let Some(as_of) = report.stale.as_ref().and_then(|stale| stale.as_of) {
            annotations.insert(AS_OF, time(as_of).into());
        }
        Self {
            name: &pod.id.name,
            namespace: &pod.id.namespace,
            uid: &pod.id.uid,
            creation_timestamp: report.status.start_time.map(time),
            deletion_timestamp: since.zip(grace).map(|(since, grace)| time(later(since, grace))),
            deletion_grace_period_seconds: grace.map(|grace| grace.as_secs()),
            labels: &pod.labels,
            annotations,
        }
    }
}

/// Pods, serialised as a Kubernetes `PodList`.
#[derive(Debug, Clone)]
pub struct PodList(pub Vec<Report>);

impl Serialize for PodList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shape<'a> {
            api_version: &'a str,
            kind: &'a str,
            metadata: BTreeMap<&'a str, &'a str>,
            items: &'a [Report],
        }
        let shape = Shape {
            api_version: "v1",
            kind: "PodList",
            metadata: BTreeMap::new(),
            items: &self.0,
        };
        shape.serialize(serializer)
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
}

impl Default for PodReports {
    fn default() -> Self {
        Self {
            published: Arc::default(),
            version: watch::Sender::new(0),
            pressure: NodePressure::default(),
        }
    }
}

impl PodReports {
    /// The report of one pod.
    pub fn get(&self, uid: &PodUid) -> Option<Report> {
        self.published.read().queue.get(uid).cloned()
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

    /// Manifest problems that an operator has to fix.
    pub fn problems(&self) -> Vec<SourceProblem> {
        self.published.read().problems.clone()
    }

    /// The conditions of the node about its resources.
    pub fn pressure(&self) -> &NodePressure {
        &self.pressure
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

    /// Waits until the reports are as asked for. Cancel-safe.
    pub async fn wait_for(&self, is: impl Fn(&Self) -> bool) {
        let mut version = self.version.subscribe();
        // It cannot be closed: we have the sender.
        let _ = version.wait_for(|_| is(self)).await;
    }

    pub(crate) fn set(&self, report: Report) {
        self.published.write().queue.set(report);
        self.changed();
    }

    /// The pod has terminated; this is its last report. Its record is deleted from `store`, if given, once that is published.
    pub(crate) fn finish(&self, report: Report, store: Option<StoreWriter>) {
        self.published.write().queue.finish(report, store);
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
        };
        self.published.write().refused = refused.into_iter().map(report).collect();
        self.changed();
    }

    pub(super) fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}
