//! Sandboxes: created, stopped and removed.

use std::sync::Arc;

use pleg::SandboxId;
use pleg_cri::{Subject, v1};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::error::call_failed;
use super::requests::{NodeConfig, dns, hostname};
use super::{
    ActionContext, ActionError, REMOVAL_PATIENCE, RuntimeExecutor, ignore_not_found, in_slot, subject, volumes,
};
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
        let (writes, objects) = (Arc::clone(&context.volume_writes), context.volume_objects.clone());
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

    /// Stops a sandbox and removes it, with its containers: each when it is its turn. Nobody waits for the removal but another pod of the
    /// same name, so it yields to many pods that start or stop at once, for a while.
    pub(super) async fn remove_sandbox(
        &self,
        pod: &Pod,
        id: &SandboxId,
        context: &ActionContext,
    ) -> Result<(), ActionError> {
        let stopping = self.activity.begin();
        let slot = self.teardowns.acquire().await;
        in_slot(slot, self.stop_sandbox(pod, id)).await?;
        drop(stopping);
        context.sandbox_stopped.notify_one();
        let slot = tokio::select! {
            biased;
            () = context.hurry.cancelled() => None,
            slot = self.removal_turn() => Some(slot),
        };
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        let about = Subject::sandbox(pod.id.full_name(), id.shared());
        let removed = in_slot(slot, self.call(&about, request)).await;
        ignore_not_found(removed).map_err(call_failed("KillPodSandboxError"))
    }

    /// Waits until a sandbox may be removed. What has waited for long waits for its turn only.
    async fn removal_turn(&self) -> impl Sized + use<'_> {
        let patience = Instant::now() + REMOVAL_PATIENCE;
        let slot = self.removals.acquire().await;
        // One that is over is as good as one that never began.
        let _ = timeout_at(patience, self.activity.burst_over()).await;
        slot
    }
}
