//! What goes wrong between a node and its control plane, and what must not follow from it.

#![allow(missing_docs, reason = "tests")]

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_cri::{Endpoint, Rpc};
use pleg_e2e::cluster::suite::{self, Context, Place, RUNTIMES};
use pleg_e2e::cluster::{FaultProxy, Faults, Member, Part};
use pleg_e2e::node::{container, is_ready};
use pleg_e2e::wait::until;
use pleg_e2e::{Runtime, cluster_scenarios, image};
use pleg_sim::control::{Hang, RpcName, Unhang};
use pleg_sim::{Command, Proxy, ProxyConfig};
use serde_json::Value;
use tokio::time::{Instant, sleep};

fn main() -> ExitCode {
    suite::main(&[
        (
            Place::OwnNode,
            &RUNTIMES,
            cluster_scenarios![
                a_node_that_goes_away_comes_back_with_its_pods,
                a_frozen_runtime_makes_the_node_not_ready,
            ],
        ),
        (
            Place::NoNode,
            &RUNTIMES,
            cluster_scenarios![
                an_api_server_that_fails_is_not_flooded,
                a_hung_container_is_named_by_its_pod
            ],
        ),
        (
            Place::OwnCluster,
            &RUNTIMES[..1],
            cluster_scenarios![an_api_server_that_is_killed_and_restarted, pods_outlive_a_restored_etcd,],
        ),
    ])
}

/// How long an API server is away. Anything that would restart, evict or give up has to be shorter.
const OUTAGE: Duration = Duration::from_mins(2);
/// How long it is slow, or refuses, or cuts watches.
const TROUBLE: Duration = Duration::from_secs(10);
/// Statuses are right so soon after the API server is back: 10 s, and what a loaded machine adds.
const SOON: Duration = Duration::from_secs(20);
/// Pods of each scenario.
const PODS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Pods that run until they are told to end with a file.
fn pods() -> String {
    let image = image::NAME;
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, containers: \
             [{{name: app, image: '{image}', imagePullPolicy: Never, command: [/bin/sh, -c, 'while true; do sleep 1; done']}}]}}}}\n---\n"
        )
    };
    PODS.map(pod).concat()
}

/// What has to stay the same of a pod that nobody touched.
fn identity(pod: &Value) -> String {
    let status = container(pod, "app");
    format!(
        "{} {} {}",
        pod["metadata"]["uid"], status["containerID"], status["restartCount"]
    )
}

async fn all_ready(context: &Context) -> Result<Vec<String>> {
    let mut identities = Vec::new();
    for name in PODS {
        identities.push(identity(&context.until_pod_ready(name).await?));
    }
    Ok(identities)
}

/// The same, with the names, of pods that are as they are.
async fn identities(context: &Context) -> Result<Vec<(&'static str, String)>> {
    let mut all = Vec::new();
    for name in PODS {
        all.push((name, identity(&context.pod(name).await?)));
    }
    Ok(all)
}

/// What an API server does wrong, and the name of it.
fn troubles() -> [(&'static str, Faults); 5] {
    let fine = Faults::default;
    [
        (
            "slow",
            Faults {
                delay: Duration::from_secs(2),
                ..fine()
            },
        ),
        (
            "429",
            Faults {
                status: Some(429),
                ..fine()
            },
        ),
        (
            "500",
            Faults {
                status: Some(500),
                ..fine()
            },
        ),
        ("down", Faults { down: true, ..fine() }),
        (
            "cut",
            Faults {
                cut_watches: Some(Duration::from_secs(1)),
                ..fine()
            },
        ),
    ]
}

/// Kills the main process of a pod's container, behind everybody's back.
async fn crash(context: &Context, name: &str) -> Result<()> {
    let pod = context.pod(name).await?;
    let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default();
    let kubelet = context.node()?.runtime().kubelet();
    let pid = kubelet.container_pid(id).await?;
    pleg_e2e::process::signal(pid, rustix::process::Signal::KILL)
}

/// Waits until the API shows that a container was restarted, once.
async fn restarted(context: &Context, name: &str) -> Result<()> {
    until(&format!("the restart of {name} in the API"), SOON, async || {
        let pod = context.pod(name).await?;
        let count = container(&pod, "app")["restartCount"].as_u64();
        ensure!(is_ready(&pod) && count == Some(1), "{}", pod["status"]);
        Ok(())
    })
    .await
}

/// kill -9: the controller manager notices, and nothing is restarted when the node is back.
async fn a_node_that_goes_away_comes_back_with_its_pods(context: &Context) -> Result<()> {
    context.kubectl.apply(&pods()).await?;
    let before = all_ready(context).await?;
    let node = context.node()?;
    node.kill().await?;
    let unknown = node.until_unknown(&context.cluster).await?;
    ensure!(unknown["reason"] == "NodeStatusUnknown", "{unknown}");
    node.up(&[]).await?;
    node.until_ready(&context.cluster).await?;
    let after = all_ready(context).await?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

/// The API server is killed while pods run; one crashes meanwhile, and its status is right soon after the API server's return.
async fn an_api_server_that_is_killed_and_restarted(context: &Context) -> Result<()> {
    context.kubectl.apply(&pods()).await?;
    let before = all_ready(context).await?;
    context.cluster.kill(Part::ApiServer).await?;
    let back = Instant::now() + OUTAGE;
    let pid = context.node()?.runtime().kubelet();
    let id = before[0].split('"').nth(3).and_then(|id| id.rsplit('/').next());
    let pid = pid.container_pid(id.context("no container id")?).await?;
    pleg_e2e::process::signal(pid, rustix::process::Signal::KILL)?;
    tokio::time::sleep_until(back).await;
    context.cluster.spawn(Part::ApiServer)?;
    context.cluster.ready().await?;
    restarted(context, "a").await?;
    let after = all_ready(context).await?;
    ensure!(before[1..] == after[1..], "before: {before:#?}\nafter: {after:#?}");
    // It still takes orders.
    context.kubectl.run("delete pod b --wait --timeout=60s").await?;
    Ok(())
}

/// Slow, refusing, failing, absent, and with watches that end at once: requests stay few, pods stay, statuses follow.
async fn an_api_server_that_fails_is_not_flooded(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let proxy = FaultProxy::start(cluster, &context.node_name).await?;
    let runtime = Runtime::start(context.version).await?;
    let endpoint = runtime.endpoint().clone();
    let member = Member::on(cluster, runtime, &context.node_name, proxy.url(), &endpoint)?;
    let node = context.join(member)?;
    node.up(&[]).await?;
    node.until_ready(cluster).await?;
    context.kubectl.apply(&pods()).await?;
    all_ready(context).await?;
    for ((what, faults), crashed) in troubles().into_iter().zip(PODS) {
        let before = identities(context).await?;
        proxy.take_counts();
        proxy.set(faults);
        crash(context, crashed).await?;
        sleep(TROUBLE).await;
        let counts = proxy.take_counts();
        proxy.set(Faults::default());
        let healed = Instant::now();
        // With back-off; a loop without one makes hundreds.
        let seconds = TROUBLE.as_secs();
        for (kind, &count) in &counts {
            let most = if what == "cut" { 4 * seconds } else { 2 * seconds };
            ensure!(
                count as u64 <= most,
                "{what}: {count} times {kind} in {seconds} s: {counts:#?}"
            );
        }
        restarted(context, crashed).await.with_context(|| what)?;
        let total: usize = counts.values().sum();
        let _ = writeln!(
            io::stderr(),
            "{what}: {total} requests in {seconds} s; all statuses right {:?} after it",
            healed.elapsed()
        );
        let after = identities(context).await?;
        let others = |all: &[(&'static str, String)]| -> Vec<_> {
            let all = all.iter().filter(|(name, _)| *name != crashed);
            all.cloned().collect()
        };
        ensure!(
            others(&before) == others(&after),
            "{what}: before: {before:#?}\nafter: {after:#?}"
        );
    }
    node.until_ready(cluster).await?;
    context.kubectl.run("delete pod b --wait --timeout=60s").await?;
    Ok(())
}

/// The runtime does not answer for one container: its pod says so, the node stays Ready, and other pods go on.
async fn a_hung_container_is_named_by_its_pod(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let runtime = Runtime::start(context.version).await?;
    let config = ProxyConfig {
        upstream: runtime.endpoint().clone(),
        listen: Endpoint::unix(runtime.home().dir().join("proxy.sock")),
        control: None,
        seed: 1,
    };
    let proxy = Proxy::start(config).await.context("start the proxy")?;
    let member = Member::on(cluster, runtime, &context.node_name, cluster.server(), proxy.endpoint())?;
    let node = context.join(member)?;
    node.up(&[]).await?;
    node.until_ready(cluster).await?;
    context.kubectl.apply(&pods()).await?;
    all_ready(context).await?;
    let hang = Hang {
        rpc: RpcName(Rpc::ContainerStatus),
        pod: Some(format!("{}/a", context.namespace).parse()?),
        container: Some("app".to_owned()),
        id: None,
    };
    proxy.execute(Command::Hang(hang)).await?;
    crash(context, "a").await?;
    let stuck = context.until_pod("a", "a condition that names the call", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "pleg.io/Stuck" && one["status"] == "True")
    });
    let stuck = stuck.await?;
    let text = stuck["status"]["conditions"].to_string();
    ensure!(text.contains("ContainerStatus") && text.contains("app"), "{text}");
    crash(context, "b").await?;
    restarted(context, "b").await?;
    let ready = node.ready_condition(cluster).await?;
    ensure!(ready["status"] == "True", "{ready}");
    proxy.execute(Command::Unhang(Unhang::default())).await?;
    restarted(context, "a").await
}

/// SIGSTOP of the whole runtime: the condition says what does not answer, and nothing was restarted when it is over.
async fn a_frozen_runtime_makes_the_node_not_ready(context: &Context) -> Result<()> {
    context.kubectl.apply(&pods()).await?;
    let before = all_ready(context).await?;
    let node = context.node()?;
    let frozen = node.runtime().pause()?;
    let threshold = Duration::from_mins(3);
    let condition = node
        .until_condition(&context.cluster, "False", threshold + SOON)
        .await?;
    ensure!(condition["reason"] == "KubeletNotReady", "{condition}");
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("no answer"),
        "the condition does not name the call: {message}"
    );
    let described = context.kubectl.run(&format!("describe node {}", node.name())).await?;
    ensure!(described.contains("no answer"), "{described}");
    frozen.thaw();
    node.until_ready(&context.cluster).await?;
    let after = all_ready(context).await?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

/// etcd is restored from a copy that is older than a pod: the pod is not killed for that within the next minutes, and the others stay.
async fn pods_outlive_a_restored_etcd(context: &Context) -> Result<()> {
    context.kubectl.apply(&pods()).await?;
    let before = all_ready(context).await?;
    let (data, copy) = (context.cluster.data(), context.cluster.dir().join("etcd-copy"));
    context.cluster.down().await?;
    copy_tree(&data, &copy)?;
    context.cluster.up().await?;
    let later = pods()
        .split("---")
        .next()
        .unwrap_or_default()
        .replace("metadata: {name: a}", "metadata: {name: later}");
    context.kubectl.apply(&later).await?;
    let pod = context.until_pod_ready("later").await?;
    let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default();
    context.cluster.down().await?;
    std::fs::remove_dir_all(&data)?;
    copy_tree(&copy, &data)?;
    context.cluster.up().await?;
    let node = context.node()?;
    node.until_ready(&context.cluster).await?;
    let after = all_ready(context).await?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    // It has listed the pods of this node by now: a new one starts.
    context
        .kubectl
        .apply(&later.replace("metadata: {name: later}", "metadata: {name: next}"))
        .await?;
    context.until_pod_ready("next").await?;
    let pid = node.runtime().kubelet().container_pid(id).await;
    ensure!(
        pid.is_ok_and(pleg_e2e::process::alive),
        "the pod that the API server forgot was killed"
    );
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
