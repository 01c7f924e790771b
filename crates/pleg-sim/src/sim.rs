//! A running simulator: its tasks, and the handle to it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pleg_cri::{Endpoint, Rpc};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::SimConfig;
use crate::control;
use crate::fault::Faults;
use crate::selector::{Directory, Selector};
use crate::serve::connection::{Protocol, accept};
use crate::serve::router::Cri;
use crate::serve::socket::{BindError, Bound};
use crate::stats::{Stats, StatsSnapshot};
use crate::world::{Truth, World, WorldError};

/// Requests to go down that may wait.
const DOWN_QUEUE: usize = 16;
/// After the socket could not be had again.
const BIND_PAUSE: Duration = Duration::from_millis(100);

/// Why a simulator does not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A socket cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The pods that were asked for cannot be made.
    #[error("cannot make the pods")]
    World(#[from] WorldError),
    /// No thread, or no runtime for it.
    #[error("cannot start a thread for the simulator")]
    Thread(#[source] std::io::Error),
    /// The thread ended before the simulator ran.
    #[error("the simulator's thread ended early")]
    Ended,
}

/// What all tasks of a simulator share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SimConfig,
    /// Every call is one short step: nothing waits while it holds the lock.
    world: Mutex<World>,
    /// The next due time may have changed.
    wake: Notify,
    pub(crate) faults: Faults,
    pub(crate) stats: Stats,
    downs: mpsc::Sender<Down>,
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

impl Shared {
    pub(crate) fn world(&self) -> WorldGuard<'_> {
        WorldGuard {
            world: self.world.lock(),
            wake: &self.wake,
        }
    }

    /// Holds a kind of call, or only those about one pod or container.
    pub(crate) fn hang(&self, rpc: Rpc, about: Option<Selector>) -> Result<(), control::CommandError> {
        self.faults.hang(rpc, about, &Names(&self.world()))
    }

    /// Locks containers as containerd does.
    pub(crate) fn lock_containers(&self, target: Selector) -> Result<(), control::CommandError> {
        let ids = self.world().ids(&target)?;
        Ok(self.faults.lock(Some(target), ids)?)
    }

    /// Closes the socket for a while; returns when it is closed. False if the simulator is ending.
    pub(crate) async fn down(&self, length: Duration) -> bool {
        let (closed, is_closed) = oneshot::channel();
        self.downs.send(Down { length, closed }).await.is_ok() && is_closed.await.is_ok()
    }
}

/// The world as the fault layer wants to ask it.
struct Names<'a>(&'a World);

impl Directory for Names<'_> {
    type Error = control::CommandError;

    fn ids(&self, selector: &Selector) -> Result<Vec<Arc<str>>, control::CommandError> {
        Ok(self.0.ids(selector)?)
    }
}

/// A request to close the socket for a while.
#[derive(Debug)]
struct Down {
    length: Duration,
    closed: oneshot::Sender<()>,
}

/// A running simulator. Dropping it ends it without waiting; [`Sim::shutdown`] waits.
#[derive(Debug)]
pub struct Sim {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    up: watch::Receiver<bool>,
    cancel: CancellationToken,
    tracker: TaskTracker,
    thread: Option<std::thread::JoinHandle<()>>,
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
        let (downs, down_requests) = mpsc::channel(DOWN_QUEUE);
        let shared = Arc::new(Shared {
            world: Mutex::new(world),
            wake: Notify::new(),
            faults,
            stats: Stats::default(),
            downs,
            config,
        });
        let (up_sender, up) = watch::channel(true);
        let sim = Self {
            shared: Arc::clone(&shared),
            endpoint: listen,
            up,
            cancel: CancellationToken::new(),
            tracker: TaskTracker::new(),
            thread: None,
        };
        let socket = Listening {
            shared: Arc::clone(&shared),
            endpoint: sim.endpoint.clone(),
            up: up_sender,
            cancel: sim.cancel.clone(),
            tracker: sim.tracker.clone(),
        };
        sim.tracker.spawn(socket.run(bound, down_requests));
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
        self.shared.stats.snapshot()
    }

    /// Does what `pleg sim ctl` can do.
    pub async fn execute(&self, command: control::Command) -> Result<control::Reply, control::CommandError> {
        control::execute(&self.shared, command).await
    }

    /// Closes and removes the socket and cuts every connection, for `length`; the world goes on. Returns when it is closed.
    pub async fn down(&self, length: Duration) {
        self.shared.down(length).await;
    }

    /// Waits until the socket takes connections (again).
    pub async fn wait_up(&self) {
        // The sender is gone when the simulator ended: then there is nothing to wait for.
        _ = self.up.clone().wait_for(|&up| up).await;
    }

    /// Ends it and waits until all its tasks have ended and its sockets are gone.
    pub async fn shutdown(mut self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the simulator's thread panicked");
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Lets the world do by itself what is due.
async fn drive(shared: Arc<Shared>, cancel: CancellationToken) {
    cancel
        .run_until_cancelled(async {
            loop {
                let next = {
                    let mut world = shared.world();
                    world.tick();
                    // What is due is read below: no need to be woken for it.
                    world.take_rescheduled();
                    world.next_due().and_then(|at| world.clock().instant(at))
                };
                match next {
                    Some(at) => _ = tokio::time::timeout_at(at, shared.wake.notified()).await,
                    None => shared.wake.notified().await,
                }
            }
        })
        .await;
}

/// The CRI socket: open, or closed for a while.
struct Listening {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    up: watch::Sender<bool>,
    cancel: CancellationToken,
    tracker: TaskTracker,
}

impl Listening {
    async fn run(self, mut bound: Bound, mut downs: mpsc::Receiver<Down>) {
        loop {
            // All connections of this time of the socket end with it.
            let cut = self.cancel.child_token();
            let service = Cri::new(&self.shared);
            let accepting = accept(
                &bound.listener,
                Protocol::Http2,
                service,
                cut.clone(),
                self.tracker.clone(),
            );
            let down = tokio::select! {
                () = accepting => return,
                Some(down) = downs.recv() => down,
            };
            cut.cancel();
            drop(bound);
            self.up.send_replace(false);
            match self.cancel.run_until_cancelled(self.wait(down, &mut downs)).await {
                Some(again) => bound = again,
                None => return,
            }
            self.up.send_replace(true);
        }
    }

    /// Stays closed for as long as asked, then opens the socket again.
    async fn wait(&self, down: Down, downs: &mut mpsc::Receiver<Down>) -> Bound {
        let mut until = Instant::now() + down.length;
        _ = down.closed.send(());
        while let Ok(Some(down)) = tokio::time::timeout_at(until, downs.recv()).await {
            until = until.max(Instant::now() + down.length);
            _ = down.closed.send(());
        }
        loop {
            match Bound::bind(self.endpoint.path()).await {
                Ok(bound) => return bound,
                Err(error) => {
                    tracing::warn!(%error, "cannot open the socket again");
                    tokio::time::sleep(BIND_PAUSE).await;
                }
            }
        }
    }
}
