//! Starts a control plane and keeps it until Ctrl-C: `cargo run -p pleg-e2e --example cluster -- [VERSION] [NODE...]`.
//!
//! With the VERSION of a runtime it starts one of those too, with a pod network. A kubeconfig is made for each NODE.
//! `PLEG_E2E_API_SERVER_FLAGS` has more flags of the API server.

#![allow(clippy::print_stdout, reason = "a program for people")]

use anyhow::{Context, Result, bail};
use pleg_e2e::cluster::{ControlPlane, member, parts};
use pleg_e2e::{Runtime, Version, image, suite};

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: cluster [VERSION] [NODE...], where VERSION is 1.7, 2.1, crio or crio-events";
    let mut args = std::env::args().skip(1);
    let version = args.next().map(|name| Version::from_name(&name).context(usage));
    let version = version.transpose()?;
    let obstacle = ControlPlane::obstacle().or_else(|| version.and_then(Version::obstacle));
    if let Some(obstacle) = obstacle {
        bail!("{obstacle}");
    }
    let cluster = ControlPlane::start().await?;
    let runtime = match version {
        Some(version) => Some(Runtime::start(version).await?),
        None => None,
    };
    let programs = parts::program("kubectl")?;
    let programs = programs.parent().context("kubectl is in no directory")?;
    println!("# Kubernetes v{} at {}", parts::kubernetes()?, cluster.server());
    println!("# logs and certificates are in {}", cluster.dir().display());
    println!("export KUBECONFIG={}", cluster.admin_kubeconfig().display());
    println!("export PATH={}:$PATH", programs.display());
    println!(
        "export BOOTSTRAP_KUBECONFIG={}",
        cluster.bootstrap_kubeconfig()?.display()
    );
    let mut nodes: Vec<String> = args.collect();
    if nodes.is_empty() {
        nodes.push("n1".to_owned());
    }
    for (number, name) in nodes.iter().enumerate() {
        let variable = if number == 0 {
            String::new()
        } else {
            format!("_{}", number + 1)
        };
        let kubeconfig = cluster.node_kubeconfig(name)?;
        println!(
            "export NODE{variable}={name} NODE{variable}_KUBECONFIG={}",
            kubeconfig.display()
        );
    }
    println!("export CLUSTER_CA={}", cluster.ca().certificate().display());
    if let Some(runtime) = &runtime {
        member::network(runtime)?;
        println!("export CONTAINER_RUNTIME_ENDPOINT={}", runtime.endpoint());
        println!(
            "export NODE_DIR={} NODE_CGROUP={}",
            runtime.home().dir().display(),
            runtime.home().cgroup()
        );
        println!("export IMAGE={}    # with imagePullPolicy: Never", image::NAME);
    }
    println!("# Ctrl-C ends it and everything in it.");
    suite::interrupted().await;
    Ok(())
}
