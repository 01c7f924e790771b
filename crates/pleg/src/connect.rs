//! From an endpoint to running tasks: the one call with which most callers begin.

use std::sync::Arc;

use pleg_cri::{Client, Endpoint, InFlight};

use crate::generator::{Config, ConfigError, Generator};
use crate::metrics::{Metrics, MetricsError};
use crate::publish::handle::Pleg;
use crate::runtime::CriRuntime;
use crate::task::PlegTask;

/// Why no generator was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Two settings contradict each other. The runtime was not called. Retrying does not help.
    #[error("invalid configuration: {0}")]
    Config(#[from] ConfigError),
    /// Nothing at the endpoint speaks CRI. The message names the endpoint, the cause and what to try. Can be retried;
    /// [`Pleg::spawn_lazy`] does so by itself.
    #[error(transparent)]
    Runtime(#[from] pleg_cri::ConnectError),
    /// The thread of a [`blocking`](crate::blocking) generator cannot be started.
    #[error("cannot start the thread of the generator")]
    Thread(#[source] std::io::Error),
    /// The metrics cannot be registered, which is a bug.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl Pleg {
    /// Connects to the runtime at `endpoint`, and starts the generator and the runtime monitor on the current tokio runtime. They run until
    /// [`PlegTask::shutdown`], or until the [`PlegTask`] is dropped.
    ///
    /// Fails if nothing at the endpoint speaks CRI: see [`Pleg::spawn_lazy`] for a runtime that may start later.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let endpoint = "unix:///run/containerd/containerd.sock".parse()?;
    /// let (pleg, task) = pleg::Pleg::spawn(endpoint, pleg::Config::default()).await?;
    /// println!("{}", pleg.health().report().headline);
    /// task.shutdown().await?;
    /// # Ok(()) }
    /// ```
    pub async fn spawn(endpoint: Endpoint, config: Config) -> Result<(Self, PlegTask), ConnectError> {
        Ok(Generator::connect(endpoint, config).await?.spawn())
    }

    /// Like [`Pleg::spawn`], for a runtime that is not up yet: returns at once, connects with the first relist, and retries until the
    /// runtime answers. Until then the cache is empty and [`Pleg::health`] names the cause. Fails only because of `config`, never because
    /// of the runtime. Must be called within a tokio runtime.
    pub fn spawn_lazy(endpoint: Endpoint, config: Config) -> Result<(Self, PlegTask), ConnectError> {
        Ok(Generator::lazy(endpoint, config)?.spawn())
    }
}

impl Generator<CriRuntime> {
    /// Connects to the runtime at `endpoint` and creates a generator that observes it, with metrics that count its calls. Nothing runs
    /// until [`Generator::spawn`] or [`Generator::run`]. Callers who share a client create the parts themselves: [`Metrics`], [`Client`],
    /// [`CriRuntime`], [`Generator::new`].
    pub async fn connect(endpoint: Endpoint, config: Config) -> Result<Self, ConnectError> {
        let (metrics, client) = prepare(&config)?;
        let client = Client::connect(endpoint, client).await?;
        Ok(Self::new(CriRuntime::new(client), config, metrics))
    }

    /// Like [`Generator::connect`], but connects with the first call. Fails only because of `config`.
    pub fn lazy(endpoint: Endpoint, config: Config) -> Result<Self, ConnectError> {
        let (metrics, client) = prepare(&config)?;
        let client = Client::lazy(endpoint, client);
        Ok(Self::new(CriRuntime::new(client), config, metrics))
    }
}

/// Metrics, and the settings of a client whose calls they count.
fn prepare(config: &Config) -> Result<(Metrics, pleg_cri::Config), ConnectError> {
    config.validate()?;
    let metrics = Metrics::new()?;
    let client = pleg_cri::Config {
        deadlines: config.deadlines,
        inflight: InFlight::observed_by(Arc::new(metrics.clone())),
        ..pleg_cri::Config::default()
    };
    Ok((metrics, client))
}
