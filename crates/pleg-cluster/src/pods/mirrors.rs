//! Mirror pods: a static pod exists only on its node, so a copy of it is created for the cluster to see.
//!
//! A mirror pod that somebody deletes or changes is replaced, since the static pod goes on unchanged; one whose static pod is gone is
//! deleted. None of that touches what runs. A static pod that refers to objects of the API server has no mirror: the API server refuses it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use pleg::PodRef;
use pleg_node::PodReports;
use pleg_node::manifest::{NodeName, Pod};
use pleg_node::reconcile::decide::Goal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::calls::PodCalls;
use super::known::{MIRROR, Mirror};
use super::table::PodTable;
use crate::api::{Api, ApiError, call};
use crate::pace::Pace;
use crate::status::delete_now;

/// The annotation of static pods: the hash of their document, which is their UID.
const HASH: &str = "kubernetes.io/config.hash";
/// The annotation of static pods: when the node saw them first.
const SEEN: &str = "kubernetes.io/config.seen";
/// How often static pods are compared with their mirror pods, if nothing changes.
const PERIOD: Duration = Duration::from_secs(10);
/// How often a change of the static pods is looked for.
const CHECK: Duration = Duration::from_secs(1);
/// When a mirror pod that the API server refuses is tried again.
const REFUSED: Duration = Duration::from_mins(1);

/// Keeps a mirror pod for each static pod. Built without side effects; [`MirrorPods::run`] starts it.
#[derive(Debug)]
pub struct MirrorPods {
    api: Api,
    node: NodeName,
    table: PodTable,
    reports: PodReports,
    /// By full name: mirror pods that the API server refuses, and when they are tried again.
    refused: BTreeMap<Arc<str>, Instant>,
}

/// What to do about a mirror pod.
#[derive(Debug, Clone)]
enum Step {
    Create(Arc<Pod>),
    Delete(PodRef, &'static str),
}

impl MirrorPods {
    /// Of the static pods in these reports.
    pub fn new(api: Api, node: &NodeName, table: PodTable, reports: PodReports) -> Self {
        Self {
            api,
            node: node.clone(),
            table,
            reports,
            refused: BTreeMap::new(),
        }
    }

    /// Runs until shutdown; mirror pods stay.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let _ = shutdown.run_until_cancelled(Box::pin(self.follow())).await;
    }

    async fn follow(&mut self) {
        self.table.synced().await;
        let mut pace = Pace::new();
        let mut changes = self.table.mirror_changes();
        loop {
            changes.borrow_and_update();
            pace.begin();
            let seen = self.static_pods();
            if let Err(error) = self.reconcile(&seen).await {
                debug!("{error}");
                sleep_until(pace.failed(error.retry_after())).await;
                continue;
            }
            let next = pace.went_well();
            sleep_until(next).await;
            self.wait_for_change(&seen, &mut changes).await;
        }
    }

    /// Waits for a change of a static pod or of a mirror pod, or for the end of the period.
    async fn wait_for_change(&self, seen: &[Arc<Pod>], changes: &mut watch::Receiver<u64>) {
        let end = Instant::now() + PERIOD;
        while Instant::now() < end {
            // There is a change of some report every moment on a busy node, and hardly ever one of these.
            if let Ok(changed) = timeout(CHECK, changes.changed()).await {
                // It cannot be closed: the table has the sender.
                return changed.unwrap_or_default();
            }
            if self.static_pods() != seen {
                return;
            }
        }
    }

    /// Makes mirror pods what static pods say.
    async fn reconcile(&mut self, static_pods: &[Arc<Pod>]) -> Result<(), ApiError> {
        let now = Instant::now();
        self.refused.retain(|_, until| *until > now);
        let steps = steps(static_pods, &self.table.mirrors(), &self.node);
        let steps = steps.into_iter().filter(|step| match step {
            Step::Create(pod) => !self.refused.contains_key(&pod.id.full_name()),
            Step::Delete(..) => true,
        });
        let steps: Vec<Step> = steps.collect();
        for step in &steps {
            match step {
                Step::Create(pod) => self.create(pod).await?,
                Step::Delete(id, why) => {
                    info!(pod = %id, "deleting a mirror pod: {why}");
                    delete_now(&PodCalls::new(self.api.clone(), &self.node), id).await?;
                    self.table.forget_mirror(id);
                }
            }
        }
        Ok(())
    }

    async fn create(&mut self, pod: &Pod) -> Result<(), ApiError> {
        let nodes: kube::Api<core::Node> = kube::Api::all(self.api.client());
        let node = call(format!("get node {}", self.node), nodes.get(self.node.as_str())).await?;
        let mirror = mirror_of(pod, &node, Timestamp::now());
        let id = &pod.id;
        let pods: kube::Api<core::Pod> = kube::Api::namespaced(self.api.client(), &id.namespace);
        let params = PostParams::default();
        match call(format!("create the mirror pod {id}"), pods.create(&params, &mirror)).await {
            Ok(created) => {
                info!(pod = %id, "created a mirror pod");
                self.table.apply(created);
                Ok(())
            }
            // The watch shows it soon: as a mirror, or as a pod of somebody else.
            Err(error) if error.already_exists() || !error.is_transient() => {
                warn!(pod = %id, "{error}; the static pod runs all the same");
                self.refused.insert(id.full_name(), Instant::now() + REFUSED);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The static pods that are to run.
    fn static_pods(&self) -> Vec<Arc<Pod>> {
        let reports = self.reports.static_pods().into_iter();
        let wanted = reports.filter(|report| report.goal == Goal::Run);
        wanted.map(|report| report.pod).collect()
    }
}

/// What to do to make mirror pods what static pods say.
fn steps(static_pods: &[Arc<Pod>], mirrors: &BTreeMap<Arc<str>, Mirror>, node: &NodeName) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut wanted: BTreeMap<Arc<str>, &Arc<Pod>> = static_pods.iter().map(|pod| (pod.id.full_name(), pod)).collect();
    for (name, mirror) in mirrors {
        let why = match wanted.get(name) {
            None => Some("its static pod is gone"),
            Some(pod) => changed(mirror, pod, node),
        };
        if let Some(why) = why {
            steps.push(Step::Delete(mirror.id.clone(), why));
        } else {
            wanted.remove(name);
        }
    }
    steps.extend(wanted.into_values().map(|pod| Step::Create(Arc::clone(pod))));
    steps
}

/// Why a mirror pod is not that of this static pod any more.
fn changed(mirror: &Mirror, pod: &Pod, node: &NodeName) -> Option<&'static str> {
    let metadata = &mirror.object.metadata;
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let images = |spec: Option<&core::PodSpec>| -> Vec<(String, Option<String>)> {
        let containers = spec.into_iter().flat_map(|spec| &spec.containers);
        containers.map(|one| (one.name.clone(), one.image.clone())).collect()
    };
    if metadata.deletion_timestamp.is_some() {
        Some("somebody deleted it, and its static pod runs")
    } else if mirror.of().as_ref() != Some(&pod.id.uid) {
        Some("its static pod has changed")
    } else if !owners
        .iter()
        .any(|owner| owner.kind == "Node" && owner.name == node.as_str())
    {
        Some("somebody changed its owner")
    } else if metadata.labels.clone().unwrap_or_default() != pod.labels {
        Some("somebody changed its labels")
    } else if images(mirror.object.spec.as_ref()) != images(pod.object.spec.as_ref()) {
        Some("somebody changed its images")
    } else {
        None
    }
}

/// The mirror pod of a static pod.
fn mirror_of(pod: &Pod, node: &core::Node, now: Timestamp) -> core::Pod {
    let name = node.metadata.name.clone().unwrap_or_default();
    let mut annotations = pod.annotations.clone();
    let hash = pod.id.uid.to_string();
    annotations.insert(HASH.to_owned(), hash.clone());
    annotations.insert(MIRROR.to_owned(), hash);
    annotations.entry(SEEN.to_owned()).or_insert_with(|| now.to_string());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let mut spec = pod.object.spec.clone().unwrap_or_default();
    spec.node_name = Some(name);
    core::Pod {
        metadata: ObjectMeta {
            name: Some(pod.id.name.to_string()),
            namespace: Some(pod.id.namespace.to_string()),
            labels: Some(pod.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

#[cfg(test)]
mod tests;
