//! A node of a cluster: a runtime of its own with a pod network, and `pleg node` on it.
//!
//! `PLEG_E2E_AGENT=kubelet` puts the kubelet of `oracle/build` in the place of `pleg node`: a scenario that a kubelet fails is wrong.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use pleg_cri::Endpoint;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::parts::{NODE_GRACE, kubelet};
use super::pki::{Pair, Subject};
use super::{ControlPlane, free_port, service_address};
use crate::home::Home;
use crate::wait::until;
use crate::{Node, Runtime, Version, process};

/// A node has to be Ready within this long.
const JOIN: Duration = Duration::from_secs(40);
/// The label that says which node of the harness this is.
pub const LABEL: &str = "pleg.test/node";

/// A node. Dropping it ends it, its runtime and its pods.
#[derive(Debug)]
pub struct Member {
    name: String,
    agent: Agent,
    /// Goes last.
    runtime: Runtime,
}

/// Who is the node.
#[derive(Debug)]
enum Agent {
    Pleg { node: Node, flags: Vec<String> },
    Kubelet(Kubelet),
}

impl Member {
    /// A runtime and a node on it that joins the cluster; waits until it is Ready.
    pub async fn join(cluster: &ControlPlane, version: Version, name: &str) -> Result<Self> {
        let runtime = Runtime::start(version).await?;
        let endpoint = runtime.endpoint().clone();
        let member = Self::on(cluster, runtime, name, cluster.server(), &endpoint)?;
        member.up(&[]).await?;
        member.until_ready(cluster).await?;
        Ok(member)
    }

    /// A node that is not yet started, and reaches the API server and its runtime where it is told to: through proxies, say.
    pub fn on(cluster: &ControlPlane, runtime: Runtime, name: &str, server: &str, endpoint: &Endpoint) -> Result<Self> {
        let is_kubelet = std::env::var("PLEG_E2E_AGENT").is_ok_and(|agent| agent == "kubelet");
        Self::with(cluster, runtime, name, server, endpoint, is_kubelet)
    }

    /// A runtime and a kubelet on it that joins the cluster, whatever is under test; waits until it is Ready.
    pub async fn kubelet(cluster: &ControlPlane, version: Version, name: &str) -> Result<Self> {
        let runtime = Runtime::start(version).await?;
        let endpoint = runtime.endpoint().clone();
        let member = Self::with(cluster, runtime, name, cluster.server(), &endpoint, true)?;
        member.up(&[]).await?;
        member.until_ready(cluster).await?;
        Ok(member)
    }

    fn with(
        cluster: &ControlPlane,
        runtime: Runtime,
        name: &str,
        server: &str,
        endpoint: &Endpoint,
        is_kubelet: bool,
    ) -> Result<Self> {
        let ip = node_ip();
        network(&runtime)?;
        let kubeconfig = cluster.kubeconfig_at(name, server, &Subject::node(name))?;
        let serving = cluster
            .ca()
            .issue(&format!("{name}-serving"), &Subject::server(name, &[ip], &[name]))?;
        let agent = if is_kubelet {
            Agent::Kubelet(Kubelet::new(
                cluster,
                &runtime,
                endpoint,
                name,
                ip,
                &kubeconfig,
                &serving,
            )?)
        } else {
            let flags = flags(cluster, name, &kubeconfig, &serving)?;
            let node = Node::at(&runtime, endpoint.clone())?.called(name, ip);
            Agent::Pleg { node, flags }
        };
        Ok(Self {
            name: name.to_owned(),
            agent,
            runtime,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// `pleg node` itself.
    pub fn node(&self) -> Result<&Node> {
        match &self.agent {
            Agent::Pleg { node, .. } => Ok(node),
            Agent::Kubelet(_) => anyhow::bail!("this node is a kubelet"),
        }
    }

    /// Starts the agent.
    pub async fn up(&self, more: &[&str]) -> Result<()> {
        match &self.agent {
            Agent::Pleg { node, flags } => {
                let args: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
                node.up(&args).await
            }
            Agent::Kubelet(kubelet) => kubelet.up(),
        }
    }

    /// Ends the agent without a word. Pods go on.
    pub async fn kill(&self) -> Result<()> {
        match &self.agent {
            Agent::Pleg { node, .. } => node.kill().await,
            Agent::Kubelet(kubelet) => kubelet.kill(),
        }
    }

    /// Its Node object.
    pub async fn object(&self, cluster: &ControlPlane) -> Result<Value> {
        cluster.get(&format!("/api/v1/nodes/{}", self.name)).await
    }

    /// Its condition Ready.
    pub async fn ready_condition(&self, cluster: &ControlPlane) -> Result<Value> {
        let node = self.object(cluster).await?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
        ready.context("it has no condition Ready")
    }

    /// Waits until its condition Ready has this status, and returns the condition.
    pub async fn until_condition(&self, cluster: &ControlPlane, status: &str, patience: Duration) -> Result<Value> {
        until(&format!("Ready={status} of node {}", self.name), patience, async || {
            let ready = self.ready_condition(cluster).await?;
            ensure!(ready["status"] == status, "{ready}");
            Ok(ready)
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// Waits until the scheduler gives it pods: it is Ready, and nothing taints it.
    pub async fn until_ready(&self, cluster: &ControlPlane) -> Result<()> {
        self.until_condition(cluster, "True", JOIN).await?;
        until(&format!("no taints of node {}", self.name), JOIN, async || {
            let taints = self.object(cluster).await?["spec"]["taints"].clone();
            ensure!(taints.is_null(), "{taints}");
            Ok(())
        })
        .await
        .with_context(|| self.log_tail())
    }

    /// Waits until the controller manager has noticed that it is away.
    pub async fn until_unknown(&self, cluster: &ControlPlane) -> Result<Value> {
        let patience = Duration::from_secs(u64::from(NODE_GRACE) + 30);
        self.until_condition(cluster, "Unknown", patience).await
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        match &self.agent {
            Agent::Pleg { node, .. } => node.log(),
            Agent::Kubelet(kubelet) => kubelet.log(),
        }
    }

    /// The last lines of the agent's log.
    pub fn log_tail(&self) -> String {
        match &self.agent {
            Agent::Pleg { node, .. } => node.log_tail(),
            Agent::Kubelet(kubelet) => kubelet.log_tail(),
        }
    }
}

/// The flags of a `pleg node` with this kubeconfig and serving certificate.
fn flags(cluster: &ControlPlane, name: &str, kubeconfig: &Path, serving: &Pair) -> Result<Vec<String>> {
    let file = |path: &Path| path.display().to_string();
    let options = [
        ("kubeconfig", file(kubeconfig)),
        ("node-labels", format!("{LABEL}={name}")),
        ("port", free_port()?.to_string()),
        ("tls-cert-file", file(&serving.certificate)),
        ("tls-private-key-file", file(&serving.key)),
        ("client-ca-file", file(cluster.ca().certificate())),
        // There are several nodes on this machine.
        ("healthz-port", "0".to_owned()),
    ];
    Ok(options.map(|(flag, value)| format!("--{flag}={value}")).to_vec())
}

/// `pleg node` in a home, which has not started yet, and the flags by which it joins through `server`. Its runtime may be a simulated one.
pub fn bare_node(
    cluster: &ControlPlane,
    home: &Home,
    name: &str,
    server: &str,
    endpoint: Endpoint,
) -> Result<(Node, Vec<String>)> {
    let ip = node_ip();
    let kubeconfig = cluster.kubeconfig_at(name, server, &Subject::node(name))?;
    let subject = Subject::server(name, &[ip], &[name]);
    let serving = cluster.ca().issue(&format!("{name}-serving"), &subject)?;
    let node = Node::within(home, endpoint)?.called(name, ip);
    Ok((node, flags(cluster, name, &kubeconfig, &serving)?))
}

/// An address of this machine that is not the loopback's, if it has one: a kubelet refuses that. Nothing is sent.
fn node_ip() -> IpAddr {
    let own = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    };
    own().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Gives a runtime a pod network: a pair of interfaces for each pod, which go with its namespace, in a range of this runtime alone.
pub fn network(runtime: &Runtime) -> Result<()> {
    let dir = runtime.home().dir();
    let name = runtime.home().cgroup();
    let digest = Sha256::digest(name.as_bytes());
    let prefix = format!("10.{}.{}", 64 + digest[0] % 64, digest[1]);
    let subnet = format!("{prefix}.0/24");
    // By way of this machine pods reach services, if there are any: see `service_address`. CRI-O looks whether the route is there, and
    // finds it only with its gateway.
    let routes = json!([{ "dst": service_address::RANGE, "gw": format!("{prefix}.1") }]);
    let ipam = json!({ "type": "host-local", "subnet": subnet, "routes": routes, "dataDir": dir.join("ipam") });
    let plugins = json!([{ "type": "ptp", "ipam": ipam }]);
    let conf = json!({ "cniVersion": "0.4.0", "name": name, "plugins": plugins });
    fs::write(dir.join("cni/10-test.conflist"), conf.to_string()).context("write the pod network")
}

/// A kubelet on the same runtime.
#[derive(Debug)]
struct Kubelet {
    dir: PathBuf,
    args: Vec<String>,
    child: Mutex<Option<Child>>,
}

impl Kubelet {
    fn new(
        cluster: &ControlPlane,
        runtime: &Runtime,
        endpoint: &Endpoint,
        name: &str,
        ip: IpAddr,
        kubeconfig: &Path,
        serving: &Pair,
    ) -> Result<Self> {
        let dir = runtime.home().dir().join("kubelet");
        fs::create_dir_all(&dir)?;
        let config = json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "containerRuntimeEndpoint": endpoint.to_string(),
            "podLogsDir": dir.join("logs"),
            "volumePluginDir": dir.join("plugins"),
            "port": free_port()?,
            "healthzPort": 0,
            "authentication": { "anonymous": { "enabled": false }, "x509": { "clientCAFile": cluster.ca().certificate() } },
            "authorization": { "mode": "Webhook" },
            "tlsCertFile": serving.certificate,
            "tlsPrivateKeyFile": serving.key,
            "clusterDomain": "cluster.local",
            // What it needs to run without the rights of a real node, and where the harness finds its containers.
            "cgroupsPerQOS": false,
            "cgroupRoot": format!("/{}", runtime.home().cgroup()),
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "failCgroupV1": false,
            "localStorageCapacityIsolation": false,
            "featureGates": { "KubeletInUserNamespace": true },
            "evictionHard": { "memory.available": "1Mi" },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        });
        let file = dir.join("config.json");
        fs::write(&file, config.to_string())?;
        let options = [
            ("config", file.display().to_string()),
            ("kubeconfig", kubeconfig.display().to_string()),
            ("root-dir", dir.join("root").display().to_string()),
            ("cert-dir", dir.join("pki").display().to_string()),
            ("hostname-override", name.to_owned()),
            ("node-ip", ip.to_string()),
            ("node-labels", format!("{LABEL}={name}")),
        ];
        let args = options.map(|(flag, value)| format!("--{flag}={value}")).to_vec();
        let child = Mutex::new(None);
        Ok(Self { dir, args, child })
    }

    fn up(&self) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("kubelet.log"))?;
        let mut command = Command::new(kubelet()?);
        command.args(&self.args).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        *self.child.lock() = Some(command.spawn().context("start the kubelet")?);
        Ok(())
    }

    fn kill(&self) -> Result<()> {
        let mut child = self.child.lock().take().context("the kubelet is down")?;
        process::signal(i32::try_from(child.id())?, Signal::KILL)?;
        child.wait()?;
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("kubelet.log")).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "the kubelet's log:\n{}",
            lines[lines.len().saturating_sub(40)..].join("\n")
        )
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
