//! Carries out decisions through CRI, without knowing their reasons.
//!
//! A call that failed may still take effect, in particular one that timed out: a failure proves nothing about its effect.
//! The caller waits for a fresh status before it decides again.

pub(crate) mod cgroups;
pub(crate) mod logs;
pub mod requests;
pub mod volumes;

mod images;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerId, Pleg, SandboxId};
use pleg_cri::error::seconds;
use pleg_cri::{Client, Subject, Unary, v1};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::executor::requests::{Node, check_user, log_path};
use crate::host;
use crate::manifest::{Container, Hook, Pod};
use crate::net::http_get;
use crate::reconcile::decide::Action;

/// What is left to a container after its pre-stop hook, if that took all the time.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// A post-start hook may take this long, as the longest sleep that a manifest can have.
const LONGEST_HOOK: Duration = Duration::from_hours(24);
/// The reason of a start whose hook failed.
pub(crate) const POST_START_HOOK: &str = "PostStartHookError";

/// What a command said is kept up to this many characters.
const MOST_SAID: usize = 512;

/// Why something was not done: in a word that Kubernetes has for it, and in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Failed {
    const CANCELLED: &'static str = "Cancelled";

    /// It was cancelled because it is no longer needed.
    pub(crate) fn cancelled() -> Self {
        Self {
            reason: Self::CANCELLED,
            message: "the pod is terminating".to_owned(),
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.reason == Self::CANCELLED
    }
}

/// How an action went.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) action: Action,
    /// A container was made, whatever came then.
    pub(crate) made: bool,
    pub(crate) result: Result<(), Failed>,
}

/// Acts through the runtime. Clones share what is limited.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeExecutor {
    client: Client,
    pleg: Pleg,
    node: Arc<Node>,
    pulls: Arc<Semaphore>,
}

fn failed(reason: &'static str) -> impl Fn(pleg_cri::Error) -> Failed {
    move |error| Failed {
        reason,
        message: error.to_string(),
    }
}

impl RuntimeExecutor {
    pub(crate) fn new(client: Client, pleg: Pleg, node: Arc<Node>) -> Self {
        Self {
            client,
            pleg,
            node,
            pulls: Arc::new(Semaphore::new(images::PULLS)),
        }
    }

    /// Does it. `ips` are the pod's; `sandbox_attempt` is that of its newest sandbox. Once `cancel` says that the pod is to end, a
    /// start waits neither for an image nor for a hook; calls that change something are never cut off.
    pub(crate) async fn act(
        &self,
        pod: &Pod,
        action: Action,
        sandbox_attempt: u32,
        ips: &[IpAddr],
        cancel: &CancellationToken,
    ) -> Done {
        let mut made = false;
        let result = match &action {
            Action::RunSandbox { attempt, replaces } => self.run_sandbox(pod, *attempt, replaces).await,
            Action::StopSandbox(id) => self.stop_sandbox(pod, id).await,
            Action::RemoveSandbox(id) | Action::RemoveOldSandbox(id) => self.remove_sandbox(pod, id).await,
            Action::RemoveContainer { id, name, attempt } => self.remove_container(pod, id, name, *attempt).await,
            Action::Start {
                name,
                attempt,
                sandbox,
                made: existing,
            } => {
                let start = Start {
                    pod,
                    attempt: *attempt,
                    sandbox,
                    sandbox_attempt,
                    ips,
                    cancel,
                };
                match pod.spec.container(name) {
                    Some(container) => self.start(&start, container, existing.as_ref(), &mut made).await,
                    None => Ok(()),
                }
            }
            Action::Kill { id, name, grace, .. } => self.kill(pod, id, name, ips, *grace).await,
        };
        Done { action, made, result }
    }

    /// One call. On the heap: its future has room for the largest message, and many pods wait at once.
    async fn call<R: Unary>(&self, about: &Subject, request: R) -> Result<R::Response, pleg_cri::Error> {
        Box::pin(self.client.call_for(about, request)).await
    }

    /// One call that may take as long as this.
    async fn call_within<R: Unary>(
        &self,
        about: &Subject,
        request: R,
        within: Duration,
    ) -> Result<R::Response, pleg_cri::Error> {
        Box::pin(self.client.call_within(about, request, within)).await
    }

    async fn run_sandbox(&self, pod: &Pod, attempt: u32, replaces: &[SandboxId]) -> Result<(), Failed> {
        for old in replaces {
            self.stop_sandbox(pod, old).await?;
        }
        self.blocking(pod, volumes::prepare).await?;
        let request = v1::RunPodSandboxRequest {
            config: Some(self.node.sandbox_config(pod, attempt)),
            runtime_handler: String::new(),
        };
        let made = self.call(&subject(pod), request).await;
        made.map(drop).map_err(failed("CreatePodSandboxError"))
    }

    /// File operations, on a thread where they block nothing else.
    async fn blocking(
        &self,
        pod: &Pod,
        work: fn(&Node, &Pod) -> Result<(), volumes::VolumeError>,
    ) -> Result<(), Failed> {
        let (node, pod) = (Arc::clone(&self.node), pod.clone());
        let done = tokio::task::spawn_blocking(move || work(&node, &pod)).await;
        let message = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => match std::error::Error::source(&error) {
                Some(source) => format!("{error}: {source}"),
                None => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        Err(Failed {
            reason: "FailedMount",
            message,
        })
    }

    async fn stop_sandbox(&self, pod: &Pod, id: &SandboxId) -> Result<(), Failed> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let stopped = self
            .call(&Subject::sandbox(pod.id.full_name(), id.shared()), request)
            .await;
        gone_is_done(stopped).map_err(failed("KillPodSandboxError"))
    }

    /// Stops it, which frees its network, and removes it with its containers.
    async fn remove_sandbox(&self, pod: &Pod, id: &SandboxId) -> Result<(), Failed> {
        self.stop_sandbox(pod, id).await?;
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let removed = self
            .call(&Subject::sandbox(pod.id.full_name(), id.shared()), request)
            .await;
        gone_is_done(removed).map_err(failed("KillPodSandboxError"))
    }

    /// Removes a container that has ended, and then its log.
    async fn remove_container(&self, pod: &Pod, id: &ContainerId, name: &str, attempt: u32) -> Result<(), Failed> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let request = v1::RemoveContainerRequest {
            container_id: id.to_string(),
        };
        gone_is_done(self.call(&about, request).await).map_err(failed("RemoveContainerError"))?;
        let log = self.log_directory(pod).join(log_path(name, attempt));
        let named = log.display().to_string();
        let removed = tokio::task::spawn_blocking(move || logs::remove(&log)).await;
        removed.map_err(Into::into).flatten().map_err(|error| Failed {
            reason: "RemoveContainerError",
            message: format!("cannot remove {named}: {error}"),
        })
    }

    /// Where the logs of a pod are.
    pub(crate) fn log_directory(&self, pod: &Pod) -> PathBuf {
        self.node.log_directory(pod)
    }

    /// Makes the runtime reopen the log of a container.
    pub(crate) async fn reopen_log(&self, pod: &Pod, name: &str, id: &ContainerId) -> Result<(), String> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let request = v1::ReopenContainerLogRequest {
            container_id: id.to_string(),
        };
        let reopened = self.call(&about, request).await;
        reopened.map(drop).map_err(|error| error.to_string())
    }

    /// Removes the pod's directories, and its cgroup.
    pub(crate) async fn clean(&self, pod: &Pod) -> Result<(), Failed> {
        self.blocking(pod, volumes::remove).await
    }

    async fn start(
        &self,
        it: &Start<'_>,
        container: &Container,
        existing: Option<&ContainerId>,
        made: &mut bool,
    ) -> Result<(), Failed> {
        let id = match existing {
            Some(id) => id.clone(),
            None => self.make(it, container).await?,
        };
        *made = true;
        let about = Subject::container(it.pod.id.full_name(), container.name.as_str(), id.shared());
        let request = v1::StartContainerRequest {
            container_id: id.to_string(),
        };
        self.call(&about, request).await.map_err(failed("RunContainerError"))?;
        let Some(hook) = &container.post_start else {
            return Ok(());
        };
        let hooked = tokio::select! {
            hooked = self.hook(&about, &id, hook, self.address(it.pod, it.ips), LONGEST_HOOK) => hooked,
            // It is killed in a moment in any case.
            () = it.cancel.cancelled() => Ok(()),
        };
        if let Err(message) = hooked {
            // As Kubernetes has it: a container whose hook failed is killed.
            self.kill(it.pod, &id, &container.name, it.ips, it.pod.spec.termination_grace)
                .await?;
            return Err(Failed {
                reason: POST_START_HOOK,
                message,
            });
        }
        Ok(())
    }

    async fn make(&self, it: &Start<'_>, container: &Container) -> Result<ContainerId, Failed> {
        let image = tokio::select! {
            image = self.image(it.pod, container) => image?,
            () = it.cancel.cancelled() => return Err(Failed::cancelled()),
        };
        check_user(it.pod, container, &image).map_err(|error| Failed {
            reason: "CreateContainerConfigError",
            message: error.to_string(),
        })?;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: it.sandbox.to_string(),
            config: Some(
                self.node
                    .container_config(it.pod, container, it.attempt, &image.id, it.ips),
            ),
            sandbox_config: Some(self.node.sandbox_config(it.pod, it.sandbox_attempt)),
        };
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(it.pod)
        };
        let made = self
            .call(&about, request)
            .await
            .map_err(failed("CreateContainerError"))?;
        Ok(made.container_id.into())
    }

    /// Where a pod answers that has these addresses. On the host's network they are the host's, which may have come or changed since we
    /// began.
    pub(crate) fn address(&self, pod: &Pod, ips: &[IpAddr]) -> Option<IpAddr> {
        if pod.spec.host_network {
            return Some(host::address_now(self.node.ips.first().copied()));
        }
        ips.first().copied()
    }

    /// Runs a hook, for no longer than `within`. `ip` is where the pod answers.
    async fn hook(
        &self,
        about: &Subject,
        id: &ContainerId,
        hook: &Hook,
        ip: Option<IpAddr>,
        within: Duration,
    ) -> Result<(), String> {
        match hook {
            Hook::Sleep(time) => {
                tokio::time::sleep((*time).min(within)).await;
                Ok(())
            }
            Hook::Exec(command) => self.run(about, id, command, within).await,
            // As in the kubelet, the status of the response does not matter.
            Hook::Http(get) => match timeout(within, http_get::get(get, ip)).await {
                Ok(answer) => answer.map(drop),
                Err(_) => Err(format!("no answer within {}", seconds(within))),
            },
        }
    }

    /// Runs a command in a container; an end with 0 is a good one.
    pub(crate) async fn exec(
        &self,
        pod: &Pod,
        name: &str,
        id: &ContainerId,
        command: &[String],
        within: Duration,
    ) -> Result<(), String> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        self.run(&about, id, command, within).await
    }

    async fn run(&self, about: &Subject, id: &ContainerId, command: &[String], within: Duration) -> Result<(), String> {
        let request = v1::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            timeout: whole_seconds(within),
        };
        // The runtime ends the command when its time is over, and then needs a moment to say so.
        let answered = within.saturating_add(self.client.deadlines().inspect);
        match self.call_within(about, request, answered).await {
            Ok(answer) if answer.exit_code == 0 => Ok(()),
            Ok(answer) => {
                let said = if answer.stderr.is_empty() {
                    &answer.stdout
                } else {
                    &answer.stderr
                };
                let said: String = String::from_utf8_lossy(said).trim().chars().take(MOST_SAID).collect();
                Err(format!(
                    "`{}` exited with {}: {said}",
                    command.join(" "),
                    answer.exit_code
                ))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn kill(
        &self,
        pod: &Pod,
        id: &ContainerId,
        name: &str,
        ips: &[IpAddr],
        grace: Duration,
    ) -> Result<(), Failed> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let began = Instant::now();
        let hook = pod
            .spec
            .container(name)
            .and_then(|container| container.pre_stop.as_ref());
        if let (Some(hook), false) = (hook, grace.is_zero())
            && let Err(error) = self.hook(&about, id, hook, self.address(pod, ips), grace).await
        {
            // It ends all the same.
            tracing::warn!(pod = %pod.id, container = name, error, "pre-stop hook failed");
        }
        let left = grace.saturating_sub(began.elapsed()).max(LEAST_GRACE.min(grace));
        self.pleg.will_stop(id);
        let request = v1::StopContainerRequest {
            container_id: id.to_string(),
            timeout: whole_seconds(left),
        };
        // The grace period, and then what any call that changes something may take.
        let within = left.saturating_add(self.client.deadlines().act);
        let stopped = self.call_within(&about, request, within).await;
        gone_is_done(stopped).map_err(|error| {
            // Its shim may hang: have it probed before others.
            self.pleg.suspect(&pod.id.uid);
            failed("KillContainerError")(error)
        })
    }
}

/// What a container is started with.
struct Start<'a> {
    pod: &'a Pod,
    attempt: u32,
    sandbox: &'a SandboxId,
    sandbox_attempt: u32,
    ips: &'a [IpAddr],
    cancel: &'a CancellationToken,
}

fn subject(pod: &Pod) -> Subject {
    Subject {
        pod: Some(pod.id.full_name()),
        ..Subject::NODE
    }
}

fn gone_is_done<T>(result: Result<T, pleg_cri::Error>) -> Result<(), pleg_cri::Error> {
    match result {
        Err(error) if !error.kind.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn whole_seconds(duration: Duration) -> i64 {
    let rounded = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i64::try_from(rounded).unwrap_or(i64::MAX)
}
