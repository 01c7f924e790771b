//! Kernel parameters of a pod: which of them a node allows. Those of the safe set always; others if the node's flag names them; never those
//! that are not of a namespace of the pod, because they would be the host's.

use crate::manifest::{Pod, Spec};

/// Parameters that affect only the pod, and cannot exceed its limits. The kubelet's set.
const SAFE: [&str; 12] = [
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

/// A namespace that a parameter belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// Why a pod with kernel parameters is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// It is not safe, and this node does not allow it.
    #[error("forbidden sysctl: {0:?} not allowlisted; --allowed-unsafe-sysctls would allow it")]
    NotAllowed(String),
    /// It would be the host's.
    #[error("forbidden sysctl: {name:?} not allowed with host {namespace} enabled")]
    OfHost {
        /// The parameter.
        name: String,
        /// The namespace that the pod shares with the host.
        namespace: &'static str,
    },
}

/// A pattern of `--allowed-unsafe-sysctls` that no parameter of a pod can match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a parameter of a namespace: expected a name or prefix* in kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* or net.*"
)]
pub struct InvalidSysctlPattern(String);

/// Checks a pattern of allowed parameters: a name, or the beginning of names before `*`.
pub fn check_pattern(pattern: &str) -> Result<String, InvalidSysctlPattern> {
    let normal = normalised(pattern);
    let prefix = normal.strip_suffix('*').unwrap_or(&normal);
    if prefix.contains('*') || namespace(prefix).is_none() {
        return Err(InvalidSysctlPattern(pattern.to_owned()));
    }
    Ok(normal)
}

/// Names can be written with slashes, as the path in `/proc/sys`.
fn normalised(name: &str) -> String {
    // Of the two separators, the first one is the separator; a name with a slash may have dots in its parts.
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

fn namespace(name: &str) -> Option<Namespace> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
        Some(Namespace::Ipc)
    } else {
        name.starts_with("net.").then_some(Namespace::Net)
    }
}

/// Checks the kernel parameters of a pod. `allowed` are patterns of unsafe ones.
pub(crate) fn check(spec: &Spec, allowed: &[String]) -> Result<(), SysctlError> {
    for (name, _) in &spec.security.sysctls {
        let normal = normalised(name);
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => normal.starts_with(prefix),
            None => normal == *pattern,
        };
        let of_host = |namespace| {
            Err(SysctlError::OfHost {
                name: name.clone(),
                namespace,
            })
        };
        match namespace(&normal) {
            None => return Err(SysctlError::NotAllowed(name.clone())),
            Some(_) if !SAFE.contains(&normal.as_str()) && !allowed.iter().any(matches) => {
                return Err(SysctlError::NotAllowed(name.clone()));
            }
            Some(Namespace::Net) if spec.host_network => return of_host("net"),
            Some(Namespace::Ipc) if spec.host_ipc => return of_host("ipc"),
            Some(_) => {}
        }
    }
    Ok(())
}

/// The parameters of a pod, as a runtime expects them.
pub(super) fn of(pod: &Pod) -> std::collections::HashMap<String, String> {
    let all = pod.spec.security.sysctls.iter();
    all.map(|(name, value)| (normalised(name), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn the_table() {
        let allowed: Vec<String> = ["kernel.msg*", "net.core.somaxconn"].map(str::to_owned).into();
        for (name, host_network, host_ipc, wanted) in [
            ("kernel.shm_rmid_forced", false, false, ""),
            ("net/ipv4/tcp_syncookies", false, false, ""),
            ("kernel.msgmax", false, false, ""),
            ("net.core.somaxconn", false, false, ""),
            ("net.core.rmem_max", false, false, "not allowlisted"),
            ("kernel.shmmax", false, false, "not allowlisted"),
            // Not of a namespace, whatever the flag says.
            ("vm.swappiness", false, false, "not allowlisted"),
            ("kernel.panic", false, false, "not allowlisted"),
            (
                "net.ipv4.tcp_syncookies",
                true,
                false,
                "not allowed with host net enabled",
            ),
            ("kernel.msgmax", false, true, "not allowed with host ipc enabled"),
            ("kernel.msgmax", true, false, ""),
        ] {
            let mut spec = pod("containers: [{name: a, image: i}]").spec.clone();
            spec.security.sysctls = vec![(name.to_owned(), "1".to_owned())];
            (spec.host_network, spec.host_ipc) = (host_network, host_ipc);
            let found = check(&spec, &allowed).map_err(|error| error.to_string());
            match found {
                Ok(()) => assert_eq!(wanted, "", "{name}"),
                Err(error) => assert!(!wanted.is_empty() && error.contains(wanted), "{name}: {error}"),
            }
        }
    }

    #[test]
    fn patterns_are_of_namespaces() {
        for (pattern, wanted) in [
            ("kernel.msg*", Some("kernel.msg*")),
            ("net/ipv4/tcp_*", Some("net.ipv4.tcp_*")),
            ("net/ipv4/conf/eth0.1/x", Some("net.ipv4.conf.eth0/1.x")),
            ("kernel.sem", Some("kernel.sem")),
            ("*", None),
            ("kernel.*", None),
            ("vm.swappiness", None),
            ("net.*.x*", None),
        ] {
            assert_eq!(check_pattern(pattern).ok().as_deref(), wanted, "{pattern}");
        }
    }
}
