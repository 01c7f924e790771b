//! What `pleg run` tells the cluster, and `pleg cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Reporting to the cluster.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ReportArgs {
    /// Report what is stuck on this node to its cluster, beside the kubelet: the condition pleg.io/Stuck of the node, and events of the
    /// node and of stuck pods. With the service account of this pod, or with --kubeconfig
    #[arg(long)]
    pub(crate) report_to_cluster: bool,
    /// Kubeconfig for --report-to-cluster; it is read again when it changes [default: the service account of this pod]
    #[arg(long, value_name = "FILE", requires = "report_to_cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Name of the node, as the kubelet has it [default: $NODE_NAME, else the host name]
    #[arg(long, value_name = "NAME", requires = "report_to_cluster")]
    pub(crate) node_name: Option<String>,
    /// Report the condition pleg.io/Stuck on stuck pods too; needs the verb patch on pods/status
    #[arg(long, requires = "report_to_cluster")]
    pub(crate) report_pod_condition: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg cluster forget --node n1 --kubeconfig /etc/kubernetes/admin.conf
  pleg cluster forget --all --kubeconfig ~/.kube/config")]
pub(crate) struct Cluster {
    #[command(subcommand)]
    pub(crate) what: ClusterWhat,
}

/// What `pleg cluster` does.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterWhat {
    /// Remove what `pleg run --report-to-cluster` wrote: the condition pleg.io/Stuck of nodes and of their pods
    Forget(Forget),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg cluster forget
  pleg cluster forget --node n1 --kubeconfig /etc/kubernetes/admin.conf
  pleg cluster forget --all --kubeconfig ~/.kube/config

Stop `pleg run --report-to-cluster` on those nodes first: it writes the condition again. Nothing else is changed;
events expire by themselves. Needs the verbs get on nodes, patch on nodes/status, and for conditions of pods list
on pods and patch on pods/status; --all needs list on nodes.")]
pub(crate) struct Forget {
    /// Name of the node [default: $NODE_NAME, else the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// All nodes of the cluster
    #[arg(long, conflicts_with = "node")]
    pub(crate) all: bool,
    /// Kubeconfig [default: the service account of this pod]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}
