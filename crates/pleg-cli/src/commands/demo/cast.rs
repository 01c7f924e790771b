//! The pods of the node that `pleg demo --web` shows: those of a small shop, with the usual troubles.

use std::time::Duration;

use pleg_sim::{ContainerSpec, Ending, PodSpec, Script};

use self::Does::{Crashes, Finishes, Grows, Serves};

/// What a container does by itself; times in seconds.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// Runs on.
    Serves,
    /// Exits with 0 after the first time, and is started again after the second.
    Finishes(u64, u64),
    /// Exits with an error after the first time, and is started again after the second.
    Crashes(u64, u64),
    /// Is killed for its memory after the first time, and is started again after the second.
    Grows(u64, u64),
}

impl Does {
    fn script(self) -> Script {
        let ends = |after, ending| Script::ends(Duration::from_secs(after), ending);
        match self {
            Serves => Script::default(),
            Finishes(after, _) => ends(after, Ending::Exit(0)),
            Crashes(after, _) => ends(after, Ending::Exit(1)),
            Grows(after, _) => ends(after, Ending::Oom),
        }
    }

    fn restart(self) -> Option<Duration> {
        match self {
            Serves => None,
            Finishes(_, after) | Crashes(_, after) | Grows(_, after) => Some(Duration::from_secs(after)),
        }
    }
}

struct Role {
    namespace: &'static str,
    name: &'static str,
    containers: &'static [(&'static str, Does)],
}

macro_rules! cast {
    ($($namespace:literal $name:literal: $($container:literal $does:expr),+;)*) => {
        [$(Role { namespace: $namespace, name: $name, containers: &[$(($container, $does)),+] }),*]
    };
}

/// The pod whose container gets stuck while one looks on.
pub(super) const STUCK: (&str, &str) = ("shop", "checkout-6d9f7c5b8-x2k4n");
/// The pod whose shim hung, hours ago.
pub(super) const HUNG_SHIM: (&str, &str) = ("data", "kafka-1");
/// The pod whose container was stuck, hours ago.
pub(super) const WAS_STUCK: (&str, &str) = ("shop", "search-7f4b9d6c5-h8w2p");

static ROLES: [Role; 30] = cast! {
    "shop" "checkout-6d9f7c5b8-x2k4n": "app" Serves, "proxy" Serves;
    "shop" "checkout-6d9f7c5b8-q9v7c": "app" Serves, "proxy" Serves;
    "shop" "payments-5c8d4f9b7-7mzlt": "app" Crashes(95, 40), "proxy" Serves;
    "shop" "payments-5c8d4f9b7-wd5rj": "app" Serves, "proxy" Serves;
    "shop" "recommendations-84b6c7d9f-kq2bs": "model" Grows(1380, 25), "proxy" Serves;
    "shop" "recommendations-84b6c7d9f-t8n4v": "model" Grows(2100, 25), "proxy" Serves;
    "shop" "search-7f4b9d6c5-h8w2p": "app" Serves, "proxy" Serves;
    "shop" "search-7f4b9d6c5-rl6xd": "app" Serves, "proxy" Serves;
    "shop" "frontend-6b7c9d8f4-2xqpn": "nginx" Serves, "reloader" Finishes(780, 5);
    "shop" "frontend-6b7c9d8f4-b4k9s": "nginx" Serves, "reloader" Finishes(820, 5);
    "shop" "frontend-6b7c9d8f4-vz8mt": "nginx" Serves, "reloader" Finishes(860, 5);
    "shop" "mailer-59f8c6b7d-jn3qw": "worker" Finishes(26, 9);
    "data" "kafka-0": "kafka" Serves, "exporter" Serves;
    "data" "kafka-1": "kafka" Serves, "exporter" Serves;
    "data" "kafka-2": "kafka" Serves, "exporter" Serves;
    "data" "postgres-0": "postgres" Serves, "backup" Finishes(540, 360);
    "data" "redis-0": "redis" Serves;
    "batch" "invoices-29384-9xkzp": "job" Crashes(3200, 120);
    "batch" "thumbnails-7c6d5b8f9-p2v8k": "resize" Finishes(14, 7);
    "kube-system" "cilium-x8m2q": "cilium-agent" Serves;
    "kube-system" "coredns-76f75df574-8j4kt": "coredns" Serves;
    "kube-system" "coredns-76f75df574-wp9rx": "coredns" Serves;
    "kube-system" "kube-proxy-h5v7n": "kube-proxy" Serves;
    "kube-system" "csi-node-6tq4b": "driver" Serves, "registrar" Serves, "liveness" Crashes(4700, 10);
    "kube-system" "metrics-server-6d684c7b5-z3xlm": "metrics-server" Serves;
    "monitoring" "node-exporter-m7k2d": "node-exporter" Serves;
    "monitoring" "prometheus-0": "prometheus" Grows(9100, 30), "config-reloader" Serves;
    "monitoring" "alertmanager-0": "alertmanager" Serves;
    "monitoring" "loki-0": "loki" Serves;
    "ingress" "nginx-ingress-5b6f8c7d9-k4x9w": "controller" Serves;
};

/// The first `count` pods; beyond those of the cast there are more of its front end.
pub(super) fn pods(count: usize) -> impl Iterator<Item = PodSpec> {
    (0..count).map(|n| {
        let role = ROLES.get(n);
        let more = || format!("frontend-6b7c9d8f4-{n:05}");
        let containers = role.map_or(&[("nginx", Serves)][..], |role| role.containers);
        PodSpec {
            namespace: role.map_or("shop", |role| role.namespace).to_owned(),
            name: role.map_or_else(more, |role| role.name.to_owned()),
            containers: containers.iter().map(spec).collect(),
        }
    })
}

fn spec(&(name, does): &(&'static str, Does)) -> ContainerSpec {
    ContainerSpec {
        name: name.to_owned(),
        image: format!("registry.example/{name}:1.7"),
        script: does.script(),
        restart: does.restart(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_cast_has_those_who_get_stuck_and_no_name_twice() {
        let names: BTreeSet<(String, String)> = pods(100).map(|pod| (pod.namespace, pod.name)).collect();
        assert_eq!(names.len(), 100);
        for (namespace, name) in [STUCK, HUNG_SHIM, WAS_STUCK] {
            assert!(
                names.contains(&(namespace.to_owned(), name.to_owned())),
                "{namespace}/{name}"
            );
        }
    }
}
