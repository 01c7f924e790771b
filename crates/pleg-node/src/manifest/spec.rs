//! What a pod runs: its containers, and what they share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::container::Container;
use super::quantity::Quantity;
use super::restart::RestartPolicy;
use super::security::PodSecurity;
use super::volume::Volume;

/// Which processes a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PidNamespace {
    /// Its own.
    #[default]
    Container,
    /// Those of all containers of the pod: `shareProcessNamespace`.
    Pod,
    /// Those of the host: `hostPID`.
    Host,
}

/// The DNS configuration of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Dns {
    /// The host's.
    #[default]
    Host,
    /// The host's, and that of the manifest.
    HostAnd(DnsConfig),
    /// That of the manifest alone.
    Own(DnsConfig),
    /// The cluster's (`ClusterFirst` without `hostNetwork`, or `ClusterFirstWithHostNet`), and that of the manifest, which may be empty. On a
    /// node without cluster DNS: the host's, and that of the manifest.
    ClusterAnd(DnsConfig),
}

/// `dnsConfig`: what is written to `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsConfig {
    /// Servers, at most 3.
    pub servers: Vec<IpAddr>,
    /// Domains to search, at most 32.
    pub searches: Vec<String>,
    /// Options, as in the file: `ndots:2`.
    pub options: Vec<String>,
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAlias {
    /// The address.
    pub ip: IpAddr,
    /// Its names.
    pub hostnames: Vec<String>,
}

/// The host name that the processes of a pod see. Not used with the host's network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hostname {
    /// `hostname`; the pod's name if none.
    pub name: Option<String>,
    /// `subdomain`: with it, the full name of the pod is `HOSTNAME.SUBDOMAIN.NAMESPACE.svc.CLUSTER_DOMAIN`.
    pub subdomain: Option<String>,
    /// `setHostnameAsFQDN`: the kernel's host name is the full name, which must not be longer than 64 bytes.
    pub set_as_fqdn: bool,
    /// `hostnameOverride`: the kernel's host name, whatever the other fields say, and then there is no full name.
    pub override_name: Option<String>,
}

/// The priority of a pod: which pods are evicted last, and shut down last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Priority {
    /// `priority`.
    pub value: i32,
    /// `priorityClassName`.
    pub class: Option<String>,
}

impl Priority {
    /// Pods of this priority and above are never evicted, nor rejected for lack of room.
    pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;
    /// The priority of [`Priority::NODE_CRITICAL_CLASS`].
    pub const NODE_CRITICAL: i32 = 2_000_001_000;
    /// The class of pods without which the node does not work.
    pub const NODE_CRITICAL_CLASS: &'static str = "system-node-critical";
    /// The class of pods without which the cluster does not work.
    pub const CLUSTER_CRITICAL_CLASS: &'static str = "system-cluster-critical";

    /// `system-node-critical`: among the last to be killed for memory.
    pub fn is_node_critical(&self) -> bool {
        self.value >= Self::SYSTEM_CRITICAL && self.class.as_deref() == Some(Self::NODE_CRITICAL_CLASS)
    }
}

/// `overhead`: what a runtime class needs beside its containers. Part of the limits of the pod's cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overhead {
    /// CPU.
    pub cpu: Option<Quantity>,
    /// Memory.
    pub memory: Option<Quantity>,
}

/// What a pod runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Run first, one after another.
    pub init_containers: Vec<Container>,
    /// Run then, in parallel. At least one.
    pub containers: Vec<Container>,
    /// Added to a running pod to look into it: started once and never restarted. Neither the phase nor readiness depends on them.
    pub ephemeral_containers: Vec<Container>,
    /// Volumes, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// Which exited containers are restarted, unless they say otherwise themselves.
    pub restart_policy: RestartPolicy,
    /// The grace period of its termination.
    pub termination_grace: Duration,
    /// How long the pod may run.
    pub active_deadline: Option<Duration>,
    /// Whether it uses the host's network.
    pub host_network: bool,
    /// Whether it uses the host's IPC namespace.
    pub host_ipc: bool,
    /// Which processes containers see.
    pub processes: PidNamespace,
    /// The DNS configuration.
    pub dns: Dns,
    /// The host name in the pod.
    pub hostname: Hostname,
    /// Lines to add to `/etc/hosts`.
    pub host_aliases: Vec<HostAlias>,
    /// The user of containers.
    pub security: PodSecurity,
    /// The priority.
    pub priority: Priority,
    /// `runtimeClassName`: the runtime's handler is found by it.
    pub runtime_class: Option<String>,
    /// What the runtime class needs beside the containers.
    pub overhead: Overhead,
    /// Types of conditions, set by others, that have to be true for the pod to be ready.
    pub readiness_gates: Vec<String>,
    /// Names of secrets, in the pod's namespace, with credentials of registries.
    pub image_pull_secrets: Vec<String>,
    /// `serviceAccountName`; tokens are of this account.
    pub service_account: Option<String>,
    /// Whether the environment has variables for the services of the namespace.
    pub enable_service_links: bool,
}

/// The default of `terminationGracePeriodSeconds`.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(30);

impl Spec {
    /// Of a pod whose manifest is not known.
    pub(super) fn without_manifest() -> Self {
        Self {
            init_containers: Vec::new(),
            containers: Vec::new(),
            ephemeral_containers: Vec::new(),
            volumes: BTreeMap::new(),
            restart_policy: RestartPolicy::Never,
            termination_grace: DEFAULT_GRACE,
            active_deadline: None,
            host_network: false,
            host_ipc: false,
            processes: PidNamespace::default(),
            dns: Dns::default(),
            hostname: Hostname::default(),
            host_aliases: Vec::new(),
            security: PodSecurity::default(),
            priority: Priority::default(),
            runtime_class: None,
            overhead: Overhead::default(),
            readiness_gates: Vec::new(),
            image_pull_secrets: Vec::new(),
            service_account: None,
            enable_service_links: false,
        }
    }

    /// All containers but the ephemeral ones: those of `initContainers` first.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// The container of that name, ephemeral ones included.
    pub fn container(&self, name: &str) -> Option<&Container> {
        let mut all = self.all_containers().chain(&self.ephemeral_containers);
        all.find(|container| container.name == name)
    }
}
