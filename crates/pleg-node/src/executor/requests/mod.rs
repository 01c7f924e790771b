//! CRI requests from a manifest. Pure: paths are named here, not created.
//!
//! Labels, annotations and log paths are those of the kubelet, so that its tools (crictl, log shippers) work here too. Without a DNS
//! configuration, a runtime uses the host's.
//!
//! | module | job |
//! |---|---|
//! | `env`, `fields` | the environment, and `$(NAME)` in it, in commands and arguments; fields of the pod |
//! | `resources` | limits of the cgroup, and the OOM score |
//! | `security`, `sysctls` | user, capabilities, namespaces; kernel parameters |
//! | `hostname` | the host name, and the full name |
//! | `dns` | name servers and search domains |

pub(crate) mod dns;
pub(crate) mod fields;
pub(crate) mod hostname;
pub(crate) mod sysctls;

mod env;
mod resources;
mod security;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pleg::PodUid;
use pleg_cri::v1;

use super::host_mounts::{HostMounts, Mounts};
use crate::cgroups::names;
use crate::manifest::{Container, DnsConfig, NodeName, Pod, ProjectedKind, Protocol, Role, Stdin, Volume};
use crate::status::qos_class;

pub use env::{EnvError, Environment};
pub use hostname::HostnameTooLong;
pub use security::{RunAsNonRootError, check_user, share_processes};
pub use sysctls::{InvalidSysctlPattern, SysctlError, check_pattern};

/// The label with the name of the node that owns a pod. Pods without it are never touched.
pub const NODE_LABEL: &str = "io.pleg.node";

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The directory, in that of a pod, of mounted parts of volumes.
pub(crate) const SUB_PATHS: &str = "volume-subpaths";

/// The configuration of a node: what requests depend on besides the manifest.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name.
    pub name: NodeName,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its memory, in bytes.
    pub memory: u64,
    /// The directory of container logs: `/var/log/pods`.
    pub logs: PathBuf,
    /// The directory of links to container logs: `/var/log/containers`.
    pub log_links: PathBuf,
    /// The directory of pod directories: `/var/lib/pleg/pods`.
    pub pods: PathBuf,
    /// Whether pods get cgroups with limits of their own. Otherwise the runtime creates them, without limits.
    pub cgroups_per_qos: bool,
    /// How cgroups of pods are named.
    pub cgroups: Cgroups,
    /// The name, at the top of the hierarchy, below which `kubepods` is; `/` for the top itself.
    pub cgroup_root: String,
    /// Where cgroups are mounted: `/sys/fs/cgroup`.
    pub cgroup_mount: PathBuf,
    /// Whether the kernel kills all processes of a container together when its memory is short (`memory.oom.group`). Needs version 2 of
    /// cgroups.
    pub oom_group: bool,
    /// The program that sets limits of systemd's slices: `systemctl`.
    pub systemctl: PathBuf,
    /// The DNS configuration of the host, for pods that add to it.
    pub dns: DnsConfig,
    /// What the host has and allows.
    pub host: HostOptions,
}

/// What the host has and allows: what containers get of it.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// How file systems are mounted.
    pub mounts: Arc<dyn Mounts>,
    /// Its CPUs: the limit of containers without one.
    pub cpus: u64,
    /// Its disk for pods, in bytes: the limit of containers without one.
    pub ephemeral_storage: u64,
    /// Whether it has `SELinux`: volumes of the pod are relabelled.
    pub selinux: bool,
    /// Its hosts file, for pods with its network.
    pub hosts_file: PathBuf,
    /// The domain of the cluster, for the full names of pods and for their DNS; empty if it has none.
    pub cluster_domain: String,
    /// The DNS servers of the cluster, for pods with `ClusterFirst`. Without them, these pods have the host's DNS.
    pub cluster_dns: Vec<IpAddr>,
    /// The directory of seccomp profiles.
    pub seccomp_profiles: PathBuf,
    /// Patterns of kernel parameters that pods may set although they are not safe.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The runtime's handler of each runtime class.
    pub runtime_handlers: BTreeMap<String, String>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            mounts: Arc::new(HostMounts),
            cpus: 1,
            ephemeral_storage: 0,
            selinux: false,
            hosts_file: "/etc/hosts".into(),
            cluster_domain: "cluster.local".to_owned(),
            cluster_dns: Vec::new(),
            seccomp_profiles: "/var/lib/pleg/seccomp".into(),
            allowed_unsafe_sysctls: Vec::new(),
            runtime_handlers: BTreeMap::new(),
        }
    }
}

/// What a container gets besides its manifest: computed and prepared just before it is created.
#[derive(Debug, Clone, Default)]
pub struct ContainerInputs {
    /// Its environment.
    pub environment: Environment,
    /// What is mounted.
    pub mounts: Vec<v1::Mount>,
}

/// How the runtime expects cgroups to be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cgroups {
    /// As a path.
    #[default]
    Path,
    /// As a systemd slice.
    Systemd,
}

impl NodeConfig {
    /// The log directory of a pod.
    pub fn log_directory(&self, pod: &Pod) -> PathBuf {
        // Names have no underscore, so this is unambiguous.
        let name = format!("{}_{}_{}", pod.id.namespace, pod.id.name, pod.id.uid);
        self.logs.join(name)
    }

    /// The directory of a pod.
    pub fn pod_directory(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str())
    }

    /// The directory of an `emptyDir`.
    pub fn empty_dir(&self, pod: &Pod, volume: &str) -> PathBuf {
        let directory = self.pod_directory(&pod.id.uid);
        directory.join("volumes/kubernetes.io~empty-dir").join(volume)
    }

    /// The path of a volume on the host.
    pub fn volume_path(&self, pod: &Pod, name: &str) -> Option<PathBuf> {
        Some(match pod.spec.volumes.get(name)? {
            Volume::EmptyDir(_) => self.empty_dir(pod, name),
            Volume::HostPath { path, .. } => PathBuf::from(path),
            Volume::Projected(volume) => {
                let kind = match volume.kind {
                    ProjectedKind::ConfigMap => "kubernetes.io~configmap",
                    ProjectedKind::Secret => "kubernetes.io~secret",
                    ProjectedKind::DownwardApi => "kubernetes.io~downward-api",
                    ProjectedKind::Projected => "kubernetes.io~projected",
                };
                self.pod_directory(&pod.id.uid).join("volumes").join(kind).join(name)
            }
            Volume::PersistentVolumeClaim { .. } => return None,
        })
    }

    /// The directory of mounted parts of volumes.
    pub(crate) fn sub_paths(&self, uid: &PodUid) -> PathBuf {
        self.pod_directory(uid).join(SUB_PATHS)
    }

    /// The runtime's handler for a pod; empty for the default one.
    ///
    /// A runtime class is an object of the API. Without an API server, the node's flags say which handler it means; else it is the handler
    /// of the same name, as in most clusters. A runtime that has no such handler refuses the sandbox, so no pod ever runs with less
    /// isolation than it asks for.
    pub fn runtime_handler(&self, pod: &Pod) -> String {
        let class = pod.spec.runtime_class.as_ref();
        let handler = class.map(|class| self.host.runtime_handlers.get(class).unwrap_or(class));
        handler.cloned().unwrap_or_default()
    }

    /// The cgroup of a pod, as the runtime expects it.
    pub fn cgroup(&self, pod: &Pod) -> String {
        let levels = names::pod(&self.cgroup_root, qos_class(pod), &pod.id.uid);
        match self.cgroups {
            Cgroups::Path => names::path(&levels),
            Cgroups::Systemd => names::slice(&levels),
        }
    }

    /// The configuration of a sandbox.
    pub fn sandbox_config(&self, pod: &Pod, attempt: u32) -> v1::PodSandboxConfig {
        let spec = &pod.spec;
        let mut labels: HashMap<String, String> = pod.labels.clone().into_iter().collect();
        labels.extend(self.labels(pod));
        let annotations: HashMap<String, String> = pod.annotations.clone().into_iter().collect();
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: pod.id.name.to_string(),
                uid: pod.id.uid.to_string(),
                namespace: pod.id.namespace.to_string(),
                attempt,
            }),
            // With hostNetwork, the host name is the host's.
            hostname: if spec.host_network {
                String::new()
            } else {
                // One that is too long is refused before.
                hostname::of_kernel(self, pod).unwrap_or_else(|_| hostname::short(pod))
            },
            log_directory: text(&self.log_directory(pod)),
            dns_config: dns::of(self, pod),
            port_mappings: if spec.host_network {
                Vec::new()
            } else {
                port_mappings(pod)
            },
            labels,
            annotations,
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup(pod),
                security_context: Some(security::of_sandbox(pod)),
                sysctls: sysctls::of(pod),
                ..Default::default()
            }),
        }
    }

    /// The configuration of a container. `image` is the runtime's id of its image.
    pub fn container_config(
        &self,
        pod: &Pod,
        container: &Container,
        attempt: u32,
        image: &str,
        inputs: ContainerInputs,
    ) -> v1::ContainerConfig {
        let environment = &inputs.environment;
        let expand = |texts: &[String]| texts.iter().map(|text| environment.expand(text)).collect();
        let mut labels = self.labels(pod);
        labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
        let annotations = [
            ("io.kubernetes.container.restartCount", attempt.to_string()),
            (
                "io.kubernetes.container.terminationMessagePath",
                container.termination_message.path.clone(),
            ),
            (
                "io.kubernetes.container.terminationMessagePolicy",
                message_policy(container).to_owned(),
            ),
            (
                "io.kubernetes.pod.terminationGracePeriod",
                pod.spec.termination_grace.as_secs().to_string(),
            ),
        ];
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: container.name.clone(),
                attempt,
            }),
            image: Some(v1::ImageSpec {
                image: image.to_owned(),
                user_specified_image: container.image.clone(),
                ..Default::default()
            }),
            command: expand(&container.command),
            args: expand(&container.args),
            working_dir: container.working_dir.clone(),
            envs: inputs
                .environment
                .into_pairs()
                .into_iter()
                .map(|(key, value)| v1::KeyValue {
                    key,
                    value: value.into_bytes(),
                })
                .collect(),
            mounts: inputs.mounts,
            labels,
            annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
            log_path: log_path(&container.name, attempt),
            stdin: container.stdin != Stdin::Closed,
            stdin_once: container.stdin == Stdin::Once,
            tty: container.tty,
            stop_signal: stop_signal(container).into(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(self.resources(pod, container)),
                security_context: Some(security::of_container(self, pod, container)),
            }),
        }
    }

    /// The limits of a container.
    pub(crate) fn resources(&self, pod: &Pod, container: &Container) -> v1::LinuxContainerResources {
        let mut resources = resources::of(pod, container, self.memory);
        if self.oom_group {
            resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
        }
        resources
    }

    /// The labels of every object of a pod.
    fn labels(&self, pod: &Pod) -> HashMap<String, String> {
        HashMap::from([
            (POD_NAME.to_owned(), pod.id.name.to_string()),
            (POD_NAMESPACE.to_owned(), pod.id.namespace.to_string()),
            (POD_UID.to_owned(), pod.id.uid.to_string()),
            (NODE_LABEL.to_owned(), self.name.to_string()),
        ])
    }
}

/// The name of the policy of termination messages.
fn message_policy(container: &Container) -> &'static str {
    if container.termination_message.fall_back_to_logs {
        "FallbackToLogsOnError"
    } else {
        "File"
    }
}

/// The signal that asks a container to stop; that of its image if the manifest has none.
fn stop_signal(container: &Container) -> v1::Signal {
    // Real-time signals are written as SIGRTMIN+1 and SIGRTMAX-1.
    let name = |signal: &String| format!("SIGNAL_{}", signal.replace('+', "PLUS").replace('-', "MINUS"));
    let known = container.stop_signal.as_ref().map(name);
    known
        .and_then(|name| v1::Signal::from_str_name(&name))
        .unwrap_or(v1::Signal::RuntimeDefault)
}

/// The path of the log of an attempt, below the pod's log directory.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    // Init containers have exited before the pod serves; sidecars have not.
    let containers = pod
        .spec
        .all_containers()
        .filter(|container| container.role != Role::Init);
    let ports = containers.flat_map(|container| &container.ports);
    let mapping = |port: &crate::manifest::Port| {
        let protocol = match port.protocol {
            Protocol::Tcp => v1::Protocol::Tcp,
            Protocol::Udp => v1::Protocol::Udp,
            Protocol::Sctp => v1::Protocol::Sctp,
        };
        Some(v1::PortMapping {
            protocol: protocol.into(),
            container_port: port.container.into(),
            host_port: port.host?.into(),
            host_ip: port.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        })
    };
    ports.filter_map(mapping).collect()
}

/// A path in a request. All our paths are valid UTF-8.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
