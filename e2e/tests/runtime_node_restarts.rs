//! `pleg node` on real runtimes while everything falls: containers, sandboxes, the runtime, and `pleg node` itself.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::image::Program;
use pleg_e2e::node::{container, is_ready, manifest, runs};
use pleg_e2e::truth::{PodTruth, State};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Node, Truth, Version, process, scenarios, suite};
use rustix::process::Signal;
use serde_json::Value;

fn main() -> ExitCode {
    suite::main_on(&[
        (
            &[Version::V1_7, Version::V2_1, Version::Crio],
            scenarios![
                killed_while_stopping,
                the_restart_matrix,
                the_runtime_and_the_node_fall,
                killed_while_running,
            ],
        ),
        // CRI-O lets whoever asks again for a sandbox whose first caller has vanished wait until the deadline, which is minutes away.
        (&[Version::V1_7, Version::V2_1], scenarios![killed_while_starting]),
    ])
}

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

fn policy_pod(name: &str, policy: &str, container: &str) -> String {
    manifest(
        name,
        &format!("restartPolicy: {policy}, terminationGracePeriodSeconds: 1, containers: [{container}]"),
    )
}

/// What has to become of a pod.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// Started again at least once; the attempt before ended like this.
    Restarted(i64, &'static str),
    /// In this phase, never started again; it ended like this.
    Done(&'static str, i64, &'static str),
    /// Never started, for one of these reasons.
    Waits(&'static [&'static str]),
}

impl Fate {
    fn is(self, pod: &Value) -> bool {
        let (status, phase) = (container(pod, "app"), &pod["status"]["phase"]);
        let ended = |how: &Value, code: i64, reason: &str| {
            // A container that dies with its sandbox has whatever code the runtime made up.
            let any = reason.is_empty() && how["exitCode"].is_i64();
            // On a busy machine containerd learns of an exit before it learns that memory was its reason, or never of the latter.
            let late = reason == "OOMKilled" && how["reason"] == "Error";
            any || (how["exitCode"] == code && (how["reason"] == reason || late))
        };
        let last = &status["lastState"]["terminated"];
        match self {
            Self::Restarted(code, reason) => {
                status["restartCount"].as_u64() >= Some(1) && ended(last, code, reason) && *phase == "Running"
            }
            Self::Done(end, code, reason) => {
                *phase == end && status["restartCount"] == 0 && ended(&status["state"]["terminated"], code, reason)
            }
            Self::Waits(reasons) => {
                *phase == "Pending"
                    && reasons
                        .iter()
                        .any(|reason| status["state"]["waiting"]["reason"] == *reason)
            }
        }
    }
}

/// Three policies, and what may happen to a container; all of them at once.
async fn the_restart_matrix(context: &Context) -> Result<()> {
    use Fate::{Done, Restarted, Waits};
    let node = Node::start(&context.runtime).await?;
    let fails = "livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1}";
    let limit = "resources: {limits: {memory: 24Mi}}";
    let stays = runs("app", &Program::Stubborn, "");
    // Nobody listens there.
    let absent = "{name: app, image: '127.0.0.1:1/none:1'}".to_owned();
    let never = "{name: app, image: 'pleg.test/none:1', imagePullPolicy: Never}".to_owned();
    let pull: &[&str] = &["ErrImagePull", "ImagePullBackOff"];
    let rows: [(&str, String, [Fate; 3]); 7] = [
        (
            "exit-0",
            runs("app", &Program::Exit(0, 100), ""),
            [
                Restarted(0, "Completed"),
                Done("Succeeded", 0, "Completed"),
                Done("Succeeded", 0, "Completed"),
            ],
        ),
        (
            "exit-3",
            runs("app", &Program::Exit(3, 100), ""),
            [Restarted(3, "Error"), Restarted(3, "Error"), Done("Failed", 3, "Error")],
        ),
        (
            "oom",
            runs("app", &Program::Eat(64), limit),
            [
                Restarted(137, "OOMKilled"),
                Restarted(137, "OOMKilled"),
                Done("Failed", 137, "OOMKilled"),
            ],
        ),
        (
            "liveness",
            runs("app", &Program::Stubborn, fails),
            [
                Restarted(137, "Error"),
                Restarted(137, "Error"),
                Done("Failed", 137, "Error"),
            ],
        ),
        (
            "sandbox",
            stays,
            [Restarted(0, ""), Restarted(0, ""), Done("Failed", 0, "")],
        ),
        ("pull", absent, [Waits(pull); 3]),
        ("never", never, [Waits(&["ErrImageNeverPull"]); 3]),
    ];
    for (what, container, _) in &rows {
        for policy in POLICIES {
            let name = format!("{what}-{}", policy.to_lowercase());
            node.write(&format!("{name}.yaml"), &policy_pod(&name, policy, container))?;
        }
    }
    for policy in POLICIES {
        let name = format!("sandbox-{}", policy.to_lowercase());
        node.until_ready(&name).await?;
        let truth = context.truth_of(&name).await?;
        let sandbox = truth.sandboxes.keys().next().context("no sandbox")?;
        context.kubelet.lose_sandbox(sandbox).await?;
    }
    for (what, _, fates) in &rows {
        for (policy, fate) in POLICIES.into_iter().zip(fates) {
            let name = format!("{what}-{}", policy.to_lowercase());
            let patience = 2 * PATIENCE;
            node.until_within(&name, &format!("{fate:?}"), patience, |pod| fate.is(pod))
                .await?;
        }
    }
    nothing_runs_twice(&context.truth().await?)
}

/// A container that dies while the runtime is away, or while nobody of ours is there; and one that does not.
async fn the_runtime_and_the_node_fall(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let names = |what: &str| POLICIES.map(|policy| format!("{what}-{}", policy.to_lowercase()));
    for what in ["lives", "dies", "later"] {
        for (policy, name) in POLICIES.iter().zip(names(what)) {
            let container = runs("app", &Program::Stubborn, "");
            node.write(&format!("{name}.yaml"), &policy_pod(&name, policy, &container))?;
        }
    }
    for name in ["lives", "dies", "later"].into_iter().flat_map(names) {
        node.until_ready(&name).await?;
    }
    let before = ids(&context.truth().await?);
    let mut pids = BTreeMap::new();
    for name in ["dies", "later"].into_iter().flat_map(names) {
        pids.insert(name.clone(), context.pid_of(&name).await?);
    }

    // The runtime goes, a container of each policy dies, the runtime comes back.
    context.runtime.stop().await?;
    for name in names("dies") {
        process::signal(pids[&name], Signal::KILL)?;
    }
    context.runtime.up().await?;
    // What it says of such an end is its own business.
    check(&node, &names("dies")).await?;

    // pleg node goes, the same.
    node.kill().await?;
    for name in names("later") {
        process::signal(pids[&name], Signal::KILL)?;
    }
    node.up(&[]).await?;
    check(&node, &names("later")).await?;
    let after = ids(&context.truth().await?);
    for name in names("lives") {
        ensure!(
            before[&name] == after[&name],
            "{name} was touched: {before:?} {after:?}"
        );
        let pod = node.until_ready(&name).await?;
        ensure!(container(&pod, "app")["restartCount"] == 0, "{pod}");
    }
    Ok(())
}

async fn check(node: &Node, names: &[String; 3]) -> Result<()> {
    for (name, fate) in names.iter().zip([
        Fate::Restarted(0, ""),
        Fate::Restarted(0, ""),
        Fate::Done("Failed", 0, ""),
    ]) {
        node.until(name, &format!("{fate:?}"), |pod| fate.is(pod)).await?;
    }
    Ok(())
}

const CROWD: usize = 6;
/// What a pod has that does not say how long it may take to end.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Pods with an init container, so that a start has many steps.
fn crowd(node: &Node) -> Result<Vec<String>> {
    let names: Vec<String> = (0..CROWD).map(|n| format!("pod-{n}")).collect();
    for name in &names {
        let spec = format!(
            "terminationGracePeriodSeconds: 1, initContainers: [{}], containers: [{}]",
            runs("init", &Program::Exit(0, 50), ""),
            runs("app", &Program::Polite(0), ""),
        );
        node.write(&format!("{name}.yaml"), &manifest(name, &spec))?;
    }
    Ok(names)
}

/// Killed at ever later moments, and started again each time, until all pods run: each has run once.
async fn killed_while_starting(context: &Context) -> Result<()> {
    let node = Node::new(&context.runtime)?;
    let names = crowd(&node)?;
    for delay in [40, 120, 200, 300, 450] {
        node.spawn(&[])?;
        // A moment of its life is what is wanted here, whatever it does then.
        tokio::time::sleep(Duration::from_millis(delay)).await;
        node.kill().await?;
        nothing_runs_twice(&context.truth().await?)?;
    }
    node.up(&[]).await?;
    for name in &names {
        node.until_within(name, "Ready", 2 * PATIENCE, is_ready).await?;
    }
    let truth = context.truth().await?;
    nothing_runs_twice(&truth)?;
    ensure!(truth.pods.len() == CROWD, "{truth}");
    for pod in truth.pods.values() {
        let ready = pod.sandboxes.values().filter(|sandbox| sandbox.ready).count();
        let running = pod.containers.values().filter(|one| one.state == State::Running);
        let apps: Vec<_> = running.map(|one| one.name.as_str()).collect();
        ensure!((ready, apps) == (1, vec!["app"]), "{truth}");
    }
    for name in &names {
        node.remove(&format!("{name}.yaml"))?;
    }
    for name in &names {
        node.until_gone(name).await?;
    }
    let truth = context.truth().await?;
    ensure!(truth.pods.is_empty(), "{truth}");
    // A containerd whose caller vanishes in the middle of a call may forget a shim that it has just started. No call tells of it, so
    // nobody can end it; but it is not to be passed over in silence.
    let shims = context.runtime.monitors()?;
    if !shims.is_empty() {
        let version = context.version();
        writeln!(
            std::io::stderr(),
            "{version} FORGOT SHIMS of calls that were cut off: {shims:?}"
        )?;
    }
    Ok(())
}

/// What runs goes on, what is known stays known.
async fn killed_while_running(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let names = crowd(&node)?;
    let done = runs("app", &Program::Exit(7, 100), "");
    node.write("done.yaml", &policy_pod("done", "Never", &done))?;
    for name in &names {
        node.until_ready(name).await?;
    }
    // One has a history.
    process::signal(context.pid_of("pod-0").await?, Signal::KILL)?;
    let restarted = |pod: &Value| is_ready(pod) && container(pod, "app")["restartCount"] == 1;
    node.until("pod-0", "a restart", restarted).await?;
    node.until("done", "its end", |pod| pod["status"]["phase"] == "Failed")
        .await?;
    until(
        "the sandbox of the one that is done to be stopped",
        PATIENCE,
        async || {
            let truth = context.truth_of("done").await?;
            ensure!(truth.sandboxes.values().all(|sandbox| !sandbox.ready), "{truth:?}");
            Ok(())
        },
    )
    .await?;
    let (seen, said) = (context.truth().await?, told(&node).await?);
    for _ in 0..3 {
        node.kill().await?;
        node.up(&[]).await?;
        until("the same statuses", PATIENCE, async || {
            let now = told(&node).await?;
            ensure!(now == said, "{said:#?}\n{now:#?}");
            Ok(())
        })
        .await?;
        let now = context.truth().await?;
        ensure!(now == seen, "before:\n{seen}after:\n{now}");
    }
    Ok(())
}

/// Nobody is left over. Whoever does not know a pod's manifest any more gives it the time that a pod has by default.
async fn killed_while_stopping(context: &Context) -> Result<()> {
    let node = Node::start(&context.runtime).await?;
    let names = crowd(&node)?;
    let stubborn = runs("app", &Program::Stubborn, "");
    let spec = format!("terminationGracePeriodSeconds: 4, containers: [{stubborn}]");
    node.write("stubborn.yaml", &manifest("stubborn", &spec))?;
    for name in names.iter().map(String::as_str).chain(["stubborn"]) {
        node.until_ready(name).await?;
    }
    for name in names.iter().map(String::as_str).chain(["stubborn"]) {
        node.remove(&format!("{name}.yaml"))?;
    }
    for delay in [150, 250] {
        tokio::time::sleep(Duration::from_millis(delay)).await;
        node.kill().await?;
        node.up(&[]).await?;
    }
    until("everything to be gone", PATIENCE + DEFAULT_GRACE, async || {
        let truth = context.truth().await?;
        ensure!(truth.pods.is_empty(), "{truth}");
        Ok(())
    })
    .await
    .with_context(|| node.log_tail())?;
    until("the node to know", PATIENCE, async || {
        let pods = node.pods().await?;
        ensure!(pods.is_empty(), "{pods:?}");
        Ok(())
    })
    .await?;
    for dir in ["logs", "pods"] {
        let left: Vec<_> = std::fs::read_dir(node.dir().join(dir)).into_iter().flatten().collect();
        ensure!(left.is_empty(), "{dir}: {left:?}");
    }
    Ok(())
}

/// Of each pod what is said, without the times at which conditions were noticed.
async fn told(node: &Node) -> Result<BTreeMap<String, Value>> {
    let mut told = BTreeMap::new();
    for mut pod in node.pods().await? {
        for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"] = Value::Null;
        }
        told.insert(pod["metadata"]["name"].to_string(), pod["status"].clone());
    }
    Ok(told)
}

fn nothing_runs_twice(truth: &Truth) -> Result<()> {
    for pod in truth.pods.values() {
        let mut running: Vec<&str> = Vec::new();
        for one in pod.containers.values().filter(|one| one.state == State::Running) {
            ensure!(
                !running.contains(&one.name.as_str()),
                "{} runs twice: {truth}",
                one.name
            );
            running.push(&one.name);
        }
    }
    Ok(())
}

/// The running container of each pod, by the name in its manifest.
fn ids(truth: &Truth) -> BTreeMap<String, String> {
    let mut ids = BTreeMap::new();
    for pod in truth.pods.values() {
        let running = pod.containers.iter().find(|(_, one)| one.state == State::Running);
        if let Some((id, _)) = running {
            ids.insert(pod.name.trim_end_matches("-n").to_owned(), id.clone());
        }
    }
    ids
}

trait TruthByName {
    async fn truth_of(&self, name: &str) -> Result<PodTruth>;
    async fn pid_of(&self, name: &str) -> Result<i32>;
}

impl TruthByName for Context {
    /// The pod of that name in a manifest.
    async fn truth_of(&self, name: &str) -> Result<PodTruth> {
        let (truth, name) = (self.truth().await?, format!("{name}-n"));
        let found = truth.pods.into_values().find(|pod| pod.name == name);
        found.with_context(|| format!("there is no pod {name}"))
    }

    /// The process of its running container.
    async fn pid_of(&self, name: &str) -> Result<i32> {
        let truth = self.truth().await?;
        let id = ids(&truth)
            .remove(name)
            .with_context(|| format!("{name} does not run"))?;
        self.kubelet.container_pid(&id).await
    }
}
