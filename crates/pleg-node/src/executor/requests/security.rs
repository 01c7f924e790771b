//! User, capabilities and namespaces of a container.

use std::path::Path;

use pleg::ContainerId;
use pleg_cri::v1;

use super::{NodeConfig, text};
use crate::manifest::{Container, PidNamespace, Pod, Seccomp};

/// Paths that are hidden from containers that are not privileged. Without this, a runtime shows them.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Paths that are read-only for them.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Why a container with `runAsNonRoot` is not created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunAsNonRootError {
    /// It would run as root.
    #[error(
        "container {0} has runAsNonRoot set but would run as root: set runAsUser, or use an image with a non-root user"
    )]
    Root(String),
    /// The user of its image has a name, which may be that of root.
    #[error(
        "container {0} has runAsNonRoot set and its image user {user} may be root: set runAsUser to a numeric UID",
        user = pleg_cri::error::quoted(.1)
    )]
    Named(String, String),
}

/// Checks `runAsNonRoot` against the user that the container would have. `image` is the status of its image.
pub fn check_user(pod: &Pod, container: &Container, image: &v1::Image) -> Result<(), RunAsNonRootError> {
    let (own, shared) = (&container.security, &pod.spec.security);
    if own.run_as_non_root.or(shared.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let root = || Err(RunAsNonRootError::Root(container.name.clone()));
    let wanted = own.run_as_user.or(shared.run_as_user);
    match wanted.or(image.uid.as_ref().map(|uid| uid.value)) {
        Some(0) => root(),
        Some(_) => Ok(()),
        None if image.username.is_empty() => root(),
        None => Err(RunAsNonRootError::Named(container.name.clone(), image.username.clone())),
    }
}

pub(super) fn of_sandbox(pod: &Pod) -> v1::LinuxSandboxSecurityContext {
    let security = &pod.spec.security;
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        run_as_user: security.run_as_user.map(number),
        run_as_group: security.run_as_group.map(number),
        supplemental_groups: supplemental_groups(pod),
        // A privileged container needs a privileged sandbox.
        privileged: pod.spec.all_containers().any(|container| container.security.privileged),
        // The sandbox itself needs no more than this, whatever its containers may do.
        seccomp: Some(profile(&Seccomp::RuntimeDefault, Path::new(""))),
        ..Default::default()
    }
}

pub(super) fn of_container(node: &NodeConfig, pod: &Pod, container: &Container) -> v1::LinuxContainerSecurityContext {
    let (own, shared) = (&container.security, &pod.spec.security);
    let hidden = |paths: &[&str]| {
        let paths: &[&str] = if own.privileged { &[] } else { paths };
        paths.iter().map(|path| (*path).to_owned()).collect()
    };
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: own.add_capabilities.clone(),
            drop_capabilities: own.drop_capabilities.clone(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: own.privileged,
        namespace_options: Some(namespaces(pod)),
        run_as_user: own.run_as_user.or(shared.run_as_user).map(number),
        run_as_group: own.run_as_group.or(shared.run_as_group).map(number),
        readonly_rootfs: own.read_only_root,
        supplemental_groups: supplemental_groups(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: hidden(&MASKED),
        readonly_paths: hidden(&READ_ONLY),
        seccomp: Some(profile(
            own.seccomp
                .as_ref()
                .or(shared.seccomp.as_ref())
                .unwrap_or(&Seccomp::Unconfined),
            &node.host.seccomp_profiles,
        )),
        ..Default::default()
    }
}

/// Lets a container see the processes of another one, unless the pod shares them anyway.
pub fn share_processes(config: &mut v1::ContainerConfig, target: &ContainerId) {
    let linux = config.linux.as_mut();
    let security = linux.and_then(|linux| linux.security_context.as_mut());
    if let Some(options) = security.and_then(|security| security.namespace_options.as_mut())
        && options.pid() == v1::NamespaceMode::Container
    {
        options.set_pid(v1::NamespaceMode::Target);
        options.target_id = target.to_string();
    }
}

/// The group of the volumes first, as in the kubelet.
fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let security = &pod.spec.security;
    let own = security.fs_group.map(|group| group.gid);
    own.into_iter()
        .chain(security.supplemental_groups.iter().copied())
        .collect()
}

fn number(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

fn namespaces(pod: &Pod) -> v1::NamespaceOption {
    let network = if pod.spec.host_network {
        v1::NamespaceMode::Node
    } else {
        v1::NamespaceMode::Pod
    };
    let ipc = if pod.spec.host_ipc {
        v1::NamespaceMode::Node
    } else {
        v1::NamespaceMode::Pod
    };
    let pid = match pod.spec.processes {
        PidNamespace::Container => v1::NamespaceMode::Container,
        PidNamespace::Pod => v1::NamespaceMode::Pod,
        PidNamespace::Host => v1::NamespaceMode::Node,
    };
    v1::NamespaceOption {
        network: network.into(),
        pid: pid.into(),
        ipc: ipc.into(),
        ..Default::default()
    }
}

/// A profile of this node is given as its path below the directory of profiles.
fn profile(seccomp: &Seccomp, profiles: &Path) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, path) = match seccomp {
        Seccomp::Unconfined => (ProfileType::Unconfined, String::new()),
        Seccomp::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        Seccomp::Localhost(name) => (ProfileType::Localhost, text(&profiles.join(name))),
    };
    v1::SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: path,
    }
}
