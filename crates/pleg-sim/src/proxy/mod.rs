//! The faults before a real runtime: a proxy that forwards everything except what the faults affect.
//!
//! | module | job |
//! |---|---|
//! | `upstream` | the runtime, by one connection that is made again after it broke |
//! | `names` | which ids it has under which names |
//!
//! It does not decode what it forwards: calls, services and messages that this crate does not know work too. A client that gives
//! up a call ends it in the runtime; a runtime that is gone is UNAVAILABLE until it is back.

mod names;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::{ConnectError, Endpoint};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::control::{self, Command, CommandError, Commanded, Reply};
use crate::fault::Faults;
use crate::selector::Selector;
use crate::serve::front::Front;
use crate::serve::listening::{Listening, Switch};
use crate::serve::socket::{BindError, Bound};
use crate::stats::{Stats, StatsSnapshot};
use names::Names;
use upstream::Upstream;

/// What a proxy is started with.
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// The runtime's socket.
    pub upstream: Endpoint,
    /// Where clients connect.
    pub listen: Endpoint,
    /// Where the control API listens, if it is wanted.
    pub control: Option<Endpoint>,
    /// Rates and jitter follow from it.
    pub seed: u64,
}

/// Why a proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The runtime behind it does not answer.
    #[error(transparent)]
    Upstream(#[from] ConnectError),
    /// A socket cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// What the listener, the calls and the control API of a proxy share.
#[derive(Debug)]
struct Proxied {
    faults: Faults,
    stats: Stats,
    switch: Switch,
    names: Names,
}

/// A running proxy. Dropping it ends it without waiting; [`Proxy::shutdown`] waits.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Proxied>,
    endpoint: Endpoint,
    cancel: CancellationToken,
    tracker: TaskTracker,
}

impl Proxy {
    /// Starts on the current tokio runtime, once the runtime behind has answered. Returns when the socket takes connections.
    pub async fn start(config: ProxyConfig) -> Result<Self, ProxyError> {
        let ProxyConfig {
            upstream,
            listen,
            control,
            seed,
        } = config;
        let names = Names::connect(upstream.clone()).await?;
        let bound = Bound::bind(listen.path()).await?;
        let control = match &control {
            Some(endpoint) => Some(Bound::bind(endpoint.path()).await?),
            None => None,
        };
        let (cancel, tracker) = (CancellationToken::new(), TaskTracker::new());
        let (listening, switch) = Listening::new(listen.clone(), cancel.clone(), tracker.clone());
        let shared = Arc::new(Proxied {
            faults: Faults::new(seed),
            stats: Stats::default(),
            switch,
            names,
        });
        let behind = Upstream::new(upstream, cancel.clone(), tracker.clone());
        let service = Front::new(behind, shared.faults.clone(), shared.stats.clone());
        tracker.spawn(listening.run(bound, service));
        if let Some(bound) = control {
            let served = control::serve(Arc::clone(&shared), bound, cancel.clone(), tracker.clone());
            tracker.spawn(served);
        }
        Ok(Self {
            shared,
            endpoint: listen,
            cancel,
            tracker,
        })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The faults in force, to change them.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// All counters now.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// Executes a command of `pleg sim ctl` that needs no simulated world.
    pub async fn execute(&self, command: Command) -> Result<Reply, CommandError> {
        control::execute(&*self.shared, command).await
    }

    /// Closes and removes the socket and cuts every connection, for `length`. Returns when it is closed.
    pub async fn down(&self, length: Duration) {
        self.shared.switch.down(length).await;
    }

    /// Waits until the socket takes connections (again).
    pub async fn wait_up(&self) {
        self.shared.switch.wait_up().await;
    }

    /// Ends it and waits until all its tasks have ended and its sockets are gone.
    pub async fn shutdown(self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Commanded for Proxied {
    fn faults(&self) -> &Faults {
        &self.faults
    }

    fn stats(&self) -> StatsSnapshot {
        self.stats.snapshot()
    }

    fn switch(&self) -> &Switch {
        &self.switch
    }

    async fn ids(&self, selector: &Selector) -> Result<Vec<Arc<str>>, CommandError> {
        self.names.ids(selector).await
    }

    async fn own(&self, command: Command) -> Result<Reply, CommandError> {
        match command {
            Command::Pods {} => Ok(Reply::Pods(self.names.pods().await?)),
            Command::Set(_) => Err(CommandError::NeedsWorld("set without --latency")),
            command => Err(CommandError::NeedsWorld(command.name())),
        }
    }
}
