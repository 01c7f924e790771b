//! From an endpoint to a generator in one call: what most users of the library want.

use std::sync::Arc;

use pleg_cri::{Client, Deadlines, Endpoint, InFlight};

use crate::generator::{Config, ConfigError, Generator};
use crate::metrics::Metrics;
use crate::runtime::CriRuntime;

/// Why there is no generator.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Two settings contradict each other. Nothing was asked of the runtime.
    #[error("invalid configuration: {0}")]
    Config(#[from] ConfigError),
    /// Nothing at the endpoint speaks CRI. The message names the endpoint, the cause and what to try.
    #[error(transparent)]
    Runtime(#[from] pleg_cri::ConnectError),
    /// The metrics cannot be registered, which is a bug.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
}

/// Connects to the runtime at `endpoint` and creates a generator that observes it, with metrics that count its calls. Nothing runs
/// until [`Generator::run`]. Those who want other limits, a shared in-flight table or no connection yet make the parts
/// themselves: [`Metrics`], [`Client`], [`CriRuntime`], [`Generator::new`].
pub async fn connect(
    endpoint: Endpoint,
    deadlines: Deadlines,
    config: Config,
) -> Result<Generator<CriRuntime>, ConnectError> {
    config.validate()?;
    let metrics = Metrics::new()?;
    let client = pleg_cri::Config {
        deadlines,
        inflight: InFlight::observed_by(Arc::new(metrics.clone())),
        ..pleg_cri::Config::default()
    };
    let client = Client::connect(endpoint, client).await?;
    Ok(Generator::new(CriRuntime::new(client), config, metrics))
}
