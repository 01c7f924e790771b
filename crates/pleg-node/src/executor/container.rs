//! Containers: created, started, killed and removed.

use std::net::IpAddr;
use std::time::Duration;

use pleg::{ContainerId, SandboxId};
use pleg_cri::{Subject, v1};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::error::call_failed;
use super::requests::{check_user, log_path};
use super::{ActionError, RuntimeExecutor, ignore_not_found, log_files, log_links, subject, whole_seconds};
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
        self.link_log(pod, &container.name, start.attempt, &id).await;
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
            image = self.image(pod, container) => image?,
            () = start.cancel.cancelled() => return Err(ActionError::Cancelled),
        };
        check_user(pod, container, &image)?;
        let config = self
            .node
            .container_config(pod, container, start.attempt, &image.id, start.ips);
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

    /// Removes an exited container, and then its log.
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
        removed.map_err(|source| ActionError::RemoveLog { path, source })
    }
}
