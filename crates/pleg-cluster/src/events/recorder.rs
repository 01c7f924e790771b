//! The handle that records events, and the task that writes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use pleg_node::Activity;
use pleg_node::events::{Event, EventSink, EventType};
use prometheus::Registry;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::correlator::{Correlator, Lost, Observed, Write};
use super::object::{Component, EventVerb};
use super::token_bucket::TokenBucket;
use crate::api::{Api, ApiError, Cause, call};

/// Events that are written at once, and then the time for one more: 50 each second.
const BURST: u32 = 100;
const PERIOD: Duration = Duration::from_millis(20);
/// The same while many pods start or stop: their statuses need the API server more.
const IN_BURST: (u32, Duration) = (10, Duration::from_millis(200));
/// Delay before the API server is tried again, and its maximum; doubles with each failure in a row.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The API server may ask for longer delays, up to this.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);
/// At shutdown, how long what waits may still be written.
const DRAIN: Duration = Duration::from_secs(2);
/// How often a refusal is logged.
const LOG_PERIOD: Duration = Duration::from_mins(10);

/// Records events, and never blocks. Clones share everything.
#[derive(Debug, Clone)]
pub struct EventRecorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // Held for a lookup or a change; never across an await.
    correlator: Mutex<Correlator>,
    /// Something waits to be written.
    wake: Notify,
    component: Component,
    /// The verbs of [`EventVerb::ALL`] that the API server forbade when they were last used.
    forbidden: [AtomicBool; 2],
}

impl EventRecorder {
    /// For the node of this name. Events wait until [`EventRecorder::run`] writes them.
    pub fn new(node: &str) -> Self {
        Self::of_component(Component::KUBELET, node)
    }

    /// The same, for events of another component than the node's agent.
    pub(crate) fn of_component(component: Component, node: &str) -> Self {
        Self(Arc::new(Shared {
            correlator: Mutex::new(Correlator::new(node)),
            wake: Notify::new(),
            component,
            forbidden: Default::default(),
        }))
    }

    /// The UID of the Node object, once it is known: `kubectl describe node` finds events by it.
    pub fn set_node_uid(&self, uid: &str) {
        self.0.correlator.lock().set_node_uid(uid);
    }

    /// Something happened to the node.
    pub fn record_node(&self, kind: EventType, reason: &'static str, message: &str) {
        self.record(Event::node(kind, reason, message));
    }

    /// Events that were lost so far: too many, too old, or refused.
    pub fn dropped(&self) -> u64 {
        self.0.correlator.lock().dropped()
    }

    /// Exports how many events were lost, and why. Fails only if those of another recorder are exported already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        self.0.correlator.lock().export(registry)
    }

    /// The verbs on events that the API server forbade when they were last used.
    pub(crate) fn forbidden(&self) -> impl Iterator<Item = EventVerb> {
        EventVerb::ALL
            .into_iter()
            .filter(|verb| self.0.forbidden[*verb as usize].load(Ordering::Relaxed))
    }

    /// Writes events until shutdown, and then for a moment what is left. Slower while many pods start or stop.
    pub async fn run(self, api: Api, activity: Activity, shutdown: CancellationToken) {
        let node = self.0.correlator.lock().node().to_owned();
        let mut writer = Writer {
            api,
            node,
            shared: self.0,
            activity,
            rate: TokenBucket::new(BURST, PERIOD, Instant::now()),
            rate_in_burst: TokenBucket::new(IN_BURST.0, IN_BURST.1, Instant::now()),
            failures: 0,
            logged: [None; 2],
            dropped_before: 0,
        };
        if shutdown.run_until_cancelled(writer.write_all()).await.is_none() {
            let _ = timeout(DRAIN, writer.drain()).await;
        }
    }
}

impl EventSink for EventRecorder {
    fn record(&self, event: Event) {
        let at = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        let observed = self.0.correlator.lock().observe(event, at, Instant::now());
        if observed == Observed::Queued {
            self.0.wake.notify_one();
        }
    }
}

/// How a write went.
#[derive(Debug)]
enum Written {
    /// The API server has it.
    Done,
    /// It is there already: our answer was lost.
    Exists,
    /// What was to be counted up is gone: it is created again.
    Gone,
    /// Nobody needs it any more: its namespace is going or gone.
    Useless,
    /// The API server does not want it.
    Refused(ApiError),
    /// Later.
    Retry(ApiError),
}

/// The task.
struct Writer {
    api: Api,
    node: String,
    shared: Arc<Shared>,
    activity: Activity,
    rate: TokenBucket,
    rate_in_burst: TokenBucket,
    /// How often in a row the API server could not be used.
    failures: u32,
    /// When a refusal of a verb was last logged.
    logged: [Option<Instant>; 2],
    /// Events that were lost before the API server was away.
    dropped_before: u64,
}

impl Writer {
    async fn write_all(&mut self) {
        loop {
            let next = self.shared.correlator.lock().next(Instant::now());
            let Some(write) = next else {
                self.shared.wake.notified().await;
                continue;
            };
            self.turn().await;
            if let Some(delay) = self.write(write).await {
                sleep(delay).await;
            }
        }
    }

    /// Waits until another event may be written.
    async fn turn(&mut self) {
        while self.activity.is_burst() && !self.shared.correlator.lock().is_half_full() {
            let Err(wait) = self.rate_in_burst.take(Instant::now()) else {
                break;
            };
            let _ = timeout(wait, self.activity.burst_over()).await;
        }
        while let Err(wait) = self.rate.take(Instant::now()) {
            sleep(wait).await;
        }
    }

    /// Writes what waits, as long as that works.
    async fn drain(&mut self) {
        while !self.shared.correlator.lock().is_idle() {
            let next = self.shared.correlator.lock().next(Instant::now());
            let Some(write) = next else { return };
            if self.write(write).await.is_some() {
                return;
            }
        }
    }

    /// Writes an event. Returns how long to wait, if the API server cannot be used.
    async fn write(&mut self, write: Write) -> Option<Duration> {
        let verb = if write.create {
            EventVerb::Create
        } else {
            EventVerb::Patch
        };
        let written = self.send(&write).await;
        self.note(write, &written);
        if let Written::Retry(error) = &written {
            return Some(self.on_outage(error));
        }
        if let Written::Refused(error) = &written {
            self.log_refusal(verb, error);
        }
        let is_forbidden = matches!(&written, Written::Refused(error) if error.is_forbidden());
        self.shared.forbidden[verb as usize].store(is_forbidden, Ordering::Relaxed);
        self.on_answer();
        None
    }

    /// Remembers how a write went.
    fn note(&self, write: Write, written: &Written) {
        let mut correlator = self.shared.correlator.lock();
        let Write { key, record, .. } = write;
        match written {
            Written::Done => correlator.set_created(&key, true),
            Written::Exists => {
                correlator.set_created(&key, true);
                // It may have been counted up meanwhile.
                if record.count > 1 {
                    correlator.retry(key);
                }
            }
            Written::Gone => {
                correlator.set_created(&key, false);
                correlator.retry(key);
            }
            Written::Useless => correlator.set_created(&key, false),
            Written::Refused(_) => correlator.lose(Lost::Refused),
            Written::Retry(_) => correlator.retry(key),
        }
    }

    async fn send(&self, write: &Write) -> Written {
        let record = &write.record;
        let events = kube::Api::<core::Event>::namespaced(self.api.client(), record.namespace());
        let object = record.involved.name.as_deref().unwrap_or_default();
        let what = format!("record event {} of {object}", record.reason);
        let answer = if write.create {
            call(
                what,
                events.create(&PostParams::default(), &record.event(self.shared.component, &self.node)),
            )
            .await
        } else {
            let patch = Patch::Strategic(record.patch());
            call(what, events.patch(&record.name, &PatchParams::default(), &patch)).await
        };
        match answer {
            Ok(_) => Written::Done,
            Err(error) => outcome(write.create, error),
        }
    }

    /// The API server cannot be used now. Returns how long to wait.
    fn on_outage(&mut self, error: &ApiError) -> Duration {
        if self.failures == 0 {
            self.dropped_before = self.shared.correlator.lock().dropped();
            debug!("{error}; events wait");
        }
        let doubled = RETRY.0.saturating_mul(1 << self.failures.min(16)).min(RETRY.1);
        self.failures = self.failures.saturating_add(1);
        let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        doubled.max(asked)
    }

    fn on_answer(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            let lost = self.shared.correlator.lock().dropped() - self.dropped_before;
            if lost > 0 {
                info!(
                    lost,
                    "writing events again; some were lost while the API server was away"
                );
            }
        }
    }

    fn log_refusal(&mut self, verb: EventVerb, error: &ApiError) {
        let now = Instant::now();
        let logged = &mut self.logged[verb as usize];
        if logged.is_some_and(|logged| now.duration_since(logged) < LOG_PERIOD) {
            return;
        }
        *logged = Some(now);
        if error.is_forbidden() {
            warn!("{error}. {}", self.shared.component.if_forbidden(verb));
        } else {
            warn!("{error}");
        }
    }
}

/// What an error means.
fn outcome(create: bool, error: ApiError) -> Written {
    let terminates = matches!(&error.cause, Cause::Refused(status) if is_terminating(status));
    match create {
        true if error.already_exists() => Written::Exists,
        false if error.is_not_found() => Written::Gone,
        _ if error.is_not_found() || terminates => Written::Useless,
        // Credentials that are not accepted may be replaced soon.
        _ if error.is_transient() || error.is_unauthorized() => Written::Retry(error),
        _ => Written::Refused(error),
    }
}

fn is_terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests;
