//! What a reporter beside a kubelet tells the cluster, what it must leave alone, and what there is to tell: a container that hangs.

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::suite::Context;
use crate::node::container;
use crate::process::{self, Frozen};

/// The type of the condition.
pub const STUCK: &str = "pleg.io/Stuck";

/// Our condition of an object; null if it has none.
pub fn stuck(object: &Value) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    let mut ours = conditions.into_iter().flatten().filter(|one| one["type"] == STUCK);
    ours.next().cloned().unwrap_or_default()
}

/// Our condition of the scenario's node.
pub async fn stuck_node(context: &Context) -> Result<Value> {
    let path = format!("/api/v1/nodes/{}", context.node_name);
    Ok(stuck(&context.cluster.get(&path).await?))
}

/// Events of pleg about an object, as `TYPE REASON COUNT`.
pub async fn events(context: &Context, namespace: &str, kind: &str, name: &str) -> Result<Vec<String>> {
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let list = context.cluster.get(&path).await?;
    let is_ours = |event: &&Value| {
        let object = &event["involvedObject"];
        event["source"]["component"] == "pleg" && object["kind"] == kind && object["name"] == name
    };
    let line = |event: &Value| {
        let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", word("type"), word("reason"), event["count"])
    };
    let mut lines: Vec<String> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_ours)
        .map(line)
        .collect();
    lines.sort_unstable();
    Ok(lines)
}

/// Whether these are a warning and its end, once each.
pub fn is_one_pair(events: &[String]) -> bool {
    matches!(events, [end, start] if end == "Normal Recovered 1" && start.starts_with("Warning ") && start.ends_with(" 1"))
}

/// What must not change: labels, taints, and the kubelet's conditions.
pub async fn kubelets_part(context: &Context) -> Result<String> {
    let node = context.node()?.object(&context.cluster).await?;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.iter().filter(|one| one["type"] != STUCK);
    let others: Vec<String> = others
        .map(|one| {
            format!(
                "{} {} {} {}",
                one["type"], one["status"], one["reason"], one["lastTransitionTime"]
            )
        })
        .collect();
    Ok(format!("{} {} {others:#?}", node["metadata"]["labels"], node["spec"]))
}

/// Stops the process that watches the container `app` of a pod, and kills the container: the runtime goes on to call it running.
pub async fn hang(context: &Context, pod: &str) -> Result<Frozen> {
    let pod = context.pod(pod).await?;
    let id = container(&pod, "app")["containerID"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let id = id.rsplit('/').next().unwrap_or_default();
    let runtime = context.node()?.runtime();
    let pid = runtime.kubelet().container_pid(id).await?;
    let sandbox = sandbox_of(context, id).await?;
    let frozen = Frozen::new(runtime.monitor(&sandbox, id)?.pid)?;
    process::signal(pid, Signal::KILL)?;
    Ok(frozen)
}

async fn sandbox_of(context: &Context, id: &str) -> Result<String> {
    let request = pleg_cri::v1::ListContainersRequest { filter: None };
    let listed = context.node()?.runtime().client().call(request).await?;
    let found = listed.containers.into_iter().find(|container| container.id == id);
    Ok(found.context("the container is not listed")?.pod_sandbox_id)
}

/// `kubectl describe` of the node and of a pod name the stuck container: in the condition, and in a warning of each.
pub async fn described(context: &Context, pod: &str) -> Result<()> {
    let of_node = context
        .kubectl
        .run_args(&["describe", "node", &context.node_name])
        .await?;
    let of_pod = context.kubectl.run_args(&["describe", "pod", pod]).await?;
    let full_name = format!("{}/{pod}", context.namespace);
    let condition = of_node.lines().find(|line| line.contains(STUCK)).unwrap_or_default();
    let is_named = |text: &str| text.contains(&full_name);
    anyhow::ensure!(condition.contains("True") && is_named(condition), "{condition}");
    for (text, what) in [(&of_node, "node"), (&of_pod, "pod")] {
        let mut events = text
            .lines()
            .filter(|line| line.contains("Warning") && line.contains("pleg"));
        anyhow::ensure!(events.any(is_named), "no event of the {what}:\n{text}");
    }
    Ok(())
}
