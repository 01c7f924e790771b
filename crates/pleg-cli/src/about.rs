//! Facts for a bug report beside the recording: versions, settings, calls in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use pleg::runtime::RuntimeVersion;
use pleg_cluster::report::{ReportHandle, ReportProgress};
use pleg_cri::duration::seconds;
use pleg_cri::{Client, InFlight, v1};
use pleg_history::{HistoryMonitor, HistoryReader, HistoryStatus};
use serde::Serialize;
use tokio::time::timeout;

/// Deadline of `Version`. A runtime that misses it is reported as stuck instead.
const PATIENCE: Duration = Duration::from_secs(2);

/// The effective flags, as texts, without the environment.
pub(crate) type Settings = BTreeMap<&'static str, String>;

/// What [`About`] is made from.
#[derive(Debug)]
pub(crate) struct Setup {
    client: Client,
    settings: Settings,
    report: Option<ReportHandle>,
    history: Option<(HistoryReader, HistoryMonitor)>,
}

/// A pleg process that observes a runtime.
#[derive(Debug, Serialize)]
pub(crate) struct About {
    version: &'static str,
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<RuntimeVersion>,
    /// The error of `Version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_error: Option<String>,
    settings: Settings,
    /// Calls in flight, the oldest first.
    inflight: Vec<Call>,
}

#[derive(Debug, Serialize)]
struct Call {
    rpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    age_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_seconds: Option<f64>,
}

impl Setup {
    pub(crate) fn new(client: Client, settings: Settings) -> Self {
        Self {
            client,
            settings,
            report: None,
            history: None,
        }
    }

    /// It reports to a cluster.
    pub(crate) fn set_report(&mut self, report: ReportHandle) {
        self.report = Some(report);
    }

    /// How reporting to the cluster goes, if it does.
    pub(crate) fn report(&self) -> Option<ReportProgress> {
        self.report.as_ref().map(ReportHandle::progress)
    }

    /// It keeps a history.
    pub(crate) fn set_history(&mut self, reader: HistoryReader, monitor: HistoryMonitor) {
        self.history = Some((reader, monitor));
    }

    /// The history, if it keeps one.
    pub(crate) fn history(&self) -> Option<&HistoryReader> {
        self.history.as_ref().map(|(reader, _)| reader)
    }

    /// How the history does, if it keeps one.
    pub(crate) fn history_status(&self) -> Option<HistoryStatus> {
        self.history.as_ref().map(|(_, monitor)| monitor.status())
    }

    /// As of now.
    pub(crate) async fn about(&self) -> About {
        let inflight = calls(self.client.inflight());
        // Not `Client::version`, which resets what is known about the runtime's features.
        let request = v1::VersionRequest {
            version: self.client.api().to_string(),
        };
        let (runtime, runtime_error) = match timeout(PATIENCE, self.client.call(request)).await {
            Ok(Ok(answer)) => {
                let version = RuntimeVersion {
                    name: answer.runtime_name,
                    version: answer.runtime_version,
                    api: self.client.api().to_string(),
                };
                (Some(version), None)
            }
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some(format!("Version: no answer within {}", seconds(PATIENCE)))),
        };
        About {
            version: env!("CARGO_PKG_VERSION"),
            endpoint: self.client.endpoint().to_string(),
            runtime,
            runtime_error,
            settings: self.settings.clone(),
            inflight,
        }
    }
}

fn calls(inflight: &InFlight) -> Vec<Call> {
    let text = |text: Option<std::sync::Arc<str>>| text.map(|text| text.to_string());
    let calls = inflight.calls().into_iter().map(|call| Call {
        rpc: call.rpc.name(),
        pod: text(call.subject.pod),
        container: text(call.subject.container),
        id: text(call.subject.id),
        age_seconds: call.since.elapsed().as_secs_f64(),
        deadline_seconds: call.deadline.map(|deadline| deadline.as_secs_f64()),
    });
    calls.collect()
}
