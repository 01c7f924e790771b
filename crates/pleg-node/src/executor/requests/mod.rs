//! CRI requests from a manifest. Pure: paths are named here, not created.
//!
//! Labels, annotations and log paths are those of the kubelet, so that its tools (crictl, log shippers) work here too. Without a DNS
//! configuration, a runtime uses the host's.
//!
//! | module | job |
//! |---|---|
//! | `env` | the environment, and `$(NAME)` in it, in commands and arguments |
//! | `resources` | limits of the cgroup, and the OOM score |
//! | `security` | user, capabilities, namespaces |

mod env;
mod resources;
mod security;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use pleg::PodUid;
use pleg_cri::v1;

use crate::cgroups::names;
use crate::manifest::{Container, Dns, DnsConfig, NodeName, Pod, Propagation, Protocol, Role, Volume};
use crate::status::qos_class;

pub use security::{RunAsNonRootError, check_user};

/// The label with the name of the node that owns a pod. Pods without it are never touched.
pub const NODE_LABEL: &str = "io.pleg.node";

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

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
            Volume::Projected(_) | Volume::PersistentVolumeClaim { .. } => return None,
        })
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
                hostname(pod)
            },
            log_directory: text(&self.log_directory(pod)),
            dns_config: self.dns_config(&spec.dns),
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
                ..Default::default()
            }),
        }
    }

    /// The configuration of a container. `image` is the runtime's id of its image; `ips` are those of the pod.
    pub fn container_config(
        &self,
        pod: &Pod,
        container: &Container,
        attempt: u32,
        image: &str,
        ips: &[IpAddr],
    ) -> v1::ContainerConfig {
        let ips = if pod.spec.host_network { &self.ips } else { ips };
        let environment = env::environment(self, pod, container, ips);
        let expand = |texts: &[String]| texts.iter().map(|text| env::expand(text, &environment)).collect();
        let mut labels = self.labels(pod);
        labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
        let annotations = [
            ("io.kubernetes.container.restartCount", attempt.to_string()),
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
            envs: environment
                .into_iter()
                .map(|(key, value)| v1::KeyValue {
                    key,
                    value: value.into_bytes(),
                })
                .collect(),
            mounts: self.mounts(pod, container),
            labels,
            annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
            log_path: log_path(&container.name, attempt),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(self.resources(pod, container)),
                security_context: Some(security::of_container(pod, container)),
            }),
            ..Default::default()
        }
    }

    /// The limits of a container.
    fn resources(&self, pod: &Pod, container: &Container) -> v1::LinuxContainerResources {
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

    fn mounts(&self, pod: &Pod, container: &Container) -> Vec<v1::Mount> {
        let mount = |mount: &crate::manifest::Mount| {
            let propagation = match mount.propagation {
                Propagation::None => v1::MountPropagation::PropagationPrivate,
                Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
                Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
            };
            Some(v1::Mount {
                container_path: mount.path.clone(),
                host_path: text(&self.volume_path(pod, &mount.volume)?),
                readonly: mount.read_only,
                selinux_relabel: false,
                propagation: propagation.into(),
            })
        };
        container.mounts.iter().filter_map(mount).collect()
    }

    fn dns_config(&self, dns: &Dns) -> Option<v1::DnsConfig> {
        let config = match dns {
            Dns::Host => return None,
            Dns::Own(own) => own.clone(),
            // No cluster DNS is known here.
            Dns::HostAnd(more) | Dns::ClusterAnd(more) => merged(&self.dns, more),
        };
        Some(v1::DnsConfig {
            servers: config.servers.iter().map(ToString::to_string).collect(),
            searches: config.searches,
            options: config.options,
        })
    }
}

/// The DNS configuration of the host with that of the pod added. An option of the pod replaces the host's of that name.
fn merged(host: &DnsConfig, pod: &DnsConfig) -> DnsConfig {
    let mut all = host.clone();
    let name = |option: &str| option.split(':').next().unwrap_or(option).to_owned();
    let new = pod.servers.iter().filter(|server| !host.servers.contains(server));
    all.servers.extend(new);
    let new = pod.searches.iter().filter(|search| !host.searches.contains(search));
    all.searches.extend(new.cloned());
    all.options
        .retain(|old| !pod.options.iter().any(|new| name(new) == name(old)));
    all.options.extend(pod.options.iter().cloned());
    // The limits of the C library.
    all.servers.truncate(3);
    all.searches.truncate(32);
    all
}

/// The host name of a pod.
fn hostname(pod: &Pod) -> String {
    if let Some(name) = &pod.spec.hostname.name {
        return name.clone();
    }
    // The limit of Linux. The cut may leave an end that is not valid in DNS.
    let cut: String = pod.id.name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
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
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
