//! Removes what a reporter leaves behind: its condition on the node, and on the pods of the node.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::condition::{self, STUCK};
use crate::api::{Api, ApiError, call};

/// Objects of one page.
const PAGE: u32 = 500;
/// Most pages that are read.
const MOST_PAGES: usize = 200;

/// What was removed of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// The name of the node.
    pub node: String,
    /// It had our condition.
    pub had_condition: bool,
    /// So many of its pods had it.
    pub pods: usize,
    /// Why its pods could not be looked at; their conditions, if any, are left.
    pub pods_left: Option<String>,
}

/// Removes our condition from a node and its pods.
pub async fn forget_node(api: &Api, name: &str) -> Result<Forgotten, ApiError> {
    let nodes = kube::Api::<Node>::all(api.client());
    let node = call(format!("get node {name}"), nodes.get(name)).await?;
    forget(api, &node).await
}

/// Removes our condition from all nodes and their pods.
pub async fn forget_all(api: &Api) -> Result<Vec<Forgotten>, ApiError> {
    let mut forgotten = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..MOST_PAGES {
        let nodes = kube::Api::<Node>::all(api.client());
        let page = call("list nodes", nodes.list(&params)).await?;
        for node in &page.items {
            forgotten.push(forget(api, node).await?);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(forgotten)
}

async fn forget(api: &Api, node: &Node) -> Result<Forgotten, ApiError> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let had_condition = condition::of_node(node).is_some();
    if had_condition {
        let nodes = kube::Api::<Node>::all(api.client());
        let patch = Patch::Strategic(condition::removal());
        let params = PatchParams::default();
        call(
            format!("patch nodes/status of node {name}"),
            nodes.patch_status(&name, &params, &patch),
        )
        .await?;
    }
    let (pods, pods_left) = match forget_pods(api, &name).await {
        Ok(pods) => (pods, None),
        Err(error) => (0, Some(error.to_string())),
    };
    Ok(Forgotten {
        node: name,
        had_condition,
        pods,
        pods_left,
    })
}

/// Returns how many had it.
async fn forget_pods(api: &Api, node: &str) -> Result<usize, ApiError> {
    let mut params = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(PAGE);
    let mut count = 0;
    for _ in 0..MOST_PAGES {
        let pods = kube::Api::<Pod>::all(api.client());
        let page = call(format!("list pods of node {node}"), pods.list(&params)).await?;
        for pod in page.items.iter().filter(|pod| has_condition(pod)) {
            count += usize::from(forget_pod(api, pod).await?);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(count)
}

fn has_condition(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == STUCK)
}

/// Returns whether it was there to be changed.
async fn forget_pod(api: &Api, pod: &Pod) -> Result<bool, ApiError> {
    let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
        return Ok(false);
    };
    let mut body = condition::removal();
    body["metadata"] = json!({ "uid": pod.metadata.uid });
    let pods = kube::Api::<Pod>::namespaced(api.client(), namespace);
    let (params, patch) = (PatchParams::default(), Patch::Strategic(body));
    let patching = pods.patch_status(name, &params, &patch);
    match call(format!("patch pods/status of pod {namespace}/{name}"), patching).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}
