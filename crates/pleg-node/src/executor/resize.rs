//! In-place resize: new limits for a container that runs.

use pleg::ContainerId;
use pleg_cri::{Subject, v1};

use super::cleanup::CleanupError;
use super::error::call_failed;
use super::{ActionError, RuntimeExecutor, ignore_not_found};
use crate::eviction::usage;
use crate::manifest::{Container, Pod, Quantity};

impl RuntimeExecutor {
    /// Gives a running container the resources that its pod has now. The pod's cgroup gets its new limits before a container grows, and
    /// after one shrinks.
    pub(super) async fn resize(
        &self,
        pod: &Pod,
        container: &Container,
        id: &ContainerId,
        shrinks: bool,
    ) -> Result<(), ActionError> {
        if shrinks {
            self.check_usage(pod, container, id).await?;
        } else {
            self.cgroups.set_up(&self.node, pod).await?;
        }
        let about = Subject::container(pod.id.full_name(), container.name.as_str(), id.shared());
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(self.node.resources(pod, container)),
            ..Default::default()
        };
        ignore_not_found(self.call(&about, request).await).map_err(call_failed("ResizeError"))?;
        if shrinks {
            self.cgroups.set_up(&self.node, pod).await?;
        }
        Ok(())
    }

    /// As in the kubelet: a memory limit below what a container uses is not set, because the kernel would kill it.
    async fn check_usage(&self, pod: &Pod, container: &Container, id: &ContainerId) -> Result<(), ActionError> {
        let id = id.clone();
        let read = move |node: &_, pod: &Pod| Ok::<_, CleanupError>(usage::container_memory_of(node, pod, id.as_str()));
        let used = self.blocking(pod, read).await?;
        let limit = container.resources.memory_limit.map(Quantity::units);
        match (used, limit.map(i64::unsigned_abs)) {
            (Some(used), Some(limit)) if used > limit => Err(ActionError::LimitBelowUsage {
                container: container.name.clone(),
                limit,
                used,
            }),
            _ => Ok(()),
        }
    }
}
