//! What reaches a pod through the node's own server: logs, exec, cp, port-forward, and statistics.

#![allow(missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::cluster::suite::{self, Context, PATIENCE, Place, RUNTIMES};
use pleg_e2e::node::container;
use pleg_e2e::wait::until;
use pleg_e2e::{cluster_scenarios, image};

fn main() -> ExitCode {
    suite::main(&[(
        Place::SharedNode,
        &RUNTIMES,
        cluster_scenarios![
            logs_are_shown,
            commands_run_in_a_container,
            a_running_container_is_attached_to,
            a_pod_is_debugged,
            files_are_copied,
            a_port_is_forwarded,
            statistics_are_served,
        ],
    )])
}

/// A pod with one container that runs a script; more fields of the pod's spec, and of the container.
async fn run(context: &Context, name: &str, script: &str, pod: &str, container: &str) -> Result<()> {
    let (image, script) = (image::NAME, serde_json::to_string(script)?);
    let manifest = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, {pod} containers: \
         [{{name: app, image: '{image}', imagePullPolicy: Never, {container} command: [/bin/sh, -c, {script}]}}]}}}}"
    );
    context.kubectl.apply(&manifest).await?;
    Ok(())
}

async fn logs_are_shown(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    let script = "for i in 1 2 3 4 5; do echo line $i; done; echo wrong >&2; exec sleep 1000000";
    run(context, "talks", script, "", "").await?;
    context.until_pod_ready("talks").await?;
    until("the whole log", PATIENCE, async || {
        let all = kubectl.run("logs talks").await?;
        ensure!(all.lines().count() == 6, "{all}");
        Ok(())
    })
    .await?;
    let last = kubectl.run("logs talks --tail=2").await?;
    ensure!(last.lines().count() == 2, "{last}");
    let bytes = kubectl.run("logs talks --limit-bytes=4").await?;
    ensure!(bytes.len() == 4, "{bytes}");
    let stamped = kubectl.run("logs talks -c app --timestamps --tail=1").await?;
    ensure!(stamped.starts_with("20") && stamped.contains('T'), "{stamped}");
    let recent = kubectl.run("logs talks --since=1h").await?;
    ensure!(recent.lines().count() == 6, "{recent}");
    let refused = kubectl.fails("logs talks -c other").await?;
    ensure!(refused.contains("other"), "{refused}");
    // Of the container before this one.
    let script =
        "if [ -f /shared/once ]; then echo second; exec sleep 1000000; fi; touch /shared/once; echo first; exit 1";
    let shared = "volumes: [{name: shared, emptyDir: {}}],";
    let mounts = "volumeMounts: [{name: shared, mountPath: /shared}],";
    run(context, "again", script, shared, mounts).await?;
    let restarted = |pod: &serde_json::Value| {
        let app = container(pod, "app");
        app["restartCount"] == 1 && app["state"]["running"].is_object()
    };
    context.until_pod("again", "the second run", restarted).await?;
    until("the log of the first run", PATIENCE, async || {
        let (now, before) = (
            kubectl.run("logs again").await?,
            kubectl.run("logs again --previous").await?,
        );
        ensure!(now.trim() == "second" && before.trim() == "first", "{now}{before}");
        Ok(())
    })
    .await?;
    // To the end of the container.
    run(
        context,
        "ends",
        "for i in 1 2 3; do echo $i; sleep 1; done",
        "restartPolicy: Never,",
        "",
    )
    .await?;
    let started = |pod: &serde_json::Value| pod["status"]["phase"] != "Pending";
    context.until_pod("ends", "the start", started).await?;
    let followed = kubectl.run("logs ends --follow").await?;
    ensure!(followed.lines().count() == 3, "{followed}");
    Ok(())
}

/// Over web sockets, which are kubectl's default, and over SPDY.
async fn commands_run_in_a_container(context: &Context) -> Result<()> {
    run(context, "p", "exec sleep 1000000", "", "").await?;
    context.until_pod_ready("p").await?;
    for kubectl in [context.kubectl.clone(), context.kubectl.clone().over_spdy()] {
        let said = kubectl
            .run_args(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2"])
            .await?;
        ensure!(said == "out\n", "{said}");
        let output = kubectl.command(&["exec", "p", "--", "sh", "-c", "exit 3"])?.output()?;
        ensure!(output.status.code() == Some(3), "{output:?}");
        let echoed = kubectl
            .run_with_input(&["exec", "-i", "p", "--", "cat"], "hello\nyou\n")
            .await?;
        ensure!(echoed == "hello\nyou\n", "{echoed}");
        let refused = kubectl.fails("exec p -- no-such-program").await?;
        ensure!(refused.contains("no-such-program"), "{refused}");
    }
    Ok(())
}

/// What is typed reaches the container, and what it says comes back, until it ends.
async fn a_running_container_is_attached_to(context: &Context) -> Result<()> {
    let echoes = "while read line; do echo got $line; done; echo the end";
    for (name, kubectl) in [
        ("websocket", context.kubectl.clone()),
        ("spdy", context.kubectl.clone().over_spdy()),
    ] {
        run(
            context,
            name,
            echoes,
            "restartPolicy: Never,",
            "stdin: true, stdinOnce: true,",
        )
        .await?;
        context.until_pod_ready(name).await?;
        let said = kubectl.run_with_input(&["attach", "-i", name], "one\ntwo\n").await?;
        ensure!(said.contains("got one") && said.contains("got two"), "{name}: {said}");
        let done = |pod: &serde_json::Value| pod["status"]["phase"] == "Succeeded";
        context.until_pod(name, "its end", done).await?;
    }
    let refused = context.kubectl.fails("attach websocket").await?;
    ensure!(refused.contains("completed pod"), "{refused}");
    Ok(())
}

/// An ephemeral container in the process namespace of another one.
async fn a_pod_is_debugged(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    run(context, "p", "exec sleep 1000000", "", "").await?;
    let before = context.until_pod_ready("p").await?;
    let script = "cat /proc/1/cmdline; echo; exec sleep 1000000";
    let image = format!("--image={}", image::NAME);
    kubectl
        .run_args(&[
            "debug",
            "p",
            &image,
            "--image-pull-policy=Never",
            "--target=app",
            "--container=debugger",
            "--",
            "/bin/sh",
            "-c",
            script,
        ])
        .await?;
    let runs = |pod: &serde_json::Value| {
        let statuses = pod["status"]["ephemeralContainerStatuses"].as_array();
        statuses.is_some_and(|all| all.iter().any(|one| one["state"]["running"].is_object()))
    };
    let after = context.until_pod("p", "the debugger", runs).await?;
    until("what the debugger says", PATIENCE, async || {
        let said = kubectl.run("logs p -c debugger").await?;
        // Process 1 is that of the container under examination.
        ensure!(said.contains("1000000"), "{said}");
        Ok(())
    })
    .await?;
    let said = kubectl.run("exec p -c debugger -- cat /proc/1/cmdline").await?;
    ensure!(said.contains("sleep"), "{said}");
    let id = |pod: &serde_json::Value| container(pod, "app")["containerID"].clone();
    ensure!(id(&before) == id(&after), "{}", after["status"]);
    Ok(())
}

async fn files_are_copied(context: &Context) -> Result<()> {
    let kubectl = &context.kubectl;
    run(context, "p", "exec sleep 1000000", "", "").await?;
    context.until_pod_ready("p").await?;
    let dir = tempfile::tempdir()?;
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&there, &content)?;
    let name = |path: &std::path::Path| path.display().to_string();
    kubectl.run_args(&["cp", &name(&there), "p:/tmp/file"]).await?;
    kubectl.run_args(&["cp", "p:/tmp/file", &name(&back)]).await?;
    ensure!(std::fs::read(&back)? == content, "the file came back changed");
    Ok(())
}

/// kubectl in the background, until this is dropped.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn a_port_is_forwarded(context: &Context) -> Result<()> {
    let serves = "echo served > /tmp/index.html; exec httpd -f -p 80 -h /tmp";
    run(
        context,
        "p",
        serves,
        "",
        "readinessProbe: {httpGet: {port: 80}, periodSeconds: 1},",
    )
    .await?;
    context.until_pod_ready("p").await?;
    let mut command = context.kubectl.command(&["port-forward", "pod/p", ":80"])?;
    let forward = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .stdin(Stdio::null());
    let mut forward = Background(forward.spawn()?);
    let stdout = forward.0.stdout.take().context("no output")?;
    let read = move || -> Result<_> {
        let (mut line, mut stdout) = (String::new(), BufReader::new(stdout));
        stdout.read_line(&mut line)?;
        Ok((line, stdout))
    };
    // Forwarding from 127.0.0.1:41234 -> 80. It writes more for each connection, and ends when nobody can read that.
    let (line, _stdout) = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(read)).await???;
    let address = line.split(' ').nth(2).context("kubectl names no address")?.to_owned();
    for _ in 0..2 {
        let address = address.clone();
        let get = move || -> Result<String> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            Ok(said)
        };
        let said = tokio::task::spawn_blocking(get).await??;
        ensure!(said.ends_with("served\n"), "{said}");
    }
    Ok(())
}

/// What metrics-server reads, through the API server.
async fn statistics_are_served(context: &Context) -> Result<()> {
    run(context, "p", "exec sleep 1000000", "", "").await?;
    context.until_pod_ready("p").await?;
    let proxy = format!("/api/v1/nodes/{}/proxy", context.node_name);
    let namespace = &context.namespace;
    until("the pod in the statistics", PATIENCE, async || {
        let metrics = context
            .kubectl
            .run(&format!("get --raw {proxy}/metrics/resource"))
            .await?;
        let pod = format!("namespace=\"{namespace}\",pod=\"p\"");
        for name in ["container_memory_working_set_bytes", "pod_cpu_usage_seconds_total"] {
            let found = metrics
                .lines()
                .any(|line| line.starts_with(name) && line.contains(&pod));
            ensure!(found, "no {name} of the pod in:\n{metrics}");
        }
        Ok(())
    })
    .await?;
    let summary = context.kubectl.run(&format!("get --raw {proxy}/stats/summary")).await?;
    let summary: serde_json::Value = serde_json::from_str(&summary)?;
    ensure!(
        summary["node"]["nodeName"] == context.node_name.as_str(),
        "{}",
        summary["node"]
    );
    let pods = context.kubectl.run(&format!("get --raw {proxy}/pods")).await?;
    ensure!(pods.contains(namespace), "{pods}");
    Ok(())
}
