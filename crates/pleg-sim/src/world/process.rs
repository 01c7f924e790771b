//! The processes of containers, where they have any: which starts and ends go through them.

use std::sync::Arc;

use super::schedule::Due;
use super::{Ending, World, WorldError};
use crate::clock::nanos;
use crate::processes::{Owner, ProcessError, Processes};

/// A container's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// How the container ends when its process has died, if that is not as the process did.
    ending: Option<Ending>,
}

impl From<ProcessError> for WorldError {
    fn from(error: ProcessError) -> Self {
        Self::Process(error.to_string())
    }
}

impl World {
    /// The process of a running container.
    pub fn pid(&self, id: &str) -> Option<u32> {
        let container = self.containers.get(id).filter(|container| container.running())?;
        container.process.map(|process| process.pid)
    }

    /// How many processes containers have.
    pub fn processes(&self) -> usize {
        self.processes.as_ref().map_or(0, Processes::len)
    }

    pub(crate) fn processes_mut(&mut self) -> Option<&mut Processes> {
        self.processes.as_mut()
    }

    /// Kills all processes; no more are started.
    pub(crate) fn end_processes(&mut self) {
        if let Some(processes) = &mut self.processes {
            processes.end();
        }
    }

    /// Starts the process of a container, if they have any.
    pub(super) fn start_process(&mut self, id: &str) -> Result<(), WorldError> {
        let (Some(processes), Some(container)) = (&mut self.processes, self.containers.get_mut(id)) else {
            return Ok(());
        };
        let owner = Owner {
            id: Arc::clone(&container.id),
            pod: Arc::clone(&container.pod),
        };
        let pid = processes.spawn(owner)?;
        container.process = Some(Process { pid, ending: None });
        Ok(())
    }

    /// A running container ends by itself: its process is killed, and its death ends the container. None if it has no process.
    pub(super) fn end_process(&mut self, id: &str, ending: Ending) -> Option<bool> {
        let container = self.containers.get_mut(id).filter(|container| container.running())?;
        let process = container.process.as_mut()?;
        if process.ending.is_some() {
            return Some(false);
        }
        process.ending = Some(ending);
        self.processes.as_ref()?.kill(process.pid);
        Some(true)
    }

    /// The runtime says that the container has ended: its process, if it lives, does not any more.
    pub(super) fn kill_process(&mut self, id: &str) {
        let (Some(processes), Some(container)) = (&self.processes, self.containers.get_mut(id)) else {
            return;
        };
        if let Some(process) = container.process.take() {
            processes.kill(process.pid);
        }
        processes.remove_cgroup(&container.pod, Some(id));
    }

    /// Takes in all processes that have died.
    pub(crate) fn collect_processes(&mut self) {
        while let Some((owner, pid, code)) = self.processes.as_mut().and_then(Processes::collect) {
            if let Some(owner) = owner {
                self.process_died(&owner, pid, code);
            }
        }
    }

    fn process_died(&mut self, owner: &Owner, pid: u32, code: i32) {
        let container = self.containers.get(&owner.id).filter(|container| container.running());
        let process = container.and_then(|container| container.process);
        if let Some(process) = process.filter(|process| process.pid == pid) {
            let at = self.clock.now().saturating_add(nanos(self.exit_lag));
            let ending = process.ending.unwrap_or(Ending::Exit(code));
            let id = Arc::clone(&owner.id);
            self.schedule.add(at, Due::Exited { id, ending });
            return;
        }
        // It was killed because its container had ended, or was left over.
        if let Some(processes) = &self.processes {
            processes.remove_cgroup(&owner.pod, Some(&owner.id));
            if !self.pods.contains_key(&owner.pod) {
                processes.remove_cgroup(&owner.pod, None);
            }
        }
    }
}
