//! What has to hold once it is quiet: what runs is what the API server wants, and its statuses are what the runtime says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use pleg_cri::list::POD_UID_LABEL;
use pleg_cri::v1;
use pleg_e2e::cluster::suite::Context;
use pleg_e2e::kubelet::CONTAINER_NAME_LABEL;
use pleg_e2e::node::{container, is_ready};
use serde_json::Value;

use crate::machine::Machine;

/// What the runtime has of one pod.
#[derive(Debug, Default)]
struct Own {
    ready_sandboxes: usize,
    containers: Vec<v1::ContainerStatus>,
}

impl Own {
    fn running(&self) -> impl Iterator<Item = &v1::ContainerStatus> {
        let all = self.containers.iter();
        all.filter(|one| one.state() == v1::ContainerState::ContainerRunning)
    }
}

pub(crate) async fn right(context: &Context, machine: &Machine, statics: &BTreeMap<String, Value>) -> Result<()> {
    let pods = context.pods("").await?;
    let mut runtime = observe(machine).await?;
    let mut mirrors = BTreeSet::new();
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
        ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{name} has not ended");
        let annotations = &pod["metadata"]["annotations"];
        let uid = if annotations["kubernetes.io/config.mirror"].is_string() {
            mirrors.insert(name.to_owned());
            &annotations["kubernetes.io/config.hash"]
        } else {
            &pod["metadata"]["uid"]
        };
        let own = runtime.remove(uid.as_str().unwrap_or_default()).unwrap_or_default();
        compare(pod, &own).with_context(|| format!("pod {name}, {}", pod["status"]))?;
    }
    let wanted: BTreeSet<String> = statics
        .keys()
        .map(|name| format!("{name}-{}", context.node_name))
        .collect();
    ensure!(mirrors == wanted, "mirror pods {mirrors:?} instead of {wanted:?}");
    for (uid, own) in &runtime {
        let running = own.running().count();
        ensure!(
            running == 0 && own.ready_sandboxes == 0,
            "nobody wants pod {uid}, of which {running} containers run: {own:?}"
        );
    }
    Ok(())
}

fn compare(pod: &Value, own: &Own) -> Result<()> {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        ensure!(own.running().count() == 0, "it is over, and runs: {own:?}");
        return own.containers.iter().try_for_each(|one| compare_ended(pod, one));
    }
    ensure!(phase == "Running" && is_ready(pod), "it is not ready");
    ensure!(
        own.ready_sandboxes == 1,
        "it has {} ready sandboxes",
        own.ready_sandboxes
    );
    let spec = &pod["spec"];
    let lists = [&spec["containers"], &spec["initContainers"]].map(|list| list.as_array().cloned());
    let all = lists.into_iter().flatten().flatten();
    let stay: Vec<Value> = all
        .filter(|one| {
            one["restartPolicy"] == "Always" || spec["containers"].as_array().is_some_and(|all| all.contains(one))
        })
        .collect();
    ensure!(
        own.running().count() == stay.len(),
        "{} containers run: {own:?}",
        own.running().count()
    );
    for wanted in &stay {
        let name = wanted["name"].as_str().unwrap_or_default();
        let runs = own
            .running()
            .find(|one| one.labels.get(CONTAINER_NAME_LABEL).is_some_and(|found| found == name));
        let runs = runs.with_context(|| format!("{name} does not run: {own:?}"))?;
        compare_running(container(pod, name), wanted, runs).with_context(|| format!("container {name}"))?;
    }
    Ok(())
}

fn compare_running(status: &Value, wanted: &Value, runs: &v1::ContainerStatus) -> Result<()> {
    let id = status["containerID"].as_str().unwrap_or_default();
    ensure!(id.ends_with(&runs.id), "{} runs", runs.id);
    let since = Timestamp::from_nanosecond(runs.started_at.into())?.as_second();
    let said: Timestamp = status["state"]["running"]["startedAt"]
        .as_str()
        .unwrap_or_default()
        .parse()?;
    ensure!(said.as_second() == since, "it runs since {since}");
    let attempt = runs.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    ensure!(status["restartCount"] == attempt, "it was restarted {attempt} times");
    let image = runs
        .image
        .as_ref()
        .map_or("", |image| image.user_specified_image.as_str());
    ensure!(
        image.is_empty() || wanted["image"] == image,
        "it runs {image} instead of {}",
        wanted["image"]
    );
    Ok(())
}

/// A container of a pod that is over has the exit code that the API server has, if it is the one that the API server means.
fn compare_ended(pod: &Value, ended: &v1::ContainerStatus) -> Result<()> {
    let name = ended.labels.get(CONTAINER_NAME_LABEL).map_or("", String::as_str);
    let status = container(pod, name);
    let is_it = status["containerID"].as_str().is_some_and(|id| id.ends_with(&ended.id));
    let code = &status["state"]["terminated"]["exitCode"];
    let created_only = ended.state() != v1::ContainerState::ContainerExited;
    ensure!(
        !is_it || created_only || *code == ended.exit_code,
        "{name} ended with {}",
        ended.exit_code
    );
    Ok(())
}

/// All that the runtime has, by the UID of the pod.
async fn observe(machine: &Machine) -> Result<BTreeMap<String, Own>> {
    let client = machine.client();
    let uid = |labels: &HashMap<String, String>| labels.get(POD_UID_LABEL).cloned().unwrap_or_default();
    let mut pods: BTreeMap<String, Own> = BTreeMap::new();
    for sandbox in client.call(v1::ListPodSandboxRequest::default()).await?.items {
        let own = pods.entry(uid(&sandbox.labels)).or_default();
        own.ready_sandboxes += usize::from(sandbox.state() == v1::PodSandboxState::SandboxReady);
    }
    for listed in client.call(v1::ListContainersRequest::default()).await?.containers {
        let request = v1::ContainerStatusRequest {
            container_id: listed.id,
            verbose: false,
        };
        let status = client.call(request).await?.status.context("no status")?;
        pods.entry(uid(&listed.labels)).or_default().containers.push(status);
    }
    Ok(pods)
}
