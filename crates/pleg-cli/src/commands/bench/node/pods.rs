//! The pods: their manifests, and the requests that are made from them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use pleg_cri::v1;
use pleg_node::executor::requests::{Cgroups, NodeConfig};
use pleg_node::manifest::{DnsConfig, NodeName, Pod};
use pleg_node::sources::static_pods::{ConfigSource, read};

/// The name of the node, which its pods carry as a label.
pub(super) const NODE: &str = "pleg-bench";
/// Stays, and ends at once when it is asked to.
const STAYS: &str = "trap exit TERM; sleep 1000000 & wait";
/// Falls, a moment after its start.
const FALLS: &str = "sleep 1; exit 3";

/// What a pod's container does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Does {
    /// Stays. The number makes one edition of the manifest differ from another.
    Stay(usize),
    /// Falls after a second.
    Fall,
}

/// Makes manifests and requests, all alike.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    image: String,
    known: v1::Image,
    node: NodeConfig,
}

impl Maker {
    /// For pods with their logs in `scratch`.
    pub(super) fn new(scratch: &Path, image: &str, known: v1::Image) -> anyhow::Result<Self> {
        let node = NodeConfig {
            name: NodeName::new(NODE).map_err(anyhow::Error::msg)?,
            ips: Vec::new(),
            memory: pleg_node::host::memory(),
            logs: scratch.join("direct/logs"),
            log_links: scratch.join("direct/containers"),
            pods: scratch.join("direct/pods"),
            cgroups_per_qos: true,
            cgroups: Cgroups::Path,
            cgroup_root: NODE.to_owned(),
            cgroup_mount: "/sys/fs/cgroup".into(),
            oom_group: false,
            systemctl: "systemctl".into(),
            dns: DnsConfig::default(),
        };
        Ok(Self {
            image: image.to_owned(),
            known,
            node,
        })
    }

    pub(super) fn manifest(&self, name: &str, does: Does) -> String {
        let (script, edition) = match does {
            Does::Stay(edition) => (STAYS, edition),
            Does::Fall => (FALLS, 0),
        };
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  hostNetwork: true\n  containers:\n  - name: app\n    \
             image: '{}'\n    imagePullPolicy: IfNotPresent\n    command: [sh, -c, '{script}']\n    env:\n    - {{name: EDITION, value: '{edition}'}}\n",
            self.image
        )
    }

    /// The pod of a manifest, as `pleg node` reads it.
    pub(super) fn pod(&self, name: &str, does: Does) -> anyhow::Result<Arc<Pod>> {
        let mut found = read(
            self.manifest(name, does).as_bytes(),
            &self.node.name,
            ConfigSource::File,
        )?;
        if let Some(refused) = found.refused.first() {
            anyhow::bail!("{refused}");
        }
        found.pods.pop().context("the manifest has no pod")
    }

    pub(super) fn node(&self) -> &NodeConfig {
        &self.node
    }

    pub(super) fn sandbox(&self, pod: &Pod) -> v1::RunPodSandboxRequest {
        v1::RunPodSandboxRequest {
            config: Some(self.node.sandbox_config(pod, 0)),
            runtime_handler: String::new(),
        }
    }

    pub(super) fn container(&self, pod: &Pod, sandbox: &str) -> anyhow::Result<v1::CreateContainerRequest> {
        let container = pod.spec.containers.first().context("the pod has no container")?;
        let config = self.node.container_config(pod, container, 0, &self.known.id, &[]);
        Ok(v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.node.sandbox_config(pod, 0)),
        })
    }
}
