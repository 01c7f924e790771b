//! Single questions about this node and its pods.
//!
//! A pod is asked for by a list, not by its name alone: the node authorizer refuses to get a pod that does not exist, or that is on another
//! node, and nobody could tell that from missing rights.

use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use pleg_node::manifest::NodeName;

use crate::api::{Api, ApiError, call};

/// Asks the API server.
#[derive(Debug, Clone)]
pub(crate) struct PodCalls {
    api: Api,
    node: NodeName,
}

impl PodCalls {
    pub(crate) fn new(api: Api, node: &NodeName) -> Self {
        let node = node.clone();
        Self { api, node }
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// The only selector of pods that the node authoriser permits.
    pub(super) fn selector(&self) -> String {
        format!("spec.nodeName={}", self.node)
    }

    /// The Node object, if there is one.
    pub(super) async fn node(&self) -> Result<Option<core::Node>, ApiError> {
        let nodes: kube::Api<core::Node> = kube::Api::all(self.api.client());
        call(format!("get node {}", self.node), nodes.get_opt(self.node.as_str())).await
    }

    /// The pod of that name on this node, if there is one.
    pub(crate) async fn find(&self, namespace: &str, name: &str) -> Result<Option<core::Pod>, ApiError> {
        let pods: kube::Api<core::Pod> = kube::Api::namespaced(self.api.client(), namespace);
        let params = ListParams::default().fields(&format!("{},metadata.name={name}", self.selector()));
        let found = call(format!("look up pod {namespace}/{name}"), pods.list(&params)).await?;
        Ok(found.items.into_iter().next())
    }
}
