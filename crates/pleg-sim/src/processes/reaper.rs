//! Waits for processes: a thread, because to wait for a process group is a blocking call, and the only one that leaves other children
//! of this process alone.

use std::sync::Weak;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpgid};

use super::{Processes, cgroups::Tree, number};
use crate::sim::Simulation;

/// How long the end of all processes may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The thread that waits, and removes the cgroups after the last process.
#[derive(Debug)]
pub(crate) struct Reaper {
    thread: std::thread::JoinHandle<()>,
}

impl Reaper {
    /// Starts to wait. The processes are the simulation's.
    pub(crate) fn start(processes: &mut Processes, shared: Weak<Simulation>) -> std::io::Result<Self> {
        let (group, tree) = (processes.group, processes.tree.clone());
        let thread = std::thread::Builder::new().name("pleg-sim-reaper".to_owned());
        let thread = thread.spawn(move || reap(group, tree, &shared))?;
        processes.reaped = true;
        Ok(Self { thread })
    }

    /// Waits until all processes and their cgroups are gone. They must have been told to end.
    pub(crate) async fn wait(self) {
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        match tokio::time::timeout(PATIENCE, joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the thread that waits for processes panicked"),
            Err(_) => tracing::warn!("processes of simulated containers are still ending after {PATIENCE:?}"),
        }
    }
}

fn reap(group: Pid, tree: Tree, shared: &Weak<Simulation>) {
    loop {
        // Not collected here: as long as it is not, its number is not reused.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pgid(Some(group)), options) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => break,
        }
        match shared.upgrade() {
            Some(shared) => shared.world().collect_processes(),
            None => wait_for_all(group),
        }
    }
    tree.remove_all();
}

/// A process of the group that has died, and its exit code.
pub(super) fn collect(group: Pid) -> Option<(u32, i32)> {
    let (pid, status) = waitpgid(group, WaitOptions::NOHANG).ok()??;
    let code = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    Some((number(pid), code.unwrap_or_default()))
}

/// Collects all that were killed.
pub(super) fn wait_for_all(group: Pid) {
    while let Ok(_) | Err(Errno::INTR) = waitpgid(group, WaitOptions::empty()) {}
}
