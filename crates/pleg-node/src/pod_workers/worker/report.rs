//! What a worker reports: probes, the published status, metrics.

use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerState, ContainerStatus, PodEntry, PodError, PodStatus};
use tokio::time::Instant;

use super::{PodWorker, Running, Wake};
use crate::manifest::ProbeKind;
use crate::metrics::{Operation, Skip};
use crate::probes::ProbedContainer;
use crate::reconcile::decide::Goal;
use crate::reconcile::history::ProbeMemory;
use crate::status::reports::{Report, StuckCall};
use crate::status::{self, Stale};

/// When a pod in quarantine is asked for again.
const QUARANTINE_RETRY: Duration = Duration::from_secs(2);

impl PodWorker {
    /// Probes running containers, unless they are about to be stopped.
    pub(super) fn probe(&mut self, status: &PodStatus, goal: Goal) {
        let is_probed = |container: &&ContainerStatus| container.state == ContainerState::Running && goal == Goal::Run;
        // A container that ran before this worker has run for as long as the runtime says. One that appears later has
        // just started: the runtime's clock may have been set since ours was read.
        let adopted = self.last.is_none();
        let probed = |container: &ContainerStatus| {
            let started = container.started_at.filter(|_| adopted);
            let ran = started.map(|started| self.context.clock.now().duration_since(started));
            let ran = ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default();
            let now = Instant::now();
            let history = self.history.container(&container.name);
            ProbedContainer {
                pod: Arc::clone(&self.pod),
                name: container.name.to_string(),
                id: container.id.clone(),
                ip: status.ips.first().copied(),
                since: now.checked_sub(ran).unwrap_or(now),
                remembered: history.and_then(|history| history.probed(&container.id)).cloned(),
            }
        };
        let running = status.containers.iter().filter(is_probed).map(probed).collect();
        self.prober.probe_only(running);
    }

    /// Remembers what the probes of running containers have said, for the next run of `pleg node`.
    pub(super) fn remember_probes(&mut self, status: &PodStatus) {
        let results = self.context.probes.lock();
        for container in &status.containers {
            let spec = self.pod.spec.container(&container.name);
            let Some(spec) = spec.filter(|spec| spec.startup.is_some() || spec.readiness.is_some()) else {
                continue;
            };
            if container.state != ContainerState::Running {
                continue;
            }
            let succeeded = |kind| results.get(&container.id, kind) == Some(true);
            self.history.container_mut(&container.name).probed = Some(ProbeMemory {
                id: container.id.as_str().into(),
                started: spec.startup.is_none() || succeeded(ProbeKind::Startup),
                ready: succeeded(ProbeKind::Readiness),
            });
        }
    }

    /// The runtime does not answer about this pod: publishes the last status as stale. Returns when to try again.
    pub(super) fn on_quarantine(&mut self, last: &PodEntry, error: &PodError) -> Wake {
        self.context.metrics.skip(Skip::Quarantined);
        let decision = self.last.take().map(|(_, decision)| decision).unwrap_or_default();
        self.last = Some((Arc::clone(&last.status), decision));
        if self.quarantined.is_none() {
            let message = format!("error determining status: {}", error.message);
            self.context.events.pod_warning(&self.pod, "FailedSync", &message);
        }
        self.quarantined = Some(Stale {
            as_of: last.inspected_at,
            why: error.message.to_string(),
        });
        self.set_stuck(Some(error));
        self.publish_status();
        Wake {
            at: Instant::now() + QUARANTINE_RETRY,
            relist: true,
        }
    }

    /// Remembers the call that the runtime does not answer, for as long as it is the same one.
    pub(super) fn set_stuck(&mut self, error: Option<&PodError>) {
        let before = self.stuck.take();
        let Some(error) = error else { return };
        let now = self.context.clock.now();
        let since = now.saturating_sub(error.since.age()).unwrap_or(now);
        let is_same =
            |stuck: &StuckCall| stuck.rpc == error.rpc && stuck.container.as_deref() == error.container.as_deref();
        self.stuck = before.filter(is_same).or_else(|| {
            Some(StuckCall {
                rpc: error.rpc.to_string(),
                container: error.container.as_deref().map(str::to_owned),
                since,
                error: error.message.to_string(),
            })
        });
    }

    /// Computes the pod status and puts it into the reports.
    pub(super) fn publish_status(&mut self) {
        if self.deletion.is_reported() {
            return;
        }
        if let Some(report) = self.report(false) {
            self.context.reports.set(report);
        }
    }

    /// The pod and its status; the last one, if it has `terminated`. None before the first observation.
    pub(super) fn report(&mut self, terminated: bool) -> Option<Report> {
        let node_stale = self.context.stale.borrow_and_update().clone();
        let stale = self.quarantined.clone().or_else(|| node_stale.as_deref().cloned());
        let (observed, decision) = self.last.as_ref()?;
        let goal = *self.goal.borrow();
        let terminated = terminated || self.has_ended();
        let terminating_since = match goal {
            Goal::Run => None,
            Goal::Terminate { since, .. } => Some(since),
        };
        let compute = || {
            status::compute(&status::StatusInput {
                pod: &self.pod,
                status: observed,
                history: &self.history,
                probes: &self.context.probes.lock(),
                backing_off: &decision.backing_off,
                in_flight: &self.in_flight.containers,
                not_admitted: self.not_admitted.as_ref(),
                terminated,
                stopping_since: self.history.finishing_since.or(terminating_since),
                stale: stale.as_ref(),
                before: self.last_published.as_deref(),
                node: &self.context.node,
                now: self.context.clock.now(),
            })
        };
        // What the runtime removes afterwards takes nothing back.
        let last = self.deletion.last_status().filter(|_| terminated).cloned();
        let status = last.unwrap_or_else(|| Arc::new(compute()));
        let stage = decision.stage.clone();
        if terminated {
            self.deletion.set_last_status(&status);
        }
        self.last_published = Some(Arc::clone(&status));
        Some(Report {
            pod: Arc::clone(&self.pod),
            status,
            stage,
            goal,
            stale,
            stuck: self.stuck.clone(),
        })
    }

    /// Measures how long the pod takes to start, and what its actions are part of.
    pub(super) fn measure(&mut self, status: &PodStatus, goal: Goal, running: &Running) {
        if self.operation.is_none() && !running.is_empty() {
            let operation = match (goal, self.starting_since) {
                (Goal::Terminate { .. }, _) => Operation::Terminate,
                (Goal::Run, Some(_)) => Operation::Create,
                (Goal::Run, None) => Operation::Sync,
            };
            self.operation = Some((operation, Instant::now()));
        }
        let runs = |name: &str| {
            let mut all = status.containers.iter();
            all.any(|container| *container.name == *name && container.state == ContainerState::Running)
        };
        if let Some(since) = self.starting_since
            && self.pod.spec.containers.iter().all(|container| runs(&container.name))
        {
            self.starting_since = None;
            self.context.metrics.pod_started(since.elapsed());
        }
    }
}
