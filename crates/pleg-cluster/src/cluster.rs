//! Everything that this crate runs beside a node loop, and where each part is plugged in.
//!
//! In: a kubeconfig, and the handles of the node loop. Out: tasks that run until shutdown; [`Cluster::run`] owns them all. [`Cluster`] is
//! built before the node loop, which has to know its sources ([`Cluster::origins`]) first, and is started beside it. Nothing here waits for
//! the API server: a node whose API server is down starts and runs its static pods.
//!
//! To plug in a part: what the node loop needs of it is a method of [`Cluster`], its tasks are one line of [`Cluster::spawn`].

use std::path::PathBuf;

use pleg::Pleg;
use pleg_node::PodReports;
use pleg_node::manifest::NodeName;
use pleg_node::sources::{Origin, Snapshot};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::api::Api;
use crate::connection::{self, Connection};
use crate::pods::{PodSource, PodTable};
use crate::status::StatusPublisher;

/// The source of the pods that the API server has for this node, as the kubelet calls it.
pub const API_SOURCE: &str = "api";

/// What a cluster needs to know about its node. Parts add what they need.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The kubeconfig of the node. It may appear, or become readable, later.
    pub kubeconfig: PathBuf,
    /// The node's name.
    pub name: NodeName,
}

/// What this crate reads of, and sends to, the node loop and the generator. Clones share it.
#[derive(Debug, Clone)]
pub struct NodeHandles {
    /// The generator: its health and cache.
    pub pleg: Pleg,
    /// The runtime.
    pub runtime: pleg_cri::Client,
    /// The statuses of the node's pods, and the pressure on the machine.
    pub reports: PodReports,
    /// Where sources send their pods.
    pub snapshots: mpsc::Sender<Snapshot>,
}

/// The API side of a node. Built without side effects on the cluster; [`Cluster::run`] starts it.
#[derive(Debug)]
pub struct Cluster {
    api: Api,
    config: ClusterConfig,
    connection: Connection,
}

impl Cluster {
    /// With the credentials of the kubeconfig. If they cannot be used, the log says so, and they are tried again while it runs.
    pub async fn new(config: ClusterConfig) -> Self {
        let mut connection = Connection::new(config.kubeconfig.clone());
        let api = connection.open().await;
        Self {
            api,
            config,
            connection,
        }
    }

    /// The sources of pods that will send snapshots to the node loop.
    pub fn origins(&self) -> Vec<Origin> {
        vec![Origin::from(API_SOURCE)]
    }

    /// The API server.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Runs all parts until shutdown. They end only then, or by a panic (a bug), which is returned: without one of them the node would
    /// still look healthy.
    pub async fn run(self, node: NodeHandles, shutdown: CancellationToken) -> Result<(), JoinError> {
        let mut tasks = JoinSet::new();
        self.spawn(&mut tasks, &node, &shutdown);
        let mut ended = Ok(());
        while let Some(part) = tasks.join_next().await {
            if let Err(panic) = &part {
                error!(error = %panic, "a part of the API side panicked (a bug in pleg)");
                shutdown.cancel();
            }
            ended = ended.and(part);
        }
        ended
    }

    /// One line for each part.
    fn spawn(self, tasks: &mut JoinSet<()>, node: &NodeHandles, shutdown: &CancellationToken) {
        let (api, table) = (self.api.clone(), PodTable::default());
        let pods = PodSource::new(api.clone(), &self.config.name, table.clone(), node.snapshots.clone());
        tasks.spawn(pods.run(shutdown.clone()));
        let statuses = StatusPublisher::new(api, table, node.reports.clone());
        tasks.spawn(statuses.run(shutdown.clone()));
        tasks.spawn(connection::watch_kubeconfig(
            self.connection,
            self.api.clone(),
            shutdown.clone(),
        ));
        tracing::debug!(node = %self.config.name, "started the API side");
    }
}
