//! `pleg node` on real runtimes: pods come, are replaced, and go, with all that a manifest can ask for.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pleg_cri::list::POD_UID_LABEL;
use pleg_cri::v1;
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, is_ready, manifest, runs};
use pleg_e2e::steps::app;
use pleg_e2e::truth::State;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Pod, Version, process, scenarios, suite, version};
use rustix::process::Signal;
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
            init_containers_and_a_sidecar,
            hooks_run,
            probes_ask,
            an_outage_fails_no_probe,
            containers_start_and_end_in_order,
            a_pod_network_has_addresses,
            a_log_stays_within_bounds,
            a_pod_has_a_cgroup_of_its_class,
            a_pod_is_evicted_under_pressure,
            the_image_of_sandboxes_is_never_collected,
        ],
    )])
}

const EXAMPLE: &str = include_str!("../../examples/web.yaml");
/// A sandbox is gone this long after its last container's end, at the latest.
const SOON_GONE: Duration = Duration::from_secs(1);

/// A port that nobody has. Somebody else may take it a moment later, which is not likely.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// What a web server says.
async fn page(address: String) -> Result<String> {
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(&address).with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        anyhow::Ok(answer)
    });
    asked.await?
}

fn uid(pod: &Value) -> Result<String> {
    Ok(pod["metadata"]["uid"]
        .as_str()
        .context("a pod without a UID")?
        .to_owned())
}

/// Nothing of any pod is left: neither in the runtime nor on the disk nor among the cgroups.
async fn nothing_is_left(context: &Context, node: &Node) -> Result<()> {
    let truth = context.truth().await?;
    ensure!(truth.pods.is_empty(), "{truth}");
    for dir in ["logs", "pods", "containers"] {
        let left: Vec<_> = std::fs::read_dir(node.dir().join(dir)).into_iter().flatten().collect();
        ensure!(left.is_empty(), "{dir}: {left:?}");
    }
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(top)?
        .flatten()
        .map(|entry| entry.path())
        .chain([top.to_owned()]);
    for hierarchy in hierarchies {
        // The cgroups of the classes stay, as a kubelet's do.
        for class in ["kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            let group = hierarchy.join(context.runtime.home().cgroup()).join(class);
            let groups = std::fs::read_dir(&group)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            let is_pod = |path: &std::path::PathBuf| {
                let name = path.file_name().unwrap_or_default();
                path.is_dir() && name.to_string_lossy().starts_with("pod")
            };
            let left: Vec<_> = groups.filter(is_pod).collect();
            ensure!(left.is_empty(), "cgroups: {left:?}");
        }
    }
    Ok(())
}

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
    // A sidecar that falls is put up again, beside the container.
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
    // Whose post-start hook fails is killed, and started again.
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

/// The value of a file of a pod's cgroup: its name in version 1, and in version 2.
fn cgroup_value(cgroup: &str, [v1, v2]: [&str; 2]) -> Result<String> {
    let top = Path::new("/sys/fs/cgroup");
    let path = if top.join("cgroup.controllers").exists() {
        top.join(cgroup).join(v2)
    } else {
        let controller = v1.split('.').next().unwrap_or_default();
        top.join(controller).join(cgroup).join(v1)
    };
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// The limits of the whole pod are on its cgroup, and its containers are in it.
async fn a_pod_has_a_cgroup_of_its_class(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let limits = "limits: {cpu: 500m, memory: 64Mi}";
    for (name, resources) in [
        ("guaranteed", limits.to_owned()),
        ("burstable", format!("{limits}, requests: {{cpu: 250m}}")),
        ("besteffort", String::new()),
    ] {
        let more = format!("resources: {{{resources}}}");
        let container = runs("app", &Program::Stubborn, &more);
        node.write(
            &format!("{name}.yaml"),
            &manifest(
                name,
                &format!("terminationGracePeriodSeconds: 0, containers: [{container}]"),
            ),
        )?;
    }
    let root = context.runtime.home().cgroup();
    for (name, class, shares, memory) in [
        ("guaranteed", "", ["512", "20"], Some("67108864")),
        ("burstable", "/burstable", ["256", "10"], Some("67108864")),
        ("besteffort", "/besteffort", ["2", "1"], None),
    ] {
        let pod = node.until_ready(name).await?;
        let cgroup = format!("{root}/kubepods{class}/pod{}", uid(&pod)?);
        let weight = cgroup_value(&cgroup, ["cpu.shares", "cpu.weight"])?;
        ensure!(shares.contains(&weight.as_str()), "{name}: weight {weight}");
        let limit = cgroup_value(&cgroup, ["memory.limit_in_bytes", "memory.max"])?;
        match memory {
            Some(memory) => ensure!(limit == memory, "{name}: memory limit {limit}"),
            None => ensure!(limit == "max" || limit.len() > 15, "{name}: memory limit {limit}"),
        }
        let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
        let id = id.rsplit('/').next().unwrap_or_default();
        // The container's processes are charged to the pod. CRI-O puts its name before the id.
        let usage = |name: &str| {
            let cgroup = format!("{cgroup}/{name}");
            cgroup_value(&cgroup, ["memory.usage_in_bytes", "memory.current"])
        };
        let own = usage(id).or_else(|_| usage(&format!("crio-{id}")))?;
        ensure!(own.parse::<u64>()? > 0, "{name}: {own}");
    }
    let burstable = cgroup_value(&format!("{root}/kubepods/burstable"), ["cpu.shares", "cpu.weight"])?;
    ensure!(["256", "10"].contains(&burstable.as_str()), "class: {burstable}");
    for name in ["guaranteed", "burstable", "besteffort"] {
        node.remove(&format!("{name}.yaml"))?;
        node.until_gone(name).await?;
    }
    nothing_is_left(context, &node).await
}

/// containerd is stopped, then frozen: nobody who is probed by a command is restarted for it. A command that hangs is a failure.
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
    tokio::time::sleep(Duration::from_secs(5)).await;
    context.runtime.up().await?;
    node.until_ready("well").await?;
    let frozen = context.runtime.pause()?;
    tokio::time::sleep(Duration::from_secs(15)).await;
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

/// Main containers start after the post-start hook of the one before; the sidecar ends last, within one grace period.
async fn containers_start_and_end_in_order(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let hook = "lifecycle: {postStart: {exec: {command: [sleep, '2']}}, preStop: {exec: {command: [sleep, '2']}}}";
    let side = "restartPolicy: Always, lifecycle: {preStop: {exec: {command: [sleep, '2']}}}";
    let spec = format!(
        "restartPolicy: Never, activeDeadlineSeconds: 8, terminationGracePeriodSeconds: 5, initContainers: [{}], containers: [{}, {}]",
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

/// With a threshold that no machine reaches: every pod is evicted, and says what it used.
async fn a_pod_is_evicted_under_pressure(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&["--eviction-hard", "memory.available<1000Ti"]).await?;
    let requests = "resources: {requests: {memory: 1Mi}}";
    let eats = runs("app", &Program::Eat(20), requests);
    node.write("p.yaml", &manifest("p", &format!("containers: [{eats}]")))?;
    let waits = runs("app", &Program::Stubborn, "");
    node.write(
        "q.yaml",
        &manifest("q", &format!("terminationGracePeriodSeconds: 0, containers: [{waits}]")),
    )?;
    let is_evicted = |pod: &Value| pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted";
    let evicted = node.until("p", "eviction", is_evicted).await?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1000Ti, available: "),
        "{message}"
    );
    ensure!(message.contains("Container app was using "), "{message}");
    // A best-effort pod does not even start.
    let not_admitted = |pod: &Value| pod["status"]["message"] == "The node had condition: [MemoryPressure]. ";
    node.until("q", "refusal", not_admitted).await?;
    until("its end", PATIENCE, async || {
        let truth = context.truth().await?;
        let runs = truth.to_string().contains("Running");
        ensure!(!runs, "{truth}");
        Ok(())
    })
    .await?;
    let (_, conditions) = node.get("/api/v1/node/conditions").await?;
    ensure!(conditions.contains("KubeletHasInsufficientMemory"), "{conditions}");
    // It stays evicted without the pressure, and the other one starts.
    node.stop().await?;
    node.up(&[]).await?;
    node.until_ready("q").await?;
    node.until("p", "eviction", is_evicted).await?;
    node.remove("p.yaml")?;
    node.remove("q.yaml")?;
    node.until_gone("p").await?;
    node.until_gone("q").await?;
    nothing_is_left(context, &node).await
}

/// Every disk is too full for these thresholds, and no container exists: only that sandboxes need the image keeps it.
async fn the_image_of_sandboxes_is_never_collected(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&[
        "--image-gc-high-threshold",
        "1",
        "--image-gc-low-threshold",
        "0",
        "--image-minimum-gc-age",
        "0s",
    ])
    .await?;
    until("a collection", PATIENCE, async || {
        let (_, metrics) = node.get("/metrics").await?;
        let failures = metrics
            .lines()
            .find_map(|line| line.strip_prefix("pleg_node_image_gc_failures_total "));
        ensure!(failures.is_some_and(|count| count != "0"), "{failures:?}");
        Ok(())
    })
    .await?;
    let images = context.runtime.client().call(v1::ListImagesRequest::default()).await?;
    ensure!(!images.images.is_empty(), "the image is gone");
    node.write(
        "p.yaml",
        &manifest("p", &format!("containers: [{}]", runs("app", &Program::Stubborn, ""))),
    )?;
    node.until_ready("p").await?;
    Ok(())
}

/// What was written is in the log that was put aside, and what is written next in the one that was begun.
async fn a_log_stays_within_bounds(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    node.up(&["--container-log-max-size", "4Ki", "--container-log-max-files", "2"])
        .await?;
    let talks = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; while true; do echo tick; sleep 1; done";
    let talks = runs("app", &Program::Shell(talks.to_owned()), "");
    node.write(
        "p.yaml",
        &manifest("p", &format!("terminationGracePeriodSeconds: 0, containers: [{talks}]")),
    )?;
    let pod = node.until_ready("p").await?;
    let directory = node.dir().join(format!("logs/default_p-n_{}/app", uid(&pod)?));
    let id = container(&pod, "app")["containerID"].as_str().unwrap_or_default();
    let id = id.rsplit('/').next().unwrap_or_default();
    let link = node.dir().join(format!("containers/p-n_default_app-{id}.log"));
    ensure!(
        std::fs::read_link(&link)? == directory.join("0.log"),
        "{}",
        link.display()
    );
    until("a log that was put aside, and a new one", PATIENCE, async || {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            names.push(entry?.path());
        }
        names.sort();
        let [now, before] = names.as_slice() else {
            bail!("{names:?}");
        };
        ensure!(std::fs::read_to_string(before)?.contains("line 499"), "{names:?}");
        let written = std::fs::read_to_string(now)?;
        ensure!(written.contains("tick") && !written.contains("line"), "{written}");
        Ok(())
    })
    .await?;
    node.remove("p.yaml")?;
    node.until_gone("p").await?;
    nothing_is_left(context, &node).await
}

async fn probes_ask(context: &Context) -> Result<()> {
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

/// With plugins that make a pair of interfaces for each pod, which go with its namespace: the host keeps nothing.
async fn a_pod_network_has_addresses(context: &Context) -> Result<()> {
    version::tool("usr/lib/cni/ptp").context("NO POD NETWORK WAS TESTED: the plugins are missing")?;
    let home = context.runtime.home().dir();
    // All of them at once, on one host.
    let net = match context.version() {
        Version::V1_7 => 17,
        Version::V2_1 => 21,
        _ => 36,
    };
    // Of this runtime alone: runtimes share a record of attachments, and CRI-O clears away those of a network that are not its own.
    let name = context.runtime.home().cgroup();
    let conf = format!(
        r#"{{"cniVersion": "0.4.0", "name": "{name}", "plugins": [{{"type": "ptp", "ipam": {{"type": "host-local",
        "subnet": "10.213.{net}.0/24", "dataDir": "{}"}}}}]}}"#,
        home.join("ipam").display()
    );
    std::fs::write(home.join("cni/10-test.conflist"), conf)?;
    let node = Node::start(&context.runtime).await?;
    let shows = runs(
        "app",
        &Program::Shell("echo $IP > index.html; exec httpd -f -p 80".to_owned()),
        "workingDir: /tmp, env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}], \
         readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}",
    );
    let spec = manifest("p", &format!("terminationGracePeriodSeconds: 0, containers: [{shows}]"))
        .replace("hostNetwork: true", "hostNetwork: false");
    node.write("p.yaml", &spec)?;
    let pod = node.until_ready("p").await?;
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    ensure!(ip.starts_with(&format!("10.213.{net}.")), "{pod}");
    let said = page(format!("{ip}:80")).await?;
    ensure!(said.contains(&ip), "{said}");
    // The sandbox dies, and with it the address; the next one has another.
    let sandboxes = context.truth().await?;
    let sandbox = sandboxes.pods.values().flat_map(|pod| pod.sandboxes.keys()).next();
    context.kubelet.lose_sandbox(sandbox.context("no sandbox")?).await?;
    let again = node
        .until("p", "another address", |pod| {
            let next = pod["status"]["podIP"].as_str();
            is_ready(pod) && next.is_some_and(|next| next != ip)
        })
        .await?;
    let next = again["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let said = page(format!("{next}:80")).await?;
    ensure!(said.contains(&next), "{said}");
    node.remove("p.yaml")?;
    node.until_gone("p").await?;
    nothing_is_left(context, &node).await?;
    let leases = std::fs::read_dir(home.join("ipam").join(name))?.flatten();
    let held: Vec<_> = leases
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("10."))
        .collect();
    ensure!(held.is_empty(), "addresses that nobody gives back: {held:?}");
    Ok(())
}
