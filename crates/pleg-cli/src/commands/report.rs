//! The part of `pleg run` that reports to the cluster, and `pleg cluster forget`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pleg::Pleg;
use pleg_cluster::api::Api;
use pleg_cluster::node::machine::Machine;
use pleg_cluster::report::{
    Credentials, Forgotten, ReportHandle, Reporter, ReporterConfig, STUCK, forget_all, forget_node,
};
use pleg_node::host;
use pleg_node::manifest::NodeName;
use tokio_util::sync::CancellationToken;

use crate::args::{Cluster, ClusterWhat, Forget, ReportArgs};
use crate::text::count;
use crate::{Usage, output};

/// What a stuck pod needs beyond the round of probes to be found again.
const BEYOND_ROUND: Duration = Duration::from_secs(30);

/// A reporter that is ready to start.
pub(super) struct ClusterReport {
    api: Api,
    credentials: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
    config: ReporterConfig,
    shutdown: CancellationToken,
}

impl ClusterReport {
    /// The reporter that the flags ask for, if they do. Calls nobody yet.
    pub(super) async fn open(
        args: &ReportArgs,
        probe_round: Duration,
        shutdown: &CancellationToken,
    ) -> Result<Option<Self>, Usage> {
        if !args.report_to_cluster {
            return Ok(None);
        }
        let node = node_name(args.node_name.as_deref(), "--node-name")?;
        let opened = credentials(args.kubeconfig.clone()).open(shutdown.clone()).await;
        let (api, follow) = opened.map_err(|error| Usage(format!("{error}. Give a kubeconfig with --kubeconfig")))?;
        let machine = tokio::task::spawn_blocking(Machine::read).await.unwrap_or_default();
        Ok(Some(Self {
            api,
            credentials: Box::pin(follow),
            config: ReporterConfig {
                node,
                boot_id: machine.boot_id,
                pod_conditions: args.report_pod_condition,
                found_within: probe_round + BEYOND_ROUND,
            },
            shutdown: shutdown.clone(),
        }))
    }

    /// The reporter of this generator, to be awaited until shutdown, and how it goes.
    pub(super) fn start(self, pleg: &Pleg) -> (ReportHandle, impl Future<Output = ()> + use<>) {
        let registry = pleg.metrics().registry();
        let reporter = Reporter::new(self.api.clone(), self.config, Arc::new(pleg.clone()));
        let handle = reporter.handle();
        let registered = handle
            .register(registry)
            .and_then(|()| self.api.reach().register_requests(registry));
        if let Err(error) = registered {
            tracing::warn!("metrics of reporting are incomplete: {error}");
        }
        let tasks = [
            tokio::spawn(reporter.run(self.shutdown)),
            tokio::spawn(self.credentials),
        ];
        let ended = async move {
            for task in tasks {
                if let Err(error) = task.await {
                    tracing::error!(%error, "reporting to the cluster panicked (a bug in pleg); everything else goes on");
                }
            }
        };
        (handle, ended)
    }
}

fn credentials(kubeconfig: Option<PathBuf>) -> Credentials {
    kubeconfig.map_or(Credentials::InCluster, Credentials::Kubeconfig)
}

/// The name given on the command line, else that of the environment, as a `DaemonSet` gives it, else the host name.
fn node_name(typed: Option<&str>, flag: &str) -> Result<NodeName, Usage> {
    let of_environment = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    let name = match typed.or(of_environment.as_deref()) {
        Some(name) => NodeName::new(name),
        None => host::name(),
    };
    name.map_err(|what| Usage(format!("{what}. Set one with {flag}")))
}

/// `pleg cluster`.
pub(super) async fn cluster(args: Cluster) -> anyhow::Result<ExitCode> {
    match args.what {
        ClusterWhat::Forget(args) => forget(args).await,
    }
}

async fn forget(args: Forget) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    let opened = credentials(args.kubeconfig).open(stop).await;
    let (api, _) = opened.map_err(|error| Usage(format!("{error}. Give a kubeconfig with --kubeconfig")))?;
    let forgotten = if args.all {
        forget_all(&api).await?
    } else {
        let node = node_name(args.node.as_deref(), "--node")?;
        vec![forget_node(&api, node.as_str()).await?]
    };
    let text: String = forgotten.iter().map(line).collect();
    output::print(&text)?;
    let is_complete = forgotten.iter().all(|one| one.pods_left.is_none());
    Ok(ExitCode::from(u8::from(!is_complete)))
}

fn line(forgotten: &Forgotten) -> String {
    let node = &forgotten.node;
    let mut text = match (forgotten.had_condition, forgotten.pods) {
        (true, 0) => format!("node {node}: condition {STUCK} removed"),
        (true, pods) => format!(
            "node {node}: condition {STUCK} removed, also from {}",
            count(pods, "pod")
        ),
        (false, 0) => format!("node {node}: no condition {STUCK}"),
        (false, pods) => format!("node {node}: condition {STUCK} removed from {}", count(pods, "pod")),
    };
    if let Some(why) = &forgotten.pods_left {
        // Writing to a string cannot fail.
        let _ = write!(text, "; conditions of its pods are left: {why}");
    }
    text.push('\n');
    text
}
