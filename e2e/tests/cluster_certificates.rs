//! Certificates of a node, signed by a real control plane: the first one by a bootstrap token, later ones before they expire.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use pleg_e2e::cluster::free_port;
use pleg_e2e::cluster::member::{LABEL, network};
use pleg_e2e::cluster::pki::Subject;
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place};
use pleg_e2e::node::Node;
use pleg_e2e::wait::until;
use pleg_e2e::{Runtime, Version, cluster_scenarios};
use serde_json::Value;

fn main() -> ExitCode {
    suite::main(&[(
        Place::NoNode,
        &[Version::V2_1],
        cluster_scenarios![
            a_machine_joins_with_a_token_and_renews_its_certificate,
            the_certificate_of_the_server_is_signed_once_approved,
        ],
    )])
}

/// A machine that has a bootstrap token and nothing else.
struct Machine {
    node: Node,
    kubeconfig: PathBuf,
    bootstrap: PathBuf,
    cert_dir: PathBuf,
    port: u16,
    /// Goes last.
    _runtime: Runtime,
}

impl Machine {
    async fn start(context: &Context) -> Result<Self> {
        let runtime = Runtime::start(context.version).await?;
        network(&runtime)?;
        let dir = runtime.home().dir().join("joining");
        let node = Node::at(&runtime, runtime.endpoint().clone())?.called(&context.node_name, address());
        Ok(Self {
            node,
            kubeconfig: dir.join("kubeconfig"),
            bootstrap: context.cluster.bootstrap_kubeconfig()?,
            cert_dir: dir.join("pki"),
            port: free_port()?,
            _runtime: runtime,
        })
    }

    async fn up(&self, context: &Context, bootstrap: bool, more: &[&str]) -> Result<()> {
        let text = |path: &Path| path.display().to_string();
        let label = format!("{LABEL}={}", context.node_name);
        let (kubeconfig, token, cert_dir) = (text(&self.kubeconfig), text(&self.bootstrap), text(&self.cert_dir));
        let port = self.port.to_string();
        let mut args = vec![
            "--kubeconfig",
            &kubeconfig,
            "--cert-dir",
            &cert_dir,
            "--node-labels",
            &label,
        ];
        args.extend(["--port", &port, "--healthz-port", "0"]);
        if bootstrap {
            args.extend(["--bootstrap-kubeconfig", &token]);
        }
        args.extend(more);
        self.node.up(&args).await
    }

    fn client_certificate(&self) -> PathBuf {
        self.cert_dir.join("client-current.pem")
    }
}

/// An address of this machine that is not the loopback's: the API server connects to no other. Nothing is sent.
fn address() -> IpAddr {
    let own = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    };
    own().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// When the node last renewed its lease.
async fn renewed(context: &Context) -> Result<Timestamp> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}",
        context.node_name
    );
    let lease = context.cluster.get(&path).await?;
    let at = lease["spec"]["renewTime"].as_str().context("never renewed")?;
    Ok(at.parse()?)
}

async fn until_ready(context: &Context, machine: &Machine) -> Result<()> {
    let path = format!("/api/v1/nodes/{}", context.node_name);
    let ready = until("the node to be Ready", PATIENCE, async || {
        let node = context.cluster.get(&path).await?;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True");
        ensure!(ready, "{conditions:?}");
        Ok(())
    });
    ready.await.with_context(|| machine.node.log_tail())
}

fn is_private(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)
        .with_context(|| path.display().to_string())?
        .permissions()
        .mode()
        & 0o777;
    ensure!(mode == 0o600, "{}: {mode:o}", path.display());
    Ok(())
}

async fn a_machine_joins_with_a_token_and_renews_its_certificate(context: &Context) -> Result<()> {
    let machine = Machine::start(context).await?;
    machine.up(context, true, &[]).await?;
    until_ready(context, &machine).await?;
    let file = machine.client_certificate();
    is_private(&file)?;
    is_private(&machine.kubeconfig)?;
    let kubeconfig = fs::read_to_string(&machine.kubeconfig)?;
    ensure!(!kubeconfig.contains("token"), "{kubeconfig}");
    ensure!(
        !machine.cert_dir.join("client-pending.key").exists(),
        "the key is in use"
    );
    // What it told about itself is found by name and component, as the events of a kubelet.
    let selector = format!(
        "involvedObject.kind=Node,involvedObject.name={},source=kubelet,reason=Starting",
        context.node_name
    );
    until("the event Starting", PATIENCE, async || {
        let line = format!("get events --namespace default --field-selector {selector} -o name");
        let found = context.kubectl.run(&line).await?;
        ensure!(!found.is_empty(), "{}", machine.node.log_tail());
        anyhow::Ok(())
    })
    .await?;

    // One near its end is replaced, without a token, and nothing stops when the old one expires.
    machine.node.kill().await?;
    let left = Duration::from_secs(40);
    let old = context
        .cluster
        .ca()
        .issue("near-its-end", &Subject::node(&context.node_name).ending_in(left))?;
    let expires = Timestamp::now() + left;
    let old = fs::read_to_string(old.certificate)? + &fs::read_to_string(old.key)?;
    fs::write(&file, &old)?;
    machine.up(context, false, &[]).await?;
    let replaced = until("a new certificate", PATIENCE, async || {
        ensure!(fs::read_to_string(&file)? != old, "still the old one");
        anyhow::Ok(())
    });
    replaced.await.with_context(|| machine.node.log_tail())?;
    is_private(&file)?;
    let goes_on = until("a renewal after the end of the old certificate", PATIENCE, async || {
        let at = renewed(context).await?;
        ensure!(at > expires, "last renewed at {at}, it expires at {expires}");
        Ok(())
    });
    goes_on.await.with_context(|| machine.node.log_tail())?;
    until_ready(context, &machine).await
}

/// The requests of the node for the certificate of its server.
async fn serving_requests(context: &Context) -> Result<Vec<String>> {
    let all = context
        .cluster
        .get("/apis/certificates.k8s.io/v1/certificatesigningrequests")
        .await?;
    let user = format!("system:node:{}", context.node_name);
    let ours = |one: &&Value| {
        one["spec"]["username"] == user.as_str() && one["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    };
    let all = all["items"].as_array().cloned().unwrap_or_default();
    let names = all
        .iter()
        .filter(ours)
        .filter_map(|one| one["metadata"]["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

async fn the_certificate_of_the_server_is_signed_once_approved(context: &Context) -> Result<()> {
    let machine = Machine::start(context).await?;
    machine.up(context, true, &["--rotate-server-certificates"]).await?;
    until_ready(context, &machine).await?;
    // The API server verifies the certificate, so it reaches the node only with one of the cluster.
    let healthz = format!("get --raw /api/v1/nodes/{}/proxy/healthz", context.node_name);
    let refused = context.kubectl.fails(&healthz).await?;
    ensure!(refused.contains("certificate"), "{refused}");
    let waits = until("a request", PATIENCE, async || {
        let mut names = serving_requests(context).await?;
        names.pop().context("none yet")
    });
    let name = waits.await.with_context(|| machine.node.log_tail())?;
    context.kubectl.run(&format!("certificate approve {name}")).await?;
    let served = until("an answer of the node's server", PATIENCE, async || {
        context.kubectl.run(&healthz).await
    });
    served.await.with_context(|| machine.node.log_tail())?;
    is_private(&machine.cert_dir.join("server-current.pem"))?;
    // The next run has it already.
    machine.node.kill().await?;
    machine.up(context, false, &["--rotate-server-certificates"]).await?;
    until("an answer after a restart", PATIENCE, async || {
        context.kubectl.run(&healthz).await
    })
    .await
    .with_context(|| machine.node.log_tail())?;
    let names = serving_requests(context).await?;
    ensure!(names == [name.clone()], "{names:?}");
    Ok(())
}
