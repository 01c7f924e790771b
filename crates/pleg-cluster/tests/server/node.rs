//! A node on a simulated runtime with its server, over real sockets and TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use pleg::{CriRuntime, Endpoint, Generator, Metrics, PodUid};
use pleg_cluster::api::Api;
use pleg_cluster::server::{ClientCa, ServedNode, Server, ServingCertificate};
use pleg_cri::Client;
use pleg_node::executor::requests::{Cgroups, HostOptions, NodeConfig};
use pleg_node::host::resources::{Amount, Filesystem, HostResources};
use pleg_node::manifest::{DnsConfig, NodeName};
use pleg_node::sources::static_pods::{ConfigSource, read};
use pleg_node::sources::{DesiredPod, Origin, Snapshot};
use pleg_node::status::Phase;
use pleg_node::{HEARTBEAT, NodeLoop, PodReports};
use pleg_sim::{Sim, SimConfig};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::fake_api::FakeApi;
use crate::pki::{Ca, Signed};

/// Longer than anything here takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
const SOURCE: &str = "test";

pub(crate) struct ServedMachine {
    pub(crate) api: FakeApi,
    pub(crate) ca: Ca,
    pub(crate) sim: Sim,
    pub(crate) reports: PodReports,
    pub(crate) shutdown: CancellationToken,
    pub(crate) address: std::net::SocketAddr,
    dir: tempfile::TempDir,
    serving: CertificateDer<'static>,
    wants: mpsc::Sender<Snapshot>,
    tasks: Vec<JoinHandle<()>>,
}

impl ServedMachine {
    pub(crate) async fn start() -> Self {
        let (api, ca, dir) = (FakeApi::start().await, Ca::new(), tempfile::tempdir().unwrap());
        let sim = Sim::start(SimConfig::default(), Endpoint::unix(dir.path().join("cri.sock")))
            .await
            .unwrap();
        let runtime = Client::connect(sim.endpoint().clone(), pleg_cri::Config::default())
            .await
            .unwrap();
        let config = pleg::Config {
            heartbeat: Some(HEARTBEAT),
            ..pleg::Config::default()
        };
        let generator = Generator::new(CriRuntime::new(runtime.clone()), config, Metrics::new().unwrap());
        let pleg = generator.handle();
        let sources = [Origin::from(SOURCE)];
        let node_loop = NodeLoop::new(runtime.clone(), pleg.clone(), node(dir.path()), sources, "sim").unwrap();
        let node_loop = node_loop.with_host(Arc::new(Plenty));
        let reports = node_loop.reports();
        let shutdown = CancellationToken::new();
        let (wants, snapshots) = mpsc::channel(4);

        let (certificate, serving) = serving(dir.path());
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = server.address();
        let mut config = kube::Config::new(api.url.parse().unwrap());
        config.root_cert = Some(vec![ca.certificate.to_vec()]);
        let kube_api = Api::new(config).unwrap();
        let served = ServedNode {
            name: "n".to_owned(),
            api: kube_api.clone(),
            client_ca: ClientCa::of_kubeconfig(kube_api),
            reports: reports.clone(),
            pleg,
            runtime,
            config: node(dir.path()),
            introspection: Router::new().route("/metrics", get(async || "pleg_up 1\n")),
        };
        let ended = shutdown.clone();
        let tasks = vec![
            tokio::spawn(generator.run(shutdown.child_token())),
            tokio::spawn(node_loop.run(snapshots, shutdown.clone())),
            tokio::spawn(async move { server.run(served, Arc::new(certificate), &ended).await.unwrap() }),
        ];
        Self {
            api,
            ca,
            sim,
            reports,
            shutdown,
            address,
            dir,
            serving,
            wants,
            tasks,
        }
    }

    /// Runs pods with these specs, and waits until they run. The name of a pod gets the suffix `-n`.
    pub(crate) async fn run(&self, pods: &[(&str, &str)]) -> Vec<PodUid> {
        let manifest = |(name, spec): &(&str, &str)| {
            format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}")
        };
        let text: Vec<String> = pods.iter().map(manifest).collect();
        let found = read(
            text.join("\n---\n").as_bytes(),
            &NodeName::new("n").unwrap(),
            ConfigSource::File,
        )
        .unwrap();
        assert_eq!(found.pods.len(), pods.len(), "{:?}", found.refused);
        let uids: Vec<PodUid> = found.pods.iter().map(|pod| pod.id.uid.clone()).collect();
        let desired = |pod| DesiredPod {
            origin: SOURCE.into(),
            pod,
        };
        let snapshot = Snapshot {
            source: SOURCE.into(),
            pods: found.pods.into_iter().map(desired).collect(),
            problems: Vec::new(),
            refused: Vec::new(),
            complete: true,
        };
        self.wants.send(snapshot).await.unwrap();
        let run = |reports: &PodReports| {
            let phase = |uid| reports.get(uid).map(|report| report.phase());
            uids.iter().all(|uid| phase(uid) == Some(Phase::Running))
        };
        timeout(PATIENCE, self.reports.wait_for(run))
            .await
            .expect("the pods do not run");
        uids
    }

    /// The log of the first attempt of a container.
    pub(crate) fn log(&self, pod: &str, uid: &PodUid, container: &str) -> std::path::PathBuf {
        self.dir
            .path()
            .join(format!("logs/default_{pod}-n_{uid}/{container}/0.log"))
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks {
            timeout(PATIENCE, task).await.expect("a task does not end").unwrap();
        }
    }

    /// A connection with this client certificate.
    pub(crate) async fn connect(&self, client: Option<&Signed>) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.serving.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config.with_root_certificates(roots);
        let config = match client {
            Some(signed) => config
                .with_client_auth_cert(vec![signed.certificate.clone()], signed.key.clone_key())
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
    }

    /// Sends a request over a connection of its own; the body arrives as it is read.
    pub(crate) async fn send(
        &self,
        client: Option<&Signed>,
        token: Option<&str>,
        method: &str,
        path: &str,
        headers: HeaderMap,
    ) -> Response<Incoming> {
        let stream = self.connect(client).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut request = request.body(Empty::<Bytes>::new()).unwrap();
        request.headers_mut().extend(headers);
        timeout(PATIENCE, sender.send_request(request))
            .await
            .expect("no answer")
            .unwrap()
    }

    /// Gets a path as the user of a certificate.
    pub(crate) async fn get(&self, client: &Signed, path: &str) -> (StatusCode, String) {
        text(self.send(Some(client), None, "GET", path, HeaderMap::new()).await).await
    }

    /// Gets a path with a token.
    pub(crate) async fn get_by_token(&self, token: &str, path: &str) -> (StatusCode, String) {
        text(self.send(None, Some(token), "GET", path, HeaderMap::new()).await).await
    }
}

pub(crate) async fn text(response: Response<Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = timeout(PATIENCE, response.into_body().collect())
        .await
        .expect("the answer does not end")
        .unwrap();
    (status, String::from_utf8(body.to_bytes().to_vec()).unwrap())
}

fn serving(dir: &Path) -> (ServingCertificate, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let loaded = ServingCertificate::of_files(&certificate, &key).unwrap();
    (loaded, made.cert.der().clone())
}

fn node(dir: &Path) -> NodeConfig {
    NodeConfig {
        name: NodeName::new("n").unwrap(),
        ips: Vec::new(),
        memory: 4 << 30,
        logs: dir.join("logs"),
        log_links: dir.join("containers"),
        pods: dir.join("pods"),
        cgroups_per_qos: false,
        cgroups: Cgroups::Path,
        cgroup_root: "pleg".to_owned(),
        cgroup_mount: dir.join("cgroup"),
        oom_group: false,
        systemctl: "systemctl".into(),
        dns: DnsConfig::default(),
        host: HostOptions::default(),
    }
}

/// A machine with plenty of everything: pods do not wait because the disk of the real one is full.
#[derive(Debug)]
struct Plenty;

const AMOUNT: Amount = Amount {
    capacity: 8 << 30,
    available: 7 << 30,
};

impl HostResources for Plenty {
    fn filesystem(&self, _: &Path) -> std::io::Result<Filesystem> {
        Ok(Filesystem {
            capacity: 1 << 40,
            available: 1 << 39,
            inodes: 1 << 20,
            inodes_free: 1 << 19,
        })
    }

    fn same_filesystem(&self, _: &Path, _: &Path) -> std::io::Result<bool> {
        Ok(true)
    }

    fn memory(&self) -> std::io::Result<Amount> {
        Ok(AMOUNT)
    }

    fn processes(&self) -> std::io::Result<Amount> {
        Ok(AMOUNT)
    }
}
