//! Security contexts, of a pod and of a container.

use k8s_openapi::api::core::v1 as core;

use super::super::problem::At;
use super::super::{ContainerSecurity, FsGroup, PodSecurity, Seccomp, names};
use super::Policy;

/// Sysctls that belong to a namespace of the pod and cannot harm the node, as the kubelet allows them.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Converts the security context of a pod. `at` is the place of the spec.
pub(super) fn convert_pod(context: Option<&core::PodSecurityContext>, host_network: bool, at: &At<'_>) -> PodSecurity {
    let at = at.key("securityContext");
    let Some(core::PodSecurityContext {
        app_armor_profile,
        fs_group,
        fs_group_change_policy,
        run_as_group,
        run_as_non_root,
        run_as_user,
        se_linux_change_policy,
        se_linux_options,
        seccomp_profile,
        supplemental_groups,
        supplemental_groups_policy,
        sysctls,
        windows_options,
    }) = context
    else {
        return PodSecurity::default();
    };
    at.unsupported("appArmorProfile", app_armor_profile.is_some());
    at.unsupported("seLinuxOptions", se_linux_options.is_some());
    at.unsupported("windowsOptions", windows_options.is_some());
    // Without options there is no label to change.
    at.not_for_nodes("seLinuxChangePolicy", se_linux_change_policy.is_some());
    let policy = supplemental_groups_policy.as_deref();
    at.only(
        "supplementalGroupsPolicy",
        policy.as_ref(),
        &"Merge",
        "only Merge is supported by pleg node",
    );
    let on_root_mismatch = fs_group_change_policy.as_deref().and_then(|policy| {
        let words = [("OnRootMismatch", true), ("Always", false)];
        at.key("fsGroupChangePolicy").one_of(policy, &words)
    });
    PodSecurity {
        run_as_user: id(*run_as_user, &at.key("runAsUser")),
        run_as_group: id(*run_as_group, &at.key("runAsGroup")),
        run_as_non_root: *run_as_non_root,
        supplemental_groups: at.list("supplementalGroups", supplemental_groups.as_ref(), |group, at| {
            at.check_range(*group, 0..=i64::from(i32::MAX));
            *group
        }),
        fs_group: id(*fs_group, &at.key("fsGroup")).map(|gid| FsGroup {
            gid,
            on_root_mismatch: on_root_mismatch.unwrap_or_default(),
        }),
        seccomp: seccomp(seccomp_profile.as_ref(), &at),
        sysctls: at.list("sysctls", sysctls.as_ref(), |sysctl, at| {
            convert_sysctl(sysctl, host_network, at)
        }),
    }
}

fn convert_sysctl(sysctl: &core::Sysctl, host_network: bool, at: &At<'_>) -> (String, String) {
    let core::Sysctl { name, value } = sysctl;
    let at = at.key("name");
    // Both forms are used.
    let dotted = name.replace('/', ".");
    if name.is_empty() {
        at.refuse("required field is missing");
    } else if !SAFE_SYSCTLS.contains(&dotted.as_str()) {
        let name = names::quoted(name);
        at.refuse(format!(
            "{name} may affect the node or other pods; expected one that Kubernetes calls safe"
        ));
    } else if host_network && dotted.starts_with("net.") {
        at.refuse("must not be set together with hostNetwork: it would change the node's network");
    }
    (dotted, value.clone())
}

/// Converts the security context of a container.
pub(super) fn convert_container(context: Option<&core::SecurityContext>, at: &At<'_>) -> ContainerSecurity {
    let Some(core::SecurityContext {
        allow_privilege_escalation,
        app_armor_profile,
        capabilities,
        privileged,
        proc_mount,
        read_only_root_filesystem,
        run_as_group,
        run_as_non_root,
        run_as_user,
        se_linux_options,
        seccomp_profile,
        windows_options,
    }) = context
    else {
        return ContainerSecurity::default();
    };
    at.unsupported("appArmorProfile", app_armor_profile.is_some());
    at.unsupported("seLinuxOptions", se_linux_options.is_some());
    at.unsupported("windowsOptions", windows_options.is_some());
    let proc_mount = proc_mount.as_deref();
    at.only(
        "procMount",
        proc_mount.as_ref(),
        &"Default",
        "only Default is supported by pleg node",
    );
    let (add_capabilities, drop_capabilities) = match capabilities {
        Some(core::Capabilities { add, drop }) => {
            let at = at.key("capabilities");
            (
                at.list("add", add.as_ref(), |name, at| capability(name, at)),
                at.list("drop", drop.as_ref(), |name, at| capability(name, at)),
            )
        }
        None => (Vec::new(), Vec::new()),
    };
    let privileged = privileged.unwrap_or_default();
    let powerful = privileged || add_capabilities.iter().any(|name| name == "SYS_ADMIN" || name == "ALL");
    if *allow_privilege_escalation == Some(false) && powerful {
        at.key("allowPrivilegeEscalation")
            .refuse("must not be false in a container that is privileged or has SYS_ADMIN");
    }
    ContainerSecurity {
        run_as_user: id(*run_as_user, &at.key("runAsUser")),
        run_as_group: id(*run_as_group, &at.key("runAsGroup")),
        run_as_non_root: *run_as_non_root,
        privileged,
        allow_privilege_escalation: *allow_privilege_escalation,
        read_only_root: read_only_root_filesystem.unwrap_or_default(),
        add_capabilities,
        drop_capabilities,
        seccomp: seccomp(seccomp_profile.as_ref(), at),
    }
}

fn id(value: Option<i64>, at: &At<'_>) -> Option<i64> {
    value.inspect(|&value| at.check_range(value, 0..=i64::from(i32::MAX)))
}

/// A capability, without `CAP_`.
fn capability(name: &str, at: &At<'_>) -> String {
    at.check(name, names::capability);
    name.strip_prefix("CAP_").unwrap_or(name).to_owned()
}

fn seccomp(profile: Option<&core::SeccompProfile>, at: &At<'_>) -> Option<Seccomp> {
    let core::SeccompProfile {
        localhost_profile,
        type_,
    } = profile?;
    let at = at.key("seccompProfile");
    let path = localhost_profile.clone().unwrap_or_default();
    if type_ == "Localhost" {
        at.key("localhostProfile").require(&path, names::relative_path);
        return Some(Seccomp::Localhost(path));
    }
    if localhost_profile.is_some() && (at.policy() == Policy::Static || !path.is_empty()) {
        at.key("localhostProfile")
            .refuse("must be set only with type Localhost; remove it");
    }
    if type_.is_empty() {
        at.key("type").refuse("required field is missing");
        return None;
    }
    let words = [
        ("RuntimeDefault", Seccomp::RuntimeDefault),
        ("Unconfined", Seccomp::Unconfined),
        ("Localhost", Seccomp::Unconfined),
    ];
    at.key("type").one_of(type_, &words)
}
