//! Unchanged containers that do not answer: which are known, when each is asked again, and what is reported about them.

use std::time::Duration;

use hashbrown::HashMap;
use pleg_cri::Rpc;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::ask::{ContainerVerdict, Target};
use super::{Chosen, Generator, MOST_HUNG, MOST_WITNESSES};
use crate::health::diagnosis::Trouble;
use crate::health::{StuckContainer, Who};
use crate::model::{ContainerId, ContainerRef, PodRef, PodUid};
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;

/// From one attempt to the next: doubles up to the last, since a call that was given up may go on in the runtime.
const AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(40)];

/// The containers that are known not to answer.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    containers: HashMap<ContainerId, Known>,
    /// Neither do most of the others.
    none_answers: bool,
    /// When a container that had not answered last did.
    answered: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    pod: PodUid,
    attempts: u32,
    again: Instant,
}

impl Stuck {
    /// When the next one is to be asked again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.containers.values().map(|known| known.again).min()
    }
}

impl<R: Runtime> Generator<R> {
    /// Completes whom to probe: the container whose turn it is, and those that it is compared with if it takes long.
    pub(super) fn target(&self, chosen: Chosen) -> Target {
        let Chosen {
            pod,
            sandbox,
            container,
        } = chosen;
        let key = self.records.key(&pod.uid).filter(|key| self.may_ask(*key));
        let turn = || {
            let container = self.records.alive_container(key?, self.prober.rounds)?;
            (!self.prober.stuck.containers.contains_key(&container.id)).then_some(container)
        };
        let container = container.or_else(turn);
        let witnesses = match (key, &container) {
            (Some(key), Some(_)) => self.witnesses(key),
            _ => Vec::new(),
        };
        Target {
            pod,
            sandbox,
            container,
            witnesses,
        }
    }

    /// Nothing else is about to find out whether the pod's containers answer: no inspection is due, and no list takes so long that
    /// everything may soon be asked for by id.
    fn may_ask(&self, key: PodKey) -> bool {
        let slow = self.config.probe.slow / 2;
        let list_is_slow = self.lists.sent().is_some_and(|sent| sent.elapsed() >= slow);
        !self.inspections.has(key) && !self.quarantine.has_pod(key) && !list_is_slow
    }

    /// Containers to compare with, of pods far apart: those that were made together may wait for the same.
    fn witnesses(&self, of: PodKey) -> Vec<(PodRef, ContainerRef)> {
        let known = &self.prober.stuck.containers;
        let witness = |(key, pod)| {
            let container = self.records.alive_container(key, self.prober.rounds)?;
            (!known.contains_key(&container.id)).then_some((pod, container))
        };
        self.records
            .spread_from(of, MOST_WITNESSES)
            .filter_map(witness)
            .collect()
    }

    /// The stuck container that is to be asked again now. Those that are gone or have exited are forgotten.
    pub(super) fn next_stuck(&mut self, now: Instant) -> Option<Chosen> {
        let known = self.prober.stuck.containers.iter();
        let gone: Vec<_> = known
            .filter(|(id, known)| self.chosen(id, &known.pod).is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.container_answers(&id);
        }
        let due = self.prober.stuck.containers.iter();
        let due = due.filter(|(_, known)| known.again <= now && !self.prober.in_flight.contains(&known.pod));
        let due: Vec<_> = due.filter_map(|(id, known)| self.chosen(id, &known.pod)).collect();
        for (key, chosen) in due {
            if self.may_ask(key) {
                return Some(chosen);
            }
            // An inspection or a list finds out.
            let id = chosen.container.as_ref().map(|container| &container.id);
            if let Some(known) = id.and_then(|id| self.prober.stuck.containers.get_mut(id)) {
                known.again = now + AGAIN[0];
            }
        }
        None
    }

    /// A stuck container that is still there and has not exited.
    fn chosen(&self, id: &ContainerId, uid: &PodUid) -> Option<(PodKey, Chosen)> {
        let key = self.records.key(uid)?;
        let container = self.records.alive_container_of(key, id.as_str())?;
        let (pod, sandbox) = self.records.ready_sandbox(key)?;
        let chosen = Chosen {
            pod,
            sandbox,
            container: Some(container),
        };
        Some((key, chosen))
    }

    /// Takes in what a probe says about a container.
    pub(super) fn container_probed(&mut self, target: &Target, verdict: ContainerVerdict) {
        let Some(container) = &target.container else { return };
        let now = Instant::now();
        if let Some(known) = self.prober.stuck.containers.get_mut(&container.id) {
            known.attempts += 1;
            let pause = AGAIN[0].saturating_mul(1 << known.attempts.min(8)).min(AGAIN[1]);
            known.again = now + pause;
        }
        match verdict {
            ContainerVerdict::Unknown => {}
            ContainerVerdict::Answers => {
                self.container_answers(&container.id);
                self.containers_answer();
            }
            // What has answered since the probe began shows that it is over.
            ContainerVerdict::NoneAnswers { waited }
                if self.prober.stuck.answered.is_some_and(|at| at.elapsed() < waited) => {}
            ContainerVerdict::NoneAnswers { waited } => self.no_container_answers(waited),
            ContainerVerdict::Stuck { waited } => {
                self.containers_answer();
                let known = &mut self.prober.stuck.containers;
                let key = self.records.key(&target.pod.uid);
                let gone = key.is_none_or(|key| self.records.alive_container_of(key, container.id.as_str()).is_none());
                if gone || known.contains_key(&container.id) || known.len() >= MOST_HUNG {
                    return;
                }
                let again = Known {
                    pod: target.pod.uid.clone(),
                    attempts: 0,
                    again: now + AGAIN[0],
                };
                known.insert(container.id.clone(), again);
                let stuck = StuckContainer {
                    pod: target.pod.clone(),
                    sandbox: target.sandbox.clone(),
                    container: container.clone(),
                    slow: self.config.probe.slow,
                    since: now.checked_sub(waited[0]).unwrap_or(now),
                    around: waited[1],
                };
                let text = stuck.text();
                let advice = self.health.advice(Trouble::StuckInspection, &stuck.who());
                tracing::warn!(
                    pod = %stuck.pod,
                    container = &*stuck.container.name,
                    call = %Rpc::ContainerStatus,
                    waited = %seconds(stuck.slow),
                    "container does not answer; others are not affected"
                );
                tracing::debug!("{advice}");
                self.recorder
                    .transition(Turn::StatusHangs, Some(&target.pod), Some(&text), None);
                self.health.container_stuck(stuck);
            }
        }
    }

    /// The container answers again, has exited or is gone.
    fn container_answers(&mut self, id: &ContainerId) {
        self.prober.stuck.containers.remove(id);
        let Some(stuck) = self.health.container_answers(id) else {
            return;
        };
        let lasted = stuck.since.elapsed();
        tracing::info!(
            pod = %stuck.pod,
            container = &*stuck.container.name,
            lasted = %seconds(lasted),
            "container answers again, or is gone"
        );
        self.recorder
            .transition(Turn::StatusAnswers, Some(&stuck.pod), None, Some(lasted));
    }

    fn no_container_answers(&mut self, waited: Duration) {
        if std::mem::replace(&mut self.prober.stuck.none_answers, true) {
            return;
        }
        let now = Instant::now();
        let text = self
            .health
            .no_container_answers(now.checked_sub(waited).unwrap_or(now), waited);
        let advice = self.health.advice(Trouble::StalledStorage, &Who::default());
        tracing::warn!(
            call = %Rpc::ContainerStatus,
            waited = %seconds(waited),
            "most containers do not answer, while their sandboxes do"
        );
        tracing::debug!("{advice}");
        self.recorder.transition(Turn::StatusHangs, None, Some(&text), None);
    }

    /// A container that did not answer does: it is no longer most of them.
    pub(in crate::generator) fn containers_answer(&mut self) {
        self.prober.stuck.answered = Some(Instant::now());
        if !std::mem::replace(&mut self.prober.stuck.none_answers, false) {
            return;
        }
        if let Some(since) = self.health.containers_answer() {
            let lasted = since.elapsed();
            tracing::info!(lasted = %seconds(lasted), "containers answer again");
            self.recorder.transition(Turn::StatusAnswers, None, None, Some(lasted));
        }
    }
}
