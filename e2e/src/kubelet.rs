//! Pods and containers made as a kubelet makes them: its labels, its names, its cgroups.
//!
//! Only the making. What a kubelet would do next is up to the scenario, one call at a time, so that each step can be checked.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pleg_cri::list::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL};
use pleg_cri::{Client, Config, Deadlines, Unary, v1};
use rustix::process::Signal;

use crate::image::{self, Program};
use crate::process;
use crate::wait::{PATIENCE, until};

/// Label that carries a container's name.
pub const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";
/// All test pods are here.
pub const NAMESPACE: &str = "default";

/// Makes pods in one runtime.
#[derive(Debug, Clone)]
pub struct Kubelet {
    client: Client,
    /// Name of the cgroup, at the top of the hierarchy, below which the pods are.
    cgroup: String,
    logs: PathBuf,
    /// CRI-O takes the time that a call has for the containers' grace; containerd gives them none.
    kills_first: bool,
}

/// What a pod is called. A kubelet knows this before the runtime knows anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name, in [`NAMESPACE`].
    pub name: String,
    /// Its UID, unique among all pods of this process.
    pub uid: String,
    /// How many sandboxes it had before this one.
    pub attempt: u32,
}

impl Pod {
    /// A pod with a UID of its own.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            name: name.to_owned(),
            uid: format!("00000000-0000-4000-8000-{number:012x}"),
            attempt: 0,
        }
    }

    /// The same pod, for its next sandbox.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            attempt: self.attempt + 1,
            ..self.clone()
        }
    }
}

/// A pod's sandbox that runs, or ran.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// The runtime's id.
    pub id: String,
    /// Whose it is.
    pub pod: Pod,
    config: v1::PodSandboxConfig,
}

/// A container to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// How often it was restarted before.
    pub attempt: u32,
    /// What it does.
    pub program: Program,
    /// Its memory limit in MiB; none if zero.
    pub memory_mib: u32,
}

impl Container {
    /// The first of its name, without limits.
    pub fn new(name: &str, program: Program) -> Self {
        Self {
            name: name.to_owned(),
            attempt: 0,
            program,
            memory_mib: 0,
        }
    }

    /// As its so-manieth restart.
    #[must_use]
    pub fn attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// With a memory limit.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u32) -> Self {
        Self { memory_mib, ..self }
    }

    fn log_path(&self) -> String {
        format!("{}/{}.log", self.name, self.attempt)
    }
}

impl Kubelet {
    pub(crate) fn new(client: Client, cgroup: String, logs: PathBuf, kills_first: bool) -> Self {
        Self {
            client,
            cgroup,
            logs,
            kills_first,
        }
    }

    /// Runs a sandbox. It shares the host's network, which needs no plugins.
    pub async fn run_pod(&self, pod: &Pod) -> Result<Sandbox> {
        let config = self.sandbox_config(pod);
        fs::create_dir_all(&config.log_directory).context("create the pod's log directory")?;
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let answer = self
            .call(request)
            .await
            .with_context(|| format!("run pod {}", pod.name))?;
        Ok(Sandbox {
            id: answer.pod_sandbox_id,
            pod: pod.clone(),
            config,
        })
    }

    /// Creates a container and returns its id.
    pub async fn create(&self, sandbox: &Sandbox, container: &Container) -> Result<String> {
        fs::create_dir_all(PathBuf::from(&sandbox.config.log_directory).join(&container.name))?;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(container_config(sandbox, container)),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let answer = self
            .call(request)
            .await
            .with_context(|| format!("create container {}", container.name))?;
        Ok(answer.container_id)
    }

    /// Starts a created container.
    pub async fn start(&self, id: &str) -> Result<()> {
        let container_id = id.to_owned();
        self.call(v1::StartContainerRequest { container_id }).await?;
        Ok(())
    }

    /// Creates and starts a container, and returns its id.
    pub async fn run(&self, sandbox: &Sandbox, container: &Container) -> Result<String> {
        let id = self.create(sandbox, container).await?;
        self.start(&id)
            .await
            .with_context(|| format!("start container {}", container.name))?;
        Ok(id)
    }

    /// Stops a container: SIGTERM, and SIGKILL after so many seconds.
    pub async fn stop(&self, id: &str, grace_seconds: i64) -> Result<()> {
        let request = v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout: grace_seconds,
        };
        self.call(request).await?;
        Ok(())
    }

    /// Removes a container, which has to have ended.
    pub async fn remove(&self, id: &str) -> Result<()> {
        let container_id = id.to_owned();
        self.call(v1::RemoveContainerRequest { container_id }).await?;
        Ok(())
    }

    /// Stops a sandbox, and by force what still runs in it. Its status may say so later: see [`Kubelet::wait_for_stop`].
    pub async fn stop_pod(&self, sandbox: &Sandbox) -> Result<()> {
        if self.kills_first {
            self.kill_containers(sandbox).await?;
        }
        let pod_sandbox_id = sandbox.id.clone();
        self.call(v1::StopPodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    }

    async fn kill_containers(&self, sandbox: &Sandbox) -> Result<()> {
        let filter = v1::ContainerFilter {
            pod_sandbox_id: sandbox.id.clone(),
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..Default::default()
        };
        let running = self.call(v1::ListContainersRequest { filter: Some(filter) }).await?;
        for container in running.containers {
            self.stop(&container.id, 0).await?;
        }
        Ok(())
    }

    /// Waits until the runtime itself says that a sandbox is stopped: containerd 2.1 calls it ready for a moment after it has
    /// answered that it is not.
    pub async fn wait_for_stop(&self, sandbox: &Sandbox) -> Result<()> {
        until("a sandbox to be stopped", PATIENCE, async || {
            let request = v1::PodSandboxStatusRequest {
                pod_sandbox_id: sandbox.id.clone(),
                verbose: false,
            };
            let status = self.call(request).await?.status.unwrap_or_default();
            ensure!(status.state() == v1::PodSandboxState::SandboxNotready, "{status:?}");
            Ok(())
        })
        .await
    }

    /// Removes a sandbox and its containers.
    pub async fn remove_pod(&self, sandbox: &Sandbox) -> Result<()> {
        let pod_sandbox_id = sandbox.id.clone();
        self.call(v1::RemovePodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    }

    /// A container's full status.
    pub async fn status(&self, id: &str) -> Result<v1::ContainerStatus> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        self.call(request)
            .await?
            .status
            .with_context(|| format!("container {id} has no status"))
    }

    /// Waits until the runtime itself says that a container has ended, and how.
    pub async fn wait_for_exit(&self, id: &str) -> Result<v1::ContainerStatus> {
        until("a container to end", PATIENCE, async || {
            let status = self.status(id).await?;
            anyhow::ensure!(
                status.state() == v1::ContainerState::ContainerExited,
                "container {id} is {}",
                status.state().as_str_name()
            );
            anyhow::Ok(status)
        })
        .await
    }

    /// Waits until a container has written this into its log: it then is as far as it says.
    pub async fn wait_for_log(&self, sandbox: &Sandbox, container: &Container, text: &str) -> Result<()> {
        let path = PathBuf::from(&sandbox.config.log_directory).join(container.log_path());
        until(&format!("{text:?} in a container's log"), PATIENCE, async || {
            let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            anyhow::ensure!(log.contains(text), "the log of {} has only {log:?}", container.name);
            Ok(())
        })
        .await
    }

    /// The process of a running container.
    pub async fn container_pid(&self, id: &str) -> Result<i32> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        pid(&self.call(request).await?.info).with_context(|| format!("the process of container {id}"))
    }

    /// The pause process of a ready sandbox. CRI-O has none for a pod whose containers do not share processes.
    pub async fn sandbox_pid(&self, sandbox: &Sandbox) -> Result<i32> {
        self.pause_pid(&sandbox.id).await
    }

    async fn pause_pid(&self, sandbox_id: &str) -> Result<i32> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            verbose: true,
        };
        pid(&self.call(request).await?.info).with_context(|| format!("the process of sandbox {sandbox_id}"))
    }

    /// A sandbox is lost behind the back of whoever made it: its pause process is killed. Where it has none, somebody stops it.
    pub async fn lose_sandbox(&self, sandbox_id: &str) -> Result<()> {
        if let Ok(pid) = self.pause_pid(sandbox_id).await {
            return process::signal(pid, Signal::KILL);
        }
        // CRI-O takes the time that a call has for the containers' grace, less a second.
        let deadlines = Deadlines {
            act: Duration::from_secs(4),
            ..Deadlines::default()
        };
        let config = Config {
            deadlines,
            ..Config::default()
        };
        let hasty = Client::lazy(self.client.endpoint().clone(), config);
        let pod_sandbox_id = sandbox_id.to_owned();
        Box::pin(hasty.call(v1::StopPodSandboxRequest { pod_sandbox_id })).await?;
        Ok(())
    }

    /// Changes a container's CPU shares, as a CPU manager does. The runtime holds the container's lock while it asks the shim.
    pub async fn update_cpu_shares(&self, id: &str, cpu_shares: i64) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(v1::LinuxContainerResources {
                cpu_shares,
                ..Default::default()
            }),
            ..Default::default()
        };
        self.call(request).await?;
        Ok(())
    }

    /// On the heap: a call's future holds the whole request, and a scenario awaits many.
    async fn call<R: Unary>(&self, request: R) -> Result<R::Response> {
        Ok(Box::pin(self.client.call(request)).await?)
    }

    fn sandbox_config(&self, pod: &Pod) -> v1::PodSandboxConfig {
        let namespaces = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                namespace: NAMESPACE.to_owned(),
                attempt: pod.attempt,
            }),
            log_directory: self.logs.join(&pod.uid).to_string_lossy().into_owned(),
            labels: pod_labels(pod),
            annotations: HashMap::from([("kubernetes.io/config.source".to_owned(), "file".to_owned())]),
            linux: Some(v1::LinuxPodSandboxConfig {
                // Never empty: without one the pod's stats fail and the runtime leaves the directory behind.
                cgroup_parent: format!("/{}/pod{}", self.cgroup, pod.uid),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    let labels = [
        (POD_NAME_LABEL, pod.name.as_str()),
        (POD_NAMESPACE_LABEL, NAMESPACE),
        (POD_UID_LABEL, &pod.uid),
    ];
    labels
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn container_config(sandbox: &Sandbox, container: &Container) -> v1::ContainerConfig {
    let mut labels = pod_labels(&sandbox.pod);
    labels.insert(CONTAINER_NAME_LABEL.to_owned(), container.name.clone());
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: container.attempt,
        }),
        image: Some(v1::ImageSpec {
            image: image::NAME.to_owned(),
            // CRI-O checks the signature of what was asked for, and fails without it.
            user_specified_image: image::NAME.to_owned(),
            ..Default::default()
        }),
        command: container.program.command(),
        labels,
        annotations: HashMap::from([(
            "io.kubernetes.container.restartCount".to_owned(),
            container.attempt.to_string(),
        )]),
        log_path: container.log_path(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                memory_limit_in_bytes: i64::from(container.memory_mib) << 20,
                ..Default::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: sandbox
                    .config
                    .linux
                    .as_ref()
                    .and_then(|linux| linux.security_context.as_ref()?.namespace_options.clone()),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

/// Runtimes put what CRI has no field for into a JSON text under `info`.
fn pid(info: &HashMap<String, String>) -> Result<i32> {
    let text = info.get("info").context("no verbose info")?;
    let value: serde_json::Value = serde_json::from_str(text).context("read the verbose info")?;
    let pid = value["pid"]
        .as_i64()
        .filter(|&pid| pid > 0)
        .context("no process in the verbose info")?;
    Ok(i32::try_from(pid)?)
}
