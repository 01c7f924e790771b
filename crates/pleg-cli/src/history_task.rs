//! The history of a daemon: from its flags to the thread that writes it.

use pleg::{Metrics, Pleg};
use std::sync::Arc;

use pleg_history::{Config, History, HistoryTask, NodeEvent, NodeEvents};
use pleg_node::events::{Event, EventObject, EventSink, EventType};

use crate::about::Setup;
use crate::args::HistoryFileArgs;

/// A history that is open, if there is one.
#[derive(Debug)]
pub(crate) struct DaemonHistory(Option<History>);

impl DaemonHistory {
    /// Opens the file that the flags name. A history is never a reason to stop: what is wrong with it is logged, and in the health.
    pub(crate) async fn open(args: &HistoryFileArgs, metrics: &Metrics) -> Self {
        let Some(limits) = args.limits() else {
            return Self(None);
        };
        let Some(path) = args.path() else {
            tracing::warn!("keeping no history: this user has no home directory; name a file with --history-file");
            return Self(None);
        };
        let config = Config {
            path,
            limits,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        // A disk may be slow.
        let opened = tokio::task::spawn_blocking(|| History::open(config)).await;
        let history = match opened {
            Ok(Ok(history)) => history,
            Ok(Err(error)) => {
                tracing::warn!(%error, "keeping no history");
                return Self(None);
            }
            Err(error) => {
                tracing::error!(%error, "keeping no history: opening it panicked (a bug in pleg)");
                return Self(None);
            }
        };
        if let Err(error) = history.observe(metrics) {
            tracing::warn!(%error, "history is not counted in the metrics");
        }
        Self(Some(history))
    }

    /// The feed of this generator reads on from it.
    pub(crate) fn configure(&self, config: &mut pleg::Config) {
        config.history = self.0.as_ref().map(History::feed);
    }

    /// Where a node tells what it does: to its history, and to this sink too.
    pub(crate) fn events(&self, also: Option<Arc<dyn EventSink>>) -> Option<Arc<dyn EventSink>> {
        match &self.0 {
            Some(history) => Some(Arc::new(NodeSink {
                history: history.node_events(),
                also,
            })),
            None => also,
        }
    }

    /// Lets the HTTP API read it, and records what this generator publishes until that ends.
    pub(crate) fn record(self, pleg: &Pleg, setup: &mut Setup) -> RecordedHistory {
        let Some(history) = self.0 else {
            return RecordedHistory(None);
        };
        setup.set_history(history.reader(), history.monitor());
        match history.record(pleg) {
            Ok(task) => RecordedHistory(Some(task)),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "keeping no history");
                RecordedHistory(None)
            }
        }
    }
}

/// Writes what a node does to its history.
#[derive(Debug)]
struct NodeSink {
    history: NodeEvents,
    also: Option<Arc<dyn EventSink>>,
}

impl EventSink for NodeSink {
    fn record(&self, event: Event) {
        self.history.record(node_event(&event));
        if let Some(also) = &self.also {
            also.record(event);
        }
    }
}

fn node_event(event: &Event) -> NodeEvent {
    let (pod, container) = match &event.object {
        EventObject::Pod { id, field_path } => {
            // `spec.containers{app}`
            let name = field_path.as_deref().and_then(|path| path.split_once('{'));
            let name = name.and_then(|(_, name)| name.strip_suffix('}'));
            (Some(id.clone()), name.map(str::to_owned))
        }
        EventObject::Node => (None, None),
    };
    NodeEvent {
        pod,
        container,
        warning: event.kind == EventType::Warning,
        reason: event.reason.clone().into_owned(),
        message: event.message.clone(),
    }
}

/// A history that is written.
#[derive(Debug)]
pub(crate) struct RecordedHistory(Option<HistoryTask>);

impl RecordedHistory {
    /// After the generator has ended: waits until everything is written.
    pub(crate) async fn finish(self) {
        if let Some(task) = self.0 {
            task.finish().await;
        }
    }
}
