//! The sources of manifests that the command line names: a directory, a URL, or both.

use pleg_node::manifest::NodeName;
use pleg_node::sources::{DesiredPod, DirectorySource, Origin, Snapshot, UrlSource};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::NodeArgs;
use crate::Usage;

pub(super) struct ManifestSources {
    directory: Option<DirectorySource>,
    url: Option<UrlSource>,
}

impl ManifestSources {
    pub(super) fn new(args: &NodeArgs, node: &NodeName) -> Result<Self, Usage> {
        let url = args.manifest_url.as_ref();
        let url = url.map(|url| UrlSource::new(url, node.clone())).transpose();
        let directory = args.manifests.as_ref();
        Ok(Self {
            directory: directory.map(|directory| DirectorySource::new(directory, node.clone())),
            url: url.map_err(|error| Usage(error.to_string()))?,
        })
    }

    /// With the manifests that were known before a restart.
    pub(super) fn with_known(self, known: &[DesiredPod]) -> Self {
        Self {
            directory: self.directory.map(|directory| directory.with_known(known)),
            url: self.url.map(|url| url.with_known(known)),
        }
    }

    pub(super) fn origins(&self) -> Vec<Origin> {
        let directory = self.directory.iter().map(DirectorySource::origin);
        directory.chain(self.url.iter().map(UrlSource::origin)).collect()
    }

    /// Starts a task for each source, and returns the tasks. They send their snapshots to `sender`.
    pub(super) fn spawn(self, sender: mpsc::Sender<Snapshot>, shutdown: &CancellationToken) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if let Some(directory) = self.directory {
            tasks.spawn(directory.run(sender.clone(), shutdown.clone()));
        }
        if let Some(url) = self.url {
            tasks.spawn(url.run(sender, shutdown.clone()));
        }
        tasks
    }
}
