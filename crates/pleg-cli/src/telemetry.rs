//! OpenTelemetry, if the `OTEL_*` variables ask for it. Without them the client and the generator are observed by their metrics alone.

use std::sync::Arc;

use pleg::{Metrics, Pleg};
use pleg_cri::Observer;
use tokio_util::sync::CancellationToken;

use crate::Usage;

/// What is sent to a collector, if anything.
pub(crate) struct Telemetry(Option<pleg_otel::Telemetry>);

impl Telemetry {
    /// As the environment says.
    pub(crate) fn from_env() -> Result<Self, Usage> {
        Self::new(|name| std::env::var(name).ok())
    }

    fn new(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Usage> {
        let telemetry = pleg_otel::Telemetry::from_env(variable);
        telemetry.map(Self).map_err(|error| Usage(error.to_string()))
    }

    /// Who observes the calls of the client.
    pub(crate) fn observer(&self, metrics: &Metrics) -> Arc<dyn Observer> {
        let Some(telemetry) = &self.0 else {
            return Arc::new(metrics.clone());
        };
        if let Err(error) = telemetry.register(metrics.registry()) {
            tracing::warn!("what is sent to the collector is not counted: {error}");
        }
        telemetry.observe(metrics)
    }

    /// Sends until shutdown.
    pub(crate) async fn run(self, pleg: &Pleg, shutdown: &CancellationToken) {
        let Some(telemetry) = self.0 else { return };
        tracing::info!("sending {}", telemetry.describe());
        let sending = tokio::spawn(telemetry.run(pleg.clone(), shutdown.clone()));
        if let Err(error) = sending.await {
            tracing::error!(%error, "sending to the collector panicked (a bug in pleg); everything else goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    /// Off is off: the metrics alone observe calls, nobody asks for the details of a call, and no task is started.
    #[tokio::test]
    async fn without_variables_nothing_runs() {
        let metrics = Metrics::new().unwrap();
        let generator = pleg::Generator::new(
            pleg::CriRuntime::new(pleg_cri::Client::lazy(
                pleg_cri::Endpoint::unix("/nonexistent"),
                pleg_cri::Config::default(),
            )),
            pleg::Config::default(),
            metrics.clone(),
        );
        let (pleg, shutdown) = (generator.handle(), CancellationToken::new());
        for (variable, is_on) in [(None, false), (Some("http://localhost:4318"), true)] {
            let telemetry = Telemetry::new(|name| {
                let is_endpoint = name == "OTEL_EXPORTER_OTLP_ENDPOINT";
                is_endpoint.then_some(variable?.to_owned())
            })
            .unwrap();
            assert_eq!(telemetry.observer(&metrics).wants_calls(), is_on);
            let names = || {
                metrics
                    .registry()
                    .gather()
                    .into_iter()
                    .map(|family| family.name().to_owned())
            };
            let (before, counted) = (
                Handle::current().metrics().num_alive_tasks(),
                names().any(|name| name.contains("otel")),
            );
            // The counter has no series before the first span, and is then not shown.
            assert!(!counted);
            let running = telemetry.run(&pleg, &shutdown);
            tokio::pin!(running);
            let is_done = futures_util::poll!(&mut running).is_ready();
            let after = Handle::current().metrics().num_alive_tasks();
            assert_eq!((is_done, after - before), (!is_on, usize::from(is_on)));
        }
        shutdown.cancel();
    }
}
