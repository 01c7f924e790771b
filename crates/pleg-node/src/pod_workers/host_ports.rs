//! Host ports in use by pods. Two pods cannot share one: the second is not admitted, with the name of the first, and starts when the port
//! is free.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::PodUid;

use crate::manifest::{Pod, Protocol, Role};
use crate::reconcile::history::PodFailure;

/// A port of the host, on one address or on all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HostPort {
    protocol: Protocol,
    ip: Option<IpAddr>,
    port: u16,
}

impl HostPort {
    fn conflicts_with(&self, other: &Self) -> bool {
        let same_ip = match (self.ip, other.ip) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        same_ip && self.port == other.port && self.protocol == other.protocol
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        match self.ip {
            Some(ip) => write!(f, "{}/{protocol} of {ip}", self.port),
            None => write!(f, "{}/{protocol}", self.port),
        }
    }
}

/// The host ports of a pod. With `hostNetwork`, every container port is one.
fn host_ports_of(pod: &Pod) -> Vec<HostPort> {
    let containers = pod
        .spec
        .all_containers()
        .filter(|container| container.role != Role::Init);
    let ports = containers.flat_map(|container| &container.ports);
    let host_port = |port: &crate::manifest::Port| {
        let own = pod.spec.host_network.then_some(port.container);
        Some(HostPort {
            protocol: port.protocol,
            ip: port.host_ip.filter(|ip| !ip.is_unspecified()),
            port: port.host.or(own)?,
        })
    };
    ports.filter_map(host_port).collect()
}

/// By pod: its name and its ports.
type Claims = BTreeMap<PodUid, (Arc<str>, Vec<HostPort>)>;

/// Which pod has which ports. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostPorts {
    // Held for a lookup or a change; never across an await.
    claims: Arc<Mutex<Claims>>,
}

impl HostPorts {
    /// Claims the host ports of a pod, unless another pod has one of them.
    pub(crate) fn claim(&self, pod: &Pod) -> Result<(), PodFailure> {
        let ports = host_ports_of(pod);
        let mut claims = self.claims.lock();
        let conflict = claims.iter().filter(|(uid, _)| **uid != pod.id.uid);
        let mut conflict = conflict.filter_map(|(_, (holder, held))| {
            let port = ports
                .iter()
                .find(|port| held.iter().any(|other| port.conflicts_with(other)));
            port.map(|port| (*port, Arc::clone(holder)))
        });
        if let Some((port, holder)) = conflict.next() {
            return Err(PodFailure {
                reason: "HostPortConflict".to_owned(),
                message: format!(
                    "host port {port} of pod {} is already used by pod {holder}: change or remove one of them",
                    pod.id
                ),
            });
        }
        drop(conflict);
        insert(&mut claims, pod, ports);
        Ok(())
    }

    /// Claims the host ports of a running pod, which uses them already, even if another pod claims them too.
    pub(crate) fn adopt(&self, pod: &Pod) {
        insert(&mut self.claims.lock(), pod, host_ports_of(pod));
    }

    /// Releases the ports of a pod.
    pub(crate) fn release(&self, uid: &PodUid) {
        self.claims.lock().remove(uid);
    }
}

fn insert(claims: &mut Claims, pod: &Pod, ports: Vec<HostPort>) {
    if !ports.is_empty() {
        claims.insert(pod.id.uid.clone(), (pod.id.full_name(), ports));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod_named;

    fn pod(name: &str, more: &str, ports: &str) -> Arc<Pod> {
        pod_named(
            name,
            &format!("{more} containers: [{{name: a, image: i, ports: [{ports}]}}]"),
        )
    }

    #[test]
    fn one_port_has_one_pod() {
        let web = pod("web", "", "{containerPort: 80, hostPort: 8080}");
        for (more, ports, free) in [
            ("", "{containerPort: 1, hostPort: 8080}", false),
            ("", "{containerPort: 1, hostPort: 8080, hostIP: 192.0.2.1}", false),
            ("", "{containerPort: 1, hostPort: 8080, protocol: UDP}", true),
            ("", "{containerPort: 8080}", true),
            ("", "{containerPort: 1, hostPort: 8081}", true),
            ("hostNetwork: true,", "{containerPort: 8080}", false),
        ] {
            let ports_of = HostPorts::default();
            ports_of.claim(&web).unwrap();
            ports_of.claim(&web).unwrap();
            let other = pod("other", more, ports);
            assert_eq!(ports_of.claim(&other).is_ok(), free, "{more} {ports}");
            ports_of.release(&web.id.uid);
            assert_eq!(ports_of.claim(&other), Ok(()), "{more} {ports}");
        }
        let ports_of = HostPorts::default();
        let (one, two) = (
            pod("one", "", "{containerPort: 1, hostPort: 80, hostIP: 192.0.2.1}"),
            pod("two", "", "{containerPort: 1, hostPort: 80, hostIP: 192.0.2.2}"),
        );
        ports_of.claim(&one).unwrap();
        ports_of.claim(&two).unwrap();
        let three = pod("three", "", "{containerPort: 1, hostPort: 80, hostIP: 0.0.0.0}");
        let refused = ports_of.claim(&three).unwrap_err();
        assert!(
            refused
                .message
                .starts_with("host port 80/TCP of pod default/three-n is already used by pod default/"),
            "{refused:?}"
        );
        ports_of.adopt(&three);
    }
}
