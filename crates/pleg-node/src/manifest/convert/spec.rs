//! The pod as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::super::problem::At;
use super::super::spec::DEFAULT_GRACE;
use super::super::{
    Container, Dns, DnsConfig, HostAlias, Hostname, Overhead, PidNamespace, Priority, RestartPolicy, Role, Spec, names,
};
use super::{Policy, container, resources, restart, security, volume};

/// Converts the `spec` of a pod. `at` is its place in the document.
pub(crate) fn convert(spec: &core::PodSpec, at: &At<'_>) -> Spec {
    refuse_unsupported(spec, at);
    let host_network = spec.host_network.unwrap_or_default();
    let volumes = volume::convert_all(spec.volumes.as_ref(), at);
    let convert = |key, list, role| {
        let mut list = container::convert_all(list, &volumes, role, &at.key(key));
        if host_network {
            use_host_ports(&mut list);
        }
        list
    };
    let result = Spec {
        init_containers: convert(
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
            Role::Init,
        ),
        containers: convert("containers", &spec.containers, Role::Main),
        ephemeral_containers: container::convert_ephemeral(spec.ephemeral_containers.as_ref(), &volumes, at),
        restart_policy: convert_restart_policy(spec.restart_policy.as_deref(), at),
        termination_grace: grace(spec.termination_grace_period_seconds, at),
        active_deadline: spec.active_deadline_seconds.map(|value| {
            let at = at.key("activeDeadlineSeconds");
            at.check_range(value, 1..=i64::from(i32::MAX));
            Duration::from_secs(value.unsigned_abs())
        }),
        host_network,
        host_ipc: spec.host_ipc.unwrap_or_default(),
        processes: processes(spec.host_pid, spec.share_process_namespace, at),
        dns: dns(spec.dns_policy.as_deref(), spec.dns_config.as_ref(), host_network, at),
        hostname: hostname(spec, at),
        host_aliases: at.list("hostAliases", spec.host_aliases.as_ref(), host_alias),
        security: security::convert_pod(spec.security_context.as_ref(), at),
        priority: convert_priority(spec.priority, spec.priority_class_name.as_deref(), at),
        runtime_class: text(
            spec.runtime_class_name.as_deref(),
            &at.key("runtimeClassName"),
            names::subdomain,
        ),
        overhead: convert_overhead(spec.overhead.as_ref(), at),
        readiness_gates: at.list("readinessGates", spec.readiness_gates.as_ref(), |gate, at| {
            at.key("conditionType").require(&gate.condition_type, names::qualified);
            gate.condition_type.clone()
        }),
        image_pull_secrets: at.list("imagePullSecrets", spec.image_pull_secrets.as_ref(), |secret, _| {
            secret.name.clone()
        }),
        service_account: spec
            .service_account_name
            .clone()
            .or_else(|| spec.service_account.clone())
            .filter(|name| !name.is_empty()),
        enable_service_links: at.policy() == Policy::Api && spec.enable_service_links.unwrap_or(true),
        volumes,
    };
    check_together(&result, at);
    result
}

/// Refuses what is not supported.
fn refuse_unsupported(spec: &core::PodSpec, at: &At<'_>) {
    // Every field of a pod, so that a field of a new API version does not compile until it is converted, refused or ignored for a reason.
    let core::PodSpec {
        // Refused for static pods, and ignored for those of an API server: for the scheduler and controllers.
        affinity: _,
        eviction_responders: _,
        node_name: _,
        node_selector: _,
        preemption_policy: _,
        scheduler_name: _,
        scheduling_gates: _,
        scheduling_group: _,
        tolerations: _,
        topology_spread_constraints: _,
        // Refused for static pods, and converted for those of an API server.
        automount_service_account_token: _,
        enable_service_links: _,
        ephemeral_containers: _,
        image_pull_secrets: _,
        overhead: _,
        service_account: _,
        service_account_name: _,
        // Refused, or refused unless they say what is done anyway.
        host_users: _,
        os: _,
        resource_claims: _,
        resources: _,
        // Converted.
        active_deadline_seconds: _,
        containers: _,
        dns_config: _,
        dns_policy: _,
        host_aliases: _,
        host_ipc: _,
        host_network: _,
        host_pid: _,
        hostname: _,
        hostname_override: _,
        init_containers: _,
        priority: _,
        priority_class_name: _,
        readiness_gates: _,
        restart_policy: _,
        runtime_class_name: _,
        security_context: _,
        set_hostname_as_fqdn: _,
        share_process_namespace: _,
        subdomain: _,
        termination_grace_period_seconds: _,
        volumes: _,
    } = spec;
    refuse_scheduling(spec, at);
    refuse_api_objects(spec, at);
    refuse_for_every_source(spec, at);
}

/// What only the scheduler and controllers act on.
fn refuse_scheduling(spec: &core::PodSpec, at: &At<'_>) {
    for (key, is_set) in [
        ("affinity", spec.affinity.is_some()),
        ("evictionResponders", spec.eviction_responders.is_some()),
        ("nodeName", spec.node_name.is_some()),
        ("nodeSelector", spec.node_selector.is_some()),
        ("preemptionPolicy", spec.preemption_policy.is_some()),
        ("schedulerName", spec.scheduler_name.is_some()),
        ("schedulingGates", spec.scheduling_gates.is_some()),
        ("schedulingGroup", spec.scheduling_group.is_some()),
        ("tolerations", spec.tolerations.is_some()),
        ("topologySpreadConstraints", spec.topology_spread_constraints.is_some()),
    ] {
        at.not_for_nodes(key, is_set);
    }
}

/// What refers to objects of an API server, or comes from one.
fn refuse_api_objects(spec: &core::PodSpec, at: &At<'_>) {
    for (key, is_set) in [
        ("ephemeralContainers", spec.ephemeral_containers.is_some()),
        ("imagePullSecrets", spec.image_pull_secrets.is_some()),
        ("overhead", spec.overhead.is_some()),
        ("serviceAccount", spec.service_account.is_some()),
        ("serviceAccountName", spec.service_account_name.is_some()),
    ] {
        at.needs_api(key, is_set);
    }
    if at.policy() == Policy::Static {
        let why = "requires an API server; set it to false or remove it";
        let automount = spec.automount_service_account_token.as_ref();
        at.only("automountServiceAccountToken", automount, &false, why);
        at.only("enableServiceLinks", spec.enable_service_links.as_ref(), &false, why);
    }
}

/// What is not supported whatever the source of the pod.
fn refuse_for_every_source(spec: &core::PodSpec, at: &At<'_>) {
    at.unsupported("resourceClaims", spec.resource_claims.is_some());
    at.unsupported("resources", spec.resources.is_some());
    let why = "user namespaces are not supported by pleg node; set it to true or remove it";
    at.only("hostUsers", spec.host_users.as_ref(), &true, why);
    let os = spec.os.as_ref().map(|os| os.name.as_str());
    at.key("os").only("name", os.as_ref(), &"linux", "must be linux");
}

/// A text that may be missing or empty.
fn text(text: Option<&str>, at: &At<'_>, check: impl FnOnce(&str) -> Result<(), names::InvalidText>) -> Option<String> {
    let text = text.filter(|text| !text.is_empty())?;
    at.check(text, check);
    Some(text.to_owned())
}

/// With the host's network, a port of a container is one of the host, as an API server says by default.
fn use_host_ports(containers: &mut [Container]) {
    for port in containers.iter_mut().flat_map(|container| &mut container.ports) {
        port.host.get_or_insert(port.container);
    }
}

fn convert_restart_policy(policy: Option<&str>, at: &At<'_>) -> RestartPolicy {
    let policy = policy.and_then(|policy| at.key("restartPolicy").one_of(policy, &restart::POLICIES));
    policy.unwrap_or_default()
}

fn grace(seconds: Option<i64>, at: &At<'_>) -> Duration {
    let Some(seconds) = seconds else { return DEFAULT_GRACE };
    let at = at.key("terminationGracePeriodSeconds");
    at.check_range(seconds, 0..=i64::from(i32::MAX));
    Duration::from_secs(seconds.unsigned_abs())
}

fn processes(host: Option<bool>, shared: Option<bool>, at: &At<'_>) -> PidNamespace {
    match (host.unwrap_or_default(), shared.unwrap_or_default()) {
        (false, false) => PidNamespace::Container,
        (false, true) => PidNamespace::Pod,
        (true, shared) => {
            if shared {
                at.key("shareProcessNamespace")
                    .refuse("must not be set together with hostPID");
            }
            PidNamespace::Host
        }
    }
}

fn hostname(spec: &core::PodSpec, at: &At<'_>) -> Hostname {
    let hostname = Hostname {
        name: text(spec.hostname.as_deref(), &at.key("hostname"), names::label),
        subdomain: text(spec.subdomain.as_deref(), &at.key("subdomain"), names::label),
        set_as_fqdn: spec.set_hostname_as_fqdn.unwrap_or_default(),
        override_name: text(
            spec.hostname_override.as_deref(),
            &at.key("hostnameOverride"),
            names::subdomain,
        ),
    };
    if let Some(name) = &hostname.override_name {
        let at = at.key("hostnameOverride");
        if name.len() > 64 {
            at.refuse("is longer than 64 bytes, the limit of Linux for a host name");
        }
        if hostname.set_as_fqdn || spec.host_network.unwrap_or_default() {
            at.refuse("must not be set together with setHostnameAsFQDN or hostNetwork");
        }
    }
    hostname
}

fn host_alias(alias: &core::HostAlias, at: &At<'_>) -> HostAlias {
    let core::HostAlias { hostnames, ip } = alias;
    HostAlias {
        ip: address(ip, &at.key("ip")).unwrap_or(IpAddr::from([0, 0, 0, 0])),
        hostnames: at.list("hostnames", hostnames.as_ref(), |name, at| {
            at.check(name, names::subdomain);
            name.clone()
        }),
    }
}

/// An address; a problem if it is none.
pub(super) fn address(text: &str, at: &At<'_>) -> Option<IpAddr> {
    let ip = text.parse().ok();
    if ip.is_none() {
        at.refuse("is not an IP address");
    }
    ip
}

fn convert_priority(value: Option<i32>, class: Option<&str>, at: &At<'_>) -> Priority {
    let mut priority = Priority {
        value: value.unwrap_or_default(),
        class: class.filter(|class| !class.is_empty()).map(str::to_owned),
    };
    if at.policy() == Policy::Api {
        return priority;
    }
    // Other classes are objects of an API server.
    let words = [
        (Priority::NODE_CRITICAL_CLASS, Priority::NODE_CRITICAL),
        (Priority::CLUSTER_CRITICAL_CLASS, Priority::SYSTEM_CRITICAL),
    ];
    let known = class.and_then(|class| at.key("priorityClassName").one_of(class, &words));
    if value.is_some() && value != known {
        at.key("priority")
            .refuse("must match priorityClassName; pleg node does not schedule by priority");
    }
    priority.value = known.unwrap_or_default();
    priority
}

fn convert_overhead(overhead: Option<&BTreeMap<String, ApiQuantity>>, at: &At<'_>) -> Overhead {
    let at = at.key("overhead");
    let quantity = |name| {
        let quantity = overhead?.get(name)?;
        resources::quantity(quantity, &at.key(name))
    };
    Overhead {
        cpu: quantity("cpu"),
        memory: quantity("memory"),
    }
}

fn dns(policy: Option<&str>, config: Option<&core::PodDNSConfig>, host_network: bool, at: &At<'_>) -> Dns {
    let config = config.map(|config| dns_config(config, &at.key("dnsConfig")));
    let host = |config: Option<DnsConfig>| config.map_or(Dns::Host, Dns::HostAnd);
    let at = at.key("dnsPolicy");
    match (policy, at.policy()) {
        // Without an API server there is no cluster.
        (None | Some(""), Policy::Static) | (Some("Default"), _) => host(config),
        (Some(policy), Policy::Static) if policy.starts_with("ClusterFirst") => {
            at.refuse("cluster DNS is not available; use Default (the host's DNS) or None with dnsConfig");
            Dns::Host
        }
        (None | Some("" | "ClusterFirst"), _) if host_network => host(config),
        (None | Some("" | "ClusterFirst" | "ClusterFirstWithHostNet"), _) => {
            Dns::ClusterAnd(config.unwrap_or_default())
        }
        (Some("None"), _) => match config {
            Some(config) if !config.servers.is_empty() => Dns::Own(config),
            _ => {
                at.refuse("None requires at least one entry in dnsConfig.nameservers");
                Dns::Host
            }
        },
        (Some(other), _) => {
            at.one_of(other, &[("Default", ()), ("None", ())]);
            Dns::Host
        }
    }
}

fn dns_config(config: &core::PodDNSConfig, at: &At<'_>) -> DnsConfig {
    let core::PodDNSConfig {
        nameservers,
        options,
        searches,
    } = config;
    let servers = at.list("nameservers", nameservers.as_ref(), |server, at| address(server, at));
    if servers.len() > 3 {
        at.key("nameservers").refuse("at most 3 entries are allowed");
    }
    let searches = at.list("searches", searches.as_ref(), |domain, at| {
        at.check(domain, names::search_domain);
        domain.clone()
    });
    if searches.len() > 32 {
        at.key("searches").refuse("at most 32 entries are allowed");
    }
    let option = |option: &core::PodDNSConfigOption, at: &At<'_>| {
        let core::PodDNSConfigOption { name, value } = option;
        let name = name.as_deref().unwrap_or_default();
        at.key("name").require(name, names::dns_option);
        match value.as_deref() {
            Some(value) => {
                at.key("value").check(value, names::dns_option);
                format!("{name}:{value}")
            }
            None => name.to_owned(),
        }
    };
    DnsConfig {
        servers: servers.into_iter().flatten().collect(),
        searches,
        options: at.list("options", options.as_ref(), option),
    }
}

/// Checks across fields.
fn check_together(spec: &Spec, at: &At<'_>) {
    if spec.containers.is_empty() {
        at.key("containers").refuse("a pod must have at least one container");
    }
    let (mut names, mut host_ports) = (BTreeSet::new(), BTreeSet::new());
    for (list, containers) in [
        ("initContainers", &spec.init_containers),
        ("containers", &spec.containers),
        ("ephemeralContainers", &spec.ephemeral_containers),
    ] {
        let at = at.key(list);
        for (n, container) in containers.iter().enumerate() {
            if !container.name.is_empty() && !names.insert(&container.name) {
                at.refuse(format!("duplicate container name {}", container.name));
            }
            for port in &container.ports {
                let Some(host) = port.host else { continue };
                let at = at.index(n);
                let at = at.key("ports");
                if spec.host_network && host != port.container {
                    at.refuse(format!(
                        "with hostNetwork, hostPort {host} must equal containerPort {}",
                        port.container
                    ));
                }
                if !host_ports.insert((host, port.protocol, port.host_ip)) {
                    at.refuse(format!("duplicate hostPort {host}"));
                }
            }
        }
    }
}
