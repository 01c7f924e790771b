//! The simulated node of the demonstration, and what is done to it.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use pleg_cri::duration::seconds;
use pleg_cri::{Endpoint, Rpc};
use pleg_sim::{Ending, Selector, Sim, SimConfig, StatsSnapshot};
use tokio::time::Instant;

use crate::args::Demo;
use crate::text::count;

/// A stall in the middle: it begins after this part of the time, and lasts this part.
const BEGINS: f64 = 0.35;
const LASTS: f64 = 0.3;
/// Where there is no end, the times of a demonstration of this length, again and again.
const USUAL: Duration = Duration::from_secs(20);
const EVERY: Duration = Duration::from_mins(1);

/// The node: a simulator on a thread and socket of its own.
pub(super) struct Stage {
    sim: Sim,
    dir: Dir,
    pods: usize,
    churn: f64,
    duration: Duration,
    started: Instant,
    /// What hangs.
    stalled: Mutex<Option<Selector>>,
}

/// A directory that goes with this value.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Stall,
    Recover,
}

impl Stage {
    pub(super) async fn set(args: &Demo) -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("pleg-demo-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create the directory {}", dir.display()))?;
        let dir = Dir(dir);
        let config = SimConfig {
            pods: args.pods,
            churn: args.churn,
            seed: args.seed,
            latency: Duration::from_millis(2),
            jitter: Duration::from_millis(3),
            ..SimConfig::default()
        };
        let listen = Endpoint::unix(dir.0.join("runtime.sock"));
        let sim = Sim::spawn_thread(config, listen)
            .await
            .context("cannot start the simulated runtime")?;
        Ok(Self {
            sim,
            dir,
            pods: args.pods,
            churn: args.churn,
            duration: args.duration,
            started: Instant::now(),
            stalled: Mutex::new(None),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.sim.endpoint()
    }

    pub(super) fn introduction(&self) -> String {
        let (pods, churn) = (self.pods, self.churn);
        let length = if self.duration.is_zero() {
            "until Ctrl-C".to_owned()
        } else {
            format!("for {}", seconds(self.duration))
        };
        let at = self.dir.0.join("runtime.sock");
        format!(
            "a simulated runtime at unix://{}: {}, {churn} changes per second, {length}",
            at.display(),
            count(pods, "pod")
        )
    }

    /// What happens when, in order.
    pub(super) fn acts(&self) -> impl Iterator<Item = (Instant, Act)> + use<> {
        let (length, rounds) = if self.duration.is_zero() {
            (USUAL, u32::MAX)
        } else {
            (self.duration, 1)
        };
        let start = self.started;
        let (begins, lasts) = (
            length.mul_f64(BEGINS),
            length.mul_f64(LASTS).min(Duration::from_secs(8)),
        );
        (0..rounds).flat_map(move |round| {
            let begin = start + EVERY.saturating_mul(round) + begins;
            [(begin, Act::Stall), (begin + lasts, Act::Recover)]
        })
    }

    /// Does it; returns what to tell.
    pub(super) fn perform(&self, act: Act) -> String {
        match act {
            Act::Stall => self.stall(),
            Act::Recover => self.recover(),
        }
    }

    /// One container dies, and the runtime does not answer what became of it.
    fn stall(&self) -> String {
        let running = |state| state == pleg_cri::v1::ContainerState::ContainerRunning;
        let names = self.sim.world().pod_names();
        let found = names.into_iter().find_map(|(pod, containers)| {
            let (name, _) = containers.into_iter().find(|(_, state)| running(*state))?;
            Some(Selector {
                pod,
                container: Some(name),
            })
        });
        let Some(target) = found else {
            return "no container is running: nothing to stall".to_owned();
        };
        if let Err(error) = self.sim.hang(Rpc::ContainerStatus, Some(target.clone())) {
            return format!("cannot stall {target}: {error}");
        }
        let exited = self
            .sim
            .world()
            .exit(&target.pod, target.container.as_deref(), Ending::Exit(1));
        if let Err(error) = exited {
            return format!("cannot end {target}: {error}");
        }
        let text = format!("the runtime now hangs on ContainerStatus of {target}. All other pods are unaffected:");
        if let Ok(mut stalled) = self.stalled.lock() {
            *stalled = Some(target);
        }
        text
    }

    fn recover(&self) -> String {
        let stalled = self.stalled.lock().ok().and_then(|mut stalled| stalled.take());
        let Some(target) = stalled else {
            return "nothing hangs".to_owned();
        };
        self.sim.faults().unhang(Some(Rpc::ContainerStatus), None);
        format!("the runtime answers for {target} again")
    }

    /// What the runtime was asked.
    pub(super) fn calls(&self) -> StatsSnapshot {
        self.sim.stats()
    }
}
