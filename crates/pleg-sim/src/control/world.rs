//! What a simulator does beyond faults: commands that change its world.

use std::sync::Arc;

use super::command::{Add, Command, CommandError, Exit, OddObject, Pad, PodState, Reply, Set, Shim, Shims, Storm};
use super::execute::{Commanded, counted};
use crate::fault::Faults;
use crate::selector::Selector;
use crate::serve::listening::Switch;
use crate::sim::Simulation;
use crate::stats::StatsSnapshot;
use crate::world::{Ending, Readiness, World};

/// Pods that one command may add.
const MOST_ADDED: usize = 20_000;

impl Commanded for Simulation {
    fn faults(&self) -> &Faults {
        &self.faults
    }

    fn stats(&self) -> StatsSnapshot {
        Self::stats(self)
    }

    fn clear(&self) {
        self.faults.clear();
        let mut world = self.world();
        world.block_on_subscribers(false);
        world.set_readiness(Readiness::default());
        // Without a name there is none that could be missing.
        _ = world.unhang_shim(None);
    }

    fn switch(&self) -> &Switch {
        &self.switch
    }

    async fn ids(&self, selector: &Selector) -> Result<Vec<Arc<str>>, CommandError> {
        Ok(self.world().ids(selector)?)
    }

    async fn own(&self, command: Command) -> Result<Reply, CommandError> {
        let world = || self.world();
        let done = match command {
            Command::Storm(Storm { exit_code }) => {
                let count = world().storm(Ending::Exit(exit_code));
                format!("{} exited with {exit_code}", counted(count, "container"))
            }
            Command::Exit(Exit {
                pod,
                container,
                exit_code,
                oom,
                leave_process,
            }) => {
                let ending = if oom { Ending::Oom } else { Ending::Exit(exit_code) };
                let container = container.as_deref();
                let count = if leave_process {
                    world().exit_leaving_process(&pod, container, ending)?
                } else {
                    world().exit(&pod, container, ending)?
                };
                format!(
                    "{} of pod {pod} exited with {}",
                    counted(count, "container"),
                    ending.code()
                )
            }
            Command::Restart(Selector { pod, container }) => {
                let count = world().restart(&pod, container.as_deref())?;
                format!("{} of pod {pod} restarted", counted(count, "container"))
            }
            Command::Remove(target) => {
                let gone = world().remove(&target.pod, target.container.as_deref())?;
                self.faults.forget(&gone);
                format!("{target} removed")
            }
            Command::Add(Add { pods }) => add(self, pods)?,
            Command::Set(set) => change(self, &set)?,
            Command::HangShim(Shim { pod }) => {
                world().hang_shim(&pod)?;
                format!("the shim of pod {pod} hangs until unhang-shim")
            }
            Command::UnhangShim(Shims { pod }) => {
                let count = world().unhang_shim(pod.as_ref())?;
                format!("{} released", counted(count, "shim"))
            }
            Command::Odd(OddObject { kind }) => {
                world().add_odd(kind)?;
                "odd objects added".to_owned()
            }
            Command::Pad(Pad { bytes }) => {
                world().pad_lists(bytes);
                format!("lists padded with {bytes} bytes")
            }
            Command::Pods {} => return Ok(Reply::Pods(pods(&world()))),
            command => return Err(CommandError::Invalid(format!("{} is not handled here", command.name()))),
        };
        Ok(Reply::Done(done))
    }
}

fn add(simulation: &Simulation, pods: usize) -> Result<String, CommandError> {
    if pods > MOST_ADDED {
        return Err(CommandError::Invalid(format!(
            "at most {MOST_ADDED} pods can be added at once"
        )));
    }
    simulation.world().add_pods(pods)?;
    Ok(format!("{} added", counted(pods, "pod")))
}

fn change(shared: &Simulation, set: &Set) -> Result<String, CommandError> {
    let mut done = Vec::new();
    let mut world = shared.world();
    if let Some(churn) = set.churn {
        if !(0.0..=1e6).contains(&churn) {
            return Err(CommandError::Invalid(format!(
                "{churn} is not a churn rate; expected changes per second, up to 1000000"
            )));
        }
        world.set_churn(churn);
        done.push(format!("{churn} changes per second"));
    }
    let mut readiness = world.readiness();
    if let Some(ready) = set.runtime_ready {
        readiness.runtime = ready;
        done.push(format!("RuntimeReady is {ready}"));
    }
    if let Some(ready) = set.network_ready {
        readiness.network = ready;
        done.push(format!("NetworkReady is {ready}"));
    }
    world.set_readiness(readiness);
    if let Some(blocks) = set.block_on_subscribers {
        world.block_on_subscribers(blocks);
        let what = if blocks { "block the runtime" } else { "lose events" };
        done.push(format!("subscribers that do not read {what}"));
    }
    Ok(done.join(", "))
}

fn pods(world: &World) -> Vec<PodState> {
    let pods = world.pod_names().into_iter();
    pods.map(|(pod, containers)| PodState {
        pod,
        containers: containers
            .into_iter()
            .map(|(name, state)| (name, super::command::state_name(state)))
            .collect(),
    })
    .collect()
}
