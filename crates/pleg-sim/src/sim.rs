//! A running simulator: its tasks, and the handle to it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pleg_cri::{Endpoint, Rpc};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::SimConfig;
use crate::control;
use crate::fault::Faults;
use crate::processes::Reaper;
use crate::selector::Selector;
use crate::serve::front::Front;
use crate::serve::listening::{Listening, Switch};
use crate::serve::logs;
use crate::serve::router::Router;
use crate::serve::socket::{BindError, Bound};
use crate::stats::{Stats, StatsSnapshot};
use crate::world::{Truth, World, WorldError};

/// Why a simulator does not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A socket cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The pods of the configuration cannot be created.
    #[error("cannot create the pods")]
    World(#[from] WorldError),
    /// No thread, or no runtime for it.
    #[error("cannot start the simulator thread")]
    Thread(#[source] std::io::Error),
    /// The thread ended before the simulator ran.
    #[error("the simulator thread ended unexpectedly")]
    Ended,
}

/// What all tasks of a simulator share.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) config: SimConfig,
    /// Every call is one short step: nothing waits while it holds the lock.
    world: Mutex<World>,
    /// The next due time may have changed.
    wake: Notify,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
    pub(crate) switch: Switch,
}

/// The world, locked. Don't hold it across an `await`: every call of every client waits for it. Mind that in
/// `for x in sim.world().truth().containers { … }` it is held for the whole loop; bind the truth first, or take [`Sim::truth`].
#[derive(Debug)]
pub struct WorldGuard<'a> {
    world: MutexGuard<'a, World>,
    wake: &'a Notify,
}

impl Deref for WorldGuard<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for WorldGuard<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Drop for WorldGuard<'_> {
    fn drop(&mut self) {
        if self.world.take_rescheduled() {
            self.wake.notify_one();
        }
    }
}

impl Simulation {
    pub(crate) fn world(&self) -> WorldGuard<'_> {
        WorldGuard {
            world: self.world.lock(),
            wake: &self.wake,
        }
    }

    pub(crate) fn stats(&self) -> StatsSnapshot {
        StatsSnapshot {
            events: Some(self.world().event_stats()),
            ..self.stats.snapshot()
        }
    }

    /// Waits until a condition of the world holds; it is checked again after each of `changes`.
    pub(crate) async fn wait_until(&self, mut changes: watch::Receiver<()>, is: impl Fn(&mut World) -> bool) {
        loop {
            changes.borrow_and_update();
            if is(&mut self.world()) {
                return;
            }
            // The sender is the world's.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the shim of this sandbox or container no longer hangs.
    pub(crate) async fn shim(&self, id: &str) {
        let changes = self.world().shims();
        self.wait_until(changes, |world| !world.shim_hangs(id)).await;
    }

    /// Holds a kind of call, or only those about one pod or container.
    pub(crate) fn hang(&self, rpc: Rpc, about: Option<Selector>) -> Result<(), control::CommandError> {
        let ids = about.as_ref().map(|about| self.world().ids(about)).transpose()?;
        Ok(self.faults.hang(rpc, about, ids)?)
    }

    /// Locks containers as containerd does.
    pub(crate) fn lock_containers(&self, target: Selector) -> Result<(), control::CommandError> {
        let ids = self.world().ids(&target)?;
        Ok(self.faults.lock(Some(target), ids)?)
    }
}

/// A running simulator. Dropping it ends it without waiting; [`Sim::shutdown`] waits.
#[derive(Debug)]
pub struct Sim {
    shared: Arc<Simulation>,
    endpoint: Endpoint,
    cancel: CancellationToken,
    tracker: TaskTracker,
    thread: Option<std::thread::JoinHandle<()>>,
    reaper: Option<Reaper>,
}

impl Sim {
    /// Starts on the current tokio runtime. Returns when the socket takes connections.
    pub async fn start(config: SimConfig, listen: Endpoint) -> Result<Self, SimError> {
        let world = World::new(&config)?;
        let bound = Bound::bind(listen.path()).await?;
        let control = match &config.control {
            Some(endpoint) => Some(Bound::bind(endpoint.path()).await?),
            None => None,
        };
        let faults = Faults::new(config.seed);
        faults.set_latency(None, config.latency, config.jitter);
        let (cancel, tracker) = (CancellationToken::new(), TaskTracker::new());
        let (listening, switch) = Listening::new(listen.clone(), cancel.clone(), tracker.clone());
        let shared = Arc::new(Simulation {
            world: Mutex::new(world),
            wake: Notify::new(),
            faults,
            stats: Stats::default(),
            switch,
            config,
        });
        let service = Front::new(Router::new(&shared), shared.faults.clone(), shared.stats.clone());
        let reaper = {
            let mut world = shared.world();
            let processes = world.processes_mut();
            let reaper = processes.map(|processes| Reaper::start(processes, Arc::downgrade(&shared)));
            reaper.transpose().map_err(SimError::Thread)?
        };
        let sim = Self {
            shared: Arc::clone(&shared),
            endpoint: listen,
            cancel,
            tracker,
            thread: None,
            reaper,
        };
        sim.tracker.spawn(listening.run(bound, service));
        sim.tracker.spawn(drive(Arc::clone(&shared), sim.cancel.clone()));
        if let Some(bound) = control {
            let (cancel, tracker) = (sim.cancel.clone(), sim.tracker.clone());
            sim.tracker
                .spawn(control::serve(Arc::clone(&shared), bound, cancel, tracker));
        }
        if !shared.config.steps.is_empty() {
            sim.tracker.spawn(control::run_steps(shared, sim.cancel.clone()));
        }
        Ok(sim)
    }

    /// Starts on a thread and runtime of its own, so that the server's work does not disturb the caller's runtime.
    pub async fn spawn_thread(config: SimConfig, listen: Endpoint) -> Result<Self, SimError> {
        let (started, is_started) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(SimError::Thread)?;
        let thread = std::thread::Builder::new()
            .name("pleg-sim".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let sim = Self::start(config, listen).await;
                    let tasks = sim.as_ref().ok().map(|sim| (sim.cancel.clone(), sim.tracker.clone()));
                    _ = started.send(sim);
                    if let Some((cancel, tracker)) = tasks {
                        cancel.cancelled().await;
                        tracker.close();
                        tracker.wait().await;
                    }
                });
            })
            .map_err(SimError::Thread)?;
        let mut sim = is_started.await.map_err(|_| SimError::Ended)??;
        sim.thread = Some(thread);
        Ok(sim)
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The world, to change it and to compare with it.
    pub fn world(&self) -> WorldGuard<'_> {
        self.shared.world()
    }

    /// Everything there is now. Unlike `world().truth()` it cannot keep the world locked for the rest of a statement.
    pub fn truth(&self) -> Truth {
        self.world().truth()
    }

    /// The faults in force, to change them.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Holds a kind of call, or only those about one pod or container, until `faults().unhang(…)`.
    pub fn hang(&self, rpc: Rpc, about: Option<Selector>) -> Result<(), control::CommandError> {
        self.shared.hang(rpc, about)
    }

    /// Locks a pod's containers, or one, as containerd does, until `faults().unlock(…)`: every `ListContainers` hangs, and
    /// every call about them.
    pub fn lock(&self, target: Selector) -> Result<(), control::CommandError> {
        self.shared.lock_containers(target)
    }

    /// All counters now.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats()
    }

    /// The counters of calls themselves, for callers that read them often.
    pub fn counters(&self) -> &Stats {
        &self.shared.stats
    }

    /// Executes a command of `pleg sim ctl`.
    pub async fn execute(&self, command: control::Command) -> Result<control::Reply, control::CommandError> {
        control::execute(&*self.shared, command).await
    }

    /// Closes and removes the socket and cuts every connection, for `length`; the world goes on. Returns when it is closed.
    pub async fn down(&self, length: Duration) {
        self.shared.switch.down(length).await;
    }

    /// Waits until the socket takes connections (again).
    pub async fn wait_up(&self) {
        self.shared.switch.wait_up().await;
    }

    /// Ends it and waits until all its tasks have ended and its sockets are gone.
    pub async fn shutdown(mut self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        if let Some(reaper) = self.reaper.take() {
            self.shared.world().end_processes();
            reaper.wait().await;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the simulator thread panicked");
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.cancel.cancel();
        if self.reaper.is_some() {
            self.shared.world().end_processes();
        }
    }
}

/// Applies what the world's schedule has due: exits, restarts, churn.
async fn drive(shared: Arc<Simulation>, cancel: CancellationToken) {
    cancel
        .run_until_cancelled(async {
            loop {
                let (next, log_texts) = {
                    let mut world = shared.world();
                    world.tick();
                    // What is due is read below: no need to be woken for it.
                    world.take_rescheduled();
                    let next = world.next_due().and_then(|at| world.clock().instant(at));
                    (next, world.take_log_texts())
                };
                logs::write(log_texts);
                // More may be due already: calls that wait for the world come before that.
                tokio::task::yield_now().await;
                match next {
                    Some(at) => _ = tokio::time::timeout_at(at, shared.wake.notified()).await,
                    None => shared.wake.notified().await,
                }
            }
        })
        .await;
}
