//! Sandboxes: created, stopped and removed.

use pleg::SandboxId;
use pleg_cri::{Subject, v1};

use super::error::call_failed;
use super::requests::hostname;
use super::{ActionError, RuntimeExecutor, ignore_not_found, objects, subject, volumes};
use crate::manifest::Pod;

/// The annotation with the source of a manifest.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// Where a manifest comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigSource {
    /// A file.
    File,
    /// A URL.
    Http,
}

impl ConfigSource {
    /// The source of a manifest at this place: a path, or a URL.
    pub(crate) fn of(origin: &str) -> Self {
        let scheme = origin.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http" | "https") => Self::Http,
            _ => Self::File,
        }
    }

    /// As the kubelet writes it.
    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

impl RuntimeExecutor {
    /// The configuration of a sandbox, with the source of its manifest.
    pub(super) fn sandbox_config(&self, pod: &Pod, source: ConfigSource, attempt: u32) -> v1::PodSandboxConfig {
        let mut config = self.node.sandbox_config(pod, attempt);
        config
            .annotations
            .insert(CONFIG_SOURCE.to_owned(), source.name().to_owned());
        config
    }

    /// Stops the sandboxes that are replaced, prepares the directories of the pod, and creates a sandbox.
    pub(super) async fn run_sandbox(
        &self,
        pod: &Pod,
        source: ConfigSource,
        attempt: u32,
        replaces: &[SandboxId],
    ) -> Result<(), ActionError> {
        for old in replaces {
            self.stop_sandbox(pod, old).await?;
        }
        hostname::of_kernel(&self.node, pod)?;
        let objects = objects::for_volumes(&*self.objects, pod).await;
        let objects = objects.map_err(ActionError::VolumeObjects)?;
        self.blocking(pod, move |node, pod| volumes::prepare(node, pod, &objects))
            .await?;
        let request = v1::RunPodSandboxRequest {
            config: Some(self.sandbox_config(pod, source, attempt)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_the_name_that_the_kubelet_has_for_it() {
        for (origin, name) in [
            ("/etc/pleg/manifests/web.yaml", "file"),
            ("web.yaml", "file"),
            ("http://192.0.2.1/pods", "http"),
            ("https://example.com/pods.yaml", "http"),
        ] {
            assert_eq!(ConfigSource::of(origin).name(), name, "{origin}");
        }
    }
}
