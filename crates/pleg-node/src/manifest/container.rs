//! A container of a pod: what to run, with which resources, and how to probe it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::names;
use super::probe::{self, Hook, Probe, ProbeKind};
use super::quantity::Quantity;
use super::read::{Field, Object};
use super::security::{self, ContainerSecurity};
use super::tree::Tree;
use super::volume::{self, Mount, Volume};

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// One of `initContainers`: runs to completion before the next one starts.
    Init,
    /// One of `initContainers` with `restartPolicy: Always`: started in its turn, keeps running, is stopped last.
    Sidecar,
    /// One of `containers`.
    Main,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before each start.
    Always,
    /// If it is not present.
    IfNotPresent,
    /// Never.
    Never,
}

/// A container of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// Its role in the pod.
    pub role: Role,
    /// Its image.
    pub image: String,
    /// When the image is pulled.
    pub pull_policy: PullPolicy,
    /// Replaces the image's entry point, unless empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments, unless empty.
    pub args: Vec<String>,
    /// Replaces the image's working directory, unless empty.
    pub working_dir: String,
    /// The environment, in order: later ones may refer to earlier ones.
    pub env: Vec<EnvVar>,
    /// What it listens on.
    pub ports: Vec<Port>,
    /// Where volumes are mounted.
    pub mounts: Vec<Mount>,
    /// Its requests and limits.
    pub resources: Resources,
    /// Its user and privileges.
    pub security: ContainerSecurity,
    /// Whether it has started.
    pub startup: Option<Probe>,
    /// Whether it is alive.
    pub liveness: Option<Probe>,
    /// Whether it can serve.
    pub readiness: Option<Probe>,
    /// Run after its start.
    pub post_start: Option<Hook>,
    /// Run before it is stopped.
    pub pre_stop: Option<Hook>,
}

impl Container {
    /// One of its probes.
    pub fn probe(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Startup => self.startup.as_ref(),
            ProbeKind::Liveness => self.liveness.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
        }
    }
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: EnvValue,
}

/// The value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// A text; `$(NAME)` refers to an earlier variable.
    Text(String),
    /// A field of the pod.
    Field(PodField),
}

/// A field of the pod that a variable can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodField {
    /// `metadata.name`
    Name,
    /// `metadata.namespace`
    Namespace,
    /// `metadata.uid`
    Uid,
    /// `metadata.labels['…']`; empty if there is none of that key.
    Label(String),
    /// `metadata.annotations['…']`; empty if there is none of that key.
    Annotation(String),
    /// `spec.nodeName`
    NodeName,
    /// `status.hostIP`
    HostIp,
    /// `status.podIP`
    PodIp,
    /// `status.podIPs`
    PodIps,
}

/// A protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A port of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name by which probes may refer to it.
    pub name: Option<String>,
    /// The port in the pod.
    pub container: u16,
    /// The port of the host that is mapped to it.
    pub host: Option<u16>,
    /// The address of the host; all if none.
    pub host_ip: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
}

/// Requests and limits of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// Limit of CPU.
    pub cpu_limit: Option<Quantity>,
    /// Limit of memory.
    pub memory_limit: Option<Quantity>,
    /// Request of CPU: its weight.
    pub cpu_request: Option<Quantity>,
    /// Request of memory.
    pub memory_request: Option<Quantity>,
}

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
