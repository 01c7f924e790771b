//! A container of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;

use super::super::problem::At;
use super::super::{
    Container, Hook, Port, Probe, ProbeKind, Protocol, PullPolicy, Role, Stdin, TerminationMessage, Volume, names,
};
use super::{Policy, env, probe, resources, restart, security, spec, volume};

/// Converts a list of containers. `at` is the place of the list.
pub(super) fn convert_all(
    containers: &[core::Container],
    volumes: &BTreeMap<String, Volume>,
    role: Role,
    at: &At<'_>,
) -> Vec<Container> {
    let all = containers.iter().enumerate();
    all.map(|(n, container)| convert(container, volumes, role, &at.index(n)))
        .collect()
}

/// Converts the ephemeral containers of a pod.
pub(super) fn convert_ephemeral(
    containers: Option<&Vec<core::EphemeralContainer>>,
    volumes: &BTreeMap<String, Volume>,
    at: &At<'_>,
) -> Vec<Container> {
    at.list("ephemeralContainers", containers, |container, at| {
        let (like, target) = without_target(container.clone());
        Container {
            target: target.filter(|name| !name.is_empty()),
            ..convert(&like, volumes, Role::Ephemeral, at)
        }
    })
}

/// An ephemeral container has all fields of a container, and `targetContainerName`.
fn without_target(container: core::EphemeralContainer) -> (core::Container, Option<String>) {
    macro_rules! move_fields {
        ($($field:ident)*) => {{
            let core::EphemeralContainer { target_container_name, $($field),* } = container;
            (core::Container { $($field),* }, target_container_name)
        }};
    }
    move_fields! {
        args command env env_from image image_pull_policy lifecycle liveness_probe name ports readiness_probe resize_policy resources
        restart_policy restart_policy_rules security_context startup_probe stdin stdin_once termination_message_path
        termination_message_policy tty volume_devices volume_mounts working_dir
    }
}

fn convert(container: &core::Container, volumes: &BTreeMap<String, Volume>, role: Role, at: &At<'_>) -> Container {
    refuse_unsupported(container, at);
    let name = container.name.clone();
    at.key("name").require(&name, names::label);
    let image = container.image.clone().unwrap_or_default();
    at.key("image").require(&image, names::image);
    let role = convert_role(container.restart_policy.as_deref(), role, at);
    let restart = restart::convert(container, role, at);
    let ports = convert_ports(container.ports.as_ref(), at);
    let by_name = ports
        .iter()
        .filter_map(|port| Some((port.name.clone()?, port.container)))
        .collect();
    let probe = |key, probe: Option<&core::Probe>, kind| convert_probe(probe?, kind, role, &by_name, &at.key(key));
    let (post_start, pre_stop, stop_signal) = convert_lifecycle(container.lifecycle.as_ref(), role, &by_name, at);
    let security = security::convert_container(container.security_context.as_ref(), &at.key("securityContext"));
    Container {
        name,
        role,
        restart,
        pull_policy: pull_policy(container.image_pull_policy.as_deref(), &image, at),
        image,
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        env_from: at.list("envFrom", container.env_from.as_ref(), env::from),
        env: at.list("env", container.env.as_ref(), env::variable),
        mounts: volume::convert_mounts(container.volume_mounts.as_ref(), volumes, security.privileged, at),
        ports,
        resources: resources::convert(container.resources.as_ref(), &at.key("resources")),
        resize_policy: resources::convert_resize_policy(container.resize_policy.as_deref().unwrap_or_default()),
        security,
        startup: probe("startupProbe", container.startup_probe.as_ref(), ProbeKind::Startup),
        liveness: probe("livenessProbe", container.liveness_probe.as_ref(), ProbeKind::Liveness),
        readiness: probe(
            "readinessProbe",
            container.readiness_probe.as_ref(),
            ProbeKind::Readiness,
        ),
        post_start,
        pre_stop,
        stop_signal,
        termination_message: termination_message(container, at),
        stdin: convert_stdin(container),
        tty: container.tty.unwrap_or_default(),
        target: None,
    }
}

/// Refuses what is not supported. [`without_target`] names every field of a container: a field of a new API version does not compile there
/// until it is converted or refused here.
fn refuse_unsupported(container: &core::Container, at: &At<'_>) {
    // A static pod is replaced when it changes.
    at.not_for_nodes("resizePolicy", container.resize_policy.is_some());
    at.unsupported("volumeDevices", container.volume_devices.is_some());
}

fn convert_stdin(container: &core::Container) -> Stdin {
    match (
        container.stdin.unwrap_or_default(),
        container.stdin_once.unwrap_or_default(),
    ) {
        (false, _) => Stdin::Closed,
        (true, false) => Stdin::Open,
        (true, true) => Stdin::Once,
    }
}

fn convert_role(restart_policy: Option<&str>, role: Role, at: &At<'_>) -> Role {
    match (restart_policy, role) {
        (Some("Always"), Role::Init) => Role::Sidecar,
        (Some(_), Role::Ephemeral) => {
            at.key("restartPolicy")
                .refuse("an ephemeral container is never restarted");
            role
        }
        (_, role) => role,
    }
}

fn pull_policy(policy: Option<&str>, image: &str, at: &At<'_>) -> PullPolicy {
    let words = [
        ("Always", PullPolicy::Always),
        ("IfNotPresent", PullPolicy::IfNotPresent),
        ("Never", PullPolicy::Never),
    ];
    let policy = policy.filter(|policy| !policy.is_empty());
    let policy = policy.and_then(|policy| at.key("imagePullPolicy").one_of(policy, &words));
    policy.unwrap_or_else(|| default_pull_policy(image))
}

/// As in Kubernetes: a tag that may point to another image tomorrow is always pulled.
fn default_pull_policy(image: &str) -> PullPolicy {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains('@') {
        return PullPolicy::IfNotPresent;
    }
    match name.split_once(':') {
        Some((_, tag)) if tag != "latest" => PullPolicy::IfNotPresent,
        _ => PullPolicy::Always,
    }
}

fn convert_probe(probe: &core::Probe, kind: ProbeKind, role: Role, ports: &probe::Ports, at: &At<'_>) -> Option<Probe> {
    match role {
        Role::Main | Role::Sidecar => return Some(probe::convert(probe, kind, ports, at)),
        Role::Init => at.refuse("an init container cannot have probes unless it is a sidecar (restartPolicy: Always)"),
        Role::Ephemeral => at.refuse("an ephemeral container cannot have probes"),
    }
    None
}

type Lifecycle = (Option<Hook>, Option<Hook>, Option<String>);

fn convert_lifecycle(lifecycle: Option<&core::Lifecycle>, role: Role, ports: &probe::Ports, at: &At<'_>) -> Lifecycle {
    let Some(core::Lifecycle {
        post_start,
        pre_stop,
        stop_signal,
    }) = lifecycle
    else {
        return Lifecycle::default();
    };
    let at = at.key("lifecycle");
    let has_hooks = post_start.is_some() || pre_stop.is_some();
    match role {
        Role::Init if has_hooks => {
            at.refuse("an init container cannot have lifecycle hooks unless it is a sidecar (restartPolicy: Always)");
        }
        Role::Main | Role::Sidecar | Role::Init => {}
        Role::Ephemeral => at.refuse("an ephemeral container cannot have lifecycle hooks"),
    }
    let hook = |key, handler: Option<&core::LifecycleHandler>| probe::convert_hook(handler?, ports, &at.key(key));
    if let Some(signal) = stop_signal {
        at.key("stopSignal").require(signal, names::signal);
    }
    (
        hook("postStart", post_start.as_ref()),
        hook("preStop", pre_stop.as_ref()),
        stop_signal.clone(),
    )
}

fn termination_message(container: &core::Container, at: &At<'_>) -> TerminationMessage {
    let mut message = TerminationMessage::default();
    let path = container.termination_message_path.as_deref();
    let policy = container.termination_message_policy.as_deref();
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        at.key("terminationMessagePath").check(path, names::mount_path);
        path.clone_into(&mut message.path);
    }
    let words = [("File", false), ("FallbackToLogsOnError", true)];
    if let Some(policy) = policy.filter(|policy| !policy.is_empty()) {
        let found = at.key("terminationMessagePolicy").one_of(policy, &words);
        message.fall_back_to_logs = found.unwrap_or_default();
    }
    message
}

fn convert_ports(ports: Option<&Vec<core::ContainerPort>>, at: &At<'_>) -> Vec<Port> {
    let mut seen = Vec::new();
    at.list("ports", ports, |port, at| {
        let core::ContainerPort {
            container_port,
            host_ip,
            host_port,
            name,
            protocol,
        } = port;
        let name = name.clone().filter(|name| !name.is_empty());
        if let Some(name) = &name {
            at.key("name").check(name, names::port);
            if seen.contains(name) {
                at.key("name").refuse(format!("duplicate port name {name}"));
            }
            seen.push(name.clone());
        }
        let words = [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)];
        let protocol = protocol
            .as_deref()
            .and_then(|protocol| at.key("protocol").one_of(protocol, &words));
        // Go cannot tell 0 from a field that is not set.
        let host_port = host_port.filter(|port| *port != 0 || at.policy() == Policy::Static);
        Port {
            name,
            container: probe::port_number((*container_port).into(), &at.key("containerPort")),
            host: host_port.map(|port| {
                at.key("hostPort").check_range(port.into(), 1..=65_535);
                u16::try_from(port).unwrap_or_default()
            }),
            host_ip: host_ip
                .as_deref()
                .filter(|ip| !ip.is_empty())
                .and_then(|ip| spec::address(ip, &at.key("hostIP"))),
            protocol: protocol.unwrap_or(Protocol::Tcp),
        }
    })
}
