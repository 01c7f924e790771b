//! Where the kernel and the runtime disagree for longer than the runtime usually lags: something has missed an exit, and it is named.
//!
//! A process has exited, and the runtime says that its container runs: a stopped shim or monitor does that, and no call to the runtime
//! reveals it. Or the runtime says that a container has exited, and its process lives: a killed shim leaves it so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use pleg_cri::Subject;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Phase;
use crate::evented::Reached;
use crate::generator::Generator;
use crate::health::disagreement::{Disagreement, Wrong};
use crate::model::status::ContainerStatus;
use crate::model::{ContainerId, ContainerState};
use crate::recorder::line::Turn;
use crate::runtime::shim::Shim;
use crate::runtime::{Error, Runtime};

/// The runtime may lag this long, or four times as long as it lately did.
const PATIENCE: Duration = Duration::from_secs(2);
/// As long as they disagree, this far apart.
const AGAIN: Duration = Duration::from_secs(2);
/// Questions in flight.
pub(super) const AT_ONCE: usize = 4;
/// No more doubts than this are kept.
const MOST: usize = 1024;

/// What the runtime says about a container whose process has exited.
#[derive(Debug)]
pub(in crate::generator) struct Asked {
    id: ContainerId,
    status: Result<ContainerStatus, Error>,
}

impl<R: Runtime> Generator<R> {
    /// The kernel and the runtime differ about a container. If they still do in a while, one of them is wrong.
    pub(super) fn doubt(&mut self, id: &ContainerId) {
        let patience = PATIENCE
            .max(self.witness.unconfirmed.longest_lag() * 4)
            .min(4 * PATIENCE);
        self.doubt_in(id, patience);
    }

    fn doubt_in(&mut self, id: &ContainerId, pause: Duration) {
        let at = Instant::now() + pause;
        let doubts = &mut self.witness.doubts;
        if doubts.len() < MOST {
            // Nearly all pauses are equal: the place is at the end, or near it.
            let place = doubts.partition_point(|(other, _)| *other <= at);
            doubts.insert(place, (at, id.clone()));
        }
    }

    /// Asks the runtime about containers whose process has exited a while ago, and names processes that have outlived theirs.
    pub(super) fn ask_about_doubts(&mut self) {
        let now = Instant::now();
        while self.witness.asking.len() < AT_ONCE
            && let Some((_, id)) = self.witness.doubts.pop_front_if(|(at, _)| *at <= now)
        {
            let Some(known) = self.witness.containers.get(&id) else {
                continue;
            };
            match known.phase {
                Phase::Exited { .. } => {
                    let name = Arc::clone(&known.reference.name);
                    let subject = Subject::container(known.pod.full_name(), Arc::clone(&name), id.shared());
                    let runtime = Arc::clone(&self.runtime);
                    let question = async move {
                        let status = runtime.container_status(&subject, &id, &name).await;
                        Asked { id, status }
                    };
                    self.witness.asking.push(question.boxed());
                }
                Phase::Outlives { named: false, .. } if self.witness.lives(&id) => self.disagree(&id),
                _ => {}
            }
        }
    }

    /// The runtime has answered.
    pub(super) fn doubt_settled(&mut self, asked: Asked) {
        let Asked { id, status } = asked;
        let Some(Phase::Exited { named, .. }) = self.witness.containers.get(&id).map(|known| &known.phase) else {
            return;
        };
        match status {
            Ok(status) if status.state == ContainerState::Running => {
                if !named {
                    self.disagree(&id);
                }
            }
            // It agrees by now; the answer is taken in where all answers are.
            Ok(_) => self.hinted(id.shared(), None, Reached::Ended, Instant::now()),
            // Whatever keeps it from answering is found by others.
            Err(_) => {}
        }
        self.doubt_in(&id, AGAIN);
    }

    /// Names a container about which the kernel and the runtime disagree.
    fn disagree(&mut self, id: &ContainerId) {
        let Some(known) = self.witness.containers.get_mut(id) else {
            return;
        };
        let (process, since, wrong) = match &mut known.phase {
            Phase::Exited {
                process,
                since,
                exit_code,
                named,
            } => {
                *named = true;
                let exit_code = *exit_code;
                (*process, *since, Wrong::MissedExit { exit_code })
            }
            Phase::Outlives { process, since, named } => {
                *named = true;
                (*process, *since, Wrong::LeftoverProcess)
            }
            _ => return,
        };
        let shim = process.parent.and_then(Shim::at);
        let disagreement = Disagreement {
            pod: known.pod.clone(),
            container: known.reference.clone(),
            sandbox: self.records.sandbox_of(id.as_str()),
            pid: process.pid,
            shim,
            shim_name: shim.and_then(Shim::name),
            since,
            wrong,
        };
        let text = disagreement.text();
        let advice = self.health.advice(wrong.trouble(), &disagreement.who());
        tracing::warn!(
            pod = %disagreement.pod,
            container = &*disagreement.container.name,
            pid = process.pid,
            shim = disagreement.shim.map(|shim| shim.pid),
            shim_state = disagreement.shim.map(Shim::word),
            "{}",
            wrong.headline()
        );
        tracing::debug!("{advice}");
        self.recorder
            .transition(Turn::RuntimeWrong, Some(&disagreement.pod), Some(&text), None);
        self.health.disagrees(disagreement);
    }

    /// The kernel and the runtime agree about the container again.
    pub(super) fn agree(&mut self, id: &ContainerId) {
        let Some(disagreement) = self.health.agrees(id) else {
            return;
        };
        let lasted = disagreement.since.elapsed();
        tracing::info!(
            pod = %disagreement.pod,
            container = &*disagreement.container.name,
            lasted = %seconds(lasted),
            "kernel and runtime agree about the container again"
        );
        self.recorder
            .transition(Turn::RuntimeRight, Some(&disagreement.pod), None, Some(lasted));
    }
}
