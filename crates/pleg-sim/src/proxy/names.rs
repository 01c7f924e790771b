//! Maps names to ids of the runtime behind a proxy, from lists taken on demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::{Client, Config, Deadlines, Endpoint, v1};

use crate::control::{CommandError, PodState, state_name};
use crate::selector::{PodRef, Selector, Target};
use crate::world::WorldError;

/// How long a list may take: it hangs when a container of the runtime is locked.
const LIST: Duration = Duration::from_secs(5);

/// A pod as its names are known.
#[derive(Debug, Default)]
struct Pod {
    sandboxes: Vec<Arc<str>>,
    /// Name, state and time of making, newest last.
    containers: Vec<(String, Arc<str>, v1::ContainerState, i64)>,
}

/// By `namespace/name`.
type Pods = BTreeMap<String, Pod>;

/// The names, and the client that lists them.
#[derive(Debug)]
pub(super) struct Names {
    client: Client,
    /// As of the last lists that were answered: while a container is locked there are no newer ones.
    known: Mutex<Pods>,
}

impl Names {
    /// Checks that a runtime answers.
    pub(super) async fn connect(endpoint: Endpoint) -> Result<Self, pleg_cri::ConnectError> {
        let deadlines = Deadlines {
            list: LIST,
            ..Default::default()
        };
        let config = Config {
            deadlines,
            ..Default::default()
        };
        Ok(Self {
            client: Client::connect(endpoint, config).await?,
            known: Mutex::default(),
        })
    }

    async fn learn(&self) -> Result<(), pleg_cri::Error> {
        let (sandboxes, containers) = tokio::join!(
            self.client.call(v1::ListPodSandboxRequest::default()),
            self.client.call(v1::ListContainersRequest::default()),
        );
        *self.known.lock() = pods(sandboxes?, containers?);
        Ok(())
    }

    /// The ids of the pod's sandboxes and containers, or of all attempts of one container.
    pub(super) async fn ids(&self, selector: &Selector) -> Result<Vec<Arc<str>>, CommandError> {
        let learnt = self.learn().await;
        let found = find(&self.known.lock(), selector);
        match (found, learnt) {
            // It may have been created since; only the lists that failed would show it.
            (Err(_), Err(error)) => Err(CommandError::NoIds {
                target: Target::Named(selector.clone()),
                error: error.to_string(),
            }),
            (found, _) => Ok(found?),
        }
    }

    /// Every pod with its containers' names and states.
    pub(super) async fn pods(&self) -> Result<Vec<PodState>, CommandError> {
        self.learn()
            .await
            .map_err(|error| CommandError::NoPods(error.to_string()))?;
        let known = self.known.lock();
        Ok(known.iter().map(|(name, pod)| pod.state(name)).collect())
    }
}

impl Pod {
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, ..) in &self.containers {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    fn state(&self, name: &str) -> PodState {
        let newest = |name: &str| self.containers.iter().rev().find(|(other, ..)| other == name);
        let containers = self.names().into_iter().filter_map(newest);
        PodState {
            pod: PodRef::from_parts(name),
            containers: containers
                .map(|(name, _, state, _)| (name.clone(), state_name(*state)))
                .collect(),
        }
    }
}

fn pods(sandboxes: v1::ListPodSandboxResponse, containers: v1::ListContainersResponse) -> Pods {
    let mut pods = Pods::new();
    let mut name_of: BTreeMap<String, String> = BTreeMap::new();
    for sandbox in sandboxes.items {
        let metadata = sandbox.metadata.unwrap_or_default();
        let name = format!("{}/{}", metadata.namespace, metadata.name);
        let pod = pods.entry(name.clone()).or_default();
        pod.sandboxes.push(sandbox.id.as_str().into());
        name_of.insert(sandbox.id, name);
    }
    for container in containers.containers {
        let pod = name_of
            .get(&container.pod_sandbox_id)
            .and_then(|name| pods.get_mut(name));
        if let Some(pod) = pod {
            let (state, id) = (container.state(), container.id.as_str().into());
            let name = container.metadata.unwrap_or_default().name;
            pod.containers.push((name, id, state, container.created_at));
        }
    }
    for pod in pods.values_mut() {
        pod.containers.sort_by_key(|&(.., created_at)| created_at);
    }
    pods
}

fn find(pods: &Pods, selector: &Selector) -> Result<Vec<Arc<str>>, WorldError> {
    let pod = pods
        .get(selector.pod.as_str())
        .ok_or_else(|| WorldError::NoPod(selector.pod.to_string()))?;
    let all = pod.containers.iter();
    let Some(name) = &selector.container else {
        return Ok(pod
            .sandboxes
            .iter()
            .cloned()
            .chain(all.map(|(_, id, ..)| Arc::clone(id)))
            .collect());
    };
    let ids: Vec<Arc<str>> = all
        .filter(|(other, ..)| other == name)
        .map(|(_, id, ..)| Arc::clone(id))
        .collect();
    if ids.is_empty() {
        return Err(WorldError::NoContainer {
            pod: selector.pod.to_string(),
            container: name.chars().take(80).collect(),
            has: match pod.names().join(", ") {
                names if names.is_empty() => "none".to_owned(),
                names => names,
            },
        });
    }
    Ok(ids)
}
