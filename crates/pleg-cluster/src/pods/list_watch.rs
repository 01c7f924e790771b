//! One list of this node's pods, and one watch.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1 as core;
use kube::api::{ListParams, WatchEvent, WatchParams};
use pleg_node::manifest::NodeName;
use tokio::time::timeout;
use tracing::debug;

use super::known::Listed;
use super::table::PodTable;
use crate::api::{Api, ApiError, call};

/// Pods of one page of a list.
const PAGE: u32 = 500;
/// Most pages of one list.
const MAX_PAGES: usize = 64;
/// How long the API server keeps a watch open, in seconds: from here to a quarter more.
const WATCH_SECONDS: u32 = 240;
/// A watch that is silent for longer is dead: bookmarks come every minute or so.
const SILENCE: Duration = Duration::from_secs(100);

/// The pods of this node on the API server.
#[derive(Debug)]
pub(super) struct ListWatch {
    api: Api,
    node: NodeName,
    /// The only selector that the node authoriser permits.
    selector: String,
}

/// How a watch ended.
#[derive(Debug)]
pub(super) enum WatchEnd {
    /// It can go on from the last version.
    Cut,
    /// The version is too old, or the watch cannot be read: a list has to come first.
    Expired(String),
    /// There was no watch.
    Failed(ApiError),
}

impl ListWatch {
    pub(super) fn new(api: Api, node: &NodeName) -> Self {
        let selector = format!("spec.nodeName={node}");
        let node = node.clone();
        Self { api, node, selector }
    }

    fn pods(&self) -> kube::Api<core::Pod> {
        kube::Api::all(self.api.client())
    }

    /// All pods, page by page. A list whose token expires on the way has failed.
    pub(super) async fn list(&self, newest_before: u64) -> Result<Listed, ApiError> {
        let mut listed = Listed {
            newest_before,
            ..Listed::default()
        };
        let mut params = ListParams::default().fields(&self.selector).limit(PAGE);
        for _ in 0..MAX_PAGES {
            let pods = self.pods();
            let page = call("list the pods of this node", pods.list(&params)).await?;
            if listed.version.is_empty() {
                listed.version = page.metadata.resource_version.unwrap_or_default();
            }
            listed.pods.extend(page.items.into_iter().map(|mut pod| {
                pod.metadata.managed_fields = None;
                pod
            }));
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => break,
            }
        }
        Ok(listed)
    }

    /// The Node object, if there is one.
    pub(super) async fn node(&self) -> Result<Option<core::Node>, ApiError> {
        let nodes: kube::Api<core::Node> = kube::Api::all(self.api.client());
        call(format!("get node {}", self.node), nodes.get_opt(self.node.as_str())).await
    }

    /// The object of that name, if there is one.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Option<core::Pod>, ApiError> {
        let pods: kube::Api<core::Pod> = kube::Api::namespaced(self.api.client(), namespace);
        call(format!("get pod {namespace}/{name}"), pods.get_opt(name)).await
    }

    /// Puts what happens after `version` into the table until the watch ends, and keeps `version` up to date.
    pub(super) async fn watch(&self, version: &mut String, table: &PodTable) -> WatchEnd {
        let params = WatchParams::default()
            .fields(&self.selector)
            .timeout(WATCH_SECONDS + fastrand::u32(0..WATCH_SECONDS / 4));
        let pods = self.pods();
        let events = match call("watch the pods of this node", pods.watch(&params, version)).await {
            Ok(events) => events,
            Err(error) if error.code() == Some(410) => return WatchEnd::Expired(error.to_string()),
            Err(error) => return WatchEnd::Failed(error),
        };
        let mut events = pin!(events);
        loop {
            let event = match timeout(SILENCE, events.next()).await {
                Ok(Some(event)) => event,
                Ok(None) => return WatchEnd::Cut,
                Err(_) => {
                    debug!("the watch of pods is silent; opening another");
                    return WatchEnd::Cut;
                }
            };
            match event {
                Ok(event) => {
                    if let Some(end) = take_in(event, version, table) {
                        return end;
                    }
                }
                Err(kube::Error::ReadEvents(error)) => {
                    debug!(%error, "the watch of pods was cut");
                    return WatchEnd::Cut;
                }
                // An event that cannot be read must not be skipped.
                Err(error) => return WatchEnd::Expired(error.to_string()),
            }
        }
    }
}

/// Takes in an event. Returns how the watch ended, if it did.
fn take_in(event: WatchEvent<core::Pod>, version: &mut String, table: &PodTable) -> Option<WatchEnd> {
    let seen = |version: &mut String, pod: &core::Pod| {
        if let Some(new) = &pod.metadata.resource_version {
            version.clone_from(new);
        }
    };
    match event {
        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
            seen(version, &pod);
            table.apply(pod);
        }
        WatchEvent::Deleted(pod) => {
            seen(version, &pod);
            table.delete(&pod);
        }
        WatchEvent::Bookmark(bookmark) => version.clone_from(&bookmark.metadata.resource_version),
        WatchEvent::Error(status) if status.code == 410 => {
            return Some(WatchEnd::Expired(status.message.clone()));
        }
        WatchEvent::Error(status) => {
            let error = kube::Error::Api(status);
            return Some(WatchEnd::Failed(ApiError::new("watch the pods of this node", error)));
        }
    }
    None
}
