//! Containers: created, started, killed and removed.

use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerId, SandboxId};
use pleg_cri::{Subject, v1};
use tokio::time::Instant;
use tracing::warn;

use super::error::{ContainerFilesError, HookError, call_failed};
use super::requests::{ContainerInputs, Environment, NodeConfig, check_user, log_path, share_processes};
use super::{
    ActionContext, ActionError, RuntimeExecutor, hosts_file, ignore_not_found, log_files, log_links, objects, subject,
    termination_messages, volumes, whole_seconds,
};
use crate::error::with_causes;
use crate::manifest::{Container, Pod};
use crate::reconcile::action::MIN_GRACE;

/// What a container is started with.
pub(super) struct StartRequest<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) attempt: u32,
    pub(super) sandbox: &'a SandboxId,
    pub(super) context: &'a ActionContext,
}

/// What a container is stopped with.
pub(super) struct StopRequest<'a> {
    pub(super) pod: &'a Pod,
    pub(super) id: &'a ContainerId,
    pub(super) name: &'a str,
    pub(super) grace: Duration,
    pub(super) context: &'a ActionContext,
}

impl RuntimeExecutor {
    /// Creates a container unless it exists, starts it, and runs its post-start hook. Sets `was_created` once it exists. Nothing is
    /// created or started once the pod has failed or terminates.
    pub(super) async fn start(
        &self,
        start: &StartRequest<'_>,
        existing: Option<&ContainerId>,
        was_created: &mut bool,
    ) -> Result<(), ActionError> {
        let (pod, container, no_starts) = (start.pod, start.container, &start.context.no_starts);
        let id = match existing {
            Some(id) => id.clone(),
            None => self.create(start).await?,
        };
        *was_created = true;
        if no_starts.is_cancelled() {
            return Err(ActionError::Cancelled);
        }
        let about = Subject::container(pod.id.full_name(), container.name.as_str(), id.shared());
        let request = v1::StartContainerRequest {
            container_id: id.to_string(),
        };
        let started = self.call(&about, request).await;
        started.map_err(call_failed("RunContainerError"))?;
        self.events
            .container_normal(pod, &container.name, "Started", "Container started");
        self.link_log(pod, &container.name, start.attempt, &id).await;
        let Some(hook) = &container.post_start else {
            return Ok(());
        };
        let ip = self.address(pod, &start.context.ips);
        tokio::select! {
            // As in Kubernetes, a container whose post-start hook failed is killed: by the next decision.
            hooked = self.run_post_start(&about, &id, hook, ip) => Ok(hooked?),
            // It is about to be killed anyway.
            () = no_starts.cancelled() => Ok(()),
        }
    }

    /// Links to the log of a container that was started. A container runs without it too.
    async fn link_log(&self, pod: &Pod, name: &str, attempt: u32, id: &ContainerId) {
        let log = self.log_directory(pod).join(log_path(name, attempt));
        let link = self.log_link(pod, name, id);
        let linked = tokio::task::spawn_blocking(move || log_links::create(&link, &log)).await;
        if let Err(error) = linked.map_err(std::io::Error::from).flatten() {
            let link = self.log_link(pod, name, id);
            warn!(pod = %pod.id, container = name, link = %link.display(), "cannot link to the container log: {error}");
        }
    }

    fn log_link(&self, pod: &Pod, name: &str, id: &ContainerId) -> std::path::PathBuf {
        log_links::path(&self.node.log_links, pod, name, id.as_str())
    }

    async fn create(&self, start: &StartRequest<'_>) -> Result<ContainerId, ActionError> {
        let (pod, container) = (start.pod, start.container);
        let image = tokio::select! {
            biased;
            () = start.context.no_starts.cancelled() => return Err(ActionError::Cancelled),
            image = self.image(pod, container) => image?,
        };
        check_user(pod, container, &image)?;
        let inputs = self.container_inputs(start).await?;
        let mut config = self
            .node
            .container_config(pod, container, start.attempt, &image.id, inputs);
        if let Some(target) = &container.target {
            let id = start.context.target.as_ref().ok_or_else(|| ActionError::NoTarget {
                container: container.name.clone(),
                target: target.clone(),
            })?;
            share_processes(&mut config, id);
        }
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: start.sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(self.node.sandbox_config(pod, start.context.sandbox_attempt)),
        };
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(pod)
        };
        let created = self.call(&about, request).await;
        let created = created.map_err(call_failed("CreateContainerError"))?;
        self.events
            .container_normal(pod, &container.name, "Created", "Container created");
        self.remove_old_logs(pod, &container.name, start.attempt).await;
        Ok(created.container_id.into())
    }

    /// Computes the environment of a container, brings the files of volumes up to date, and prepares its mounts.
    async fn container_inputs(&self, start: &StartRequest<'_>) -> Result<ContainerInputs, ActionError> {
        let (pod, container) = (start.pod, start.container);
        let objects = objects::for_environment(&*self.objects, pod, container).await;
        let objects = objects.map_err(ActionError::EnvironmentObjects)?;
        let environment = Environment::of(&self.node, pod, container, &start.context.ips, &objects)?;
        let files = objects::for_volumes(&*self.objects, pod).await;
        let files = files.map_err(ActionError::VolumeObjects)?;
        let (container, attempt, ips) = (container.clone(), start.attempt, start.context.ips.to_vec());
        let writes = Arc::clone(&start.context.volume_writes);
        let prepare = move |node: &NodeConfig, pod: &Pod| {
            let _writing = writes.lock();
            volumes::prepare_logs(node, pod, &container)?;
            volumes::refresh(node, pod, &files)?;
            let mut mounts = volumes::mounts(node, pod, &container, &environment, &files)?;
            mounts.extend(hosts_file::mount(node, pod, &container, &ips)?);
            let message = termination_messages::mount(node, pod, &container, attempt);
            mounts.push(message.map_err(|source| ContainerFilesError::TerminationMessage {
                container: container.name.clone(),
                source,
            })?);
            Ok::<_, ContainerFilesError>(ContainerInputs { environment, mounts })
        };
        self.blocking(pod, prepare).await
    }

    /// Runs the pre-stop hook of a container, which is killed later. Fails only if the runtime is away.
    pub(super) async fn pre_stop(&self, stop: &StopRequest<'_>) -> Result<(), ActionError> {
        let StopRequest { pod, id, name, .. } = *stop;
        let Some(hook) = pod
            .spec
            .container(name)
            .and_then(|container| container.pre_stop.as_ref())
        else {
            return Ok(());
        };
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let ip = self.address(pod, &stop.context.ips);
        let hooked = tokio::select! {
            hooked = self.run_pre_stop(&about, id, hook, ip, stop.grace) => hooked,
            () = stop.context.cut_kills.cancelled() => return Err(ActionError::Cancelled),
        };
        match hooked {
            Err(error) if error.is_outage() => Err(ActionError::PreStopHook(error)),
            Err(error) => {
                // The container is stopped all the same.
                warn!(pod = %pod.id, container = name, error = with_causes(&error), "pre-stop hook failed");
                if !matches!(error, HookError::Timeout(_)) {
                    // Without its output, which may contain secrets.
                    self.events
                        .container_warning(pod, name, "FailedPreStopHook", "PreStopHook failed");
                }
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Stops a container within its grace period, after its pre-stop hook if it is to run. Sets `hooked` once the hook has run.
    pub(super) async fn kill(&self, stop: &StopRequest<'_>, hook: bool, hooked: &mut bool) -> Result<(), ActionError> {
        let StopRequest { pod, id, name, .. } = *stop;
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let began = Instant::now();
        if hook {
            match self.pre_stop(stop).await {
                Ok(()) => *hooked = true,
                // If the runtime is away, the container cannot be stopped either, and both are tried again.
                Err(ActionError::PreStopHook(error)) => {
                    warn!(pod = %pod.id, container = name, error = with_causes(&error), "cannot run the pre-stop hook");
                }
                Err(error) => return Err(error),
            }
        }
        let left = stop.grace.saturating_sub(began.elapsed()).max(MIN_GRACE);
        self.pleg.will_stop(id);
        let request = v1::StopContainerRequest {
            container_id: id.to_string(),
            timeout: whole_seconds(left),
        };
        // The grace period, and then the deadline of any call that changes something.
        let within = left.saturating_add(self.client.deadlines().act);
        let stopped = tokio::select! {
            stopped = self.call_within(&about, request, within) => stopped,
            // A shorter grace period: the next call has it.
            () = stop.context.cut_kills.cancelled() => return Err(ActionError::Cancelled),
        };
        ignore_not_found(stopped).map_err(|error| {
            // Its shim may hang: have it probed before others.
            self.pleg.suspect(&pod.id.uid);
            call_failed("KillContainerError")(error)
        })
    }

    /// Removes an exited container, and then its log and its termination message.
    pub(super) async fn remove_container(
        &self,
        pod: &Pod,
        id: &ContainerId,
        name: &str,
        attempt: u32,
    ) -> Result<(), ActionError> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let request = v1::RemoveContainerRequest {
            container_id: id.to_string(),
        };
        let removed = self.call(&about, request).await;
        ignore_not_found(removed).map_err(call_failed("RemoveContainerError"))?;
        let path = self.log_directory(pod).join(log_path(name, attempt));
        let (log, link) = (path.clone(), self.log_link(pod, name, id));
        let removed = tokio::task::spawn_blocking(move || {
            log_links::remove(&link)?;
            log_files::remove(&log)
        });
        let removed = removed.await;
        let removed = removed.map_err(std::io::Error::from).flatten();
        removed.map_err(|source| ActionError::RemoveLog { path, source })?;
        let (node, uid, of) = (Arc::clone(&self.node), pod.id.uid.clone(), name.to_owned());
        let remove = move || termination_messages::remove(&node, &uid, &of, attempt);
        let removed = tokio::task::spawn_blocking(remove).await;
        let removed = removed.map_err(std::io::Error::from).flatten();
        removed.map_err(|source| ActionError::RemoveTerminationMessage {
            container: name.to_owned(),
            source,
        })
    }

    /// Removes the logs of all attempts but the new one and the one before it. Other attempts may have gone with their sandboxes.
    async fn remove_old_logs(&self, pod: &Pod, name: &str, newest: u32) {
        let Some(oldest_kept) = newest.checked_sub(1) else {
            return;
        };
        let path = self.log_directory(pod).join(log_path(name, newest));
        let removed = tokio::task::spawn_blocking(move || log_files::remove_attempts_before(&path, oldest_kept)).await;
        if let Err(error) = removed.map_err(std::io::Error::from).flatten() {
            warn!(pod = %pod.id, container = name, %error, "cannot remove the logs of earlier attempts");
        }
    }
}
