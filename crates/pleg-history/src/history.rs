//! The history of a daemon: opened before its generator, written beside it, read by everybody.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::RwLock;
use pleg::{FeedHistory, Metrics, Pleg};
use tokio::sync::watch;

use crate::entry::{DaemonStarted, Previous, Record};
use crate::file::{HistoryError, open};
use crate::health::{Health, HistoryState, HistoryStatus};
use crate::node_events::NodeEvents;
use crate::past::FeedSource;
use crate::reader::{HistoryReader, Source};
use crate::recorder::{Recorder, RelistTimes, Running, with_causes};
use crate::store::{Limits, PodLabels, Store};

/// After the generator has ended, the file is waited for this long.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a history is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file.
    pub path: PathBuf,
    /// How much is kept.
    pub limits: Limits,
    /// The daemon's version, for its entry.
    pub version: String,
}

/// The history of a daemon.
#[derive(Debug)]
pub struct History {
    config: Config,
    source: Source,
    written: (watch::Sender<u64>, watch::Receiver<u64>),
    running: Running,
    health: Health,
    relists: RelistTimes,
    node_events: NodeEvents,
    previous: Option<Previous>,
}

impl History {
    /// Opens or creates the file. Blocking. Without a file, because it cannot be opened now, there is a history all the same: it is
    /// off, says why, and tries again.
    pub fn open(config: Config) -> Result<Self, prometheus::Error> {
        let health = Health::new(&config.path)?;
        let opened = open(&config.path).and_then(|volume| {
            let previous = Store::previous(&volume);
            let previous = previous.map_err(|error| HistoryError::io("read", &config.path, error))?;
            Ok((Arc::new(volume), previous))
        });
        let (source, previous, end) = match opened {
            Ok((volume, previous)) => {
                health.written(&volume, 0);
                health.works();
                let end = volume.segments.read().next_id().unwrap_or_default();
                (Ok(volume), previous, end)
            }
            Err(error) => {
                let text = with_causes(&error);
                health.fails(HistoryState::Off, text.clone());
                tracing::warn!("history is off, everything else goes on; retrying: {text}");
                (Err(text.into()), None, 0)
            }
        };
        Ok(Self {
            config,
            source: Arc::new(RwLock::new(source)),
            written: watch::channel(end),
            running: Running::default(),
            health,
            relists: RelistTimes::default(),
            node_events: NodeEvents::default(),
            previous,
        })
    }

    /// For [`pleg::Config::history`].
    pub fn feed(&self) -> FeedHistory {
        FeedHistory {
            first_seq: self.first_seq(),
            events: Arc::new(FeedSource {
                reader: self.reader(),
                running: self.running.clone(),
            }),
        }
    }

    fn first_seq(&self) -> u64 {
        self.previous.map_or(1, |previous| previous.last.seq.saturating_add(1))
    }

    /// Reads it.
    pub fn reader(&self) -> HistoryReader {
        HistoryReader::new(Arc::clone(&self.source), self.written.1.clone())
    }

    /// Takes what a node did.
    pub fn node_events(&self) -> NodeEvents {
        self.node_events.clone()
    }

    /// How it does.
    pub fn monitor(&self) -> HistoryMonitor {
        HistoryMonitor(self.health.clone())
    }

    /// Exports its metrics, and counts the relists of the generator that has these metrics.
    pub fn observe(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        metrics.observe_relists(Arc::new(self.relists.clone()));
        self.health.register(metrics.registry())
    }

    /// Records what this generator publishes, whose configuration has [`History::feed`], until it ends.
    pub fn record(self, pleg: &Pleg) -> Result<HistoryTask, HistoryError> {
        let started = DaemonStarted {
            version: self.config.version.clone(),
            first_seq: pleg.feed().first(),
            previous: self.previous,
        };
        self.running.set(pleg.instance(), started.clone());
        let path = self.config.path.clone();
        let failed = |source| HistoryError::Thread {
            path: path.clone(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(failed)?;
        let recorder = Recorder {
            config: self.config,
            pleg: pleg.clone(),
            source: self.source,
            written: self.written.0,
            health: self.health,
            relists: self.relists,
            node_events: self.node_events,
            started,
        };
        let (ended, has_ended) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("pleg-history".to_owned())
            .spawn(move || {
                runtime.block_on(recorder.run());
                ended.send_replace(true);
            });
        let thread = thread.map_err(failed)?;
        Ok(HistoryTask { thread, has_ended })
    }
}

/// Writes a history without a generator, for demonstrations, tests and benchmarks. Not while a daemon writes the same file.
#[derive(Debug)]
pub struct HistoryWriter(Store);

impl HistoryWriter {
    /// Opens or creates the file, and writes for this instance, whose next event has the number that is returned.
    pub fn open(
        path: &std::path::Path,
        limits: Limits,
        instance: pleg::InstanceId,
    ) -> Result<(Self, u64), HistoryError> {
        let volume = open(path)?;
        let previous = Store::previous(&volume).map_err(|error| HistoryError::io("read", path, error))?;
        let next = previous.map_or(1, |previous| previous.last.seq.saturating_add(1));
        Ok((Self(Store::new(Arc::new(volume), limits, instance, next)), next))
    }

    /// Writes records in their order and makes them durable. `labels` has the labels of pods, in the order of their names.
    pub fn append(&mut self, records: &[Record], labels: &dyn PodLabels) -> Result<(), HistoryError> {
        let mut written = 0;
        while written < records.len() {
            let appended = self.0.append(&records[written..], labels);
            let path = &self.0.volume().path;
            written += appended.map_err(|error| HistoryError::io("write", path, error))?;
        }
        Ok(())
    }
}

/// Says how a history does. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HistoryMonitor(Health);

impl HistoryMonitor {
    /// Now.
    pub fn status(&self) -> HistoryStatus {
        self.0.status()
    }
}

/// The thread that writes a history.
#[derive(Debug)]
pub struct HistoryTask {
    thread: JoinHandle<()>,
    has_ended: watch::Receiver<bool>,
}

impl HistoryTask {
    /// Waits until everything is written, after the generator has ended; not for long, since a disk may hang.
    pub async fn finish(mut self) {
        let ended = tokio::time::timeout(PATIENCE, self.has_ended.wait_for(|&ended| ended)).await;
        if ended.is_err() {
            tracing::warn!("the history is still being written; its last entries may be missing");
        } else if self.thread.join().is_err() {
            tracing::error!("writing history panicked (a bug in pleg)");
        }
    }
}
