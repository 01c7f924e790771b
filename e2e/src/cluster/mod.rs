//! A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as `cluster/build` built them.
//!
//! The API server authorizes as clusters do: Node and RBAC, with `NodeRestriction`. One CA signs everything. A node needs nothing but what
//! [`ControlPlane::node_kubeconfig`] or [`ControlPlane::bootstrap_kubeconfig`] gives it.
//!
//! | module | job |
//! |---|---|
//! | [`pki`] | certificates and kubeconfigs |
//! | [`parts`] | the programs and their flags |
//! | [`kubectl`] | kubectl, as a user types it |
//! | [`fault_proxy`] | between one node and the API server: faults, and a count of requests |
//! | [`member`] | a node: a runtime, and `pleg node` on it |
//! | [`pod_watch`] | what must never happen to the status of a pod, watched from beside |
//! | [`beside`] | `pleg run --report-to-cluster` beside a kubelet |
//! | [`reported`] | what it tells the cluster, and what it must leave alone |
//! | [`deployment`] | the image, and the `DaemonSet` as written |
//! | [`service_address`] | how pods reach the API server |
//! | [`suite`] | scenarios times runtimes, as tests |

pub mod beside;
pub mod deployment;
pub mod fault_proxy;
pub mod kubectl;
pub mod member;
pub mod parts;
pub mod pki;
pub mod pod_watch;
pub mod reported;
pub mod service_address;
pub mod suite;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::home::Home;
use crate::process;
use crate::wait::until;

pub use beside::Beside;
pub use fault_proxy::{FaultProxy, Faults};
pub use kubectl::Kubectl;
pub use member::{Member, bare_node};
pub use parts::{NODE_GRACE, Part};
pub use pki::{Ca, Credentials, Pair, Subject};
pub use pod_watch::PodWatch;
pub use service_address::ServiceAddress;

/// An API server of a loaded machine may need this long to start.
const START: Duration = Duration::from_mins(1);
/// An API server that is up answers within this long.
const ANSWER: Duration = Duration::from_secs(10);
/// How many lines of each log are worth showing, and how much of each.
const LOG_TAIL: (usize, usize) = (15, 400);
/// The token of a machine that joins.
const BOOTSTRAP_TOKEN: (&str, &str) = ("abcdef", "0123456789abcdef");

/// One control plane. Dropping it ends it and removes every trace of it.
pub struct ControlPlane {
    files: parts::Files,
    ca: Ca,
    server: String,
    client: kube::Client,
    /// Those that are up.
    children: Mutex<Vec<(Part, Child)>>,
    service_address: OnceCell<ServiceAddress>,
    home: Home,
}

impl std::fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlPlane")
            .field("server", &self.server)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

impl ControlPlane {
    /// Why it cannot run here, if so.
    pub fn obstacle() -> Option<String> {
        let mut programs = Part::ALL.map(Part::program).into_iter().chain(["kubectl"]);
        programs.find_map(|name| parts::program(name).err().map(|error| error.to_string()))
    }

    /// Starts one, and waits until pods can be created and nodes can join.
    pub async fn start() -> Result<Self> {
        let home = Home::new()?;
        let ca = Ca::new(&home.dir().join("pki"), "ca")?;
        let port = free_port()?;
        let files = parts::Files::new(home.dir(), &ca, port)?;
        let server = format!("https://127.0.0.1:{port}");
        let admin = home.dir().join("admin.kubeconfig");
        let pair = ca.issue("admin", &Subject::client("admin", &["system:masters"]))?;
        pki::kubeconfig(&admin, &server, ca.certificate(), Credentials::Certificate(&pair))?;
        let client = client(&admin).await?;
        let cluster = Self {
            files,
            ca,
            server,
            client,
            children: Mutex::new(Vec::new()),
            service_address: OnceCell::new(),
            home,
        };
        cluster.up().await?;
        cluster.kubectl().within("kube-system").apply(&joining()).await?;
        cluster.admits_pods("default").await?;
        Ok(cluster)
    }

    /// Where the API server is.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The directory of etcd's data, for copies while etcd is down.
    pub fn data(&self) -> PathBuf {
        self.files.data()
    }

    /// Who signs.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// The kubeconfig of an administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir().join("admin.kubeconfig")
    }

    /// A kubeconfig of a node, with a client certificate.
    pub fn node_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        self.kubeconfig_at(name, &self.server, &Subject::node(name))
    }

    /// A kubeconfig of somebody, who reaches the API server elsewhere: through a proxy, say.
    pub fn kubeconfig_at(&self, name: &str, server: &str, subject: &Subject) -> Result<PathBuf> {
        let path = self.dir().join(format!("{name}.kubeconfig"));
        let pair = self.ca.issue(name, subject)?;
        pki::kubeconfig(&path, server, self.ca.certificate(), Credentials::Certificate(&pair))?;
        Ok(path)
    }

    /// A kubeconfig with a bootstrap token: good for nothing but the request for a node's certificate.
    pub fn bootstrap_kubeconfig(&self) -> Result<PathBuf> {
        let path = self.dir().join("bootstrap.kubeconfig");
        let token = format!("{}.{}", BOOTSTRAP_TOKEN.0, BOOTSTRAP_TOKEN.1);
        let credentials = Credentials::Token(&token);
        pki::kubeconfig(&path, &self.server, self.ca.certificate(), credentials)?;
        Ok(path)
    }

    /// kubectl of an administrator, in the namespace `default`.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.admin_kubeconfig(), self.dir())
    }

    /// One GET, as an administrator: `/api/v1/nodes`, say.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let request = Request::builder().method(Method::GET).uri(path).body(Vec::new())?;
        let answer = timeout(ANSWER, self.client.request(request)).await;
        answer
            .with_context(|| format!("GET {path}: no answer"))?
            .with_context(|| format!("GET {path}"))
    }

    /// One POST, as an administrator.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(Method::POST, path, "application/json", body).await
    }

    /// One merge patch, as an administrator.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(Method::PATCH, path, "application/merge-patch+json", body)
            .await
    }

    /// One DELETE, as an administrator, with its options.
    pub async fn delete(&self, path: &str, options: &Value) -> Result<Value> {
        self.send(Method::DELETE, path, "application/json", options).await
    }

    async fn send(&self, method: Method, path: &str, content: &str, body: &Value) -> Result<Value> {
        let what = format!("{method} {path}");
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content);
        let request = request.body(serde_json::to_vec(body)?)?;
        let answer = timeout(ANSWER, self.client.request(request)).await;
        answer.with_context(|| format!("{what}: no answer"))?.context(what)
    }

    /// Lets pods reach the API server by the address of the service `kubernetes`, until this control plane ends.
    pub async fn serve_pods(&self) -> Result<()> {
        let started = self
            .service_address
            .get_or_try_init(|| ServiceAddress::start(&self.server));
        started.await.map(drop)
    }

    /// Its client, as an administrator.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Waits until the API server answers as it should.
    pub async fn ready(&self) -> Result<()> {
        until("the API server to be ready", START, async || {
            if let Some(status) = self.ended(Part::ApiServer)? {
                return Ok(Err(anyhow::anyhow!("the API server ended by itself: {status}")));
            }
            let request = Request::get("/readyz").body(Vec::new())?;
            let said = timeout(ANSWER, self.client.request_text(request)).await??;
            ensure!(said == "ok", "{said}");
            Ok(Ok(()))
        })
        .await
        .flatten()
        .with_context(|| self.log_tail())
    }

    /// Waits until pods can be created in a namespace: the controller manager has made its service account.
    pub async fn admits_pods(&self, namespace: &str) -> Result<()> {
        for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            let path = format!("/api/v1/namespaces/{namespace}/{path}");
            until(&path, START, async || self.get(&path).await)
                .await
                .with_context(|| self.log_tail())?;
        }
        Ok(())
    }

    /// Starts all parts, which are down, and waits until the API server is ready. The others give up on one that takes longer than 10 s.
    pub async fn up(&self) -> Result<()> {
        self.spawn(Part::Etcd)?;
        self.spawn(Part::ApiServer)?;
        self.ready().await?;
        self.spawn(Part::ControllerManager)?;
        self.spawn(Part::Scheduler)
    }

    /// Ends all parts without a word.
    pub async fn down(&self) -> Result<()> {
        for part in Part::ALL.into_iter().rev() {
            self.kill(part).await?;
        }
        Ok(())
    }

    /// Starts a part that is down, and does not wait for it.
    pub fn spawn(&self, part: Part) -> Result<()> {
        let mut children = self.children.lock();
        let name = part.program();
        ensure!(children.iter().all(|(up, _)| *up != part), "{name} is already up");
        let log = File::options().create(true).append(true).open(self.log(part))?;
        let mut command = self.files.command(part)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Not in our process group: Ctrl-C is ours to handle, in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        children.push((part, child));
        Ok(())
    }

    /// Ends a part without a word.
    pub async fn kill(&self, part: Part) -> Result<()> {
        let mut child = self.take(part)?;
        process::signal(i32::try_from(child.id())?, Signal::KILL)?;
        tokio::task::spawn_blocking(move || child.wait()).await??;
        Ok(())
    }

    /// The process id of a part that is up.
    pub fn pid(&self, part: Part) -> Result<i32> {
        let children = self.children.lock();
        let found = children.iter().find(|(up, _)| *up == part);
        let (_, child) = found.with_context(|| format!("{} is down", part.program()))?;
        Ok(i32::try_from(child.id())?)
    }

    /// The last lines of the logs.
    pub fn log_tail(&self) -> String {
        let tails = Part::ALL.map(|part| {
            let text = fs::read_to_string(self.log(part)).unwrap_or_default();
            let (lines, width) = LOG_TAIL;
            let all: Vec<&str> = text.lines().collect();
            let tail = all[all.len().saturating_sub(lines)..].iter();
            let tail: Vec<String> = tail.map(|line| line.chars().take(width).collect()).collect();
            format!("the last lines of {}'s log:\n{}", part.program(), tail.join("\n"))
        });
        tails.join("\n")
    }

    fn take(&self, part: Part) -> Result<Child> {
        let mut children = self.children.lock();
        let at = children.iter().position(|(up, _)| *up == part);
        let at = at.with_context(|| format!("{} is down", part.program()))?;
        Ok(children.swap_remove(at).1)
    }

    fn log(&self, part: Part) -> PathBuf {
        self.dir().join(format!("{}.log", part.program()))
    }

    fn ended(&self, part: Part) -> Result<Option<ExitStatus>> {
        let mut children = self.children.lock();
        let found = children.iter_mut().find(|(up, _)| *up == part);
        let (_, child) = found.with_context(|| format!("{} is down", part.program()))?;
        Ok(child.try_wait()?)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // Who writes goes before who is written to.
        for (_, mut child) in self.children.lock().drain(..).rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A client with the credentials of a kubeconfig.
async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.default_retry = false;
    Ok(kube::Client::try_from(config)?)
}

/// A port that nobody has. Somebody may take it before we do; then the start fails, and says so.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// What lets machines join with a token, and nodes renew their certificates; an installer of clusters creates the same.
fn joining() -> String {
    let binding = |name: &str, role: &str, group: &str| {
        format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {{name: '{name}'}}, \
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: '{role}'}}, \
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: '{group}'}}]}}\n---\n"
        )
    };
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    let (id, secret) = BOOTSTRAP_TOKEN;
    [
        binding("join", "system:node-bootstrapper", "system:bootstrappers"),
        binding("approve", &format!("{requests}:nodeclient"), "system:bootstrappers"),
        binding("renew", &format!("{requests}:selfnodeclient"), "system:nodes"),
        format!(
            "{{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, \
             metadata: {{name: bootstrap-token-{id}, namespace: kube-system}}, \
             stringData: {{token-id: {id}, token-secret: '{secret}', usage-bootstrap-authentication: 'true', \
             usage-bootstrap-signing: 'true'}}}}\n"
        ),
    ]
    .concat()
}
