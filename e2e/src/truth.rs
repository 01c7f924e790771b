//! What the runtime itself reports, in a comparable form.
//!
//! Asked the dull way: both lists and every status by id, decoded in full. It shares nothing with the generator but the client's
//! transport, so when the two agree it is not because they make the same mistake. Lists and statuses are not one snapshot: whoever
//! asks while something moves is told so.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};
use pleg_cri::{Client, v1};

/// Everything of every pod. Equal if and only if a user could not tell the difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Truth {
    /// By UID.
    pub pods: BTreeMap<String, PodTruth>,
}

/// One pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodTruth {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its sandboxes by id.
    pub sandboxes: BTreeMap<String, SandboxTruth>,
    /// Its containers by id.
    pub containers: BTreeMap<String, ContainerTruth>,
}

/// One sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxTruth {
    /// How many the pod had before it.
    pub attempt: u32,
    /// Its state.
    pub ready: bool,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerTruth {
    /// Its name.
    pub name: String,
    /// How often it was restarted before.
    pub attempt: u32,
    /// Its state.
    pub state: State,
    /// How it ended; zero while it has not.
    pub exit_code: i32,
    /// The runtime's word for its state, such as `OOMKilled`.
    pub reason: String,
}

/// A container's state, in CRI's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are CRI's own")]
pub enum State {
    #[default]
    Created,
    Running,
    Exited,
    Unknown,
}

impl From<v1::ContainerState> for State {
    fn from(state: v1::ContainerState) -> Self {
        match state {
            v1::ContainerState::ContainerCreated => Self::Created,
            v1::ContainerState::ContainerRunning => Self::Running,
            v1::ContainerState::ContainerExited => Self::Exited,
            v1::ContainerState::ContainerUnknown => Self::Unknown,
        }
    }
}

/// Asks the runtime for everything, once. It is an error if something changed meanwhile.
pub async fn truth(client: &Client) -> Result<Truth> {
    let sandboxes = client.call(v1::ListPodSandboxRequest { filter: None }).await?.items;
    let containers = client
        .call(v1::ListContainersRequest { filter: None })
        .await?
        .containers;
    let mut truth = Truth::default();
    let mut pod_of = BTreeMap::new();
    for listed in sandboxes {
        let status = sandbox_status(client, &listed.id).await?;
        ensure!(
            status.state == listed.state,
            "sandbox {} changed while it was read",
            listed.id
        );
        let metadata = status.metadata.clone().context("a sandbox without metadata")?;
        pod_of.insert(listed.id.clone(), metadata.uid.clone());
        let sandbox = SandboxTruth {
            attempt: metadata.attempt,
            ready: status.state() == v1::PodSandboxState::SandboxReady,
        };
        let pod = truth.pods.entry(metadata.uid).or_default();
        (pod.name, pod.namespace) = (metadata.name, metadata.namespace);
        pod.sandboxes.insert(listed.id, sandbox);
    }
    for listed in containers {
        let status = container_status(client, &listed.id).await?;
        ensure!(
            status.state == listed.state,
            "container {} changed while it was read",
            listed.id
        );
        let uid = pod_of
            .get(&listed.pod_sandbox_id)
            .context("a container without its sandbox")?;
        let metadata = status.metadata.clone().unwrap_or_default();
        let ended = status.state() == v1::ContainerState::ContainerExited;
        let container = ContainerTruth {
            name: metadata.name,
            attempt: metadata.attempt,
            state: status.state().into(),
            // Runtimes leave anything in there while a container has not ended.
            exit_code: if ended { status.exit_code } else { 0 },
            reason: status.reason,
        };
        truth
            .pods
            .entry(uid.clone())
            .or_default()
            .containers
            .insert(listed.id, container);
    }
    Ok(truth)
}

async fn sandbox_status(client: &Client, id: &str) -> Result<v1::PodSandboxStatus> {
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id.to_owned(),
        verbose: false,
    };
    client
        .call(request)
        .await?
        .status
        .with_context(|| format!("sandbox {id} has no status"))
}

async fn container_status(client: &Client, id: &str) -> Result<v1::ContainerStatus> {
    let request = v1::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    client
        .call(request)
        .await?
        .status
        .with_context(|| format!("container {id} has no status"))
}

/// One line each, so that two of them can be compared by eye.
impl fmt::Display for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (uid, pod) in &self.pods {
            writeln!(f, "pod {}/{} ({uid})", pod.namespace, pod.name)?;
            for (id, sandbox) in &pod.sandboxes {
                let state = if sandbox.ready { "ready" } else { "not ready" };
                writeln!(f, "  sandbox {id:.12} #{} {state}", sandbox.attempt)?;
            }
            for (id, it) in &pod.containers {
                write!(f, "  container {id:.12} {} #{} {:?}", it.name, it.attempt, it.state)?;
                match it.state {
                    State::Exited => writeln!(f, " {} {}", it.exit_code, it.reason)?,
                    _ => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}
