//! A kubeconfig that cannot be used: one line says why and what to do, and static pods run all the same.

#![allow(missing_docs, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::cluster::member::network;
use pleg_e2e::cluster::pki::{Ca, Credentials, Subject, kubeconfig};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place};
use pleg_e2e::cluster::{FaultProxy, Faults, Member, bare_node, free_port};
use pleg_e2e::image::Program;
use pleg_e2e::node::{Node, is_ready, manifest, runs};
use pleg_e2e::wait::until;
use pleg_e2e::{Runtime, Version, cluster_scenarios};
use serde_json::json;

fn main() -> ExitCode {
    suite::main(&[(
        Place::NoNode,
        &[Version::V2_1],
        cluster_scenarios![
            a_bad_kubeconfig_is_named,
            a_node_joins_once_its_kubeconfig_is_right,
            clocks_that_differ_are_named,
            a_name_that_another_machine_has_is_named,
            a_taken_port_is_named_and_taken_once_it_is_free,
        ],
    )])
}

/// How wrong a clock is.
const DAY: Duration = Duration::from_hours(24);

/// A kubeconfig, and what has to be said of it.
struct Case {
    name: &'static str,
    path: PathBuf,
    words: &'static [&'static str],
}

fn cases(context: &Context) -> Result<Vec<Case>> {
    let (cluster, node) = (&context.cluster, context.node_name.as_str());
    let dir = cluster.dir();
    let other = Ca::new(&dir.join("other-pki"), "other")?;
    let path = |name: &str| dir.join(format!("bad-{name}.kubeconfig"));
    let with = |name: &'static str, ca: &Ca, trusts: &Ca, subject: &Subject, server: &str, words| {
        let pair = ca.issue(&format!("bad-{name}"), subject)?;
        kubeconfig(
            &path(name),
            server,
            trusts.certificate(),
            Credentials::Certificate(&pair),
        )?;
        anyhow::Ok(Case {
            name,
            path: path(name),
            words,
        })
    };
    let (ca, server, right) = (cluster.ca(), cluster.server(), Subject::node(node));
    let nowhere = format!("https://127.0.0.1:{}", free_port()?);
    std::fs::write(path("text"), "clusters: {")?;
    Ok(vec![
        Case {
            name: "missing",
            path: path("missing"),
            words: &["cannot use kubeconfig", "bad-missing.kubeconfig"],
        },
        Case {
            name: "text",
            path: path("text"),
            words: &["cannot use kubeconfig", "bad-text.kubeconfig"],
        },
        with(
            "nobody-listens",
            ca,
            ca,
            &right,
            &nowhere,
            &["cannot reach the API server", "refused"],
        )?,
        with(
            "wrong-ca",
            ca,
            &other,
            &right,
            server,
            &["not signed by the certificate-authority of the kubeconfig"],
        )?,
        with(
            "expired",
            ca,
            ca,
            &right.clone().expired(),
            server,
            &["expired at 2021-01-01T00:00:00Z"],
        )?,
        with(
            "stranger",
            &other,
            ca,
            &right,
            server,
            &["does not accept our credentials"],
        )?,
        with(
            "another-node",
            ca,
            ca,
            &Subject::node("another"),
            server,
            &["--node-name another"],
        )?,
        with(
            "no-node",
            ca,
            ca,
            &Subject::client("somebody", &["people"]),
            server,
            &["that of somebody", "system:nodes"],
        )?,
        with(
            "no-group",
            ca,
            ca,
            &Subject::client(&format!("system:node:{node}"), &[]),
            server,
            &["is the Node authorizer on", "system:nodes"],
        )?,
        with(
            "early",
            ca,
            ca,
            &right.clone().starting_in(DAY),
            server,
            &["is valid from", "correct the clock"],
        )?,
    ])
}

fn lines_with(log: &str, words: &[&str]) -> Vec<String> {
    let all = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    all.map(ToOwned::to_owned).collect()
}

async fn a_bad_kubeconfig_is_named(context: &Context) -> Result<()> {
    let runtime = Runtime::start(context.version).await?;
    let node = Node::new(&runtime)?.called(&context.node_name, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let app = runs("app", &Program::Stubborn, "");
    node.write("p.yaml", &manifest("p", &format!("containers: [{app}]")))?;
    for case in cases(context)? {
        let said_before = node.log().len();
        let kubeconfig = case.path.display().to_string();
        node.up(&["--kubeconfig", &kubeconfig, "--port", "0", "--healthz-port", "0"])
            .await?;
        node.until_ready("p").await?;
        said_once(&node, said_before, case.words)
            .await
            .with_context(|| case.name)?;
        node.kill().await?;
    }
    Ok(())
}

/// Waits for a line with these words, which must be the only one since the log had that length.
async fn said_once(node: &Node, since: usize, words: &[&str]) -> Result<()> {
    let lines = until(&format!("{words:?} in the log"), PATIENCE, async || {
        let log = node.log().split_off(since);
        let found = lines_with(&log, words);
        ensure!(!found.is_empty(), "{log}");
        Ok(found)
    })
    .await?;
    ensure!(lines.len() == 1, "it is said more than once: {lines:#?}");
    Ok(())
}

/// A node that has a static pod, and joins through `server`.
async fn with_static_pod(context: &Context, server: &str) -> Result<(Runtime, Node, Vec<String>)> {
    let runtime = Runtime::start(context.version).await?;
    // Without one it would not be Ready.
    network(&runtime)?;
    let endpoint = runtime.endpoint().clone();
    let (node, flags) = bare_node(&context.cluster, runtime.home(), &context.node_name, server, endpoint)?;
    let app = runs("app", &Program::Stubborn, "");
    node.write("p.yaml", &manifest("p", &format!("containers: [{app}]")))?;
    Ok((runtime, node, flags))
}

async fn up(node: &Node, flags: &[String]) -> Result<()> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    node.up(&flags).await
}

/// The node's Ready condition.
async fn joined(context: &Context) -> Result<()> {
    let path = format!("/api/v1/nodes/{}", context.node_name);
    until("the node to be Ready", PATIENCE, async || {
        let node = context.cluster.get(&path).await?;
        ensure!(is_ready(&node), "{}", node["status"]["conditions"]);
        Ok(())
    })
    .await
}

/// The API server's certificate is not valid yet, or has expired, by our clock: nothing but the clock can be done about it. Its clock is
/// ahead by a day: the node joins, and says so.
async fn clocks_that_differ_are_named(context: &Context) -> Result<()> {
    let subject = FaultProxy::subject();
    for serving in [subject.clone().starting_in(DAY), subject.clone().expired()] {
        let proxy = FaultProxy::start_as(&context.cluster, &context.node_name, &serving).await?;
        let (_runtime, node, flags) = with_static_pod(context, proxy.url()).await?;
        up(&node, &flags).await?;
        node.until_ready("p").await?;
        said_once(&node, 0, &["cannot reach the API server", "check the clock"]).await?;
        node.kill().await?;
    }
    let proxy = FaultProxy::start(&context.cluster, &context.node_name).await?;
    proxy.set(Faults {
        clock_ahead: DAY,
        ..Faults::default()
    });
    let (_runtime, node, flags) = with_static_pod(context, proxy.url()).await?;
    up(&node, &flags).await?;
    node.until_ready("p").await?;
    joined(context).await?;
    said_once(&node, 0, &["clock", "differ by", "Correct the clock"]).await
}

/// Another machine renews the lease of our name: static pods run, and the node joins once that machine is gone.
async fn a_name_that_another_machine_has_is_named(context: &Context) -> Result<()> {
    let (cluster, name) = (&context.cluster, context.node_name.as_str());
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
    cluster.post("/api/v1/nodes", &object).await?;
    let info = json!({ "machineID": "other", "systemUUID": "other" });
    let status = json!({ "status": { "nodeInfo": info } });
    cluster.patch(&format!("/api/v1/nodes/{name}/status"), &status).await?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({ "metadata": { "name": name }, "spec": { "holderIdentity": name, "leaseDurationSeconds": 40 } });
    cluster.post(leases, &lease).await?;
    let lease = format!("{leases}/{name}");
    let renewing = async {
        loop {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            let renewal = json!({ "spec": { "renewTime": now } });
            cluster.patch(&lease, &renewal).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (_runtime, node, flags) = with_static_pod(context, cluster.server()).await?;
    let taken = async {
        up(&node, &flags).await?;
        node.until_ready("p").await?;
        said_once(&node, 0, &["is taken by another machine", "--node-name"]).await
    };
    tokio::select! {
        failed = renewing => return failed,
        taken = taken => taken?,
    }
    cluster.delete(&lease, &json!({})).await?;
    joined(context).await?;
    said_once(&node, 0, &["which is gone: taking it over"]).await
}

/// The node joins and runs pods without its server, which is there as soon as its port is.
async fn a_taken_port_is_named_and_taken_once_it_is_free(context: &Context) -> Result<()> {
    let (_runtime, node, flags) = with_static_pod(context, context.cluster.server()).await?;
    let port = flags.iter().find_map(|flag| flag.strip_prefix("--port="));
    let port: u16 = port.context("no port")?.parse()?;
    let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    up(&node, &flags).await?;
    node.until_ready("p").await?;
    joined(context).await?;
    said_once(&node, 0, &[&format!("cannot listen on 0.0.0.0:{port}"), "kubectl logs"]).await?;
    drop(other);
    until("kubectl logs", PATIENCE, async || {
        let pod = format!("logs p-{} -n default", context.node_name);
        context.kubectl.run(&pod).await
    })
    .await?;
    Ok(())
}

/// The file is replaced while the node runs.
async fn a_node_joins_once_its_kubeconfig_is_right(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let runtime = Runtime::start(context.version).await?;
    let endpoint = runtime.endpoint().clone();
    let member = Member::on(cluster, runtime, &context.node_name, cluster.server(), &endpoint)?;
    let path = cluster.dir().join(format!("{}.kubeconfig", context.node_name));
    let right = std::fs::read(&path)?;
    std::fs::write(&path, "")?;
    let node = context.join(member)?;
    node.up(&[]).await?;
    std::fs::write(&path, right)?;
    node.until_ready(cluster).await
}
