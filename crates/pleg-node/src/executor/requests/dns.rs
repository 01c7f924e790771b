//! The DNS configuration of a pod: what its `resolv.conf` contains. Pure.
//!
//! | policy | servers | search domains |
//! |---|---|---|
//! | `Default`, `ClusterFirst` with `hostNetwork` | the host's | the host's |
//! | `ClusterFirst`, `ClusterFirstWithHostNet` | the cluster's | those of the pod's namespace and of the cluster, then the host's |
//! | `None` | those of `dnsConfig` | those of `dnsConfig` |
//!
//! What `dnsConfig` has is added; its options replace those of the same name. Without DNS servers of the cluster, a pod with `ClusterFirst`
//! has the host's DNS.

use pleg_cri::v1;

use super::NodeConfig;
use crate::manifest::{Dns, DnsConfig, Pod};

/// The limits of the C library, and those that the kubelet has for it.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH: usize = 253;
const MAX_SEARCH_LINE: usize = 2048;

/// The DNS configuration of a pod; none if the runtime is to use the host's as it is.
pub(super) fn of(node: &NodeConfig, pod: &Pod) -> Option<v1::DnsConfig> {
    let config = match &pod.spec.dns {
        Dns::Host => return None,
        Dns::Own(own) => fit(own.clone()),
        Dns::HostAnd(more) => merged(&node.dns, more),
        Dns::ClusterAnd(more) if node.host.cluster_dns.is_empty() => merged(&node.dns, more),
        Dns::ClusterAnd(more) => merged(&of_cluster(node, &pod.id.namespace), more),
    };
    Some(v1::DnsConfig {
        servers: config.servers.iter().map(ToString::to_string).collect(),
        searches: config.searches,
        options: config.options,
    })
}

/// Whether a pod wants the cluster's DNS on a node that does not know it.
pub(crate) fn lacks_cluster_dns(node: &NodeConfig, pod: &Pod) -> bool {
    matches!(pod.spec.dns, Dns::ClusterAnd(_)) && node.host.cluster_dns.is_empty()
}

/// The DNS of the cluster, for pods of a namespace. Its servers forward what they do not know, so the host's are not needed.
fn of_cluster(node: &NodeConfig, namespace: &str) -> DnsConfig {
    let domain = &node.host.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches = vec![
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.clone(),
        ];
    }
    let host = node.dns.searches.iter().filter(|search| !searches.contains(search));
    let host: Vec<String> = host.cloned().collect();
    searches.extend(host);
    DnsConfig {
        servers: node.host.cluster_dns.clone(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

/// A DNS configuration with that of the pod added. An option of the pod replaces that of the same name.
fn merged(base: &DnsConfig, pod: &DnsConfig) -> DnsConfig {
    let mut all = base.clone();
    let name = |option: &str| option.split(':').next().unwrap_or(option).to_owned();
    let new = pod.servers.iter().filter(|server| !base.servers.contains(server));
    all.servers.extend(new);
    let new = pod.searches.iter().filter(|search| !base.searches.contains(search));
    all.searches.extend(new.cloned());
    all.options
        .retain(|old| !pod.options.iter().any(|new| name(new) == name(old)));
    all.options.extend(pod.options.iter().cloned());
    fit(all)
}

/// Leaves out what a resolver would not take.
fn fit(mut config: DnsConfig) -> DnsConfig {
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|search| search.len() <= MAX_SEARCH);
    let mut length = 0;
    let fitting = config.searches.iter().take_while(|search| {
        // Each but the first is after a space.
        length += search.len() + usize::from(length > 0);
        length <= MAX_SEARCH_LINE
    });
    let fitting = fitting.count();
    config.searches.truncate(fitting);
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing;

    fn node(cluster_dns: &[&str]) -> NodeConfig {
        let mut node = testing::node(Path::new("/x"));
        node.dns = config("192.0.2.53", "example.com svc.cluster.local", "rotate");
        node.host.cluster_dns = cluster_dns.iter().map(|ip| ip.parse().unwrap()).collect();
        node
    }

    fn config(servers: &str, searches: &str, options: &str) -> DnsConfig {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        DnsConfig {
            servers: servers.split_whitespace().map(|ip| ip.parse().unwrap()).collect(),
            searches: words(searches),
            options: words(options),
        }
    }

    /// Servers, search domains and options.
    fn lines(node: &NodeConfig, dns: Dns) -> Option<[String; 3]> {
        let mut pod = Pod::clone(&testing::pod("containers: [{name: a, image: i}]"));
        pod.spec.dns = dns;
        of(node, &pod).map(|found| [found.servers, found.searches, found.options].map(|words| words.join(" ")))
    }

    #[test]
    fn the_table() {
        let none = DnsConfig::default;
        let more = || config("192.0.2.99", "more.org svc.cluster.local", "ndots:2 edns0");
        let cluster = "default.svc.cluster.local svc.cluster.local cluster.local example.com";
        let (with, without) = (node(&["10.0.0.10", "fd00::a"]), node(&[]));
        for (node, dns, wanted) in [
            (&with, Dns::Host, None),
            (
                &with,
                Dns::ClusterAnd(none()),
                Some(["10.0.0.10 fd00::a", cluster, "ndots:5"]),
            ),
            (
                &with,
                Dns::ClusterAnd(more()),
                Some([
                    "10.0.0.10 fd00::a 192.0.2.99",
                    &format!("{cluster} more.org"),
                    "ndots:2 edns0",
                ]),
            ),
            (
                &with,
                Dns::HostAnd(more()),
                Some([
                    "192.0.2.53 192.0.2.99",
                    "example.com svc.cluster.local more.org",
                    "rotate ndots:2 edns0",
                ]),
            ),
            (
                &with,
                Dns::Own(more()),
                Some(["192.0.2.99", "more.org svc.cluster.local", "ndots:2 edns0"]),
            ),
            // No server of the cluster is known: the host's.
            (
                &without,
                Dns::ClusterAnd(none()),
                Some(["192.0.2.53", "example.com svc.cluster.local", "rotate"]),
            ),
        ] {
            let found = lines(node, dns.clone());
            assert_eq!(found, wanted.map(|lines| lines.map(str::to_owned)), "{dns:?}");
        }
        let mut bare = node(&["10.0.0.10"]);
        bare.host.cluster_domain = String::new();
        let found = lines(&bare, Dns::ClusterAnd(none())).unwrap();
        assert_eq!(found[1], "example.com svc.cluster.local");
    }

    #[test]
    fn what_a_resolver_does_not_take_is_left_out() {
        let mut own = config("192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4", "", "");
        let label = "a".repeat(200);
        own.searches = (0..40).map(|n| format!("{label}.x{n:02}")).collect();
        own.searches.insert(1, "b".repeat(254));
        let found = lines(&node(&[]), Dns::Own(own)).unwrap();
        assert_eq!(found[0], "192.0.2.1 192.0.2.2 192.0.2.3");
        // 10 domains of 204 bytes and their spaces are 2049 bytes.
        assert_eq!(found[1].split(' ').count(), 9);
        assert!(!found[1].contains('b') && found[1].len() <= MAX_SEARCH_LINE);
    }
}
