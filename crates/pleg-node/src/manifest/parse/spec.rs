//! Reads the `spec` of a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::names;
use super::super::read::{Field, Object};
use super::super::spec::DEFAULT_GRACE;
use super::super::tree::Tree;
use super::super::{Container, Dns, DnsConfig, Hostname, PidNamespace, Priority, RestartPolicy, Spec, Volume};
use super::{container, security, volume};

const UNSUPPORTED: &[&str] = &[
    "affinity",
    "ephemeralContainers",
    "evictionResponders",
    "hostAliases",
    "hostnameOverride",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "readinessGates",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "serviceAccount",
    "serviceAccountName",
    "subdomain",
    "tolerations",
    "topologySpreadConstraints",
    "workloadRef",
];

/// Reads `spec`.
pub(in super::super) fn read(field: &Field<'_>) -> Option<Spec> {
    field.object(UNSUPPORTED, |spec| {
        accept_only_defaults(spec);
        let volumes = spec.get("volumes").map(|f| volume::read(&f)).unwrap_or_default();
        let init_containers = containers(spec.get("initContainers"), true, &volumes);
        let field = spec.need("containers");
        let containers = containers(field.clone(), false, &volumes);
        if let (Some(field), true) = (field, containers.is_empty()) {
            field.refuse("a pod must have at least one container");
        }
        let restart_policy = spec.get("restartPolicy").and_then(|f| {
            f.one_of(&[
                ("Always", RestartPolicy::Always),
                ("OnFailure", RestartPolicy::OnFailure),
                ("Never", RestartPolicy::Never),
            ])
        });
        let mut seconds = |name, least| {
            let value = spec.get(name)?.int(least..=i64::from(i32::MAX))?;
            Some(Duration::from_secs(value.unsigned_abs()))
        };
        let termination_grace = seconds("terminationGracePeriodSeconds", 0).unwrap_or(DEFAULT_GRACE);
        let active_deadline = seconds("activeDeadlineSeconds", 1);
        let mut flag = |name| spec.get(name).and_then(|f| f.bool()).unwrap_or_default();
        let host_network = flag("hostNetwork");
        let processes = match (flag("hostPID"), flag("shareProcessNamespace")) {
            (false, false) => PidNamespace::Container,
            (false, true) => PidNamespace::Pod,
            (true, share) => {
                if share {
                    spec.refuse_field("shareProcessNamespace", "must not be set together with hostPID");
                }
                PidNamespace::Host
            }
        };
        let result = Spec {
            dns: dns(spec),
            hostname: Hostname {
                name: spec.get("hostname").and_then(|f| f.checked(names::label)),
                ..Hostname::default()
            },
            security: spec
                .get("securityContext")
                .and_then(|f| security::read_pod(&f))
                .unwrap_or_default(),
            priority: priority(spec),
            init_containers,
            containers,
            volumes,
            restart_policy: restart_policy.unwrap_or_default(),
            termination_grace,
            active_deadline,
            host_network,
            processes,
            ..Spec::without_manifest()
        };
        check_together(&result, spec);
        result
    })
}

/// Fields that are accepted only with the value that says what we do anyway.
fn accept_only_defaults(spec: &mut Object<'_>) {
    let no = Tree::Bool(false);
    let none = "requires an API server; set it to false or remove it";
    spec.only("automountServiceAccountToken", &no, none);
    spec.only("enableServiceLinks", &no, none);
    let unsupported = "not supported by pleg node; set it to false or remove it";
    spec.only("hostIPC", &no, unsupported);
    spec.only("setHostnameAsFQDN", &no, unsupported);
    spec.only(
        "hostUsers",
        &Tree::Bool(true),
        "user namespaces are not supported by pleg node; set it to true or remove it",
    );
    if let Some(os) = spec.get("os") {
        os.object(&[], |os| {
            os.only("name", &Tree::Text("linux".to_owned()), "must be linux");
        });
    }
}

fn containers(field: Option<Field<'_>>, init: bool, volumes: &BTreeMap<String, Volume>) -> Vec<Container> {
    field
        .map(|f| f.list(|item| container::read(item, init, volumes)))
        .unwrap_or_default()
}

/// Checks across fields.
fn check_together(spec: &Spec, object: &Object<'_>) {
    let (mut names, mut host_ports) = (BTreeSet::new(), BTreeSet::new());
    for (list, containers) in [
        ("initContainers", &spec.init_containers),
        ("containers", &spec.containers),
    ] {
        for (n, container) in containers.iter().enumerate() {
            if !container.name.is_empty() && !names.insert(&container.name) {
                object.refuse_field(list, format!("duplicate container name {}", container.name));
            }
            for port in &container.ports {
                let Some(host) = port.host else { continue };
                let place = format!("{}.{list}[{n}].ports", object.path());
                if spec.host_network && host != port.container {
                    let what = format!(
                        "with hostNetwork, hostPort {host} must equal containerPort {}",
                        port.container
                    );
                    object.refuse_at(&place, what);
                }
                if !host_ports.insert((host, port.protocol, port.host_ip)) {
                    object.refuse_at(&place, format!("duplicate hostPort {host}"));
                }
            }
        }
    }
}

fn priority(spec: &mut Object<'_>) -> Priority {
    const NODE: &str = Priority::NODE_CRITICAL_CLASS;
    const CLUSTER: &str = Priority::CLUSTER_CRITICAL_CLASS;
    const CLASSES: &[(&str, (i32, &str))] = &[
        (NODE, (Priority::NODE_CRITICAL, NODE)),
        (CLUSTER, (Priority::SYSTEM_CRITICAL, CLUSTER)),
    ];
    let class = spec.get("priorityClassName").and_then(|f| f.one_of(CLASSES));
    if let Some(field) = spec.get("priority")
        && class.is_none_or(|(value, _)| *field.tree != Tree::Int(value.into()))
    {
        field.refuse("must match priorityClassName; pleg node does not schedule by priority");
    }
    class
        .map(|(value, class)| Priority {
            value,
            class: Some(class.to_owned()),
        })
        .unwrap_or_default()
}

fn dns(spec: &mut Object<'_>) -> Dns {
    let config = spec.get("dnsConfig").and_then(|f| dns_config(&f));
    let Some(policy) = spec.get("dnsPolicy") else {
        return config.map_or(Dns::Host, Dns::HostAnd);
    };
    if policy
        .tree
        .as_text()
        .is_some_and(|text| text.starts_with("ClusterFirst"))
    {
        policy.refuse("cluster DNS is not available; use Default (the host's DNS) or None with dnsConfig");
        return Dns::Host;
    }
    match (policy.one_of(&[("Default", false), ("None", true)]), config) {
        (Some(true), Some(config)) if !config.servers.is_empty() => Dns::Own(config),
        (Some(true), _) => {
            policy.refuse("None requires at least one entry in dnsConfig.nameservers");
            Dns::Host
        }
        (_, config) => config.map_or(Dns::Host, Dns::HostAnd),
    }
}

fn dns_config(field: &Field<'_>) -> Option<DnsConfig> {
    field.object(&[], |config| {
        let servers = config.get("nameservers");
        let server = |f: &Field<'_>| {
            let ip = f.text()?.parse().ok();
            if ip.is_none() {
                f.refuse("is not an IP address");
            }
            ip
        };
        let list = servers.as_ref().map(|f| f.list(server)).unwrap_or_default();
        if let (Some(field), true) = (&servers, list.len() > 3) {
            field.refuse("at most 3 entries are allowed");
        }
        let searches = config.get("searches");
        // A dot at the end makes the name absolute.
        let domain = |text: &str| names::subdomain(text.strip_suffix('.').unwrap_or(text));
        let domains = searches
            .as_ref()
            .map(|f| f.list(|item| item.checked(domain)))
            .unwrap_or_default();
        if let (Some(field), true) = (&searches, domains.len() > 32) {
            field.refuse("at most 32 entries are allowed");
        }
        DnsConfig {
            servers: list,
            searches: domains,
            options: config.get("options").map(|f| f.list(dns_option)).unwrap_or_default(),
        }
    })
}

fn dns_option(field: &Field<'_>) -> Option<String> {
    field.object(&[], |option| {
        let name = option
            .need("name")
            .and_then(|f| f.checked(names::dns_option))
            .unwrap_or_default();
        match option.get("value").and_then(|f| f.checked(names::dns_option)) {
            Some(value) => format!("{name}:{value}"),
            None => name,
        }
    })
}
