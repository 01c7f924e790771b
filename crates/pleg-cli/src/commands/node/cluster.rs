//! The flags of `pleg node` that make the machine a node of a cluster.

use std::path::PathBuf;

use clap::Args;
use pleg_cluster::cluster::{Cluster, ClusterConfig};
use pleg_node::manifest::NodeName;

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Become a node of the cluster of this kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterArgs {
    /// The API side of the node, if it is to have one.
    pub(super) async fn open(&self, name: &NodeName) -> Option<Cluster> {
        let kubeconfig = self.kubeconfig.clone()?;
        let config = ClusterConfig {
            kubeconfig,
            name: name.clone(),
        };
        Some(Cluster::new(config).await)
    }
}
