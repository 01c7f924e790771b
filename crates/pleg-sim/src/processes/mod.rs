//! Real processes behind simulated containers, so that a client that watches the kernel has something to watch.
//!
//! Each running container has one process: `cat`, blocked in a read from a pipe whose other end only the simulator holds. It needs no
//! processor time and about 200 KB, and ends by itself when the simulator is gone, however that ended. All are in one process group: the
//! reaper waits for that group alone and no other child of this process, and one signal ends them all.
//!
//! A process that dies ends its container, with its exit code, after the lag that a real runtime has. A container that ends by itself
//! (a script, a command, churn) has its process killed, and ends as any other whose process died. What a client stops or removes has
//! ended when the call returns.

mod cgroups;
mod reaper;

use std::io::{self, PipeReader, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use cgroups::Tree;
pub(crate) use reaper::Reaper;

/// Processes at most: beyond that the machine's own limits are near.
const MOST: usize = 20_000;
/// What every process is. It is on every machine.
const PROGRAM: &str = "cat";

/// Why containers cannot have processes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("no process can be started ({PROGRAM}): {0}")]
    Spawn(#[source] io::Error),
    #[error("no cgroup can be made for processes, tried {tried}: {error}; run it as root, or with a delegated cgroup")]
    NoCgroups {
        tried: String,
        #[source]
        error: io::Error,
    },
    #[error("{}: {error}", path.display())]
    Cgroup {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the simulator starts at most {MOST} processes")]
    Full,
    #[error("the simulator is ending")]
    Ended,
}

/// Whose process it is.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) id: Arc<str>,
    /// Key of its pod in the world.
    pub(crate) pod: Arc<str>,
}

/// All processes. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Processes {
    /// The group's first process, which belongs to no container.
    group: Pid,
    tree: Tree,
    /// By process.
    owners: FxHashMap<u32, Owner>,
    /// What processes read from.
    input: PipeReader,
    /// Nothing is ever written: the processes read the end of the file when this is closed.
    _silence: PipeWriter,
    ended: bool,
    /// Whether the processes are already being waited for.
    reaped: bool,
}

impl Processes {
    /// Finds a place for cgroups, and starts the first process.
    pub(crate) fn start() -> Result<Self, ProcessError> {
        let (input, silence) = io::pipe().map_err(ProcessError::Spawn)?;
        let group = spawn(&input, 0)?;
        let tree = Tree::make(group).inspect_err(|_| {
            let _ = kill_process_group(group, Signal::KILL);
            reaper::wait_for_all(group);
        })?;
        Ok(Self {
            group,
            tree,
            owners: FxHashMap::default(),
            input,
            _silence: silence,
            ended: false,
            reaped: false,
        })
    }

    /// Starts the process of a container in a cgroup of its own. Returns its number.
    pub(crate) fn spawn(&mut self, owner: Owner) -> Result<u32, ProcessError> {
        if self.ended {
            return Err(ProcessError::Ended);
        }
        if self.owners.len() >= MOST {
            return Err(ProcessError::Full);
        }
        self.tree.add(&owner.pod, &owner.id)?;
        let started = spawn(&self.input, self.group.as_raw_nonzero().get());
        let pid = started.inspect_err(|_| self.tree.remove(&owner.pod, Some(&owner.id)))?;
        if let Err(error) = self.tree.enter(&owner.pod, &owner.id, pid) {
            // The reaper finds a process without an owner, and only collects it.
            let _ = kill_process(pid, Signal::KILL);
            return Err(error);
        }
        let pid = number(pid);
        self.owners.insert(pid, owner);
        Ok(pid)
    }

    /// Kills the process, if it lives.
    pub(crate) fn kill(&self, pid: u32) {
        // Only the reaper collects processes, and it takes them out of the table first: the number cannot be reused by now.
        if self.owners.contains_key(&pid)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The cgroup of a sandbox, without a process.
    pub(crate) fn add_sandbox(&mut self, pod: &str, id: &str) -> Result<(), ProcessError> {
        self.tree.add(pod, id)
    }

    /// Removes the cgroup of a container or sandbox, or that of a pod. One with a process in it stays until that was collected.
    pub(crate) fn remove_cgroup(&self, pod: &str, id: Option<&str>) {
        self.tree.remove(pod, id);
    }

    /// Collects a process that has died, if there is one, and whose it was.
    pub(crate) fn collect(&mut self) -> Option<(Option<Owner>, u32, i32)> {
        let (pid, code) = reaper::collect(self.group)?;
        Some((self.owners.remove(&pid), pid, code))
    }

    /// How many live.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Kills them all. No more are started.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end();
        if !self.reaped {
            reaper::wait_for_all(self.group);
            self.tree.clone().remove_all();
        }
    }
}

/// Starts a process in a group; 0 is a group of its own.
fn spawn(input: &PipeReader, group: i32) -> Result<Pid, ProcessError> {
    let input = input.try_clone().map_err(ProcessError::Spawn)?;
    let mut command = Command::new(PROGRAM);
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    // The reaper waits for it, with its group.
    let child = command.process_group(group).spawn().map_err(ProcessError::Spawn)?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| ProcessError::Spawn(io::Error::other("it has no number")))
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
