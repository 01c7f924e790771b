//! The host name of a pod, and its full name.

use super::NodeConfig;
use crate::manifest::Pod;

/// The longest host name, of Linux.
const MAX_HOSTNAME: usize = 64;
/// The longest part of a name in DNS.
const MAX_LABEL: usize = 63;

/// A host name that Linux does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setHostnameAsFQDN: the full name {name} has {} characters, and a host name has at most {MAX_HOSTNAME}", .name.len())]
pub struct HostnameTooLong {
    name: String,
}

/// The name without domain. With `hostnameOverride`, there is no other one.
pub(crate) fn short(pod: &Pod) -> String {
    let hostname = &pod.spec.hostname;
    if let Some(name) = hostname.override_name.as_ref().or(hostname.name.as_ref()) {
        return name.clone();
    }
    // The cut may leave an end that is not valid in DNS.
    let cut: String = pod.id.name.chars().take(MAX_LABEL).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// The domain of the pod; none if it has no subdomain.
pub(crate) fn domain(node: &NodeConfig, pod: &Pod) -> Option<String> {
    let hostname = &pod.spec.hostname;
    let subdomain = hostname
        .subdomain
        .as_ref()
        .filter(|_| hostname.override_name.is_none())?;
    Some(format!(
        "{subdomain}.{}.svc.{}",
        pod.id.namespace, node.host.cluster_domain
    ))
}

/// The kernel's host name in the pod. Not used with the host's network.
pub(crate) fn of_kernel(node: &NodeConfig, pod: &Pod) -> Result<String, HostnameTooLong> {
    let short = short(pod);
    match domain(node, pod).filter(|_| pod.spec.hostname.set_as_fqdn) {
        None => Ok(short),
        Some(domain) => {
            let name = format!("{short}.{domain}");
            if name.len() > MAX_HOSTNAME {
                return Err(HostnameTooLong { name });
            }
            Ok(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::Hostname;
    use crate::testing::{node, pod};

    #[test]
    fn the_table() {
        let node = node(Path::new("/x"));
        let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        for (name, subdomain, set_as_fqdn, override_name, kernel, full) in [
            ("", "", false, "", "p-n", None),
            ("web", "", false, "", "web", None),
            // Without a subdomain there is no full name.
            ("web", "", true, "", "web", None),
            ("web", "sub", false, "", "web", Some("sub.default.svc.cluster.local")),
            (
                "",
                "sub",
                true,
                "",
                "p-n.sub.default.svc.cluster.local",
                Some("sub.default.svc.cluster.local"),
            ),
            ("web", "sub", true, "other.name", "other.name", None),
        ] {
            pod.spec.hostname = Hostname {
                name: some(name),
                subdomain: some(subdomain),
                set_as_fqdn,
                override_name: some(override_name),
            };
            assert_eq!(of_kernel(&node, &pod).as_deref(), Ok(kernel), "{:?}", pod.spec.hostname);
            assert_eq!(domain(&node, &pod).as_deref(), full, "{:?}", pod.spec.hostname);
        }
        pod.spec.hostname = Hostname {
            name: Some("a".repeat(40)),
            subdomain: Some("sub".to_owned()),
            set_as_fqdn: true,
            override_name: None,
        };
        let error = of_kernel(&node, &pod).unwrap_err().to_string();
        assert!(
            error.ends_with("cluster.local has 70 characters, and a host name has at most 64"),
            "{error}"
        );
    }
}
