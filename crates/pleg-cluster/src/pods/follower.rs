//! Puts the pods of this node, as they are listed and watched, into the table.

use k8s_openapi::api::core::v1 as core;
use tracing::info;

use super::known::Listed;
use super::table::PodTable;
use crate::api::ApiError;
use crate::list_watch::Follower;
use crate::retry::TroubleLog;

/// The writer of the table.
#[derive(Debug)]
pub(super) struct PodFollower {
    table: PodTable,
    /// While a list is read: what it has.
    listing: Option<Listed>,
    log: TroubleLog,
}

impl PodFollower {
    pub(super) fn new(table: PodTable) -> Self {
        Self {
            table,
            listing: None,
            log: TroubleLog::default(),
        }
    }
}

impl Follower<core::Pod> for PodFollower {
    fn begin(&mut self) {
        self.listing = Some(Listed {
            newest_before: self.table.newest(),
            ..Listed::default()
        });
    }

    fn set(&mut self, mut pod: core::Pod) {
        pod.metadata.managed_fields = None;
        match &mut self.listing {
            Some(listing) => listing.pods.push(pod),
            None => self.table.apply(pod),
        }
    }

    fn remove(&mut self, pod: &core::Pod) {
        self.table.delete(pod);
    }

    fn listed(&mut self, version: &str) {
        if let Some(mut listing) = self.listing.take() {
            version.clone_into(&mut listing.version);
            self.table.relist(listing);
        }
        self.log.fine("the pods of this node are listed again");
    }

    fn failed(&mut self, error: &ApiError) {
        self.listing = None;
        if error.code() == Some(410) {
            info!("listing the pods of this node again: {error}");
        } else {
            self.log.failed(error, "Pods keep running, and it is tried again");
        }
    }
}
