//! The same without `async`, for programs that have no tokio runtime: one thread of ours runs the generator, and calls block.
//!
//! ```no_run
//! use pleg::{Config, Item, Overflow, Start, blocking};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pleg = blocking::Pleg::spawn("unix:///run/containerd/containerd.sock".parse()?, Config::default())?;
//! for item in pleg.subscribe(Start::AfterFirstRelist, Overflow::Gap) {
//!     if let Item::Event(event) = item {
//!         println!("{} {:?}", event.kind, event.pod);
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! None of these calls may be made from async code, where they would block other tasks: they panic there.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use pleg_cri::Endpoint;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::connect::ConnectError;
use crate::generator::Config;
use crate::model::PodUid;
use crate::publish::cache::{PodEntry, Token, WaitError};
use crate::publish::feed::{Item, Overflow, Start, Subscriber};
use crate::publish::filter::EventFilter;
use crate::task::{PlegTask, TaskPanicked};

/// A running generator with its thread. Dropping it stops both.
#[derive(Debug)]
pub struct Pleg {
    inner: crate::Pleg,
    runtime: Handle,
    stop: DropGuard,
    thread: JoinHandle<Result<(), TaskPanicked>>,
}

impl Pleg {
    /// Connects to the runtime at `endpoint` and starts a generator in a thread of its own: [`crate::Pleg::spawn`].
    pub fn spawn(endpoint: Endpoint, config: Config) -> Result<Self, ConnectError> {
        Self::start(async move || crate::Pleg::spawn(endpoint, config).await)
    }

    /// The same for a runtime that is not up yet: [`crate::Pleg::spawn_lazy`].
    pub fn spawn_lazy(endpoint: Endpoint, config: Config) -> Result<Self, ConnectError> {
        Self::start(async move || crate::Pleg::spawn_lazy(endpoint, config))
    }

    fn start<S>(spawn: S) -> Result<Self, ConnectError>
    where
        S: AsyncFnOnce() -> Result<(crate::Pleg, PlegTask), ConnectError> + Send + 'static,
    {
        let tokio = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ConnectError::Thread)?;
        let runtime = tokio.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (started, starting) = mpsc::sync_channel(1);
        let run = move || {
            tokio.block_on(async move {
                let task = match spawn().await {
                    Ok((pleg, task)) => {
                        // The caller waits for it.
                        let _ = started.send(Ok(pleg));
                        task
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return Ok(());
                    }
                };
                task.run_until(stopped.cancelled()).await
            })
        };
        let thread = std::thread::Builder::new().name("pleg".to_owned()).spawn(run);
        let thread = thread.map_err(ConnectError::Thread)?;
        let inner = starting
            .recv()
            .map_err(|_| ConnectError::Thread(std::io::Error::other("the thread of the generator panicked")))??;
        Ok(Self {
            inner,
            runtime,
            stop: stop.drop_guard(),
            thread,
        })
    }

    /// The handle, for everything that does not wait: cache, health, metrics.
    pub fn handle(&self) -> &crate::Pleg {
        &self.inner
    }

    /// Inspects one pod now: [`crate::Pleg::refresh`].
    pub fn refresh(&self, uid: &PodUid, within: Duration) -> Result<PodEntry, WaitError> {
        self.runtime.block_on(self.inner.refresh(uid, within))
    }

    /// Waits for a newer entry: [`crate::Cache::newer_than`].
    pub fn newer_than(&self, uid: &PodUid, token: Token, within: Duration) -> Result<PodEntry, WaitError> {
        self.runtime.block_on(self.inner.cache().newer_than(uid, token, within))
    }

    /// Waits for a complete relist: [`crate::Cache::synced`].
    pub fn synced(&self, token: Token, within: Duration) -> Result<(), WaitError> {
        self.runtime.block_on(self.inner.cache().synced(token, within))
    }

    /// Waits until a pod meets a condition: [`crate::Cache::wait_for`].
    pub fn wait_for(
        &self,
        uid: &PodUid,
        condition: impl FnMut(Option<&PodEntry>) -> bool,
        within: Duration,
    ) -> Result<Option<PodEntry>, WaitError> {
        self.runtime
            .block_on(self.inner.cache().wait_for(uid, condition, within))
    }

    /// Subscribes to the events: [`crate::Pleg::subscribe`].
    pub fn subscribe(&self, start: Start, overflow: Overflow) -> Events {
        Events {
            subscriber: self.inner.subscribe(start, overflow),
            runtime: self.runtime.clone(),
        }
    }

    /// Stops the generator and waits for its end.
    pub fn shutdown(self) -> Result<(), TaskPanicked> {
        drop(self.stop);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// One reader of the feed: [`Subscriber`]. The iterator blocks until there is an item, and ends with the generator.
#[derive(Debug)]
pub struct Events {
    subscriber: Subscriber,
    runtime: Handle,
}

impl Events {
    /// Reads only what matches: [`Subscriber::with_filter`].
    #[must_use]
    pub fn with_filter(mut self, filter: EventFilter) -> Self {
        self.subscriber = self.subscriber.with_filter(filter);
        self
    }

    /// The next item. `Timeout` if there is none within that time, `Disconnected` if there will be none.
    pub fn next_within(&mut self, within: Duration) -> Result<Item, RecvTimeoutError> {
        let next = async { tokio::time::timeout(within, self.subscriber.next()).await };
        match self.runtime.block_on(next) {
            Ok(Some(item)) => Ok(item),
            Ok(None) => Err(RecvTimeoutError::Disconnected),
            Err(_) => Err(RecvTimeoutError::Timeout),
        }
    }
}

impl Iterator for Events {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.runtime.block_on(self.subscriber.next())
    }
}
