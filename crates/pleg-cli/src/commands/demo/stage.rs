//! The simulated node of the demonstration, and what is done to it.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use pleg_cri::duration::seconds;
use pleg_cri::{Endpoint, Rpc};
use pleg_sim::{Clock, Ending, Selector, Sim, SimConfig, StatsSnapshot};
use tokio::time::Instant;

use super::{cast, past};
use crate::args::Demo;
use crate::text::count;

/// A stall in the middle: it begins after this part of the time, and lasts this part.
const BEGINS: f64 = 0.35;
const LASTS: f64 = 0.3;
/// Where there is no end, the times of a demonstration of this length, again and again.
const USUAL: Duration = Duration::from_secs(20);
const EVERY: Duration = Duration::from_mins(1);
/// In a browser one looks around first, and reads longer.
const WEB_BEGINS: Duration = Duration::from_secs(20);
const WEB_LASTS: Duration = Duration::from_secs(45);
const WEB_EVERY: Duration = Duration::from_mins(3);

/// The node: a simulator on a thread and socket of its own.
pub(super) struct Stage {
    sim: Sim,
    dir: Dir,
    pods: usize,
    churn: f64,
    duration: Duration,
    web: bool,
    past: Vec<past::Run>,
    started: Instant,
    /// What hangs.
    stalled: Mutex<Option<Selector>>,
}

/// A directory that goes with this value.
pub(super) struct Dir(PathBuf);

impl Dir {
    /// Makes it, for this user only.
    pub(super) fn create() -> anyhow::Result<Self> {
        let dir = std::env::temp_dir().join(format!("pleg-demo-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create the directory {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// A file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

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
    pub(super) async fn set(dir: Dir, args: &Demo) -> anyhow::Result<Self> {
        let web = args.web.is_some();
        let clock = if web {
            let begin = jiff::Timestamp::now().saturating_sub(past::LENGTH)?;
            Clock::manual(i64::try_from(begin.as_nanosecond()).unwrap_or(0))
        } else {
            Clock::system()
        };
        let config = SimConfig {
            pods: if web { 0 } else { args.pods },
            churn: if web { 0.0 } else { args.churn() },
            clock: clock.clone(),
            seed: args.seed,
            latency: Duration::from_millis(2),
            jitter: Duration::from_millis(3),
            ..SimConfig::default()
        };
        let listen = Endpoint::unix(dir.file("runtime.sock"));
        let sim = Sim::spawn_thread(config, listen)
            .await
            .context("cannot start the simulated runtime")?;
        let past = if web {
            for pod in cast::pods(args.pods) {
                sim.world().add_pod(pod).context("cannot create the pods")?;
            }
            let past = past::live_through(&sim, &clock, args.seed);
            sim.world().set_churn(args.churn());
            past
        } else {
            Vec::new()
        };
        Ok(Self {
            sim,
            dir,
            pods: args.pods,
            churn: args.churn(),
            duration: args.duration(),
            web,
            past,
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
        if self.web {
            let hours = past::LENGTH.as_secs() / 3600;
            return format!(
                "a simulated node with {} and a past of {hours} hours, {length}",
                count(pods, "pod")
            );
        }
        let at = self.dir.file("runtime.sock");
        format!(
            "a simulated runtime at unix://{}: {}, {churn} changes per second, {length}",
            at.display(),
            count(pods, "pod")
        )
    }

    /// What happens when, in order.
    pub(super) fn acts(&self) -> impl Iterator<Item = (Instant, Act)> + use<> {
        let (length, rounds) = if self.duration.is_zero() || self.web {
            (USUAL, u32::MAX)
        } else {
            (self.duration, 1)
        };
        let start = self.started;
        let (begins, lasts, every) = if self.web {
            (WEB_BEGINS, WEB_LASTS, WEB_EVERY)
        } else {
            let lasts = length.mul_f64(LASTS).min(Duration::from_secs(8));
            (length.mul_f64(BEGINS), lasts, EVERY)
        };
        (0..rounds).flat_map(move |round| {
            let begin = start + every.saturating_mul(round) + begins;
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
        let mut names = self.sim.world().pod_names();
        let (namespace, name) = cast::STUCK;
        names.sort_by_key(|(pod, _)| pod.as_str() != format!("{namespace}/{name}"));
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

    /// What daemons recorded before, if there is a past.
    pub(super) fn take_past(&mut self) -> Vec<past::Run> {
        std::mem::take(&mut self.past)
    }

    /// A file beside the socket of the runtime.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.file(name)
    }

    /// What the runtime was asked.
    pub(super) fn calls(&self) -> StatsSnapshot {
        self.sim.stats()
    }
}
