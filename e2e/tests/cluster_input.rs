//! A kubeconfig that cannot be used: one line says why and what to do, and static pods run all the same.

#![allow(missing_docs, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use pleg_e2e::cluster::pki::{Ca, Credentials, Subject, kubeconfig};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place};
use pleg_e2e::cluster::{Member, free_port};
use pleg_e2e::image::Program;
use pleg_e2e::node::{Node, manifest, runs};
use pleg_e2e::wait::until;
use pleg_e2e::{Runtime, Version, cluster_scenarios};

fn main() -> ExitCode {
    suite::main(&[(
        Place::NoNode,
        &[Version::V2_1],
        cluster_scenarios![a_bad_kubeconfig_is_named, a_node_joins_once_its_kubeconfig_is_right],
    )])
}

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
        node.up(&["--kubeconfig", &case.path.display().to_string()]).await?;
        node.until_ready("p").await?;
        let line = until(
            &format!("{}: {:?} in the log", case.name, case.words),
            PATIENCE,
            async || {
                let log = node.log().split_off(said_before);
                let found = lines_with(&log, case.words);
                ensure!(!found.is_empty(), "{log}");
                Ok(found)
            },
        )
        .await?;
        ensure!(line.len() == 1, "{}: it is said more than once: {line:#?}", case.name);
        node.kill().await?;
    }
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
