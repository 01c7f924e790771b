//! Finds the processes of containers: the runtime says which process a container has, once for each start.

use std::sync::Arc;

use futures_util::FutureExt as _;
use pleg_cri::Subject;
use tokio::time::Instant;

use super::{Container, Phase};
use crate::evented::Reached;
use crate::generator::Generator;
use crate::model::{ContainerId, ContainerRef, PodRef};
use crate::runtime::{ContainerPid, Error, Runtime};
use crate::witness::WatchError;

/// Questions in flight; fewer while pods are inspected, which matters more.
const AT_ONCE: [usize; 2] = [4, 1];
/// A question that failed is repeated so often.
const MOST_ATTEMPTS: u32 = 3;
/// A runtime that does not say which process a running container has, so often in a row, does not know: it is not asked any more.
const SILENT: u32 = 3;
/// Why it is not asked.
const NO_PIDS: &str = "the runtime does not say which processes containers have";
/// No more containers than this are watched.
pub(super) const MOST: usize = 65_536;

/// What the runtime says about a container's process.
#[derive(Debug)]
pub(in crate::generator) struct Found {
    id: ContainerId,
    pid: Result<ContainerPid, Error>,
}

impl<R: Runtime> Generator<R> {
    /// A container runs, by what the runtime says.
    pub(super) fn container_runs(&mut self, pod: &PodRef, container: &ContainerRef) {
        let witness = &mut self.witness;
        witness
            .unconfirmed
            .start_confirmed(container.id.as_str(), Instant::now());
        let full = witness.containers.len() >= MOST || witness.wanted.len() >= MOST;
        if full || witness.containers.contains_key(&container.id) {
            return;
        }
        let known = Container {
            pod: pod.clone(),
            reference: container.clone(),
            phase: Phase::Wanted { attempts: 0 },
        };
        witness.containers.insert(container.id.clone(), known);
        witness.wanted.push_back(container.id.clone());
    }

    /// Asks for the processes of containers that have started.
    pub(super) fn find_processes(&mut self) {
        // Not while the runtime does not answer, and not before everything else is known.
        if self.witness.wanted.is_empty() || self.schedule.is_first() || self.health.relists_fail() {
            return;
        }
        let most = AT_ONCE[usize::from(self.inspections.any_runs())];
        while self.witness.finding.len() < most {
            let Some(id) = self.witness.wanted.pop_front() else {
                return;
            };
            let Some(known) = self.witness.containers.get(&id) else {
                continue;
            };
            if self.witness.silent >= SILENT {
                self.unwatched(&id, NO_PIDS);
                continue;
            }
            let subject = Subject::container(known.pod.full_name(), Arc::clone(&known.reference.name), id.shared());
            let runtime = Arc::clone(&self.runtime);
            let question = async move {
                let pid = runtime.container_pid(&subject, &id).await;
                Found { id, pid }
            };
            self.witness.finding.push(question.boxed());
        }
    }

    /// The runtime has answered.
    pub(super) fn process_found(&mut self, found: Found) {
        let Found { id, pid } = found;
        let Some(Phase::Wanted { attempts }) = self.witness.containers.get(&id).map(|known| &known.phase) else {
            return;
        };
        let attempts = attempts + 1;
        match pid {
            Ok(ContainerPid::Known(pid)) => {
                self.witness.silent = 0;
                self.watch(&id, pid);
            }
            Ok(ContainerPid::Unknown) => {
                self.witness.silent = self.witness.silent.saturating_add(1);
                self.unwatched(&id, NO_PIDS);
            }
            // It ended before it could be watched, which says nothing about whether the runtime knows the processes of others.
            Ok(ContainerPid::Exited) => {
                self.witness.remove(&id);
                self.hinted(id.shared(), None, Reached::Ended, Instant::now());
            }
            // It has gone meanwhile: that is found without us.
            Err(error) if error.kind.is_not_found() => _ = self.witness.remove(&id),
            Err(error) if attempts >= MOST_ATTEMPTS => self.unwatched(&id, &error.to_string()),
            Err(_) => {
                self.witness.set(&id, Phase::Wanted { attempts });
                self.witness.wanted.push_back(id);
            }
        }
    }

    /// The runtime was away and is back, perhaps as another one: what could not be watched is tried again.
    pub(in crate::generator) fn find_unwatched_again(&mut self) {
        let witness = &mut self.witness;
        witness.silent = 0;
        witness.refused.clear();
        for (id, known) in &mut witness.containers {
            if let Phase::Unwatched = known.phase {
                known.phase = Phase::Wanted { attempts: 0 };
                witness.unwatched -= 1;
                witness.wanted.push_back(id.clone());
            }
        }
    }

    /// A process is not watched any more: one that was refused by a limit takes its place.
    pub(super) fn room_for_one(&mut self) {
        let witness = &mut self.witness;
        while let Some(id) = witness.refused.pop_front() {
            let known = witness.containers.get(&id).map(|known| &known.phase);
            if let Some(Phase::Unwatched) = known {
                witness.set(&id, Phase::Wanted { attempts: 0 });
                witness.wanted.push_back(id);
                return;
            }
        }
    }

    fn watch(&mut self, id: &ContainerId, pid: u32) {
        let Some(witness) = &mut self.witness.witness else {
            return;
        };
        match witness.watch(&id.shared(), pid) {
            Ok(process) => self.witness.set(id, Phase::Watched(process)),
            Err(error) => {
                match error {
                    // It may have exited before it could be watched.
                    WatchError::NotFound(_) => self.hinted(id.shared(), None, Reached::Ended, Instant::now()),
                    WatchError::Limit(_) if self.witness.refused.len() < MOST => {
                        self.witness.refused.push_back(id.clone());
                    }
                    _ => {}
                }
                self.unwatched(id, &error.to_string());
            }
        }
    }

    fn unwatched(&mut self, id: &ContainerId, why: &str) {
        self.witness.why_unwatched = Some(why.into());
        self.witness.set(id, Phase::Unwatched);
    }
}
