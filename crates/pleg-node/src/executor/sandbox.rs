//! Sandboxes: created, stopped and removed.

use std::sync::Arc;

use pleg::SandboxId;
use pleg_cri::{Subject, v1};
use tracing::warn;

use super::error::call_failed;
use super::requests::{NodeConfig, dns, hostname};
use super::{ActionContext, ActionError, RuntimeExecutor, ignore_not_found, objects, subject, volumes};
use crate::events::wording;
use crate::manifest::Pod;

impl RuntimeExecutor {
    /// Stops the sandboxes that are replaced, prepares the directories and the cgroup of the pod, and creates a sandbox.
    pub(super) async fn run_sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
        replaces: &[SandboxId],
        context: &ActionContext,
    ) -> Result<(), ActionError> {
        for old in replaces {
            self.stop_sandbox(pod, old).await?;
        }
        hostname::of_kernel(&self.node, pod)?;
        if dns::lacks_cluster_dns(&self.node, pod) {
            warn!(pod = %pod.id, "dnsPolicy ClusterFirst without --cluster-dns: the pod gets the host's DNS");
            let message = wording::missing_cluster_dns(pod);
            self.events.pod_warning(pod, "MissingClusterDNS", &message);
        }
        let objects = objects::for_volumes(&*self.objects, pod).await;
        let objects = objects.map_err(ActionError::VolumeObjects)?;
        let writes = Arc::clone(&context.volume_writes);
        let prepare = move |node: &NodeConfig, pod: &Pod| {
            let _writing = writes.lock();
            volumes::prepare(node, pod, &objects)
        };
        self.blocking(pod, prepare).await?;
        self.cgroups.set_up(&self.node, pod).await?;
        let request = v1::RunPodSandboxRequest {
            config: Some(self.node.sandbox_config(pod, attempt)),
            runtime_handler: self.node.runtime_handler(pod),
        };
        let created = self.call(&subject(pod), request).await;
        created.map(drop).map_err(call_failed("CreatePodSandboxError"))
    }

    /// Stops a sandbox, which frees its network.
    pub(super) async fn stop_sandbox(&self, pod: &Pod, id: &SandboxId) -> Result<(), ActionError> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let about = Subject::sandbox(pod.id.full_name(), id.shared());
        ignore_not_found(self.call(&about, request).await).map_err(call_failed("KillPodSandboxError"))
    }

    /// Stops a sandbox and removes it, with its containers.
    pub(super) async fn remove_sandbox(&self, pod: &Pod, id: &SandboxId) -> Result<(), ActionError> {
        self.stop_sandbox(pod, id).await?;
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let about = Subject::sandbox(pod.id.full_name(), id.shared());
        ignore_not_found(self.call(&about, request).await).map_err(call_failed("KillPodSandboxError"))
    }
}
