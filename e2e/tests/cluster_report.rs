//! `pleg run --report-to-cluster` beside a stock kubelet: what is stuck shows in the cluster, and everything else stays as it is.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::print_stdout, reason = "the figures, for people")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pleg_cri::{Endpoint, Rpc};
use pleg_e2e::cluster::beside::account;
use pleg_e2e::cluster::reported::{STUCK, described, events, hang, is_one_pair, kubelets_part, stuck, stuck_node};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place, RUNTIMES};
use pleg_e2e::cluster::{Beside, FaultProxy, Faults, Member};
use pleg_e2e::node::{binary, container};
use pleg_e2e::wait::until;
use pleg_e2e::{cluster_scenarios, image};
use pleg_sim::{Selector, Sim, SimConfig};
use serde_json::Value;
use tokio::time::Instant;

fn main() -> ExitCode {
    suite::main(&[
        (
            Place::NoNode,
            &RUNTIMES,
            cluster_scenarios![a_hung_container_shows_in_the_cluster_and_recovers],
        ),
        (
            Place::NoNode,
            &RUNTIMES[..1],
            cluster_scenarios![
                a_restart_of_pleg_keeps_what_was_reported,
                a_missing_right_is_named_in_one_line,
                an_api_server_that_was_away_learns_the_state,
            ],
        ),
    ])
}

/// A hang shows so soon.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

fn pods() -> String {
    let image = image::NAME;
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, containers: \
             [{{name: app, image: '{image}', imagePullPolicy: Never, command: [/bin/sh, -c, 'while true; do sleep 1; done']}}]}}}}\n---\n"
        )
    };
    ["a", "b"].map(pod).concat()
}

async fn until_stuck(context: &Context, beside: &Beside, status: &str, patience: Duration) -> Result<Value> {
    until(&format!("{STUCK}={status}"), patience, async || {
        let ours = stuck_node(context).await?;
        ensure!(ours["status"] == status, "{ours}");
        Ok(ours)
    })
    .await
    .with_context(|| beside.log())
}

/// A kubelet with two pods, and a reporter beside it.
async fn beside_a_kubelet(context: &Context) -> Result<Beside> {
    let cluster = &context.cluster;
    let member = Member::kubelet(cluster, context.version, &context.node_name).await?;
    let node = context.join(member)?;
    context.kubectl.apply(&pods()).await?;
    for name in ["a", "b"] {
        context.until_pod_ready(name).await?;
    }
    let (runtime, token) = (node.runtime(), account(cluster).await?);
    let dir = runtime.home().dir();
    let beside = Beside::new(cluster, dir, runtime.endpoint(), node.name(), cluster.server(), &token)?;
    beside.up(&["--report-pod-condition"]).await?;
    let fine = until_stuck(context, &beside, "False", PATIENCE).await?;
    ensure!(fine["reason"] == "NothingIsStuck", "{fine}");
    Ok(beside)
}

/// `kubectl describe` shows the hang within 30 s and the recovery after, events are one pair, and the kubelet's part is as it was.
async fn a_hung_container_shows_in_the_cluster_and_recovers(context: &Context) -> Result<()> {
    let beside = beside_a_kubelet(context).await?;
    let (node, before) = (&context.node_name, kubelets_part(context).await?);
    let frozen = hang(context, "a").await?;
    let hung = Instant::now();
    until("kubectl describe to name the pod", SHOWN_WITHIN, async || {
        described(context, "a").await?;
        let of_node = stuck_node(context).await?;
        ensure!(
            of_node["message"]
                .as_str()
                .is_some_and(|text| text.contains("container app")),
            "{of_node}"
        );
        let of_pod = stuck(&context.pod("a").await?);
        ensure!(of_pod["status"] == "True", "{of_pod}");
        Ok(())
    })
    .await
    .with_context(|| beside.log())?;
    println!("{:?}: shown after {:?}", context.version, hung.elapsed());
    ensure!(kubelets_part(context).await? == before, "{before}");

    frozen.thaw();
    until_stuck(context, &beside, "False", PATIENCE).await?;
    context
        .until_pod("a", "a restarted container", |pod| {
            container(pod, "app")["restartCount"] == 1 && stuck(pod)["status"] == "False"
        })
        .await
        .with_context(|| beside.log())?;
    until("the events of the recovery", PATIENCE, async || {
        let of_pod = events(context, &context.namespace, "Pod", "a").await?;
        let of_node = events(context, "default", "Node", node).await?;
        for events in [of_pod, of_node] {
            ensure!(is_one_pair(&events), "{events:?}");
        }
        Ok(())
    })
    .await?;
    ensure!(events(context, &context.namespace, "Pod", "b").await?.is_empty());
    let after = kubelets_part(context).await?;
    ensure!(after == before, "before: {before}\nafter: {after}");
    forget(context, &beside).await
}

/// `pleg cluster forget` removes the conditions, and nothing else.
async fn forget(context: &Context, beside: &Beside) -> Result<()> {
    let before = kubelets_part(context).await?;
    beside.kill()?;
    let mut command = Command::new(binary()?);
    command
        .args(["cluster", "forget", "--node", &context.node_name, "--kubeconfig"])
        .arg(context.cluster.admin_kubeconfig());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.contains("also from 1 pod"),
        "{output:?}"
    );
    let node = context.node()?.object(&context.cluster).await?;
    let pod = context.pod("a").await?;
    ensure!(stuck(&node).is_null() && stuck(&pod).is_null(), "{node}\n{pod}");
    ensure!(kubelets_part(context).await? == before, "{before}");
    Ok(())
}

/// kill -9 while a pod is stuck: the condition and its transition stay, and no event comes twice.
async fn a_restart_of_pleg_keeps_what_was_reported(context: &Context) -> Result<()> {
    let beside = beside_a_kubelet(context).await?;
    let frozen = hang(context, "a").await?;
    let before = until_stuck(context, &beside, "True", PATIENCE).await?;
    beside.kill()?;
    beside.up(&["--report-pod-condition"]).await?;
    until("the trouble to be found again", PATIENCE, async || {
        let (_, health) = beside.get("/api/v1/health").await?;
        let health: Value = serde_json::from_str(&health)?;
        ensure!(
            health["cluster_report"]["stuck"] == true,
            "{}",
            health["cluster_report"]
        );
        ensure!(
            health["causes"].as_array().is_some_and(|causes| !causes.is_empty()),
            "{health}"
        );
        let now = stuck_node(context).await?;
        if now["status"] != "True" || now["lastTransitionTime"] != before["lastTransitionTime"] {
            return Ok(Err(anyhow::anyhow!("before: {before}\nafter: {now}")));
        }
        ensure!(now["lastHeartbeatTime"] != before["lastHeartbeatTime"], "{now}");
        anyhow::Ok(Ok(()))
    })
    .await
    .flatten()
    .with_context(|| beside.log())?;
    frozen.thaw();
    until_stuck(context, &beside, "False", PATIENCE).await?;
    until("the events of the recovery", PATIENCE, async || {
        let of_node = events(context, "default", "Node", &context.node_name).await?;
        let of_pod = events(context, &context.namespace, "Pod", "a").await?;
        for events in [of_node, of_pod] {
            ensure!(events.len() == 2, "{events:?}");
        }
        Ok(())
    })
    .await
    .with_context(|| beside.log())
}

/// A simulated runtime, and a Node object that nobody keeps.
async fn simulated(context: &Context) -> Result<Sim> {
    let node = &context.node_name;
    context
        .kubectl
        .apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: '{node}'}}}}"))
        .await?;
    let dir = context.cluster.dir().join(node);
    std::fs::create_dir_all(&dir)?;
    let config = SimConfig {
        pods: 3,
        ..SimConfig::default()
    };
    Ok(Sim::start(config, Endpoint::unix(dir.join("cri.sock"))).await?)
}

fn hang_web_0(sim: &Sim) -> Result<()> {
    let web_0 = Selector {
        pod: "default/web-0".parse()?,
        container: None,
    };
    sim.hang(Rpc::ContainerStatus, Some(web_0))?;
    Ok(())
}

/// One verb is taken away: one line names it, and once it is granted the state is reported.
async fn a_missing_right_is_named_in_one_line(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let sim = simulated(context).await?;
    account(cluster).await?;
    // An account of its own: others have theirs at the same time.
    let kubectl = context.kubectl.clone();
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: poor}}";
    kubectl.apply(account).await?;
    let token = kubectl.run("create token poor --duration=1h").await?;
    let role = |name: &str, rule: &str| {
        let namespace = &context.namespace;
        format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {{name: {name}}}, rules: [{rule}]}}\n---\n\
             {{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {{name: {name}}}, roleRef: \
             {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {name}}}, subjects: \
             [{{kind: ServiceAccount, name: poor, namespace: '{namespace}'}}]}}"
        )
    };
    kubectl
        .apply(&role("poor-get", "{apiGroups: [''], resources: [nodes], verbs: [get]}"))
        .await?;
    let dir = cluster.dir().join(&context.node_name);
    let beside = Beside::new(
        cluster,
        &dir,
        sim.endpoint(),
        &context.node_name,
        cluster.server(),
        token.trim(),
    )?;
    hang_web_0(&sim)?;
    beside.up(&[]).await?;
    let says = "Grant the verb patch on nodes/status: deploy/rbac.yaml has the rules";
    let lines = || beside.log().lines().filter(|line| line.contains(says)).count();
    until("the line", PATIENCE, async || {
        ensure!(lines() > 0, "{}", beside.log());
        let health = beside.health().await?;
        ensure!(health.contains(says), "{health}");
        let rights = "; missing rights: patch nodes/status, create events";
        ensure!(health.contains(rights), "{health}");
        let events = "Grant the verb create on events";
        ensure!(beside.log().contains(events), "{}", beside.log());
        Ok(())
    })
    .await?;
    kubectl
        .apply(&role(
            "poor-patch",
            "{apiGroups: [''], resources: [nodes/status], verbs: [patch]}",
        ))
        .await?;
    until_stuck(context, &beside, "True", PATIENCE).await?;
    ensure!(lines() == 1, "{}", beside.log());
    Ok(())
}

/// While the API server is away the daemon goes on and says so; afterwards the state is reported, not what happened meanwhile.
async fn an_api_server_that_was_away_learns_the_state(context: &Context) -> Result<()> {
    let cluster = &context.cluster;
    let sim = simulated(context).await?;
    let proxy = FaultProxy::start(cluster, &context.node_name).await?;
    let dir = cluster.dir().join(&context.node_name);
    // The proxy has the node's own certificate, which may write this node's status: no token is needed.
    let beside = Beside::new(cluster, &dir, sim.endpoint(), &context.node_name, proxy.url(), "none")?;
    beside.up(&[]).await?;
    until_stuck(context, &beside, "False", PATIENCE).await?;
    for faults in [
        Faults {
            down: true,
            ..Faults::default()
        },
        Faults {
            status: Some(429),
            ..Faults::default()
        },
    ] {
        proxy.take_counts();
        proxy.set(faults);
        hang_web_0(&sim)?;
        // It is known as degraded here, and as failing to say so.
        until("health to say so", PATIENCE, async || {
            let health = beside.health().await?;
            let cluster = health
                .lines()
                .find(|line| line.starts_with("Cluster: "))
                .unwrap_or_default();
            ensure!(cluster.contains("failing for"), "{health}");
            ensure!(health.contains("Degraded"), "{health}");
            Ok(())
        })
        .await?;
        let (status, metrics) = beside.get("/metrics").await?;
        ensure!(
            status == 200 && metrics.contains("\npleg_report_failing 1\n"),
            "{metrics}"
        );
        let requests: usize = proxy.take_counts().values().sum();
        ensure!(requests < 60, "{requests} requests");
        proxy.set(Faults::default());
        until_stuck(context, &beside, "True", PATIENCE).await?;
        sim.faults().clear();
        until_stuck(context, &beside, "False", PATIENCE).await?;
    }
    let seen = beside.health().await?;
    if !seen.starts_with("Healthy") {
        bail!("{seen}");
    }
    Ok(())
}
