//! Reads security contexts.

use super::super::names;
use super::super::read::{Field, Object};
use super::super::tree::Tree;
use super::super::{ContainerSecurity, PodSecurity, Seccomp};

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
        ..PodSecurity::default()
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
        let is_default = kind.one_of(&[("RuntimeDefault", true), ("Unconfined", false)])?;
        Some(if is_default {
            Seccomp::RuntimeDefault
        } else {
            Seccomp::Unconfined
        })
    })?
}
