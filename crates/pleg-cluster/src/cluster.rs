//! Everything that this crate runs beside a node loop, and where each part is plugged in.
//!
//! In: a kubeconfig, and the handles of the node loop. Out: tasks that run until shutdown; [`Cluster::run`] owns them all. [`Cluster`] is
//! built before the node loop, which has to know its sources ([`Cluster::origins`]) first, and is started beside it. Nothing here waits for
//! the API server: a node whose API server is down starts and runs its static pods.
//!
//! To plug in a part: what the node loop needs of it is a method of [`Cluster`], its tasks are one line of `Cluster::spawn`.

use std::path::PathBuf;
use std::sync::Arc;

use pleg::Pleg;
use pleg_node::executor::objects::ApiObjects;
use pleg_node::manifest::NodeName;
use pleg_node::sources::{Origin, Snapshot};
use pleg_node::{Allocatable, PodReports};
use rustls::server::ResolvesServerCert;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::api::Api;
use crate::certificates::{ClientCertificate, ClientCertificateConfig, SignedServingCertificate};
use crate::connection::{self, Connection};
use crate::events::{self, EventRecorder};
use crate::node::lease::LeaseKeeper;
use crate::node::manager::{Observation, Observe};
use crate::node::settings::NodeSettings;
use crate::node::{NodeManager, NodeObject, images};
use crate::objects::ClusterObjects;
use crate::pods::{MirrorPods, PodSource, PodTable};
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
    /// Its labels, resources and the like.
    pub node: NodeSettings,
    /// A kubeconfig with a token that may request the certificate of the node.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates and keys that were requested are.
    pub cert_dir: PathBuf,
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
    /// Cancelled when the node shuts down and its pods end, before everything else does.
    pub shutting_down: CancellationToken,
}

impl NodeHandles {
    /// What the node's status says about it.
    fn observer(&self) -> Observe {
        let node = self.clone();
        Box::new(move || {
            let mut not_ready_because = node.pleg.observe().not_ready_because();
            if node.shutting_down.is_cancelled() {
                not_ready_because.insert(0, "node is shutting down".to_owned());
            }
            Observation {
                not_ready_because,
                pressure: node.reports.pressure().conditions(),
            }
        })
    }
}

/// The API side of a node. Built without side effects on the cluster; [`Cluster::run`] starts it.
#[derive(Debug)]
pub struct Cluster {
    api: Api,
    config: ClusterConfig,
    connection: Connection,
    objects: Arc<ClusterObjects>,
    events: EventRecorder,
    serving: Option<SignedServingCertificate>,
}

impl Cluster {
    /// With the credentials of the kubeconfig. If they cannot be used, the log says so, and they are tried again while it runs.
    pub async fn new(config: ClusterConfig) -> Self {
        let bootstrap = config.bootstrap_kubeconfig.is_some();
        let mut connection = Connection::new(config.kubeconfig.clone()).with_bootstrap(bootstrap);
        let api = connection.open().await;
        Self {
            objects: ClusterObjects::start(api.clone()),
            events: EventRecorder::new(config.name.as_str()),
            serving: None,
            api,
            config,
            connection,
        }
    }

    /// The sources of pods that will send snapshots to the node loop.
    pub fn origins(&self) -> Vec<Origin> {
        vec![Origin::from(API_SOURCE)]
    }

    /// What pods refer to, for the node loop.
    pub fn objects(&self) -> Arc<dyn ApiObjects> {
        Arc::clone(&self.objects) as _
    }

    /// What pods may request in total, for the node loop.
    pub fn allocatable(&self) -> Allocatable {
        let settings = &self.config.node;
        let left = settings.capacity.less(settings.reserved);
        Allocatable {
            milli_cpu: left.milli_cpu,
            memory: left.memory,
            ephemeral_storage: left.ephemeral_storage,
            pods: left.pods,
        }
    }

    /// The API server.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Where the node loop and the parts tell what happens.
    pub fn events(&self) -> EventRecorder {
        self.events.clone()
    }

    /// Lets the cluster sign the certificate of the node's server, which has another one until then.
    pub fn sign_serving_certificate(&mut self, until_then: Arc<dyn ResolvesServerCert>) -> Arc<dyn ResolvesServerCert> {
        let cert_dir = self.config.cert_dir.clone();
        let serving = SignedServingCertificate::new(self.config.name.as_str(), cert_dir, until_then);
        self.serving = Some(serving.clone());
        Arc::new(serving)
    }

    /// Where the pods come from, for messages.
    pub fn describe(&self) -> String {
        let kubeconfig = self.config.kubeconfig.display();
        if self.api.is_usable() {
            format!("the API server at {}", self.api.server())
        } else {
            format!("the API server of {kubeconfig}")
        }
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

    /// Starts each part. Parts that act for the cluster start once this machine is a node of it ([`once_registered`]).
    fn spawn(self, tasks: &mut JoinSet<()>, node: &NodeHandles, shutdown: &CancellationToken) {
        let (api, name, stop) = (&self.api, &self.config.name, || shutdown.clone());
        if let Err(error) = api.reach().register(node.pleg.metrics().registry()) {
            warn!("requests to the API server are not counted: {error}");
        }
        if let Err(error) = self.events.register(node.pleg.metrics().registry()) {
            warn!("events that are dropped are not counted: {error}");
        }
        let (object, node_object) = NodeObject::new();
        let (images, listed) = watch::channel(Vec::new());
        let client_certificate = ClientCertificate::new(
            ClientCertificateConfig {
                node: name.as_str().to_owned(),
                kubeconfig: self.config.kubeconfig,
                bootstrap_kubeconfig: self.config.bootstrap_kubeconfig,
                cert_dir: self.config.cert_dir,
            },
            api.clone(),
        );
        let settings = self.config.node;
        let manager = NodeManager::new(api.clone(), name.clone(), settings, node.observer(), listed, object)
            .with_events(Arc::new(self.events.clone()));
        let lease = LeaseKeeper::new(api.clone(), name.clone(), node_object.clone());
        let table = PodTable::default();
        let pods = PodSource::new(api.clone(), name, table.clone(), node.snapshots.clone());
        let mirrors = MirrorPods::new(api.clone(), name, table.clone(), node.reports.clone());
        let statuses = StatusPublisher::new(api.clone(), name, table, node.reports.clone());

        tasks.spawn(connection::watch_kubeconfig(self.connection, api.clone(), stop()));
        tasks.spawn(client_certificate.run(stop()));
        tasks.spawn(events::follow_node(self.events.clone(), node_object.clone(), stop()));
        tasks.spawn(once_registered(
            &node_object,
            stop(),
            self.events.run(api.clone(), node.reports.activity().clone(), stop()),
        ));
        tasks.spawn(images::run(node.runtime.clone(), images, stop()));
        tasks.spawn(manager.run(stop()));
        tasks.spawn(lease.run(stop()));
        tasks.spawn(once_registered(&node_object, stop(), pods.run(stop())));
        tasks.spawn(once_registered(&node_object, stop(), mirrors.run(stop())));
        tasks.spawn(once_registered(&node_object, stop(), statuses.run(stop())));
        if let Some(serving) = self.serving {
            tasks.spawn(serving.run(api.clone(), node_object, stop()));
        }
    }
}

/// Runs a part once this machine is a node of the cluster, which it may not be: the pods of this name may be those of another machine.
fn once_registered(
    node: &NodeObject,
    shutdown: CancellationToken,
    part: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let mut node = node.clone();
    async move {
        if shutdown.run_until_cancelled(node.registered()).await.is_some() {
            part.await;
        }
    }
}
