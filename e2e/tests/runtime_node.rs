//! `pleg node` on real runtimes: pods come, are replaced, and go.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_cri::list::POD_UID_LABEL;
use pleg_cri::v1;
use pleg_e2e::checks::{free_port, nothing_is_left, page, uid};
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, is_ready, manifest, runs};
use pleg_e2e::steps::app;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Pod, Version, process, scenarios, suite};
use serde_json::Value;
use tokio::time::Instant;

fn main() -> ExitCode {
    suite::main_on(&[(
        &[Version::V1_7, Version::V2_1, Version::Crio],
        scenarios![
            the_example_runs_is_replaced_and_goes,
            a_removed_pod_has_its_grace_and_leaves_nothing,
            a_crash_loop_backs_off_and_that_outlives_us,
            others_pods_are_never_touched,
        ],
    )])
}

const EXAMPLE: &str = include_str!("../../examples/web.yaml");
/// A sandbox is gone this long after its last container's end, at the latest.
const SOON_GONE: Duration = Duration::from_secs(1);

async fn the_example_runs_is_replaced_and_goes(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let port = free_port()?;
    // Two versions run at once, and this is the host's network.
    let example = EXAMPLE.replace("8080", &port.to_string());
    ensure!(example != EXAMPLE, "the example has another port by now");
    node.write("web.yaml", &example)?;
    let began = Instant::now();
    let first = node.until_ready("web").await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    let address = format!("127.0.0.1:{port}");
    let said = page(address.clone()).await?;
    ensure!(said.contains("hello from web-n on n"), "{said}");
    ensure!(first["status"]["podIP"] == "127.0.0.1", "{first}");

    node.write("web.yaml", &example.replace("hello", "good day"))?;
    let changed = |pod: &Value| is_ready(pod) && pod["metadata"]["uid"] != first["metadata"]["uid"];
    node.until("web", "the new one", changed).await?;
    let said = page(address).await?;
    ensure!(said.contains("good day from web-n on n"), "{said}");
    let truth = context.truth().await?;
    ensure!(truth.pods.len() == 1, "only the new one is there: {truth}");

    node.remove("web.yaml")?;
    node.until_gone("web").await?;
    nothing_is_left(context, &node).await?;
    // Alone on a runtime it follows the events also of a containerd that hands each to one subscriber only.
    let has_events = context.version().has_events();
    until_mode(&node, if has_events { "evented" } else { "generic" }).await?;
    node.stop().await
}

/// Waits until changes are found like this.
async fn until_mode(node: &Node, mode: &str) -> Result<()> {
    until(&format!("mode {mode}"), PATIENCE, async || {
        let (_, health) = node.get("/api/v1/health").await?;
        let health: Value = serde_json::from_str(&health)?;
        let reason = health["mode"]["reason"].as_str().unwrap_or_default();
        // Before it has asked it says neither.
        let reasons: &[&str] = match mode {
            "generic" => &["subscriber", "ends its event stream immediately"],
            _ => &["is up"],
        };
        let decided = reasons.iter().any(|words| reason.contains(words));
        ensure!(health["mode"]["mode"] == mode && decided, "{}", health["mode"]);
        Ok(())
    })
    .await
}

/// When the last container of a pod had ended, and when no sandbox of it was left.
async fn end_of(context: &Context, uid: &str) -> Result<[Instant; 2]> {
    let client = context.runtime.client();
    let labels = || [(POD_UID_LABEL.to_owned(), uid.to_owned())].into();
    until("the end of a pod", PATIENCE, async || {
        let filter = v1::ContainerFilter {
            label_selector: labels(),
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..Default::default()
        };
        let running = client.call(v1::ListContainersRequest { filter: Some(filter) }).await?;
        ensure!(running.containers.is_empty(), "a container runs");
        Ok(())
    })
    .await?;
    let ended = Instant::now();
    until("a sandbox to be gone", PATIENCE, async || {
        let filter = v1::PodSandboxFilter {
            label_selector: labels(),
            ..Default::default()
        };
        let left = client.call(v1::ListPodSandboxRequest { filter: Some(filter) }).await?;
        ensure!(left.items.is_empty(), "it is there");
        Ok(())
    })
    .await?;
    Ok([ended, Instant::now()])
}

async fn a_removed_pod_has_its_grace_and_leaves_nothing(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let stubborn = runs("app", &Program::Stubborn, "");
    let polite = runs("app", &Program::Polite(0), "");
    node.write(
        "stubborn.yaml",
        &manifest(
            "stubborn",
            &format!("terminationGracePeriodSeconds: 3, containers: [{stubborn}]"),
        ),
    )?;
    node.write(
        "polite.yaml",
        &manifest(
            "polite",
            &format!("terminationGracePeriodSeconds: 60, containers: [{polite}]"),
        ),
    )?;
    let stubborn = uid(&node.until_ready("stubborn").await?)?;
    let polite = uid(&node.until_ready("polite").await?)?;
    let log = node.dir().join(format!("logs/default_polite-n_{polite}/app/0.log"));
    until("the trap to be set", PATIENCE, async || {
        let text = std::fs::read_to_string(&log)?;
        ensure!(text.contains("ready"), "{text}");
        Ok(())
    })
    .await?;
    let removed = Instant::now();
    node.remove("stubborn.yaml")?;
    node.remove("polite.yaml")?;
    let (stubborn, polite) = tokio::try_join!(end_of(context, &stubborn), end_of(context, &polite))?;
    for (name, [ended, gone], least, most) in [("stubborn", stubborn, 3.0, 5.0), ("polite", polite, 0.0, 2.5)] {
        let took = (ended - removed).as_secs_f64();
        ensure!((least..most).contains(&took), "{name} ended after {took} s");
        ensure!(
            gone - ended <= SOON_GONE,
            "{name} was gone {:?} after its end",
            gone - ended
        );
    }
    node.until_gone("stubborn").await?;
    node.until_gone("polite").await?;
    nothing_is_left(context, &node).await
}

async fn a_crash_loop_backs_off_and_that_outlives_us(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let crash = runs("app", &Program::Exit(3, 300), "");
    node.write("crash.yaml", &manifest("crash", &format!("containers: [{crash}]")))?;
    let waits = |pod: &Value| {
        let status = container(pod, "app");
        status["restartCount"] == 1 && status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    };
    // The first restart comes at once, the second one has to wait.
    let before = node.until("crash", "the back-off", waits).await?;
    ensure!(
        container(&before, "app")["lastState"]["terminated"]["exitCode"] == 3,
        "{before}"
    );
    node.kill().await?;
    node.up(&[]).await?;
    let after = node.until("crash", "the back-off again", waits).await?;
    ensure!(
        container(&before, "app")["lastState"] == container(&after, "app")["lastState"],
        "{before}\n{after}"
    );
    let count = |pod: &Value| container(pod, "app")["restartCount"] == 2;
    node.until("crash", "the second restart", count).await?;
    let [first, second] = [attempt(context, 1).await?, attempt(context, 2).await?];
    let waited = Duration::from_nanos(u64::try_from(second.created_at - first.finished_at)?);
    ensure!(
        (10.0..12.0).contains(&waited.as_secs_f64()),
        "the second restart came after {waited:?}"
    );
    Ok(())
}

/// The one container with that number.
async fn attempt(context: &Context, attempt: u32) -> Result<v1::ContainerStatus> {
    let listed = context
        .runtime
        .client()
        .call(v1::ListContainersRequest::default())
        .await?;
    let is = |one: &v1::Container| one.metadata.as_ref().is_some_and(|it| it.attempt == attempt);
    let found = listed.containers.into_iter().find(is);
    context.kubelet.status(&found.context("it is not there")?.id).await
}

/// A kubelet's, say: on the same socket, and with the same name.
async fn others_pods_are_never_touched(context: &Context) -> Result<()> {
    let theirs = context.kubelet.run_pod(&Pod::new("web-n")).await?;
    let alive = context.kubelet.run(&theirs, &app()).await?;
    let ends = pleg_e2e::Container::new("job", Program::Exit(1, 0));
    let dead = context.kubelet.run(&theirs, &ends).await?;
    context.kubelet.wait_for_exit(&dead).await?;
    let before = context.truth().await?;
    let node = Node::new(&context.runtime)?;
    node.write(
        "web.yaml",
        &manifest(
            "web",
            &format!(
                "terminationGracePeriodSeconds: 1, containers: [{}]",
                runs("app", &Program::Polite(0), "")
            ),
        ),
    )?;
    let (code, said) = node.refused(&[]).await?;
    ensure!(code == Some(1) && said.contains("default/web-n"), "{code:?}: {said}");
    ensure!(context.truth().await? == before, "it refused and acted");

    node.up(&["--share-runtime"]).await?;
    node.until_ready("web").await?;
    ensure!(context.truth().await?.pods.len() == 2, "theirs and ours");
    // It takes nothing from whoever is there.
    let takes = context.version() == Version::V2_1;
    until_mode(&node, if takes { "evented" } else { "generic" }).await?;
    node.remove("web.yaml")?;
    node.until_gone("web").await?;
    // And once more when it finds them at its start.
    node.kill().await?;
    node.up(&["--share-runtime"]).await?;
    node.write(
        "other.yaml",
        &manifest(
            "other",
            &format!(
                "terminationGracePeriodSeconds: 1, containers: [{}]",
                runs("app", &Program::Polite(0), "")
            ),
        ),
    )?;
    node.until_ready("other").await?;
    node.remove("other.yaml")?;
    node.until_gone("other").await?;
    let after = context.truth().await?;
    ensure!(after == before, "before:\n{before}after:\n{after}");
    ensure!(process::alive(context.kubelet.container_pid(&alive).await?));
    Ok(())
}
