//! The containers of a pod of `pleg node` on real runtimes: their order, hooks and probes.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use pleg_cri::v1;
use pleg_e2e::checks::free_port;
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, is_ready, manifest, runs};
use pleg_e2e::truth::State;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Version, process, scenarios, suite};
use rustix::process::Signal;
use serde_json::Value;

fn main() -> ExitCode {
    suite::main_on(&[(
        &[Version::V1_7, Version::V2_1, Version::Crio],
        scenarios![
            init_containers_and_a_sidecar,
            hooks_run,
            probes_decide_about_readiness_and_restarts,
            an_outage_fails_no_probe,
            containers_start_and_end_in_order,
        ],
    )])
}

async fn init_containers_and_a_sidecar(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let spec = format!(
        "restartPolicy: Never, terminationGracePeriodSeconds: 2, initContainers: [{}, {}, {}], containers: [{}]",
        runs("one", &Program::Exit(0, 300), ""),
        runs("side", &Program::Polite(0), "restartPolicy: Always"),
        runs("two", &Program::Exit(0, 300), ""),
        runs("app", &Program::Exit(0, 2000), ""),
    );
    node.write("p.yaml", &manifest("p", &spec))?;
    node.until_ready("p").await?;
    let listed = context
        .runtime
        .client()
        .call(v1::ListContainersRequest::default())
        .await?;
    let mut made = listed.containers;
    made.sort_by_key(|one| one.created_at);
    let names: Vec<String> = made
        .iter()
        .map(|one| one.metadata.clone().unwrap_or_default().name)
        .collect();
    ensure!(names == ["one", "side", "two", "app"], "{names:?}");
    for pair in [(0, 1), (2, 3)] {
        let ended = context.kubelet.status(&made[pair.0].id).await?.finished_at;
        ensure!(ended > 0 && made[pair.1].created_at >= ended, "{pair:?}");
    }
    // A sidecar that dies is restarted while the main container runs.
    let pid = context.kubelet.container_pid(&made[1].id).await?;
    process::signal(pid, Signal::KILL)?;
    node.until("p", "the sidecar again", |pod| {
        let side = container(pod, "side");
        side["restartCount"] == 1 && side["state"]["running"].is_object()
    })
    .await?;
    // The container's end is the pod's, and the sidecar's.
    let done = node
        .until("p", "success", |pod| pod["status"]["phase"] == "Succeeded")
        .await?;
    ensure!(container(&done, "app")["restartCount"] == 0, "{done}");
    until("the sidecar's end", PATIENCE, async || {
        let truth = context.truth().await?;
        let mut containers = truth.pods.values().flat_map(|pod| pod.containers.values());
        ensure!(containers.all(|one| one.state == State::Exited), "{truth}");
        ensure!(
            truth
                .pods
                .values()
                .flat_map(|pod| pod.sandboxes.values())
                .all(|one| !one.ready)
        );
        Ok(())
    })
    .await
}

async fn hooks_run(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let shared = node.dir().join("shared");
    std::fs::create_dir(&shared)?;
    let exec = |file: &str| format!("{{exec: {{command: [touch, /shared/{file}]}}}}");
    let hooks = format!(
        "volumeMounts: [{{name: shared, mountPath: /shared}}], lifecycle: {{postStart: {}, preStop: {}}}",
        exec("started"),
        exec("stopping")
    );
    let fails = "lifecycle: {postStart: {exec: {command: ['false']}}}";
    node.write(
        "p.yaml",
        &manifest(
            "p",
            &format!(
                "terminationGracePeriodSeconds: 1, volumes: [{{name: shared, hostPath: {{path: {}, type: Directory}}}}], \
                 containers: [{}]",
                shared.display(),
                runs("app", &Program::Stubborn, &hooks)
            ),
        ),
    )?;
    node.write(
        "q.yaml",
        &manifest(
            "q",
            &format!(
                "terminationGracePeriodSeconds: 0, containers: [{}]",
                runs("app", &Program::Stubborn, fails)
            ),
        ),
    )?;
    node.until_ready("p").await?;
    ensure!(shared.join("started").exists() && !shared.join("stopping").exists());
    // A container whose post-start hook fails is killed and restarted.
    let killed = node
        .until("q", "a restart", |pod| {
            container(pod, "app")["restartCount"].as_u64() >= Some(1)
        })
        .await?;
    let last = &container(&killed, "app")["lastState"]["terminated"];
    ensure!(last["exitCode"] == 137, "{killed}");
    node.remove("p.yaml")?;
    node.until_gone("p").await?;
    ensure!(shared.join("stopping").exists(), "no pre-stop hook ran");
    ensure!(context.truth().await?.pods.len() == 1);
    Ok(())
}

async fn probes_decide_about_readiness_and_restarts(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let shared = node.dir().join("shared");
    std::fs::create_dir(&shared)?;
    let port = free_port()?;
    let mount = "volumeMounts: [{name: shared, mountPath: /shared}]";
    let every = "periodSeconds: 1, failureThreshold: 1";
    let exec = format!(
        "{mount}, readinessProbe: {{exec: {{command: [test, -f, /shared/ready]}}, {every}}}, \
         livenessProbe: {{exec: {{command: [test, '!', -f, /shared/dead]}}, {every}}}"
    );
    let asked = format!(
        "startupProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1, failureThreshold: 20}}, \
         readinessProbe: {{httpGet: {{port: {port}}}, {every}}}"
    );
    let spec = |container: &str| {
        manifest(
            if container.contains("exec:") { "exec" } else { "net" },
            &format!(
                "terminationGracePeriodSeconds: 0, volumes: [{{name: shared, hostPath: {{path: {}}}}}], \
                 containers: [{container}]",
                shared.display()
            ),
        )
    };
    node.write("exec.yaml", &spec(&runs("app", &Program::Stubborn, &exec)))?;
    node.write("net.yaml", &spec(&runs("app", &Program::Serve(port), &asked)))?;
    let served = node.until_ready("net").await?;
    ensure!(container(&served, "app")["started"] == true, "{served}");
    let running = |pod: &Value| container(pod, "app")["state"]["running"].is_object();
    let runs_unready = |pod: &Value| running(pod) && !is_ready(pod);
    node.until("exec", "running, not ready", runs_unready).await?;
    std::fs::write(shared.join("ready"), "")?;
    node.until_ready("exec").await?;
    std::fs::remove_file(shared.join("ready"))?;
    node.until("exec", "not ready any more", runs_unready).await?;
    std::fs::write(shared.join("dead"), "")?;
    let restarted = |pod: &Value| container(pod, "app")["restartCount"].as_u64() >= Some(1);
    node.until("exec", "a restart", restarted).await?;
    let after = node.until_ready("net").await?;
    ensure!(container(&after, "app")["restartCount"] == 0, "{after}");
    Ok(())
}

/// The runtime is stopped, then frozen. A probe that the runtime cannot run says nothing about its container, so no container is restarted.
/// A command that hangs while the runtime answers is a failed probe.
async fn an_outage_fails_no_probe(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let every = "periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1";
    let probed = |command: &str| {
        let probe = format!("{{exec: {{command: [{command}]}}, {every}}}");
        let probes =
            format!("startupProbe: {{exec: {{command: ['true']}}}}, livenessProbe: {probe}, readinessProbe: {probe}");
        format!(
            "terminationGracePeriodSeconds: 0, containers: [{}]",
            runs("app", &Program::Stubborn, &probes)
        )
    };
    node.write("well.yaml", &manifest("well", &probed("'true'")))?;
    let before = node.until_ready("well").await?;
    context.runtime.stop().await?;
    until_probes_have_no_result(&node, 2).await?;
    context.runtime.up().await?;
    node.until_ready("well").await?;
    let frozen = context.runtime.pause()?;
    // A call to a frozen runtime lasts until its deadline, ten seconds and more.
    until_probes_have_no_result(&node, 1).await?;
    frozen.thaw();
    node.write("slow.yaml", &manifest("slow", &probed("sleep, '60'")))?;
    let restarted = |pod: &Value| container(pod, "app")["restartCount"].as_u64() >= Some(1);
    node.until("slow", "a restart", restarted).await?;
    let after = node.until_ready("well").await?;
    let (before, after) = (container(&before, "app"), container(&after, "app"));
    ensure!(before["containerID"] == after["containerID"], "{before} is now {after}");
    ensure!(after["restartCount"] == 0, "{after}");
    Ok(())
}

/// Waits until the runtime could not run this many more liveness probes.
async fn until_probes_have_no_result(node: &Node, more: u64) -> Result<()> {
    let unknown = async || {
        let (_, metrics) = node.get("/metrics").await?;
        let series = "pleg_node_probes_total{probe_type=\"liveness\",result=\"unknown\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        anyhow::Ok(value.map_or(Ok(0), str::parse::<u64>)?)
    };
    let before = unknown().await?;
    until("liveness probes without a result", PATIENCE, async || {
        let now = unknown().await?;
        ensure!(now >= before + more, "{before}, now {now}");
        Ok(())
    })
    .await
}

/// Main containers start after the post-start hook of the one before; the sidecar ends last, within one grace period.
async fn containers_start_and_end_in_order(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let hook = "lifecycle: {postStart: {exec: {command: [sleep, '2']}}, preStop: {exec: {command: [sleep, '2']}}}";
    let side = "restartPolicy: Always, lifecycle: {preStop: {exec: {command: [sleep, '2']}}}";
    let spec = format!(
        "restartPolicy: Never, activeDeadlineSeconds: 12, terminationGracePeriodSeconds: 5, initContainers: [{}], containers: [{}, {}]",
        runs("side", &Program::Polite(0), side),
        runs("a", &Program::Polite(0), hook),
        runs("b", &Program::Polite(0), ""),
    );
    node.write("p.yaml", &manifest("p", &spec))?;
    let failed = node
        .until("p", "failure", |pod| pod["status"]["phase"] == "Failed")
        .await?;
    ensure!(failed["status"]["reason"] == "DeadlineExceeded", "{failed}");
    let truth = context.truth().await?;
    let mut all = truth.pods.values().flat_map(|pod| pod.containers.values());
    ensure!(
        all.all(|one| one.state == State::Exited),
        "failed while something runs: {truth}"
    );
    let listed = context
        .runtime
        .client()
        .call(v1::ListContainersRequest::default())
        .await?;
    let mut times = std::collections::BTreeMap::new();
    for one in listed.containers {
        let status = context.kubelet.status(&one.id).await?;
        times.insert(
            one.metadata.unwrap_or_default().name,
            (status.started_at, status.finished_at),
        );
    }
    let seconds = |from: i64, to: i64| (to - from) / 1_000_000_000;
    let (side, a, b) = (times["side"], times["a"], times["b"]);
    ensure!(seconds(a.0, b.0) >= 2, "b started beside the hook of a: {times:?}");
    ensure!(
        side.1 >= a.1 && side.1 >= b.1,
        "the sidecar ended before the others: {times:?}"
    );
    Ok(())
}
