//! The published status of each pod, for those that display it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use pleg::PodUid;
use serde::{Serialize, Serializer};
use tokio::sync::watch;

use crate::manifest::Pod;
use crate::reconcile::decide::{Goal, Stage};
use crate::reconcile::history::later;
use crate::sources::{Complaint, RefusedPod};
use crate::status::{self, Stale, Status};

/// The annotation of a pod whose status is old: up to when it was true.
pub const AS_OF: &str = "pleg.io/status-as-of";

/// A pod and how it does. Written as Kubernetes writes a Pod.
#[derive(Debug, Clone)]
pub struct Report {
    /// The manifest.
    pub pod: Arc<Pod>,
    /// How it does.
    pub status: Arc<Status>,
    /// Where it is on its way.
    pub stage: Stage,
    /// Its desired state.
    pub goal: Goal,
    /// Set while `status` is not the newest.
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
            spec: Option<&'a crate::manifest::Tree>,
            status: &'a Status,
        }
        let shape = Shape {
            api_version: "v1",
            kind: "Pod",
            metadata: Metadata::of(self),
            spec: self.pod.document.get("spec"),
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
    /// When it has to be gone, once it is to end.
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
            Goal::End { since, grace } => (Some(since), Some(grace)),
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

/// Pods, written as Kubernetes writes a `PodList`.
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
struct State {
    pods: BTreeMap<PodUid, Report>,
    complaints: Vec<Complaint>,
    refused: Vec<Report>,
}

/// The newest word about each pod. Clones show the same.
#[derive(Debug, Clone)]
pub struct PodReports {
    // Held for a read or a write of one pod; never across an await.
    state: Arc<RwLock<State>>,
    /// Grows with each change.
    version: watch::Sender<u64>,
}

impl Default for PodReports {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            version: watch::Sender::new(0),
        }
    }
}

impl PodReports {
    /// One pod.
    pub fn get(&self, uid: &PodUid) -> Option<Report> {
        self.state.read().pods.get(uid).cloned()
    }

    /// All pods, by their names. Those whose manifests are refused too, unless there is one of that name.
    pub fn pods(&self) -> Vec<Report> {
        let state = self.state.read();
        let mut pods: Vec<Report> = state.pods.values().cloned().collect();
        let names: BTreeSet<Arc<str>> = pods.iter().map(|report| report.pod.id.full_name()).collect();
        let free = |report: &&Report| !names.contains(&report.pod.id.full_name());
        pods.extend(state.refused.iter().filter(free).cloned());
        drop(state);
        pods.sort_by(|a, b| (&a.pod.id.namespace, &a.pod.id.name).cmp(&(&b.pod.id.namespace, &b.pod.id.name)));
        pods
    }

    /// Manifest problems that a person has to fix.
    pub fn complaints(&self) -> Vec<Complaint> {
        self.state.read().complaints.clone()
    }

    /// Waits until what is shown is as asked for. Cancel-safe.
    pub async fn wait_for(&self, is: impl Fn(&Self) -> bool) {
        let mut version = self.version.subscribe();
        // Its sender is ours.
        let _ = version.wait_for(|_| is(self)).await;
    }

    pub(crate) fn set(&self, report: Report) {
        let uid = report.pod.id.uid.clone();
        self.state.write().pods.insert(uid, report);
        self.changed();
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.state.write().pods.remove(uid);
        self.changed();
    }

    pub(crate) fn set_complaints(&self, complaints: Vec<Complaint>) {
        self.state.write().complaints = complaints;
        self.changed();
    }

    pub(crate) fn set_refused(&self, refused: Vec<RefusedPod>) {
        let report = |refused: RefusedPod| Report {
            status: Arc::new(status::refused(&refused.complaint.to_string())),
            pod: Arc::new(Pod::forgotten(refused.id)),
            stage: Stage::Finished,
            goal: Goal::Run,
            stale: None,
        };
        self.state.write().refused = refused.into_iter().map(report).collect();
        self.changed();
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }
}
