//! Shows the Node object, as it is listed and watched, to others, until it is deleted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::api::ApiError;
use crate::list_watch::Follower;
use crate::retry::TroubleLog;

/// The writer of the shown object, beside the task that patches it.
#[derive(Debug)]
pub(super) struct NodeFollower {
    object: watch::Sender<Option<Arc<Node>>>,
    /// While a list is read: what it has.
    listing: Option<Vec<Node>>,
    /// It was deleted, or another one has its name.
    is_lost: bool,
    log: TroubleLog,
}

impl NodeFollower {
    pub(super) fn new(object: watch::Sender<Option<Arc<Node>>>) -> Self {
        Self {
            object,
            listing: None,
            is_lost: false,
            log: TroubleLog::default(),
        }
    }

    fn take_in(&mut self, node: Node, was_listed: bool) {
        let known = self.object.borrow().clone();
        self.is_lost = known.is_some_and(|known| known.metadata.uid != node.metadata.uid);
        if !self.is_lost {
            show(&self.object, node, was_listed);
        }
    }
}

impl Follower<Node> for NodeFollower {
    fn begin(&mut self) {
        self.listing = Some(Vec::new());
    }

    fn set(&mut self, node: Node) {
        match &mut self.listing {
            // There is one at most.
            Some(listing) => *listing = vec![node],
            None => self.take_in(node, false),
        }
    }

    fn remove(&mut self, _node: &Node) {
        self.is_lost = true;
    }

    fn listed(&mut self, _version: &str) {
        match self.listing.take().and_then(|mut listing| listing.pop()) {
            Some(node) => self.take_in(node, true),
            None => self.is_lost = true,
        }
        self.log.fine("the node is watched again");
    }

    fn failed(&mut self, error: &ApiError) {
        self.listing = None;
        // A version that has become too old is nobody's trouble.
        if error.code() != Some(410) {
            self.log.failed(error, "It is tried again");
        }
    }

    fn is_final(&self) -> bool {
        self.is_lost
    }
}

/// Shows the object to others, unless it is older than what is known. One that `was_listed` is what it is: the API server may have been
/// restored to an older state.
pub(super) fn show(object: &watch::Sender<Option<Arc<Node>>>, node: Node, was_listed: bool) {
    let version = |node: &Node| {
        let version = node.metadata.resource_version.as_ref();
        version.and_then(|text| text.parse::<u64>().ok())
    };
    object.send_if_modified(|known| {
        let is_newer = known.as_ref().is_none_or(|known| version(known) < version(&node));
        let is_news = known.as_deref() != Some(&node) && (was_listed || is_newer);
        if is_news {
            *known = Some(Arc::new(node));
        }
        is_news
    });
}
