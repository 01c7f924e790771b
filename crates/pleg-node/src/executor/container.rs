//! Containers: created, started, killed and removed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerId, SandboxId};
use pleg_cri::{Subject, v1};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::error::{ContainerFilesError, call_failed};
use super::requests::{ContainerInputs, Environment, NodeConfig, check_user, log_path};
use super::{
    ActionError, RuntimeExecutor, hosts_file, ignore_not_found, log_files, objects, subject, termination_messages,
    volumes, whole_seconds,
};
use crate::error::with_causes;
use crate::manifest::{Container, Pod};

/// What is left to a container if its pre-stop hook has used up the grace period.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// Longest run of a post-start hook: the longest sleep that a manifest can have.
const MAX_POST_START: Duration = Duration::from_hours(24);

/// What a container is started with.
pub(super) struct StartRequest<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) attempt: u32,
    pub(super) sandbox: &'a SandboxId,
    pub(super) sandbox_attempt: u32,
    pub(super) ips: &'a [IpAddr],
    pub(super) cancel: &'a CancellationToken,
}

impl RuntimeExecutor {
    /// Creates a container unless it exists, starts it, and runs its post-start hook. Sets `was_created` once it exists.
    pub(super) async fn start(
        &self,
        start: &StartRequest<'_>,
        existing: Option<&ContainerId>,
        was_created: &mut bool,
    ) -> Result<(), ActionError> {
        let (pod, container) = (start.pod, start.container);
        let id = match existing {
            Some(id) => id.clone(),
            None => self.create(start).await?,
        };
        *was_created = true;
        let about = Subject::container(pod.id.full_name(), container.name.as_str(), id.shared());
        let request = v1::StartContainerRequest {
            container_id: id.to_string(),
        };
        let started = self.call(&about, request).await;
        started.map_err(call_failed("RunContainerError"))?;
        let Some(hook) = &container.post_start else {
            return Ok(());
        };
        let hooked = tokio::select! {
            hooked = self.run_hook(&about, &id, hook, self.address(pod, start.ips), MAX_POST_START) => hooked,
            // It is about to be killed anyway.
            () = start.cancel.cancelled() => Ok(()),
        };
        if let Err(error) = hooked {
            // As in Kubernetes, a container whose post-start hook failed is killed.
            self.kill(pod, &id, &container.name, start.ips, pod.spec.termination_grace)
                .await?;
            return Err(error.into());
        }
        Ok(())
    }

    async fn create(&self, start: &StartRequest<'_>) -> Result<ContainerId, ActionError> {
        let (pod, container) = (start.pod, start.container);
        let image = tokio::select! {
            image = self.image(pod, container) => image?,
            () = start.cancel.cancelled() => return Err(ActionError::Cancelled),
        };
        check_user(pod, container, &image)?;
        let inputs = self.container_inputs(start).await?;
        let config = self
            .node
            .container_config(pod, container, start.attempt, &image.id, inputs);
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: start.sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(self.node.sandbox_config(pod, start.sandbox_attempt)),
        };
        let about = Subject {
            container: Some(container.name.as_str().into()),
            ..subject(pod)
        };
        let created = self.call(&about, request).await;
        let created = created.map_err(call_failed("CreateContainerError"))?;
        Ok(created.container_id.into())
    }

    /// Computes the environment of a container, brings the files of volumes up to date, and prepares its mounts.
    async fn container_inputs(&self, start: &StartRequest<'_>) -> Result<ContainerInputs, ActionError> {
        let (pod, container) = (start.pod, start.container);
        let objects = objects::for_environment(&*self.objects, pod, container).await;
        let objects = objects.map_err(ActionError::EnvironmentObjects)?;
        let environment = Environment::of(&self.node, pod, container, start.ips, &objects)?;
        let files = objects::for_volumes(&*self.objects, pod).await;
        let files = files.map_err(ActionError::VolumeObjects)?;
        let (container, attempt, ips) = (container.clone(), start.attempt, start.ips.to_vec());
        let prepare = move |node: &NodeConfig, pod: &Pod| {
            volumes::refresh(node, pod, &files)?;
            let mut mounts = volumes::mounts(node, pod, &container, &environment)?;
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

    /// Runs the pre-stop hook of a container, and stops it within the rest of its grace period.
    pub(super) async fn kill(
        &self,
        pod: &Pod,
        id: &ContainerId,
        name: &str,
        ips: &[IpAddr],
        grace: Duration,
    ) -> Result<(), ActionError> {
        let about = Subject::container(pod.id.full_name(), name, id.shared());
        let began = Instant::now();
        let container = pod.spec.container(name);
        let hook = container.and_then(|container| container.pre_stop.as_ref());
        if let (Some(hook), false) = (hook, grace.is_zero())
            && let Err(error) = self.run_hook(&about, id, hook, self.address(pod, ips), grace).await
        {
            // The container is stopped all the same.
            warn!(pod = %pod.id, container = name, error = with_causes(&error), "pre-stop hook failed");
        }
        let left = grace.saturating_sub(began.elapsed()).max(MIN_GRACE.min(grace));
        self.pleg.will_stop(id);
        let request = v1::StopContainerRequest {
            container_id: id.to_string(),
            timeout: whole_seconds(left),
        };
        // The grace period, and then the deadline of any call that changes something.
        let within = left.saturating_add(self.client.deadlines().act);
        let stopped = self.call_within(&about, request, within).await;
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
        let log = path.clone();
        let removed = tokio::task::spawn_blocking(move || log_files::remove(&log)).await;
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
}
