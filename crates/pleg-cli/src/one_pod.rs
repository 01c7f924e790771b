//! One pod, from a runtime without a daemon: two lists, and then the status calls for that pod only.
//!
//! A generator would inspect every pod of the node first. Objects that do not answer are shown as they are listed, with the error; the
//! first such error is the pod's error.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use pleg::runtime::{Error, ErrorKind};
use pleg::{
    ContainerRef, ContainerState, ContainerStatus, CriRuntime, PodRef, PodStatus, PodUid, Runtime as _, SandboxState,
    SandboxStatus, Trouble,
};
use pleg_cri::{Client, ListFilter, Subject};
use tokio::time::Instant;

use crate::text::pod_name;
use crate::{waiting, wire};

/// Maximum number of calls in flight: a pod may have hundreds of dead containers.
const AT_ONCE: usize = 32;

/// A listed sandbox. A pod without a UID cannot be shown.
#[derive(Debug)]
struct Sandbox {
    id: String,
    pod: PodRef,
    /// Its listed state.
    status: SandboxStatus,
}

/// A listed container. Its labels name the pod if the sandbox is not listed.
#[derive(Debug)]
struct Container {
    sandbox: String,
    labelled: PodRef,
    /// Its listed state.
    status: ContainerStatus,
}

/// The listed pods that `choose` selects.
pub(crate) async fn pods(client: &Client, choose: impl FnOnce(&mut Vec<Listed>)) -> anyhow::Result<Vec<wire::Pod>> {
    let inflight = client.inflight().clone();
    waiting::told(|| waiting::oldest_call(&inflight), async {
        let (sandboxes, containers) = lists(client).await?;
        let mut found = group(sandboxes, containers);
        choose(&mut found);
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
            let id = text(item.id);
            let state = SandboxState::from_wire(item.state);
            sandboxes.push(Sandbox {
                status: SandboxStatus::listed(&id.as_str().into(), state, item.attempt, item.created_at),
                id,
                pod: PodRef {
                    uid: text(uid).into(),
                    namespace: text(item.namespace).into(),
                    name: text(item.name).into(),
                },
            });
        }),
        client.list_containers(&ListFilter::All, |item| {
            let container = ContainerRef {
                id: text(item.id).as_str().into(),
                name: text(item.name).into(),
                attempt: item.attempt,
            };
            let state = ContainerState::from_wire(item.state);
            containers.push(Container {
                status: ContainerStatus::listed(&container, state, item.created_at),
                sandbox: text(item.pod_sandbox_id),
                labelled: PodRef {
                    uid: text(item.pod_uid_label).into(),
                    namespace: text(item.pod_namespace_label).into(),
                    name: text(item.pod_name_label).into(),
                },
            });
        }),
    );
    both.await?;
    Ok((sandboxes, containers))
}

/// A pod and its listed objects.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) pod: PodRef,
    sandboxes: Vec<SandboxStatus>,
    containers: Vec<ContainerStatus>,
}

impl Listed {
    /// The ids of its sandboxes and containers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        let sandboxes = self.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
        sandboxes.chain(self.containers.iter().map(|container| container.id.as_str()))
    }
}

/// The listed pods, by namespace and name.
fn group(sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> Vec<Listed> {
    let mut pods: HashMap<PodUid, Listed> = HashMap::new();
    let mut of_sandbox: HashMap<String, PodRef> = HashMap::new();
    let listed = |pod: PodRef| Listed {
        pod,
        sandboxes: Vec::new(),
        containers: Vec::new(),
    };
    for sandbox in sandboxes {
        if sandbox.id.is_empty() || sandbox.pod.uid.as_str().is_empty() {
            continue;
        }
        let entry = pods
            .entry(sandbox.pod.uid.clone())
            .or_insert_with(|| listed(sandbox.pod.clone()));
        entry.sandboxes.push(sandbox.status);
        of_sandbox.insert(sandbox.id, sandbox.pod);
    }
    for container in containers {
        let pod = of_sandbox.get(&container.sandbox).unwrap_or(&container.labelled);
        if container.status.id.as_str().is_empty() || pod.uid.as_str().is_empty() {
            continue;
        }
        let entry = pods.entry(pod.uid.clone()).or_insert_with(|| listed(pod.clone()));
        entry.containers.push(container.status);
    }
    let mut pods: Vec<Listed> = pods.into_values().collect();
    pods.sort_by_cached_key(|listed| {
        let pod = &listed.pod;
        (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
    });
    pods
}

async fn inspect(runtime: &CriRuntime, listed: Listed) -> anyhow::Result<wire::Pod> {
    let began = Instant::now();
    let name: Arc<str> = pod_name(&listed.pod).into();
    let sandboxes = stream::iter(listed.sandboxes).map(|listed| {
        let subject = Subject::sandbox(Arc::clone(&name), listed.id.shared());
        async move { (runtime.sandbox_status(&subject, &listed.id).await, listed) }
    });
    let containers = stream::iter(listed.containers).map(|listed| {
        let subject = Subject::container(Arc::clone(&name), Arc::clone(&listed.name), listed.id.shared());
        async move {
            let status = runtime.container_status(&subject, &listed.id, &listed.name).await;
            (status, listed)
        }
    });
    let (sandboxes, containers): (Vec<_>, Vec<_>) = futures_util::future::join(
        sandboxes.buffered(AT_ONCE).collect(),
        containers.buffered(AT_ONCE).collect(),
    )
    .await;
    let mut stale = Vec::new();
    let waited = began.elapsed();
    let mut sandboxes: Vec<SandboxStatus> = answered(sandboxes, &mut stale, |listed, error| wire::StalePart {
        kind: "sandbox".to_owned(),
        id: listed.id.as_str().to_owned(),
        name: None,
        attempt: None,
        listed: Some(listed.state.to_string()),
        error: Some(described(error, waited)),
    });
    let mut containers: Vec<ContainerStatus> = answered(containers, &mut stale, |listed, error| wire::StalePart {
        kind: "container".to_owned(),
        id: listed.id.as_str().to_owned(),
        name: Some(listed.name.as_ref().to_owned()),
        attempt: Some(listed.attempt),
        listed: Some(listed.state.to_string()),
        error: Some(described(error, waited)),
    });
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    containers.sort_by_key(|container| container.created_at);
    let with_address = sandboxes
        .iter()
        .find(|sandbox| sandbox.state == SandboxState::Ready)
        .or(sandboxes.first());
    let status = PodStatus {
        pod: listed.pod,
        ips: with_address.map_or_else(Default::default, |sandbox| sandbox.ips.clone()),
        sandboxes: sandboxes.into(),
        containers: containers.into(),
    };
    let shape = serde_json::to_value(wire::PodJson::asked(&status, Timestamp::now()))?;
    let mut pod: wire::Pod = serde_json::from_value(shape)?;
    pod.error = stale.first().and_then(|part| part.error.clone());
    pod.stale = stale;
    Ok(pod)
}

/// Objects that were removed in the meantime are omitted; objects that do not answer keep their listed state and are stale.
fn answered<T>(
    answers: Vec<(Result<T, Error>, T)>,
    stale: &mut Vec<wire::StalePart>,
    part: impl Fn(&T, &Error) -> wire::StalePart,
) -> Vec<T> {
    let mut found = Vec::new();
    for (answer, listed) in answers {
        match answer {
            Ok(status) => found.push(status),
            Err(failed) if failed.kind.is_not_found() => {}
            Err(failed) => {
                stale.push(part(&listed, &failed));
                found.push(listed);
            }
        }
    }
    found
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

    fn pod(uid: &str) -> PodRef {
        PodRef {
            uid: uid.into(),
            namespace: "ns".into(),
            name: format!("pod-{uid}").into(),
        }
    }

    #[test]
    fn containers_belong_to_their_sandbox_or_their_label() {
        let sandbox = |id: &str, uid: &str| Sandbox {
            id: id.to_owned(),
            pod: pod(uid),
            status: SandboxStatus::listed(&id.into(), SandboxState::Ready, 0, 1),
        };
        let container = |id: &str, sandbox: &str, uid: &str| {
            let container = ContainerRef {
                id: id.into(),
                name: id.into(),
                attempt: 0,
            };
            Container {
                sandbox: sandbox.to_owned(),
                labelled: pod(uid),
                status: ContainerStatus::listed(&container, ContainerState::Running, 1),
            }
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
