//! One pod, from a runtime without a daemon: two lists, and then only what the pod has.
//!
//! A generator would ask for every pod of the node before it could say anything about one. What answers is shown; the first call that
//! does not is the pod's error.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use pleg::runtime::{Error, ErrorKind};
use pleg::{ContainerId, ContainerStatus, CriRuntime, Runtime as _, SandboxId, SandboxState, SandboxStatus, Trouble};
use pleg_cri::{Client, ListFilter, Subject};
use serde_json::json;
use tokio::time::Instant;

use crate::{waiting, wire};

/// Calls in flight at once: a pod may have hundreds of dead containers.
const AT_ONCE: usize = 32;

/// A sandbox of the list. Of a pod without a UID there is nothing to show.
#[derive(Debug)]
struct Sandbox {
    id: String,
    pod: wire::PodRef,
}

/// A container of the list. The labels name its pod where the sandbox is not listed.
#[derive(Debug)]
struct Container {
    id: String,
    sandbox: String,
    name: String,
    labelled: wire::PodRef,
}

/// The pods that `wanted` takes, by namespace, name and UID. Every pod of the node is offered once.
pub(crate) async fn pods(
    client: &Client,
    mut wanted: impl FnMut(&str, &str, &str) -> bool,
) -> anyhow::Result<Vec<wire::Pod>> {
    let inflight = client.inflight().clone();
    waiting::told(|| waiting::oldest_call(&inflight), async {
        let (sandboxes, containers) = lists(client).await?;
        let mut found = group(sandboxes, containers);
        found.retain(|pod| wanted(&pod.pod.namespace, &pod.pod.name, &pod.pod.uid));
        let runtime = CriRuntime::new(client.clone());
        let mut pods = Vec::new();
        for pod in found {
            pods.push(inspect(&runtime, pod).await?);
        }
        Ok(pods)
    })
    .await
}

async fn lists(client: &Client) -> Result<(Vec<Sandbox>, Vec<Container>), Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut sandboxes, mut containers) = (Vec::new(), Vec::new());
    let both = futures_util::future::try_join(
        client.list_sandboxes(&ListFilter::All, |item| {
            let uid = if item.uid.is_empty() {
                item.pod_uid_label
            } else {
                item.uid
            };
            sandboxes.push(Sandbox {
                id: text(item.id),
                pod: wire::PodRef {
                    uid: text(uid),
                    namespace: text(item.namespace),
                    name: text(item.name),
                },
            });
        }),
        client.list_containers(&ListFilter::All, |item| {
            containers.push(Container {
                id: text(item.id),
                sandbox: text(item.pod_sandbox_id),
                name: text(item.name),
                labelled: wire::PodRef {
                    uid: text(item.pod_uid_label),
                    namespace: text(item.pod_namespace_label),
                    name: text(item.pod_name_label),
                },
            });
        }),
    );
    both.await?;
    Ok((sandboxes, containers))
}

/// A pod, and what the lists have of it.
#[derive(Debug)]
struct Listed {
    pod: wire::PodRef,
    sandboxes: Vec<SandboxId>,
    containers: Vec<(ContainerId, Arc<str>)>,
}

/// The pods of the lists, by namespace and name.
fn group(sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> Vec<Listed> {
    let mut pods: HashMap<String, Listed> = HashMap::new();
    let mut of_sandbox: HashMap<String, wire::PodRef> = HashMap::new();
    let listed = |pod: wire::PodRef| Listed {
        pod,
        sandboxes: Vec::new(),
        containers: Vec::new(),
    };
    for sandbox in sandboxes {
        if sandbox.id.is_empty() || sandbox.pod.uid.is_empty() {
            continue;
        }
        let entry = pods
            .entry(sandbox.pod.uid.clone())
            .or_insert_with(|| listed(sandbox.pod.clone()));
        entry.sandboxes.push(sandbox.id.as_str().into());
        of_sandbox.insert(sandbox.id, sandbox.pod);
    }
    for container in containers {
        let pod = of_sandbox.get(&container.sandbox).unwrap_or(&container.labelled);
        if container.id.is_empty() || pod.uid.is_empty() {
            continue;
        }
        let entry = pods.entry(pod.uid.clone()).or_insert_with(|| listed(pod.clone()));
        let id = (container.id.as_str().into(), container.name.as_str().into());
        entry.containers.push(id);
    }
    let mut pods: Vec<Listed> = pods.into_values().collect();
    pods.sort_by_cached_key(|listed| {
        let pod = &listed.pod;
        (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
    });
    pods
}

/// What went away meanwhile is left out; what does not answer is the error.
fn answered<T>(answers: Vec<Result<T, Error>>, error: &mut Option<Error>) -> Vec<T> {
    let mut found = Vec::new();
    for answer in answers {
        match answer {
            Ok(status) => found.push(status),
            Err(failed) if failed.kind.is_not_found() => {}
            Err(failed) => {
                error.get_or_insert(failed);
            }
        }
    }
    found
}

async fn inspect(runtime: &CriRuntime, listed: Listed) -> anyhow::Result<wire::Pod> {
    let began = Instant::now();
    let name: Arc<str> = listed.pod.full_name().into();
    let sandboxes = stream::iter(&listed.sandboxes).map(|id| {
        let subject = Subject::sandbox(Arc::clone(&name), id.shared());
        async move { runtime.sandbox_status(&subject, id).await }
    });
    let containers = stream::iter(&listed.containers).map(|(id, container)| {
        let subject = Subject::container(Arc::clone(&name), Arc::clone(container), id.shared());
        async move { runtime.container_status(&subject, id, container).await }
    });
    let (sandboxes, containers): (Vec<_>, Vec<_>) = futures_util::future::join(
        sandboxes.buffered(AT_ONCE).collect(),
        containers.buffered(AT_ONCE).collect(),
    )
    .await;
    let mut error = None;
    let mut sandboxes: Vec<SandboxStatus> = answered(sandboxes, &mut error);
    let mut containers: Vec<ContainerStatus> = answered(containers, &mut error);
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    containers.sort_by_key(|container| container.created_at);
    let with_address = sandboxes
        .iter()
        .find(|sandbox| sandbox.state == SandboxState::Ready)
        .or(sandboxes.first());
    let ips: &[IpAddr] = with_address.map_or(&[], |sandbox| &sandbox.ips);
    let shape = json!({"pod": listed.pod, "ips": ips, "sandboxes": sandboxes, "containers": containers});
    let mut pod: wire::Pod = serde_json::from_value(shape)?;
    pod.inspected_at = Some(Timestamp::now());
    pod.error = error.map(|error| described(&error, began.elapsed()));
    Ok(pod)
}

fn described(error: &Error, waited: Duration) -> wire::PodError {
    let trouble = match &error.kind {
        ErrorKind::Deadline(_) => Trouble::StuckInspection,
        kind if kind.is_unreachable() => Trouble::RuntimeDown,
        _ => Trouble::NotInspectable,
    };
    wire::PodError {
        message: error.to_string(),
        trouble: trouble.name().to_owned(),
        rpc: error.rpc.name().to_owned(),
        container: error.subject.container.as_deref().map(str::to_owned),
        id: error.subject.id.as_deref().map(str::to_owned),
        sandbox: None,
        attempts: 1,
        age_seconds: waited.as_secs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> wire::PodRef {
        wire::PodRef {
            uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: format!("pod-{uid}"),
        }
    }

    #[test]
    fn containers_belong_to_their_sandbox_or_their_label() {
        let sandbox = |id: &str, uid: &str| Sandbox {
            id: id.to_owned(),
            pod: pod(uid),
        };
        let container = |id: &str, sandbox: &str, uid: &str| Container {
            id: id.to_owned(),
            sandbox: sandbox.to_owned(),
            name: id.to_owned(),
            labelled: pod(uid),
        };
        let pods = group(
            vec![
                sandbox("s1", "a"),
                sandbox("s2", "a"),
                sandbox("s3", "b"),
                sandbox("s4", ""),
            ],
            vec![
                container("c1", "s1", "wrong"),
                container("c2", "gone", "c"),
                container("c3", "gone", ""),
                container("", "s1", "a"),
            ],
        );
        let found: Vec<_> = pods
            .iter()
            .map(|listed| (listed.pod.uid.as_str(), listed.sandboxes.len(), listed.containers.len()))
            .collect();
        assert_eq!(found, [("a", 2, 1), ("b", 1, 0), ("c", 0, 1)]);
    }
}
