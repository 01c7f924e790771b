//! Host ports in use by pods. Two pods cannot share one: the second is refused with the name of the first, and starts when it is free.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::PodUid;

use crate::manifest::{Pod, Protocol, Role};
use crate::reconcile::history::PodFailure;

/// A port of the host. Without an address it is that port of all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HostPort {
    protocol: Protocol,
    ip: Option<IpAddr>,
    port: u16,
}

impl HostPort {
    fn meets(&self, other: &Self) -> bool {
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

/// The ports that a pod needs while it runs. On the host's network every port of a container is one of the host's.
fn needed(pod: &Pod) -> Vec<HostPort> {
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

/// By pod: its name, and what it has.
type Taken = BTreeMap<PodUid, (Arc<str>, Vec<HostPort>)>;

/// Who has which. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ports {
    // Held for a lookup or a change; never across an await.
    taken: Arc<Mutex<Taken>>,
}

impl Ports {
    /// Takes what a pod needs, unless another pod has it. One that `runs` has it already, whoever else thinks so.
    pub(crate) fn take(&self, pod: &Pod, runs: bool) -> Result<(), PodFailure> {
        let needed = needed(pod);
        if needed.is_empty() {
            return Ok(());
        }
        let mut taken = self.taken.lock();
        let others = taken.iter().filter(|(uid, _)| **uid != pod.id.uid);
        let meets = |port: &HostPort, others: &[HostPort]| others.iter().any(|other| port.meets(other));
        let mut conflict = others.filter_map(|(_, (name, ports))| {
            let port = needed.iter().find(|port| meets(port, ports));
            port.map(|port| (*port, Arc::clone(name)))
        });
        if let (Some((port, holder)), false) = (conflict.next(), runs) {
            return Err(PodFailure {
                reason: "HostPortConflict".to_owned(),
                message: format!(
                    "host port {port} of pod {} is already used by pod {holder}: change or remove one of them",
                    pod.id
                ),
            });
        }
        taken.insert(pod.id.uid.clone(), (pod.id.full_name(), needed));
        Ok(())
    }

    /// The pod needs them no more.
    pub(crate) fn release(&self, uid: &PodUid) {
        self.taken.lock().remove(uid);
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
            let ports_of = Ports::default();
            ports_of.take(&web, false).unwrap();
            ports_of.take(&web, false).unwrap();
            let other = pod("other", more, ports);
            assert_eq!(ports_of.take(&other, false).is_ok(), free, "{more} {ports}");
            ports_of.release(&web.id.uid);
            assert_eq!(ports_of.take(&other, false), Ok(()), "{more} {ports}");
        }
        let ports_of = Ports::default();
        let (one, two) = (
            pod("one", "", "{containerPort: 1, hostPort: 80, hostIP: 192.0.2.1}"),
            pod("two", "", "{containerPort: 1, hostPort: 80, hostIP: 192.0.2.2}"),
        );
        ports_of.take(&one, false).unwrap();
        ports_of.take(&two, false).unwrap();
        let three = pod("three", "", "{containerPort: 1, hostPort: 80, hostIP: 0.0.0.0}");
        let refused = ports_of.take(&three, false).unwrap_err();
        assert!(
            refused
                .message
                .starts_with("host port 80/TCP of pod default/three-n is already used by pod default/"),
            "{refused:?}"
        );
        ports_of.take(&three, true).unwrap();
    }
}
