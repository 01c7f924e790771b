//! Reads a container.

use std::collections::BTreeMap;

use super::super::names;
use super::super::read::{Field, Object};
use super::super::tree::Tree;
use super::super::{
    Container, EnvValue, EnvVar, Hook, PodField, Port, Probe, ProbeKind, Protocol, PullPolicy, Quantity, Resources,
    Role, Stdin, TerminationMessage, Volume,
};
use super::{probe, security, volume};

const UNSUPPORTED: &[&str] = &[
    "envFrom",
    "resizePolicy",
    "restartPolicyRules",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
];

/// Reads a container of `containers` or, if `init`, of `initContainers`.
pub(super) fn read(field: &Field<'_>, init: bool, volumes: &BTreeMap<String, Volume>) -> Option<Container> {
    field.object(UNSUPPORTED, |object| {
        let role = role(object, init);
        let security = object
            .get("securityContext")
            .and_then(|f| security::read_container(&f))
            .unwrap_or_default();
        let ports = object.get("ports").map(|f| read_ports(&f)).unwrap_or_default();
        let image = object
            .need("image")
            .and_then(|f| f.checked(names::image))
            .unwrap_or_default();
        let pull = object.get("imagePullPolicy").and_then(|f| {
            f.one_of(&[
                ("Always", PullPolicy::Always),
                ("IfNotPresent", PullPolicy::IfNotPresent),
                ("Never", PullPolicy::Never),
            ])
        });
        let by_name: BTreeMap<String, u16> = ports
            .iter()
            .filter_map(|port| Some((port.name.clone()?, port.container)))
            .collect();
        let [startup, liveness, readiness] = read_probes(object, role, &by_name);
        let (post_start, pre_stop) = lifecycle(object, role, &by_name);
        Container {
            name: object
                .need("name")
                .and_then(|f| f.checked(names::label))
                .unwrap_or_default(),
            role,
            pull_policy: pull.unwrap_or_else(|| default_pull_policy(&image)),
            image,
            command: object.get("command").map(|f| f.texts()).unwrap_or_default(),
            args: object.get("args").map(|f| f.texts()).unwrap_or_default(),
            working_dir: object
                .get("workingDir")
                .and_then(|f| f.text())
                .unwrap_or_default()
                .to_owned(),
            env: object.get("env").map(|f| f.list(read_env)).unwrap_or_default(),
            mounts: object
                .get("volumeMounts")
                .map(|f| volume::read_mounts(&f, volumes, security.privileged))
                .unwrap_or_default(),
            ports,
            resources: object
                .get("resources")
                .and_then(|f| read_resources(&f))
                .unwrap_or_default(),
            security,
            startup,
            liveness,
            readiness,
            post_start,
            pre_stop,
            env_from: Vec::new(),
            stop_signal: None,
            termination_message: TerminationMessage::default(),
            stdin: Stdin::Closed,
            tty: false,
            target: None,
        }
    })
}

/// Reads the startup, liveness and readiness probe.
fn read_probes(object: &mut Object<'_>, role: Role, ports: &BTreeMap<String, u16>) -> [Option<Probe>; 3] {
    let fields = [
        ("startupProbe", ProbeKind::Startup),
        ("livenessProbe", ProbeKind::Liveness),
        ("readinessProbe", ProbeKind::Readiness),
    ];
    fields.map(|(name, kind)| {
        let field = object.get(name)?;
        if role == Role::Init {
            field.refuse("an init container cannot have probes unless it is a sidecar (restartPolicy: Always)");
        }
        probe::read(&field, kind, ports)
    })
}

fn role(object: &mut Object<'_>, init: bool) -> Role {
    let policy = object.get("restartPolicy");
    match (policy, init) {
        (None, false) => Role::Main,
        (None, true) => Role::Init,
        (Some(field), false) => {
            field.refuse("only init containers can have their own restart policy; use spec.restartPolicy for the pod");
            Role::Main
        }
        (Some(field), true) => field.one_of(&[("Always", Role::Sidecar)]).unwrap_or(Role::Init),
    }
}

fn lifecycle(object: &mut Object<'_>, role: Role, ports: &BTreeMap<String, u16>) -> (Option<Hook>, Option<Hook>) {
    let Some(field) = object.get("lifecycle") else {
        return (None, None);
    };
    if role == Role::Init {
        field.refuse("an init container cannot have lifecycle hooks unless it is a sidecar (restartPolicy: Always)");
    }
    let hooks = field.object(&["stopSignal"], |lifecycle| {
        let mut hook = |name| lifecycle.get(name).and_then(|f| probe::read_hook(&f, ports));
        (hook("postStart"), hook("preStop"))
    });
    hooks.unwrap_or_default()
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

fn read_env(field: &Field<'_>) -> Option<EnvVar> {
    field.object(&[], |var| {
        let name = var
            .need("name")
            .and_then(|f| f.checked(names::variable))
            .unwrap_or_default();
        let (text, from) = (var.get("value"), var.get("valueFrom"));
        if text.is_some() && from.is_some() {
            var.refuse("value and valueFrom must not both be set");
        }
        let unsupported = &["configMapKeyRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"];
        let reference =
            from.and_then(|from| from.object(unsupported, |from| from.need("fieldRef").and_then(|f| field_ref(&f)))?);
        let value = match reference {
            Some(reference) => EnvValue::Field(reference),
            None => EnvValue::Text(text.and_then(|f| f.text()).unwrap_or_default().to_owned()),
        };
        EnvVar { name, value }
    })
}

fn field_ref(field: &Field<'_>) -> Option<PodField> {
    field.object(&[], |reference| {
        reference.only("apiVersion", &Tree::Text("v1".to_owned()), "expected v1");
        let path = reference.need("fieldPath")?;
        let text = path.text()?;
        let keyed = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix("']").map(str::to_owned);
        let found = match text {
            "metadata.name" => Some(PodField::Name),
            "metadata.namespace" => Some(PodField::Namespace),
            "metadata.uid" => Some(PodField::Uid),
            "spec.nodeName" => Some(PodField::NodeName),
            "status.hostIP" => Some(PodField::HostIp),
            "status.podIP" => Some(PodField::PodIp),
            "status.podIPs" => Some(PodField::PodIps),
            _ => keyed("metadata.labels['")
                .map(PodField::Label)
                .or_else(|| keyed("metadata.annotations['").map(PodField::Annotation)),
        };
        if found.is_none() {
            path.refuse(format!(
                "{} is not supported; expected metadata.name, .namespace, .uid, .labels['…'] or .annotations['…'], spec.nodeName, \
                 status.hostIP, .podIP or .podIPs",
                names::quoted(text)
            ));
        }
        found
    })?
}

fn read_ports(field: &Field<'_>) -> Vec<Port> {
    let mut seen = Vec::new();
    field.list(|item| {
        item.object(&[], |port| {
            let mut number = |name, needed| {
                let field = if needed { port.need(name) } else { port.get(name) };
                field?.int(1..=65_535).and_then(|n| u16::try_from(n).ok())
            };
            let (container, host) = (number("containerPort", true), number("hostPort", false));
            let name = port.get("name").and_then(|f| f.checked(names::port));
            if let Some(name) = &name {
                if seen.contains(name) {
                    port.refuse_field("name", format!("duplicate port name {name}"));
                }
                seen.push(name.clone());
            }
            let host_ip = port.get("hostIP").and_then(|f| {
                let ip = f.text()?.parse().ok();
                if ip.is_none() {
                    f.refuse("is not an IP address");
                }
                ip
            });
            let protocol = port
                .get("protocol")
                .and_then(|f| f.one_of(&[("TCP", Protocol::Tcp), ("UDP", Protocol::Udp), ("SCTP", Protocol::Sctp)]));
            Port {
                name,
                container: container.unwrap_or_default(),
                host,
                host_ip,
                protocol: protocol.unwrap_or(Protocol::Tcp),
            }
        })
    })
}

fn read_resources(field: &Field<'_>) -> Option<Resources> {
    field.object(&["claims"], |resources| {
        let (cpu_limit, memory_limit) = resources
            .get("limits")
            .and_then(|f| cpu_and_memory(&f))
            .unwrap_or_default();
        let (cpu, memory) = resources
            .get("requests")
            .and_then(|f| cpu_and_memory(&f))
            .unwrap_or_default();
        for (name, request, limit) in [("cpu", cpu, cpu_limit), ("memory", memory, memory_limit)] {
            if let (Some(request), Some(limit)) = (request, limit)
                && request > limit
            {
                resources.refuse_field("requests", format!("requests more {name} than the limit allows"));
            }
        }
        Resources {
            cpu_limit,
            memory_limit,
            // Without a request, the limit is the request.
            cpu_request: cpu.or(cpu_limit),
            memory_request: memory.or(memory_limit),
            ..Resources::default()
        }
    })
}

fn cpu_and_memory(field: &Field<'_>) -> Option<(Option<Quantity>, Option<Quantity>)> {
    field.object(&["ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi"], |list| {
        let mut quantity = |name| {
            let field = list.get(name)?;
            let quantity = match field.tree {
                Tree::Int(n) => Quantity::parse(&n.to_string()),
                Tree::Float(n) => Quantity::parse(&n.to_string()),
                _ => Quantity::parse(field.text()?),
            };
            quantity.map_err(|error| field.refuse(error.to_string())).ok()
        };
        (quantity("cpu"), quantity("memory"))
    })
}
