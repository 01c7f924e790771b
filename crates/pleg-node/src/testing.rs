//! Pods and their statuses, as tests write them.

use std::sync::Arc;

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, PodStatus, SandboxState, SandboxStatus};

use crate::manifest::{NodeName, Pod, ProbeKind, read};
use crate::probes::Results;
use crate::reconcile::decide::{Busy, Decision, Goal, Situation, decide};
use crate::reconcile::history::PodHistory;

/// A moment, in seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A pod named `p`, of what is in its `spec`.
pub(crate) fn pod(spec: &str) -> Arc<Pod> {
    pod_named("p", spec)
}

/// A pod of what is in its `spec`.
pub(crate) fn pod_named(name: &str, spec: &str) -> Arc<Pod> {
    let text = format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}");
    let mut found = read(text.as_bytes(), &NodeName::new("n").unwrap()).unwrap();
    assert!(found.refused.is_empty(), "{}", found.refused[0]);
    found.pods.remove(0)
}

/// A pod, what is seen of it and what is known about it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) pod: Arc<Pod>,
    pub(crate) status: PodStatus,
    pub(crate) memory: PodHistory,
    pub(crate) probes: Results,
    pub(crate) busy: Busy,
    pub(crate) goal: Goal,
    pub(crate) now: i64,
}

impl Case {
    /// Of a pod with this `spec`; the time is 1000 s, and it was taken on at 0.
    pub(crate) fn new(spec: &str) -> Self {
        let pod = pod(spec);
        let memory = PodHistory {
            started_at: Some(at(0)),
            ..PodHistory::default()
        };
        Self {
            status: PodStatus::empty(pod.id.clone()),
            pod,
            memory,
            probes: Results::default(),
            busy: Busy::default(),
            goal: Goal::Run,
            now: 1000,
        }
    }

    /// With a sandbox `s0`, `s1`, … made at that time; the newest comes last.
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

    /// With a container that runs since then, as the next attempt of that name: `app0`, `app1`, …
    pub(crate) fn running(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Running, since, None)
    }

    /// With a container that was made then and never started.
    pub(crate) fn created(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Created, since, None)
    }

    /// With a container that the runtime lost track of.
    pub(crate) fn unknown(self, name: &str, since: i64) -> Self {
        self.container(name, ContainerState::Unknown, since, None)
    }

    /// With a container that ran from one second before `end` to then.
    pub(crate) fn exited(self, name: &str, end: i64, code: i32) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.container(name, ContainerState::Exited, end - 1, Some((end, code, reason)))
    }

    /// With the result of a probe.
    pub(crate) fn probe(mut self, id: &str, kind: ProbeKind, success: bool) -> Self {
        self.probes.set(&id.into(), kind, success);
        self
    }

    /// While something is done about this container.
    pub(crate) fn busy(mut self, name: &str) -> Self {
        self.busy.containers.insert(name.to_owned());
        self
    }

    /// At another time.
    pub(crate) fn at(mut self, now: i64) -> Self {
        self.now = now;
        self
    }

    /// It learns from what it sees.
    pub(crate) fn learnt(mut self) -> Self {
        self.memory.learn(&self.status, at(self.now));
        self
    }

    /// The runtime shows nothing of it any more.
    pub(crate) fn cleaned(mut self) -> Self {
        self.status = PodStatus::empty(self.pod.id.clone());
        self
    }

    pub(crate) fn decide(&self) -> Decision {
        let mut memory = self.memory.clone();
        memory.learn(&self.status, at(self.now));
        decide(&Situation {
            pod: &self.pod,
            goal: self.goal,
            status: &self.status,
            memory: &memory,
            probes: &self.probes,
            busy: &self.busy,
            now: at(self.now),
        })
    }
}

/// A node whose directories are beneath this one.
pub(crate) fn node(directory: &std::path::Path) -> crate::executor::requests::Node {
    crate::executor::requests::Node {
        name: NodeName::new("n").unwrap(),
        ips: vec!["192.0.2.1".parse().unwrap()],
        memory: 8 << 30,
        logs: directory.join("logs"),
        pods: directory.join("pods"),
        cgroups: crate::executor::requests::Cgroups::Path,
        cgroup_root: "pleg".to_owned(),
        cgroup_mount: directory.join("cgroup"),
        dns: crate::manifest::DnsConfig::default(),
    }
}
