//! The generator: one task that looks, compares, inspects and commits.
//!
//! ```text
//! hints ──▶ plan ──▶ list ──▶ observe ──▶ inspect ──▶ commit ──▶ cache, feed
//!           (look)   (look)   (records)   (work)      (commit)
//! ```
//!
//! One list is in flight at a time, never a second behind a hung one. Inspections run beside it, pod by pod, and are committed as
//! they arrive; nothing waits for a pod that does not answer. A full relist *ends* when every pod it found changed is committed or in
//! quarantine, or when none of those left has moved for [`Config::settle_grace`], or after a third of the threshold: many changes at once
//! are not ill health. The next one starts a period after that.

mod commit;
mod config;
mod event_stream;
mod inspections;
mod quarantine;
mod relist;
pub(crate) mod requests;
mod shim_prober;
mod stuck_list;
mod troubles;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use pleg_cri::error::seconds;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::generator::requests::RelistRequests;
use crate::health::monitor::RuntimeMonitor;
use crate::health::readiness::Readiness;
use crate::health::{Alive, Health};
use crate::inspect::limiter::Limiter;
use crate::metrics::Metrics;
use crate::model::PodUid;
use crate::model::cursor::InstanceId;
use crate::model::event::{Event, EventType};
use crate::publish::cache::{CacheWriter, Token};
use crate::publish::feed::FeedWriter;
use crate::publish::handle::{Pleg, Stops};
use crate::recorder::line::Turn;
use crate::recorder::{Recorder, Recording};
use crate::records::snapshot::Snapshot;
use crate::records::{PodKey, Records};
use crate::runtime::Runtime;
pub use config::{Config, ConfigError};
use event_stream::Evented;
use inspections::{Done, PodInspection, Queue};
use quarantine::Quarantine;
use relist::{ListTimes, Listing, OpenRelist, next_list};
pub use shim_prober::ProbeConfig;
use shim_prober::ShimProber;
pub(crate) use shim_prober::Suspects;
use stuck_list::StuckList;
use troubles::Told;

/// Most callers that may wait for a recording.
const RECORDINGS: usize = 4;

/// The one writer. Made with [`Generator::new`], started with [`Generator::run`], used through its [`Pleg`] handle.
#[derive(Debug)]
pub struct Generator<R> {
    /// The first field, so that a reader who sees the feed or the cache end never finds the generator healthy.
    _alive: Alive,
    runtime: Arc<R>,
    config: Config,
    metrics: Metrics,

    records: Records,
    cache: CacheWriter,
    feed: FeedWriter,
    health: Health,
    readiness: Readiness,
    hints: RelistRequests,
    stops: Stops,
    limiter: Limiter,
    recorder: Recorder,
    /// Requests for a recording.
    recordings: (
        mpsc::Sender<oneshot::Sender<Recording>>,
        mpsc::Receiver<oneshot::Sender<Recording>>,
    ),

    /// When the next full relist is due, unless it is requested earlier.
    next_full: Instant,
    /// After a failed relist nothing is listed before this.
    not_before: Instant,
    /// When the last full relist started.
    last_start: Option<Instant>,
    evented: Evented,
    /// The full relist whose inspections are not done.
    settling: Option<OpenRelist>,
    /// Buffers of the last full relist, for the next one.
    spare: Snapshot,
    /// No look has been complete yet.
    first: bool,
    /// Relists at single pods brought news that is not in the gauges.
    uncounted: bool,
    /// When the gauges were last brought up to date.
    counted: Instant,
    /// Containers that were listed as exited when they were last counted.
    dead: usize,
    /// The runtime was gone and has not said since what it is: it may have come back as another one.
    lost: bool,
    /// Statuses inspected up to this look may be of an earlier life of the runtime.
    restarted: Token,
    /// Since when the generator is reported unhealthy.
    unhealthy_since: Option<Instant>,
    /// What readers of the feed know of troubles.
    told: Told,
    started: Instant,

    /// Pods with something to do, and only those.
    work: HashMap<PodKey, PodInspection>,
    queue: Queue,
    inspections: FuturesUnordered<BoxFuture<'static, Done>>,
    next_inspection: u64,

    /// Pods with a container that was killed, and when to ask again why: see [`crate::inspect::may_learn_more`].
    reasons: VecDeque<(Instant, PodUid)>,
    /// What does not answer.
    quarantine: Quarantine,
    /// The relist whose lists are in flight.
    listing: Option<Listing>,
    list_times: ListTimes,
    /// When the newest list of all sandboxes that was taken in had been sent.
    sandboxes_listed: Option<Instant>,
    stuck_list: StuckList,
    prober: ShimProber,
}

impl<R: Runtime> Generator<R> {
    /// A generator that looks at `runtime`. Does nothing until it is run. Settings that contradict each other are not refused here but
    /// logged when it runs: callers that take them from people call [`Config::validate`] first, as [`Generator::connect`] does.
    pub fn new(runtime: R, config: Config, metrics: Metrics) -> Self {
        let cache = CacheWriter::default();
        let now = Instant::now();
        metrics.inspections_bounds(config.inspections.least, config.inspections.most);
        let evented = Evented::new(&config);
        let health = Health::new(config.threshold, runtime.inflight(), runtime.endpoint().map(Into::into));
        Self {
            _alive: health.alive(),
            readiness: Readiness::new(health.clone()),
            health,
            feed: FeedWriter::new(
                InstanceId::random(),
                config.feed_capacity,
                cache.reader(),
                metrics.overflows(),
            ),
            hints: RelistRequests::new(cache.reader()),
            limiter: Limiter::new(config.inspections),
            recorder: Recorder::new(config.recorder, metrics.calls()),
            recordings: mpsc::channel(RECORDINGS),
            runtime: Arc::new(runtime),
            config,
            metrics,
            records: Records::default(),
            cache,
            stops: Stops::default(),
            next_full: now,
            not_before: now,
            last_start: None,
            evented,
            settling: None,
            spare: Snapshot::default(),
            first: true,
            uncounted: false,
            counted: now,
            dead: 0,
            lost: false,
            restarted: Token::default(),
            unhealthy_since: None,
            told: Told::default(),
            started: now,
            work: HashMap::new(),
            queue: Queue::default(),
            inspections: FuturesUnordered::new(),
            next_inspection: 0,
            reasons: VecDeque::new(),
            quarantine: Quarantine::default(),
            listing: None,
            list_times: ListTimes::default(),
            sandboxes_listed: None,
            stuck_list: StuckList::default(),
            prober: ShimProber::new(now),
        }
    }

    /// The handle through which callers use the generator.
    pub fn handle(&self) -> Pleg {
        Pleg {
            cache: self.cache.reader(),
            feed: self.feed.reader(),
            health: self.health.clone(),
            readiness: self.readiness.clone(),
            hints: self.hints.clone(),
            stops: self.stops.clone(),
            suspects: self.prober.suspects.clone(),
            metrics: self.metrics.clone(),
            recordings: self.recordings.0.clone(),
        }
    }

    /// The runtime that it observes.
    pub fn runtime(&self) -> &R {
        &self.runtime
    }

    /// The task that polls the runtime's `Status`, for [`Pleg::readiness`]. [`Generator::spawn`] starts it; callers that
    /// [run](Generator::run) the generator themselves run it beside it.
    pub fn runtime_monitor(&self) -> RuntimeMonitor<R> {
        let (readiness, requests) = (self.readiness.clone(), self.hints.clone());
        RuntimeMonitor::new(Arc::clone(&self.runtime), readiness, requests, self.config.heartbeat)
    }

    /// Runs until `shutdown`. What is in flight then is dropped; no call of the generator's changes the runtime.
    pub async fn run(mut self, shutdown: CancellationToken) {
        if let Err(error) = self.config.validate() {
            tracing::warn!("invalid configuration: {error}");
        }
        let _stream = self.start_stream();
        loop {
            self.follow_stream();
            self.settle_if_late();
            self.check_health();
            self.tell_troubles();
            self.ask_for_reasons();
            self.start_inspections();
            self.start_retries();
            self.plan();
            let asides = [self.poll_known_objects(), self.probe()];
            let wake = asides
                .into_iter()
                .flatten()
                .fold(self.next_wake(self.listing.is_some()), Instant::min);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(done) = self.inspections.next() => self.inspected(done),
                arrived = next_list(&mut self.listing) => self.list_arrived(arrived),
                ended = self.quarantine.next() => self.retried(ended),
                progress = self.stuck_list.next() => self.by_id_progress(progress),
                probed = self.prober.next() => self.probed(probed),
                Some(reply) = self.recordings.1.recv() => {
                    // The caller may have left.
                    let _ = reply.send(self.recorder.recording(&self.records, self.feed.reader().newest()));
                }
                () = self.hints.wait() => {}
                () = self.cache.wanted(), if self.evented.period.is_grown() => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// When there is something to do even if nothing arrives.
    fn next_wake(&self, listing: bool) -> Instant {
        let full = (!listing && self.settling.is_none()).then(|| self.full_at().max(self.not_before));
        let hinted = self.asked_at().filter(|_| !listing);
        let stirred = self.stirred_at().filter(|_| !listing);
        let late = self
            .settling
            .as_ref()
            .map(|settling| settling.late_at(self.config.settle_grace, self.config.threshold));
        let expiry = if self.unhealthy_since.is_none() {
            Some(self.expires())
        } else {
            None
        };
        let wakes = [
            full,
            hinted,
            stirred,
            self.stream_at(),
            self.reasons.front().map(|(at, _)| *at),
            self.evented.tell_at().filter(|_| !self.health.relists_fail()),
            self.count_at(),
            late,
            expiry,
            self.quarantine.next_retry(),
            self.troubles_at(),
        ];
        // Nothing at all never happens: either the expiry is to come, or a relist is in flight, or one is due.
        wakes
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + self.config.threshold)
    }

    /// The first moment that is *beyond* the threshold, as the kubelet's rule wants it.
    fn expires(&self) -> Instant {
        self.health.expires().unwrap_or(self.started + self.config.threshold) + Duration::from_millis(1)
    }

    /// Says once when the threshold has passed without a complete relist.
    fn check_health(&mut self) {
        let now = Instant::now();
        if self.unhealthy_since.is_none() && now >= self.expires() {
            self.unhealthy_since = Some(now);
            self.told.unhealthy();
            let report = self.health.report();
            let message = &report.message;
            tracing::error!("{}", report.short());
            if let Some(first) = report.causes.first() {
                tracing::debug!("{} {}", first.means, first.next);
            }
            self.recorder.transition(Turn::Unhealthy, None, Some(message), None);
            self.announce(EventType::PlegNotHealthy, message);
            self.reset_period("unhealthy");
        }
    }

    /// Says once that looks are complete again.
    fn check_recovery(&mut self) {
        if let Some(since) = self.unhealthy_since.take() {
            let message = format!("PLEG is healthy again, after {}", seconds(since.elapsed()));
            tracing::info!("{message}");
            let lasted = Some(since.elapsed());
            self.recorder.transition(Turn::Healthy, None, None, lasted);
            self.announce(EventType::PlegHealthy, &message);
        }
    }

    fn announce(&mut self, kind: EventType, reason: &str) {
        self.publish([Event {
            reason: Some(reason.into()),
            ..Event::of_generator(kind)
        }]);
    }

    fn publish(&self, events: impl IntoIterator<Item = Event>) {
        self.feed
            .publish(events.into_iter().inspect(|event| self.metrics.event(event.kind)));
    }
}
