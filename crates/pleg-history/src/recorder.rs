//! The thread that reads the feed and writes the file.
//!
//! It is a subscriber like any other, on a thread of its own: the generator never waits for the disk. It wakes for the first event after a
//! rest, writes it at once, and then at most once a second everything that came meanwhile. Nothing is written at rest.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use pleg::{InstanceId, Item, Level, Overflow, Pleg, RelistObserver, Start, Subscriber};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::entry::{DaemonStarted, HealthCause, HealthChanged, MissedEvents, MissedReason, Note, Record, Sample, What};
use crate::file::{HistoryError, open};
use crate::health::{Health, HistoryState};
use crate::histogram::Histogram;
use crate::history::Config;
use crate::node_events::NodeEvents;
use crate::reader::Source;
use crate::status_changes::StatusChanges;
use crate::store::Store;

/// Between two writes, each of which waits for the disk once.
const PERIOD: Duration = Duration::from_secs(1);
/// While a write is due, the feed is read this often, so that it does not overflow in a burst.
const DRAIN: Duration = Duration::from_millis(100);
/// After a failure, before the next attempt.
const RETRY: Duration = Duration::from_secs(5);
/// How often statuses are compared that changed without an event.
const SWEEP: Duration = Duration::from_mins(1);
/// How often a sample is written, if anything is.
const SAMPLE: Duration = Duration::from_mins(1);
/// Records that wait to be written. Beyond them the feed is not read, and it tells later what was missed.
const MOST_PENDING: usize = 32 * 1024;
/// Causes that are kept of a health report.
const MOST_CAUSES: usize = 20;

/// The instance that runs, once it is known. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running(Arc<RwLock<Option<(InstanceId, DaemonStarted)>>>);

impl Running {
    pub(crate) fn get(&self) -> Option<(InstanceId, DaemonStarted)> {
        self.0.read().clone()
    }

    pub(crate) fn set(&self, instance: InstanceId, started: DaemonStarted) {
        *self.0.write() = Some((instance, started));
    }
}

/// Counts relists. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct RelistTimes(Arc<Mutex<RelistCounts>>);

#[derive(Debug, Default)]
struct RelistCounts {
    started: Option<Instant>,
    durations: Histogram,
    failed: u64,
}

impl RelistObserver for RelistTimes {
    fn relist_started(&self, is_full: bool) {
        if is_full {
            self.0.lock().started = Some(Instant::now());
        }
    }

    fn relist_ended(&self, is_full: bool, error: Option<&str>) {
        if !is_full {
            return;
        }
        let mut counts = self.0.lock();
        let Some(started) = counts.started.take() else {
            return;
        };
        match error {
            None => counts.durations.add(started.elapsed()),
            Some(_) => counts.failed += 1,
        }
    }
}

impl RelistTimes {
    fn take(&self) -> (Histogram, u64) {
        let mut counts = self.0.lock();
        (
            std::mem::take(&mut counts.durations),
            std::mem::take(&mut counts.failed),
        )
    }
}

/// Everything the thread needs.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) config: Config,
    pub(crate) pleg: Pleg,
    pub(crate) source: Source,
    pub(crate) written: watch::Sender<u64>,
    pub(crate) health: Health,
    pub(crate) relists: RelistTimes,
    pub(crate) node_events: NodeEvents,
    pub(crate) started: DaemonStarted,
}

impl Recorder {
    /// Writes until the generator is gone, and everything it published is written or cannot be.
    pub(crate) async fn run(self) {
        let events = self.pleg.subscribe(Start::Oldest, Overflow::Gap).without_history();
        let now = Instant::now();
        let mut writing = Writing {
            events,
            store: None,
            pending: Vec::new(),
            statuses: StatusChanges::default(),
            level: None,
            lag: Histogram::default(),
            sampled: (now, Timestamp::now()),
            next_write: now,
            recorder: self,
        };
        let what = What::DaemonStarted(writing.recorder.started.clone());
        writing.note(what);
        let mut sweep = now + SWEEP;
        loop {
            if writing.pending.is_empty() {
                tokio::select! {
                    item = writing.events.next() => match item {
                        Some(item) => writing.take(item),
                        None => break,
                    },
                    () = writing.recorder.node_events.filled() => {}
                    () = sleep_until(sweep) => {
                        sweep = Instant::now() + SWEEP;
                        writing.compare_all();
                    }
                }
            }
            writing.drain();
            while !writing.is_due() && !writing.events.is_closed() {
                sleep(DRAIN.min(writing.next_write.saturating_duration_since(Instant::now()))).await;
                writing.drain();
            }
            let is_last = writing.events.is_closed();
            if !is_last {
                writing.first_health();
            }
            writing.write();
            if is_last {
                break;
            }
        }
        writing.end();
    }
}

#[derive(Debug)]
struct Writing {
    recorder: Recorder,
    events: Subscriber,
    store: Option<Store>,
    /// What is to be written, in its order.
    pending: Vec<Record>,
    statuses: StatusChanges,
    /// The level of the last health note.
    level: Option<Level>,
    /// Of the events since the last sample.
    lag: Histogram,
    /// When the last sample was taken.
    sampled: (Instant, Timestamp),
    /// Not before this.
    next_write: Instant,
}

impl Writing {
    fn is_due(&self) -> bool {
        Instant::now() >= self.next_write
    }

    fn note(&mut self, what: What) {
        let note = Note {
            time: Timestamp::now(),
            instance: self.recorder.pleg.instance(),
            what,
        };
        self.pending.push(Record::Note(Arc::new(note)));
    }

    /// Takes what the feed has, as far as there is room.
    fn drain(&mut self) {
        while self.pending.len() < MOST_PENDING
            && let Some(item) = self.events.try_next()
        {
            self.take(item);
        }
        while self.pending.len() < MOST_PENDING
            && let Some((time, event)) = self.recorder.node_events.take()
        {
            let note = Note {
                time,
                instance: self.recorder.pleg.instance(),
                what: What::NodeEvent(event),
            };
            self.pending.push(Record::Note(Arc::new(note)));
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Event(event) => {
                if let Some(pod) = &event.pod {
                    self.statuses.touch(&pod.uid);
                }
                if let Some(lag) = event.lag.filter(|_| !event.initial) {
                    self.lag.add(lag);
                }
                let is_health = event.kind.is_health();
                self.pending.push(Record::Event(event));
                if is_health {
                    self.health_changed();
                }
            }
            Item::Gap(gap) => {
                let missed = gap.to.saturating_sub(gap.from).saturating_add(1);
                self.recorder.health.dropped(missed);
                self.note(What::Gap(MissedEvents {
                    from: gap.from,
                    to: gap.to,
                    reason: MissedReason::NotWritten,
                }));
            }
        }
    }

    /// Events tell of changes only: how a run begins is noted as soon as a relist was complete.
    fn first_health(&mut self) {
        if self.level.is_none() && self.recorder.pleg.health().report().last_seen_seconds.is_some() {
            self.health_changed();
        }
    }

    fn health_changed(&mut self) {
        let report = self.recorder.pleg.health().report();
        let before = self.level.replace(report.level);
        let causes = report.causes.iter().take(MOST_CAUSES).map(HealthCause::from);
        self.note(What::HealthChanged(HealthChanged {
            level: report.level,
            before,
            headline: report.headline,
            causes: causes.collect(),
            more_causes: report.more_causes as u64,
        }));
    }

    /// Compares the statuses of all pods: a change that no event tells of is written, too.
    fn compare_all(&mut self) {
        self.statuses.touch_all(self.recorder.pleg.cache());
        self.compare_touched();
    }

    fn compare_touched(&mut self) {
        for changed in self.statuses.compare(self.recorder.pleg.cache()) {
            self.note(What::PodStatusChanged(changed));
        }
    }

    /// A sample, if it is time to: only ever with something else.
    fn sample(&mut self, always: bool) {
        let (at, from) = self.sampled;
        if !always && (at.elapsed() < SAMPLE || self.pending.len() >= MOST_PENDING) {
            return;
        }
        let (relists, failed_relists) = self.recorder.relists.take();
        let lag = std::mem::take(&mut self.lag);
        self.sampled = (Instant::now(), Timestamp::now());
        if !relists.is_empty() || failed_relists > 0 || !lag.is_empty() {
            self.note(What::Sample(Sample {
                from,
                relists,
                failed_relists,
                lag,
            }));
        }
    }

    /// Writes what is pending, or some of it.
    fn write(&mut self) {
        self.compare_touched();
        if self.pending.is_empty() {
            return;
        }
        self.sample(false);
        self.next_write = Instant::now() + PERIOD;
        if self.store.as_ref().is_some_and(|store| store.volume().is_unlinked()) {
            tracing::warn!(file = %self.recorder.config.path.display(), "the history file was removed; beginning a new one");
            self.close("the file was removed");
        }
        if self.store.is_none()
            && let Err(error) = self.open()
        {
            self.failed(HistoryState::Off, &error);
            return;
        }
        let Some(store) = &mut self.store else { return };
        let file = &self.recorder.config.path;
        match store.append(&self.pending, &self.statuses) {
            Ok(count) => {
                let volume = Arc::clone(store.volume());
                self.pending.drain(..count);
                let end = volume.segments.read().next_id().unwrap_or_default();
                self.recorder.written.send_replace(end);
                self.recorder.health.written(&volume, count);
                if self.recorder.health.works() {
                    tracing::info!(file = %file.display(), "writing history");
                }
            }
            Err(error) => {
                let error = HistoryError::io("write", file, error);
                self.failed(HistoryState::Behind, &error);
            }
        }
    }

    /// Opens the file, or takes the one that was open before the generator started.
    fn open(&mut self) -> Result<(), HistoryError> {
        let recorder = &self.recorder;
        let present = recorder.source.read().clone().ok();
        let volume = if let Some(volume) = present {
            volume
        } else {
            let volume = Arc::new(open(&recorder.config.path)?);
            *recorder.source.write() = Ok(Arc::clone(&volume));
            volume
        };
        let (instance, first) = (recorder.pleg.instance(), recorder.started.first_seq);
        let seq = self.pending.iter().find_map(|record| match record {
            Record::Event(event) => Some(event.seq),
            Record::Note(_) => None,
        });
        self.store = Some(Store::new(
            volume,
            recorder.config.limits,
            instance,
            seq.unwrap_or(first),
        ));
        Ok(())
    }

    fn close(&mut self, why: &str) {
        self.store = None;
        *self.recorder.source.write() = Err(why.into());
    }

    /// Reports a failure once, and waits before the next attempt.
    fn failed(&mut self, state: HistoryState, error: &HistoryError) {
        self.next_write = Instant::now() + RETRY;
        let text = with_causes(error);
        if state == HistoryState::Off {
            *self.recorder.source.write() = Err(text.as_str().into());
        }
        if self.recorder.health.fails(state, text.clone()) {
            tracing::warn!("history is not written, everything else goes on; retrying: {text}");
        }
    }

    /// The generator is gone: writes what is left, and that nothing is missing.
    fn end(&mut self) {
        self.drain();
        self.compare_touched();
        self.sample(true);
        let last_seq = self.recorder.pleg.feed().newest();
        self.note(What::DaemonStopped { last_seq });
        // A full segment takes a second write. Nothing waits for the disk for long: each is tried once.
        let mut left = usize::MAX;
        while !self.pending.is_empty() && self.pending.len() < left {
            left = self.pending.len();
            self.write();
            self.drain();
        }
        if !self.pending.is_empty() {
            tracing::warn!(
                entries = self.pending.len(),
                "the last entries of the history are not written"
            );
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
