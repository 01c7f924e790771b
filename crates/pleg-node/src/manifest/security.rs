//! Security contexts, of a pod and of a container.

/// Which system calls a container may make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seccomp {
    /// Any.
    #[default]
    Unconfined,
    /// Those of the runtime's default profile.
    RuntimeDefault,
    /// Those of a profile of this node: a path below the node's directory of profiles, without `..`.
    Localhost(String),
}

/// The security context of a pod, for all its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSecurity {
    /// The user.
    pub run_as_user: Option<i64>,
    /// The group.
    pub run_as_group: Option<i64>,
    /// Refuses to run as root.
    pub run_as_non_root: Option<bool>,
    /// Supplemental groups, without that of [`PodSecurity::fs_group`].
    pub supplemental_groups: Vec<i64>,
    /// The group that owns the pod's volumes, and is a supplemental group of all containers.
    pub fs_group: Option<FsGroup>,
    /// System calls.
    pub seccomp: Option<Seccomp>,
    /// Kernel parameters of the pod's namespaces, in order: name and value.
    pub sysctls: Vec<(String, String)>,
}

/// The group that owns volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsGroup {
    /// The group.
    pub gid: i64,
    /// `fsGroupChangePolicy: OnRootMismatch`: a volume whose root has the right owner and mode is left as it is.
    pub on_root_mismatch: bool,
}

/// The security context of a container. What it does not set is taken from the pod's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSecurity {
    /// The user.
    pub run_as_user: Option<i64>,
    /// The group.
    pub run_as_group: Option<i64>,
    /// Refuses to run as root.
    pub run_as_non_root: Option<bool>,
    /// Has the privileges of a process of the host.
    pub privileged: bool,
    /// Whether set-user-id programs work; yes if not set.
    pub allow_privilege_escalation: Option<bool>,
    /// Its root file system is read-only.
    pub read_only_root: bool,
    /// Capabilities to add, without `CAP_`.
    pub add_capabilities: Vec<String>,
    /// Capabilities to drop, without `CAP_`; `ALL` for all.
    pub drop_capabilities: Vec<String>,
    /// System calls.
    pub seccomp: Option<Seccomp>,
}
