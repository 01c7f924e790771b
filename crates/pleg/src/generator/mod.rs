//! The generator: one task that relists, compares, inspects and commits.
//!
//! ```text
//! requests ──▶ schedule ──▶ lists ──▶ records ──▶ inspections ──▶ commit ──▶ cache, feed
//!  callers,     when to     relist,    take_in     pod by pod     reconcile,  publisher
//!  events       relist      listing                               diff, publish
//! ```
//!
//! Each stage is a struct that owns its state, answers when it next has something to do (`next_wake`) and knows nothing of the others;
//! the steps between them are methods of [`Generator`], in the files of the stages. Beside the flow: `event_stream` (what events hint at,
//! and how far they are trusted), `kernel_witness` (the same for what the kernel announces), `quarantine` (objects that do not answer), `stuck_list` (while a list hangs), `shim_prober` (hangs that
//! no list shows), `health_watch` (what is announced about all of them).
//!
//! One list is in flight at a time, never a second behind a hung one. Inspections run beside it, pod by pod, and are committed as
//! they arrive; nothing waits for a pod that does not answer. A full relist *ends* when every pod it found changed is committed or in
//! quarantine, or when no inspection has ended for [`Config::settle_grace`], or after a third of the threshold: many changes at once
//! are not ill health. The next one starts a period after that.

mod census;
mod commit;
mod config;
mod event_stream;
mod health_watch;
mod identity;
mod inspections;
mod kernel_witness;
mod late_reasons;
mod listing;
mod publisher;
mod quarantine;
mod recordings;
mod relist;
pub(crate) mod requests;
mod schedule;
mod shim_prober;
mod stuck_list;
mod take_in;

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::monitor::RuntimeMonitor;
use crate::health::readiness::Readiness;
use crate::health::{Alive, Health};
use crate::inspect::limiter::Limiter;
use crate::metrics::Metrics;
use crate::publish::handle::{Pleg, Turns};
use crate::recorder::Recorder;
use crate::records::Records;
use crate::runtime::Runtime;
use crate::witness::Witness;
use census::Census;
pub use config::{Config, ConfigError};
use event_stream::EventStream;
use health_watch::HealthWatch;
use identity::RuntimeIdentity;
use inspections::Inspections;
use kernel_witness::KernelWitness;
use late_reasons::LateReasons;
use listing::Lists;
use publisher::Publisher;
use quarantine::Quarantine;
use recordings::RecordingRequests;
use requests::RelistRequests;
use schedule::RelistSchedule;
pub use shim_prober::ProbeConfig;
pub(crate) use shim_prober::ProbeQueue;
use shim_prober::ShimProber;
use stuck_list::StuckList;

/// The one writer. Made with [`Generator::new`], started with [`Generator::run`], used through its [`Pleg`] handle.
///
/// Every stage owns its state; what several stages use comes first.
#[derive(Debug)]
pub struct Generator<R> {
    /// The first field, so that a reader who sees the feed or the cache end never finds the generator healthy.
    _alive: Alive,
    runtime: Arc<R>,
    config: Config,
    metrics: Metrics,
    limiter: Limiter,
    health: Health,
    readiness: Readiness,
    recorder: Recorder,

    /// What callers and events ask for.
    requests: RelistRequests,
    recordings: RecordingRequests,
    /// When to relist.
    schedule: RelistSchedule,
    /// The lists in flight.
    lists: Lists,
    identity: RuntimeIdentity,
    /// What the lists said, and what was committed.
    records: Records,
    census: Census,
    stream: EventStream,
    witness: KernelWitness,
    inspections: Inspections,
    late_reasons: LateReasons,
    /// What does not answer.
    quarantine: Quarantine,
    stuck_list: StuckList,
    prober: ShimProber,
    /// What readers see.
    publisher: Publisher,
    health_watch: HealthWatch,
    turns: Turns,
}

impl<R: Runtime> Generator<R> {
    /// A generator that observes `runtime`. Does nothing until it is run. Settings that contradict each other are not refused here but
    /// logged when it runs: callers that take them from people call [`Config::validate`] first, as [`Generator::connect`] does.
    pub fn new(runtime: R, config: Config, metrics: Metrics) -> Self {
        let now = Instant::now();
        metrics.inspections_bounds(config.inspections.least, config.inspections.most);
        let health = Health::new(config.threshold, runtime.inflight(), runtime.endpoint().map(Into::into));
        let publisher = Publisher::new(&config, &metrics);
        Self {
            _alive: health.alive(),
            limiter: Limiter::new(config.inspections),
            readiness: Readiness::new(health.clone()),
            recorder: Recorder::new(config.recorder, metrics.calls()),
            requests: RelistRequests::new(publisher.cache.reader()),
            recordings: RecordingRequests::new(),
            schedule: RelistSchedule::new(&config, now),
            lists: Lists::new(&config),
            identity: RuntimeIdentity::default(),
            records: Records::default(),
            census: Census::new(now),
            stream: EventStream::new(&config),
            witness: KernelWitness::new(config.witness),
            inspections: Inspections::default(),
            late_reasons: LateReasons::default(),
            quarantine: Quarantine::default(),
            stuck_list: StuckList::default(),
            prober: ShimProber::new(now),
            publisher,
            health_watch: HealthWatch::new(health.clone(), config.threshold, now),
            turns: Turns::default(),
            health,
            runtime: Arc::new(runtime),
            config,
            metrics,
        }
    }

    /// The handle through which callers use the generator.
    pub fn handle(&self) -> Pleg {
        Pleg {
            cache: self.publisher.cache.reader(),
            feed: self.publisher.feed(),
            health: self.health.clone(),
            readiness: self.readiness.clone(),
            requests: self.requests.clone(),
            stops: self.publisher.stops(),
            probes: self.prober.queue.clone(),
            metrics: self.metrics.clone(),
            recordings: self.recordings.sender(),
            turns: self.turns.clone(),
        }
    }

    /// Takes the word of another witness than the kernel of this machine.
    #[must_use]
    pub fn with_witness(mut self, witness: impl Witness) -> Self {
        self.witness.replace(Box::new(witness));
        self
    }

    /// The runtime that it observes.
    pub fn runtime(&self) -> &R {
        &self.runtime
    }

    /// The task that polls the runtime's `Status`, for [`Pleg::readiness`]. [`Generator::spawn`] starts it; callers that
    /// [run](Generator::run) the generator themselves run it beside it.
    pub fn runtime_monitor(&self) -> RuntimeMonitor<R> {
        let (readiness, requests) = (self.readiness.clone(), self.requests.clone());
        RuntimeMonitor::new(Arc::clone(&self.runtime), readiness, requests, self.config.heartbeat)
    }

    /// Runs until `shutdown`. What is in flight then is dropped; no call of the generator's changes the runtime.
    pub async fn run(mut self, shutdown: CancellationToken) {
        if let Err(error) = self.config.validate() {
            tracing::warn!("invalid configuration: {error}");
        }
        let _stream = self.start_stream();
        loop {
            self.turns.add();
            self.follow_stream();
            self.follow_witness();
            self.census.count_if_due(&self.records, &self.metrics);
            self.end_relist_if_late();
            self.check_health();
            self.announce_troubles();
            self.ask_for_reasons();
            self.start_inspections();
            self.start_retries();
            self.start_relist();
            let asides = [self.poll_known_objects(), self.probe()];
            let wake = asides.into_iter().flatten().fold(self.next_wake(), Instant::min);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                done = self.inspections.next() => self.inspected(done),
                arrived = self.lists.next() => self.list_arrived(arrived),
                ended = self.quarantine.next() => self.retried(ended),
                progress = self.stuck_list.next() => self.stuck_list_progress(progress),
                probed = self.prober.next() => self.probed(probed),
                witnessed = self.witness.next() => self.witnessed(witnessed),
                reply = self.recordings.next() => {
                    // The caller may have left.
                    let _ = reply.send(self.recorder.recording(&self.records, self.publisher.newest()));
                }
                () = self.requests.wait() => {}
                () = self.publisher.cache.wanted(), if self.stream.period.is_grown() => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// When there is something to do even if nothing arrives.
    fn next_wake(&self) -> Instant {
        let wakes = [
            self.relist_wake(),
            self.stream.next_wake(self.health.relists_fail()),
            self.witness.next_wake(),
            self.late_reasons.next_wake(),
            self.census.next_wake(),
            self.quarantine.next_wake(),
            self.health_watch.next_wake(),
        ];
        // Nothing at all never happens: either the expiry is to come, or a relist is in flight, or one is due.
        wakes
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + self.config.threshold)
    }
}
