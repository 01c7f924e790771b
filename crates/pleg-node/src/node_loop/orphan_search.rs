//! The search for pods that carry our label. It runs beside the loop: a list may hang for minutes, and nothing waits for it.

use pleg::PodRef;
use pleg_cri::{Client, v1};
use tokio::task::JoinSet;
use tracing::warn;

use crate::executor::requests::NODE_LABEL;
use crate::manifest::NodeName;

/// Pods on this runtime that belong to another owner, such as a kubelet, which would compete with us.
pub async fn foreign_pods(client: &Client, node: &NodeName) -> Result<Vec<PodRef>, pleg_cri::Error> {
    let listed = client.call(v1::ListPodSandboxRequest::default()).await?;
    let is_foreign =
        |sandbox: &v1::PodSandbox| sandbox.labels.get(NODE_LABEL).map(String::as_str) != Some(node.as_str());
    Ok(listed.items.into_iter().filter(is_foreign).filter_map(pod_of).collect())
}

/// Pods on this runtime that belong to this node, by their label. A pod with several sandboxes is listed several times.
async fn own_pods(client: Client, node: String) -> Result<Vec<PodRef>, pleg_cri::Error> {
    let filter = v1::PodSandboxFilter {
        label_selector: [(NODE_LABEL.to_owned(), node)].into(),
        ..Default::default()
    };
    let listed = client.call(v1::ListPodSandboxRequest { filter: Some(filter) }).await?;
    let pods = listed.items.into_iter().filter_map(pod_of);
    Ok(pods.filter(|pod| !pod.uid.as_str().is_empty()).collect())
}

fn pod_of(sandbox: v1::PodSandbox) -> Option<PodRef> {
    let metadata = sandbox.metadata?;
    Some(PodRef {
        uid: metadata.uid.into(),
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
    })
}

/// What the search is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// For the pods that existed before this run. Until they are known, no pod is started.
    Preexisting,
    /// For orphans, as soon as all sources are complete.
    Due,
    /// For nothing, until the next tick.
    Done,
}

/// The result of a search.
#[derive(Debug)]
pub(super) enum Listed {
    /// Our pods that existed before this run.
    Preexisting(Vec<PodRef>),
    /// Our pods.
    Ours(Vec<PodRef>),
    /// The runtime did not answer.
    Failed,
}

/// Lists our pods: once at the start, and then whenever that is due.
#[derive(Debug)]
pub(super) struct OrphanSearch {
    client: Client,
    node: String,
    phase: Phase,
    running: JoinSet<Result<Vec<PodRef>, pleg_cri::Error>>,
}

impl OrphanSearch {
    pub(super) fn new(client: Client, node: &NodeName) -> Self {
        Self {
            client,
            node: node.to_string(),
            phase: Phase::Preexisting,
            running: JoinSet::new(),
        }
    }

    pub(super) fn start(&mut self) {
        self.running.spawn(own_pods(self.client.clone(), self.node.clone()));
    }

    /// Whether the pods that existed before this run are known.
    pub(super) fn knows_preexisting(&self) -> bool {
        self.phase != Phase::Preexisting
    }

    /// Starts the search for orphans, unless it was done since the last tick.
    pub(super) fn start_if_due(&mut self) {
        if self.phase == Phase::Due && self.running.is_empty() {
            self.phase = Phase::Done;
            self.start();
        }
    }

    /// Searches again for the pods that existed before this run, if the last search failed.
    pub(super) fn retry_preexisting(&mut self) {
        if self.phase == Phase::Preexisting && self.running.is_empty() {
            self.start();
        }
    }

    /// The next search for orphans is due.
    pub(super) fn set_due(&mut self) {
        if self.phase == Phase::Done {
            self.phase = Phase::Due;
        }
    }

    /// Waits for the result of a search. None if none runs. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Listed> {
        let listed = match self.running.join_next().await? {
            Ok(listed) => listed.map_err(|error| error.to_string()),
            Err(panic) => Err(panic.to_string()),
        };
        Some(match listed {
            Ok(ours) if self.phase == Phase::Preexisting => {
                self.phase = Phase::Due;
                Listed::Preexisting(ours)
            }
            Ok(ours) => Listed::Ours(ours),
            Err(error) => {
                warn!(error, "cannot search for orphaned pods");
                Listed::Failed
            }
        })
    }
}
