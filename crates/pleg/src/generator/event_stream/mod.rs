//! What the runtime's events make the generator do, and how far they are trusted.
//!
//! An event is about an object. One that is in the records is asked for by its id, together with its pod: one round trip, whatever
//! the size of the node (a filtered list goes through all containers in the runtime, and the answer still has to be inspected). What
//! is not in the records, or is said to be gone, is listed: with its pod, where that is known, else of everything.

mod events;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Config, Generator};
use crate::evented::misses::Misses;
use crate::evented::period::Period;
use crate::evented::stopped::Stopped;
use crate::evented::trust::Trust;
use crate::evented::unconfirmed::UnconfirmedEvents;
use crate::evented::{EventedConfig, Link, Mode, ModeReport, Stream, StreamState};
use crate::health::Who;
use crate::health::diagnosis::Trouble;
use crate::model::PodUid;
use crate::model::event::Source;
use crate::recorder::line::Turn;
use crate::runtime::Runtime;
use crate::witness::WitnessReport;
pub(super) use events::HintedPods;
use verify::Standing;

/// A stream that reconnects within this time is not reported as down; nor is one whose runtime is gone, which is reported anyway.
const UNREPORTED: Duration = Duration::from_secs(5);
/// What the generator knows of the runtime's events.
#[derive(Debug)]
pub(super) struct EventStream {
    link: Link,
    /// The turn of the link that was last followed.
    turn: u64,
    config: EventedConfig,
    pub(super) period: Period,
    pub(super) misses: Misses,
    pub(super) unconfirmed: UnconfirmedEvents,
    stopped: Stopped,
    /// Changes missed so far, by any stream.
    missed: u64,
    trust: Trust,
    standing: Standing,
    /// The stream is up.
    connected: bool,
    /// The kernel announces every change.
    witnessed: bool,
    witness: WitnessReport,
    /// The runtime whose stream was last connected.
    runtime: Option<Arc<str>>,
    reason: Arc<str>,
    /// Why and since when the stream is down, if it is.
    error: Option<(Arc<str>, Instant)>,
    outage: Option<Outage>,
    /// What lists are wanted for.
    pub(super) hinted: HintedPods,
}

/// The stream is down, through however many attempts to reconnect.
#[derive(Debug)]
struct Outage {
    since: Instant,
    logged: bool,
}

impl EventStream {
    pub(super) fn new(config: &Config) -> Self {
        let state = match config.evented.mode {
            Mode::Generic => StreamState::Off {
                reason: "as configured".into(),
            },
            Mode::Evented | Mode::Auto => StreamState::Asking,
        };
        Self {
            link: Link::new(state),
            turn: 0,
            config: config.evented,
            period: Period::new(config.period, config.evented.most_period, config.threshold),
            misses: Misses::default(),
            unconfirmed: UnconfirmedEvents::default(),
            stopped: Stopped::default(),
            missed: 0,
            trust: Trust::default(),
            standing: Standing::Unannounced,
            connected: false,
            witnessed: false,
            witness: WitnessReport::default(),
            runtime: None,
            reason: Arc::default(),
            error: None,
            outage: None,
            hinted: HintedPods::default(),
        }
    }

    /// The runtime was away and answers again.
    pub(super) fn runtime_back(&self) {
        self.link.runtime_back();
    }

    /// When there is something to do about the stream: an unreported change becomes a miss, something is to be checked again, or that
    /// it is down is to be reported.
    pub(super) fn next_wake(&self, relists_fail: bool) -> Option<Instant> {
        let down = self.report_down_at().filter(|_| !relists_fail);
        let wakes = [self.misses.next(), self.unconfirmed.next(), self.stopped.next(), down];
        wakes.into_iter().flatten().min()
    }

    /// When to report that the stream is down.
    fn report_down_at(&self) -> Option<Instant> {
        let outage = self.outage.as_ref().filter(|outage| !outage.logged)?;
        Some(outage.since + UNREPORTED)
    }

    fn report(&self) -> ModeReport {
        ModeReport {
            mode: if self.connected { Mode::Evented } else { Mode::Generic },
            configured: self.config.mode,
            reason: Arc::clone(&self.reason),
            full_relist_period_seconds: self.period.now().as_secs_f64(),
            missed_changes: self.missed,
            witness: self.witness.clone(),
        }
    }

    /// The stream is up and has lost nothing lately: what happens is reported by it.
    pub(super) fn is_trusted(&self) -> bool {
        self.connected && self.trust.lossy().is_none()
    }

    /// The source of changes that hinted lists find: the stream if it is up, otherwise the kernel.
    pub(super) fn hint_source(&self) -> Source {
        if self.connected {
            Source::Evented
        } else {
            Source::Kernel
        }
    }

    /// What announces changes, for the log.
    fn announcer(&self) -> &'static str {
        if self.connected {
            "the event stream"
        } else {
            "the kernel witness"
        }
    }

    /// A change was announced.
    pub(super) fn trust_reported(&mut self) {
        self.trust.reported();
    }

    /// Something of this pod ended.
    pub(super) fn ended(&mut self, uid: &PodUid, now: Instant) {
        self.stopped.ended(uid, now);
    }
}

impl<R: Runtime> Generator<R> {
    /// Starts the task that reads the stream; it ends when what is returned is dropped.
    pub(super) fn start_stream(&self) -> Option<AbortOnDropHandle<()>> {
        let mode = self.config.evented.mode;
        (mode != Mode::Generic).then(|| {
            let stream = Stream {
                runtime: Arc::clone(&self.runtime),
                mode,
                exclusive_subscriber: self.config.evented.exclusive_subscriber,
                requests: self.requests.clone(),
                link: self.stream.link.clone(),
                metrics: self.metrics.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(stream.run()))
        })
    }

    /// Follows the stream: its state, the hints of its events, and the changes that it failed to report.
    pub(super) fn follow_stream(&mut self) {
        let turns = self.stream.link.turns();
        if std::mem::replace(&mut self.stream.turn, turns) != turns {
            self.on_stream_state_change();
        }
        self.report_down();
        self.take_in_hints();
        self.check_claims();
        self.list_stopped_pods();
        self.judge_misses();
        self.forget_misses();
    }

    fn on_stream_state_change(&mut self) {
        let was_up = self.stream.connected;
        let state = self.stream.link.state();
        let trouble = match &state {
            StreamState::Down { error, since } => Some((Arc::clone(error), *since)),
            _ => None,
        };
        self.stream.reason = match &state {
            StreamState::Asking => "asking for the event stream".into(),
            StreamState::Off { reason } => Arc::clone(reason),
            StreamState::Up { runtime, .. } => format!("the event stream of {runtime} is up").into(),
            StreamState::Down { error, .. } => format!("the event stream is down: {error}").into(),
        };
        self.stream.connected = matches!(state, StreamState::Up { .. });
        self.stream.standing = Standing::of(self.stream.connected || self.stream.witnessed);
        self.stream.misses.forgive();
        let reason = Arc::clone(&self.stream.reason);
        match &state {
            StreamState::Up { runtime, splits } => {
                if let Some(Outage { since, logged: true }) = self.stream.outage.take() {
                    tracing::info!("the event stream is up again after {}", seconds(since.elapsed()));
                } else {
                    tracing::debug!("subscribed to the events of {runtime}");
                }
                if *splits && !self.stream.config.exclusive_subscriber {
                    tracing::warn!(
                        "{runtime} sends each event to one subscriber only: a kubelet that subscribes too does not get the events \
                         that pleg receives, and the reverse. --mode generic does not subscribe"
                    );
                }
                self.trust_connected(runtime);
                self.recorder.transition(Turn::Evented, None, Some(&reason), None);
                // Subscribed: relist now. Earlier changes are found, later ones have events.
                self.requests.all(Source::Relist);
            }
            StreamState::Off { reason } => {
                self.stream.outage = None;
                // It was configured, so there is nothing to report.
                if self.config.evented.mode != Mode::Generic {
                    tracing::info!("relisting every {}: {reason}", seconds(self.config.period));
                }
                self.recorder.transition(Turn::Generic, None, Some(reason), None);
            }
            StreamState::Down { since, .. } => {
                self.stream.outage.get_or_insert(Outage {
                    since: *since,
                    logged: false,
                });
                if was_up {
                    self.recorder.transition(Turn::Generic, None, Some(&reason), None);
                    // What happened meanwhile has no event.
                    self.requests.all(Source::Relist);
                }
            }
            StreamState::Asking => {}
        }
        self.stream.error = trouble;
        self.reset_period("the stream changed");
        self.report_mode();
    }

    fn report_down(&mut self) {
        if self.stream.report_down_at().is_none_or(|at| Instant::now() < at) || self.health.relists_fail() {
            return;
        }
        let Some(outage) = &mut self.stream.outage else {
            return;
        };
        outage.logged = true;
        let advice = self.health.advice(Trouble::StreamDown, &Who::default());
        tracing::warn!(relist_every = %seconds(self.config.period), "{}", self.stream.reason);
        tracing::debug!("{advice}");
    }

    /// Reports whether the kernel is used as a witness.
    pub(super) fn report_witness(&mut self, report: WitnessReport) {
        self.stream.witness = report;
        self.report_mode();
    }

    fn report_mode(&self) {
        let report = self.stream.report();
        self.metrics.mode(&report);
        // Without a stream, its misses do not matter.
        let lossy = self.stream.trust.lossy().filter(|_| self.stream.connected);
        self.health.stream(report, self.stream.error.clone(), lossy.copied());
    }
}
