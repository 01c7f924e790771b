//! The task that reads the event stream: subscribes, drains events into the dirty set, and reconnects without end.
//!
//! Nothing here waits for the generator, and nothing is gated on health: a stream that is not read blocks the runtime, and a
//! generator that waits for events that it does not read never starts (as happened to the kubelet with more than 1000 queued events).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use pleg_cri::{Error, ErrorKind};
use tokio::time::{Instant, timeout};

use super::Mode;
use super::link::{Link, StreamState};
use crate::generator::requests::RelistRequests;
use crate::metrics::Metrics;
use crate::runtime::quirks::{Quirks, made_at};
use crate::runtime::{Runtime, RuntimeVersion};

/// Reconnect back-off: the first pause and the longest.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(30)];
/// A runtime without events is checked again after this long, or after an outage: it may have been replaced.
const RECHECK: Duration = Duration::from_mins(1);
/// A stream that ends sooner, without an event, does not count as one.
const PROVEN: Duration = Duration::from_secs(1);
/// A runtime that had a stream may end one or two at once while it restarts. After so many in a row it has none any more.
const ENDED_AT_ONCE: u32 = 3;

/// The task.
#[derive(Debug)]
pub(crate) struct Stream<R> {
    pub(crate) runtime: Arc<R>,
    pub(crate) mode: Mode,
    pub(crate) exclusive_subscriber: bool,
    pub(crate) requests: RelistRequests,
    pub(crate) link: Link,
    pub(crate) metrics: Metrics,
}

/// How an attempt ended.
enum Ended {
    /// There was a stream, and it ended.
    Lost(Arc<str>),
    /// There was none, but there should be.
    Failed(Arc<str>),
    /// It ended immediately and without an error, as with a runtime whose events are disabled.
    AtOnce(Arc<str>),
    /// This runtime has none, or subscribing would take events from others.
    NotOffered(Arc<str>),
}

impl<R: Runtime> Stream<R> {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let mut pause = AGAIN[0];
        let mut ever_up = false;
        let mut at_once = 0;
        loop {
            let asked = Instant::now();
            let mut ended = self.attempt().await;
            if let Ended::AtOnce(reason) = ended {
                at_once += 1;
                ended = if ever_up && at_once < ENDED_AT_ONCE {
                    Ended::Failed(reason)
                } else {
                    Ended::NotOffered(reason)
                };
            } else {
                at_once = 0;
            }
            // A stream that was good is asked for again at once, and not by all nodes of a cluster together.
            let error = match ended {
                Ended::NotOffered(reason) => {
                    ever_up = false;
                    self.turn(StreamState::Off { reason });
                    // Either way it is asked again.
                    let _ = timeout(RECHECK, self.link.back()).await;
                    continue;
                }
                Ended::Lost(error) => {
                    ever_up = true;
                    // One that ends as soon as it has begun is no better than none.
                    if asked.elapsed() > PROVEN {
                        pause = AGAIN[0];
                    }
                    error
                }
                Ended::Failed(error) | Ended::AtOnce(error) => error,
            };
            self.metrics.stream_failed();
            let since = match self.link.state() {
                StreamState::Down { since, .. } => since,
                _ => Instant::now(),
            };
            self.turn(StreamState::Down { error, since });
            let jitter = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            let back = timeout(jitter, self.link.back()).await;
            pause = back.map_or((pause * 2).min(AGAIN[1]), |()| AGAIN[0]);
        }
    }

    fn turn(&self, state: StreamState) {
        if self.link.set(state) {
            self.requests.wake();
        }
    }

    /// Subscribes and reads to the end.
    async fn attempt(&self) -> Ended {
        let version = match self.runtime.version().await {
            Ok(version) => version,
            Err(error) => return failed(&error),
        };
        let name = name(&version);
        let splits = Quirks::of(&version.name, &version.version).splits_events;
        if splits && self.mode == Mode::Auto && !self.exclusive_subscriber {
            let reason = format!(
                "{name} delivers each event to one subscriber only, so a kubelet on this node would miss events"
            );
            return Ended::NotOffered(reason.into());
        }
        let asked = Instant::now();
        let mut events = match self.runtime.events().await {
            Ok(events) => events,
            Err(error) if error.kind == ErrorKind::Unimplemented && self.mode == Mode::Auto => {
                return Ended::NotOffered(format!("{name} has no event stream").into());
            }
            Err(error) => return failed(&error),
        };
        let mut first = true;
        let mut clean = false;
        let error = loop {
            // The first event, or a second without a refusal, says that the subscription stands.
            let event = if first {
                let Ok(event) = timeout(PROVEN.saturating_sub(asked.elapsed()), events.next()).await else {
                    self.up(&name, splits, &mut first);
                    continue;
                };
                event
            } else {
                events.next().await
            };
            match event {
                Some(Ok(event)) => {
                    self.metrics.stream_event(made_at(event.created_at));
                    self.requests.add_event(event);
                    if first {
                        self.up(&name, splits, &mut first);
                    }
                }
                Some(Err(error)) => break error.to_string().into(),
                None => {
                    clean = true;
                    break "the runtime ended the stream".into();
                }
            }
        };
        if !first {
            return Ended::Lost(error);
        }
        if clean && self.mode == Mode::Auto {
            let reason =
                format!("{name} ends its event stream immediately (CRI-O does this unless enable_pod_events is set)");
            return Ended::AtOnce(reason.into());
        }
        Ended::Failed(error)
    }

    fn up(&self, name: &Arc<str>, splits: bool, first: &mut bool) {
        *first = false;
        self.metrics.stream_up();
        let runtime = Arc::clone(name);
        self.turn(StreamState::Up { runtime, splits });
    }
}

fn failed(error: &Error) -> Ended {
    Ended::Failed(error.to_string().into())
}

fn name(version: &RuntimeVersion) -> Arc<str> {
    let clip = |text: &str| text.chars().take(64).collect::<String>();
    format!(
        "{} {}",
        clip(&version.name),
        clip(version.version.trim_start_matches('v'))
    )
    .into()
}
