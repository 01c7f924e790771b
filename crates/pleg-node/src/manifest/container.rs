//! A container of a pod: what to run, with which resources, and how to probe it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::env::{EnvFrom, EnvVar};
use super::probe::{Hook, Probe, ProbeKind};
use super::quantity::Quantity;
use super::restart::ContainerRestart;
use super::security::ContainerSecurity;
use super::volume::Mount;

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// One of `initContainers`: runs to completion before the next one starts.
    Init,
    /// One of `initContainers` with `restartPolicy: Always`: started in its turn, keeps running, is stopped last.
    Sidecar,
    /// One of `containers`.
    Main,
    /// One of `ephemeralContainers`: started once, while the pod runs; never restarted, not probed.
    Ephemeral,
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
    /// Its own restart policy, if it has one.
    pub restart: Option<ContainerRestart>,
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
    /// Objects whose entries become variables, in order: later ones replace earlier ones.
    pub env_from: Vec<EnvFrom>,
    /// The environment, in order: later ones may refer to earlier ones.
    pub env: Vec<EnvVar>,
    /// What it listens on.
    pub ports: Vec<Port>,
    /// Where volumes are mounted.
    pub mounts: Vec<Mount>,
    /// Its requests and limits.
    pub resources: Resources,
    /// Whether it is restarted when they change.
    pub resize_policy: ResizePolicy,
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
    /// `lifecycle.stopSignal`: the signal that asks it to stop, such as `SIGUSR1`; that of its image if none.
    pub stop_signal: Option<String>,
    /// Where its termination message comes from.
    pub termination_message: TerminationMessage,
    /// Its standard input.
    pub stdin: Stdin,
    /// It has a terminal.
    pub tty: bool,
    /// Of an ephemeral container: the container whose processes it sees.
    pub target: Option<String>,
}

/// Where the message of the terminated state of a container comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationMessage {
    /// The file in the container to which it writes the message.
    pub path: String,
    /// The end of its log is the message if it failed and the file is empty: `FallbackToLogsOnError`.
    pub fall_back_to_logs: bool,
}

impl Default for TerminationMessage {
    fn default() -> Self {
        Self {
            path: "/dev/termination-log".to_owned(),
            fall_back_to_logs: false,
        }
    }
}

/// The standard input of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// It is at its end.
    #[default]
    Closed,
    /// It is kept open, for clients that attach: `stdin`.
    Open,
    /// It is open until the first client that attaches leaves: `stdinOnce`.
    Once,
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

/// `resizePolicy`: which changes of resources restart a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResizePolicy {
    /// Those of CPU do.
    pub cpu_restarts: bool,
    /// Those of memory do.
    pub memory_restarts: bool,
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
    /// Limit of local storage: logs, `emptyDir` and what it writes to its root file system.
    pub ephemeral_storage_limit: Option<Quantity>,
    /// Request of local storage.
    pub ephemeral_storage_request: Option<Quantity>,
    /// Huge pages, by their size, such as `2Mi`: requests and limits are the same.
    pub hugepages: BTreeMap<String, Quantity>,
}
