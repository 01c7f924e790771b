//! Pods, statuses and decisions for tests.

use std::sync::Arc;

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, PodStatus, SandboxState, SandboxStatus};

use crate::manifest::{Container, NodeName, Pod, ProbeKind, Role};
use crate::probes::ProbeResults;
use crate::reconcile::action::InFlight;
use crate::reconcile::decide::{Decision, DecisionInput, Goal, decide};
use crate::reconcile::history::PodHistory;
use crate::sources::static_pods::{ConfigSource, read};

/// A time, in seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A pod named `p` with this `spec`.
pub(crate) fn pod(spec: &str) -> Arc<Pod> {
    pod_named("p", spec)
}

/// A pod with this `spec`.
pub(crate) fn pod_named(name: &str, spec: &str) -> Arc<Pod> {
    let text = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}");
    let mut found = read(text.as_bytes(), &NodeName::new("n").unwrap(), ConfigSource::File).unwrap();
    assert!(found.refused.is_empty(), "{}", found.refused[0]);
    found.pods.remove(0)
}

/// The input of a decision or a status, built step by step.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) pod: Arc<Pod>,
    pub(crate) status: PodStatus,
    pub(crate) history: PodHistory,
    pub(crate) probes: ProbeResults,
    pub(crate) in_flight: InFlight,
    pub(crate) goal: Goal,
    pub(crate) now: i64,
}

impl Case {
    /// For a pod with this `spec` that was accepted at 0 s; the time is 1000 s.
    pub(crate) fn new(spec: &str) -> Self {
        let pod = pod(spec);
        let history = PodHistory {
            started_at: Some(at(0)),
            ..PodHistory::default()
        };
        Self {
            status: PodStatus::empty(pod.id.clone()),
            pod,
            history,
            probes: ProbeResults::default(),
            in_flight: InFlight::default(),
            goal: Goal::Run,
            now: 1000,
        }
    }

    /// Adds an ephemeral container to the pod, as an API server does.
    pub(crate) fn ephemeral(mut self, name: &str) -> Self {
        let pod = Arc::make_mut(&mut self.pod);
        let like = pod.spec.containers[0].clone();
        pod.spec.ephemeral_containers.push(Container {
            name: name.to_owned(),
            role: Role::Ephemeral,
            ..like
        });
        self
    }

    /// Adds a sandbox (`s0`, then `s1`, …) created at that time.
    pub(crate) fn sandbox(mut self, ready: bool, created: i64) -> Self {
        let attempt = u32::try_from(self.status.sandboxes.len()).unwrap();
        let sandbox = SandboxStatus {
            id: format!("s{attempt}").into(),
            state: if ready {
                SandboxState::Ready
            } else {
                SandboxState::NotReady
            },
            attempt,
            created_at: Some(at(created)),
            ips: Box::new(["10.0.0.7".parse().unwrap()]),
            runtime_handler: Box::default(),
            labels: pleg::status::Pairs::default(),
            annotations: pleg::status::Pairs::default(),
        };
        let mut all = self.status.sandboxes.into_vec();
        all.insert(0, sandbox);
        self.status.sandboxes = all.into();
        self
    }

    fn container(mut self, name: &str, state: ContainerState, from: i64, to: Option<(i64, i32, &str)>) -> Self {
        let attempt = self.status.containers.iter().filter(|c| *c.name == *name).count();
        let container = ContainerStatus {
            id: format!("{name}{attempt}").into(),
            name: name.into(),
            attempt: u32::try_from(attempt).unwrap(),
            state,
            created_at: Some(at(from)),
            started_at: (state != ContainerState::Created).then(|| at(from)),
            finished_at: to.map(|(end, ..)| at(end)),
            exit_code: to.map(|(_, code, _)| code),
            reason: to.map_or("", |(.., reason)| reason).into(),
            message: Box::default(),
            image: "img".into(),
            image_ref: "sha256:1".into(),
            log_path: Box::default(),
            resources: None,
        };
        let mut all = self.status.containers.into_vec();
        all.push(container);
        self.status.containers = all.into();
        self
    }

    /// Adds a container that runs since then, as the next attempt of that name: `app0`, `app1`, …
    pub(crate) fn running(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Running, since, None)
    }

    /// Adds a container that was created then and never started.
    pub(crate) fn created(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Created, since, None)
    }

    /// Adds a container whose state the runtime does not know.
    pub(crate) fn unknown(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Unknown, since, None)
    }

    /// Adds a container that ran for one second and exited at `end`.
    pub(crate) fn exited(self, name: &str, end: i64, code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.container(name, ContainerState::Exited, end - 1, Some((end, code, reason)))
    }

    /// Adds a probe result.
    pub(crate) fn probe(mut self, id: &str, kind: ProbeKind, success: bool) -> Self {
        self.probes.set(&id.into(), kind, success);
        self
    }

    /// While an action on this container is in flight.
    pub(crate) fn in_flight(mut self, name: &str) -> Self {
        self.in_flight.containers.insert(name.to_owned());
        self
    }

    /// While this container is being started: its post-start hook may run.
    pub(crate) fn starting(mut self, name: &str) -> Self {
        self.in_flight.starts.insert(name.to_owned());
        self.in_flight(name)
    }

    /// At another time.
    pub(crate) fn at(mut self, now: i64) -> Self {
        self.now = now;
        self
    }

    /// Records the status in the history.
    pub(crate) fn observed(mut self) -> Self {
        self.history.observe(&self.status, at(self.now));
        self
    }

    /// Removes everything from the runtime.
    pub(crate) fn cleaned(mut self) -> Self {
        self.status = PodStatus::empty(self.pod.id.clone());
        self
    }

    pub(crate) fn decide(&self) -> Decision {
        let mut history = self.history.clone();
        history.observe(&self.status, at(self.now));
        decide(&DecisionInput {
            pod: &self.pod,
            goal: self.goal,
            status: &self.status,
            history: &history,
            probes: &self.probes,
            in_flight: &self.in_flight,
            now: at(self.now),
        })
    }
}

/// A node with its directories below this one.
pub(crate) fn node(directory: &std::path::Path) -> crate::executor::requests::NodeConfig {
    crate::executor::requests::NodeConfig {
        name: NodeName::new("n").unwrap(),
        ips: vec!["192.0.2.1".parse().unwrap()],
        memory: 8 << 30,
        logs: directory.join("logs"),
        log_links: directory.join("containers"),
        pods: directory.join("pods"),
        cgroups_per_qos: true,
        cgroups: crate::executor::requests::Cgroups::Path,
        cgroup_root: "pleg".to_owned(),
        cgroup_mount: directory.join("cgroup"),
        oom_group: false,
        systemctl: directory.join("systemctl"),
        dns: crate::manifest::DnsConfig::default(),
        host: crate::executor::requests::HostOptions::default(),
    }
}
