//! Security contexts, of a pod and of a container.

use super::names;
use super::read::{Field, Object};
use super::tree::Tree;

/// Which system calls a container may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seccomp {
    /// Any.
    #[default]
    Unconfined,
    /// Those of the runtime's default profile.
    RuntimeDefault,
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
    /// Supplemental groups.
    pub supplemental_groups: Vec<i64>,
    /// System calls.
    pub seccomp: Option<Seccomp>,
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

const UNSUPPORTED_POD: &[&str] = &[
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "supplementalGroupsPolicy",
    "sysctls",
    "windowsOptions",
];
const UNSUPPORTED_CONTAINER: &[&str] = &["appArmorProfile", "procMount", "seLinuxOptions", "windowsOptions"];

/// Reads the security context of a pod.
pub(super) fn read_pod(field: &Field<'_>) -> Option<PodSecurity> {
    field.object(UNSUPPORTED_POD, |security| PodSecurity {
        run_as_user: id(security, "runAsUser"),
        run_as_group: id(security, "runAsGroup"),
        run_as_non_root: security.get("runAsNonRoot").and_then(|f| f.bool()),
        supplemental_groups: security
            .get("supplementalGroups")
            .map(|f| f.list(|item| item.int(0..=i64::from(i32::MAX))))
            .unwrap_or_default(),
        seccomp: seccomp(security),
    })
}

/// Reads the security context of a container.
pub(super) fn read_container(field: &Field<'_>) -> Option<ContainerSecurity> {
    field.object(UNSUPPORTED_CONTAINER, |security| {
        let (mut add_capabilities, mut drop_capabilities) = (Vec::new(), Vec::new());
        if let Some(capabilities) = security.get("capabilities") {
            capabilities.object(&[], |capabilities| {
                add_capabilities = capabilities.get("add").map(|f| f.list(capability)).unwrap_or_default();
                drop_capabilities = capabilities.get("drop").map(|f| f.list(capability)).unwrap_or_default();
            });
        }
        let privileged = security.get("privileged").and_then(|f| f.bool()).unwrap_or_default();
        let escalation = security.get("allowPrivilegeEscalation");
        let allow_privilege_escalation = escalation.as_ref().and_then(Field::bool);
        if let (Some(field), Some(false)) = (escalation, allow_privilege_escalation)
            && (privileged || add_capabilities.iter().any(|name| name == "SYS_ADMIN" || name == "ALL"))
        {
            field.refuse("must not be false in a container that is privileged or has SYS_ADMIN");
        }
        ContainerSecurity {
            run_as_user: id(security, "runAsUser"),
            run_as_group: id(security, "runAsGroup"),
            run_as_non_root: security.get("runAsNonRoot").and_then(|f| f.bool()),
            privileged,
            allow_privilege_escalation,
            read_only_root: security
                .get("readOnlyRootFilesystem")
                .and_then(|f| f.bool())
                .unwrap_or_default(),
            add_capabilities,
            drop_capabilities,
            seccomp: seccomp(security),
        }
    })
}

fn id(object: &mut Object<'_>, name: &'static str) -> Option<i64> {
    object.get(name)?.int(0..=i64::from(i32::MAX))
}

/// A capability, without `CAP_`.
fn capability(field: &Field<'_>) -> Option<String> {
    let name = field.checked(names::capability)?;
    Some(name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name))
}

fn seccomp(object: &mut Object<'_>) -> Option<Seccomp> {
    object.get("seccompProfile")?.object(&["localhostProfile"], |profile| {
        let kind = profile.need("type")?;
        if *kind.tree == Tree::Text("Localhost".to_owned()) {
            kind.refuse("Localhost profiles are not supported; use RuntimeDefault or Unconfined");
            return None;
        }
        kind.one_of(&[
            ("RuntimeDefault", Seccomp::RuntimeDefault),
            ("Unconfined", Seccomp::Unconfined),
        ])
    })?
}
