//! Counters of every call: what a client cost the runtime.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use pleg_cri::Rpc;
use serde::{Deserialize, Serialize};
use tonic::body::Body;

use crate::world::EventStats;

/// The header and trailer that says how a call ended.
pub(crate) const GRPC_STATUS: &str = "grpc-status";

/// Counters of one call, or of all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcStats {
    /// Calls that arrived.
    pub calls: u64,
    /// Calls answered with an error.
    pub errors: u64,
    /// Calls that the client gave up, or whose connection was cut, before the answer was complete.
    pub abandoned: u64,
    /// Calls not yet answered in full.
    pub in_flight: u64,
    /// The most that were in flight at once.
    pub most_in_flight: u64,
    /// Bytes of answers, without HTTP overhead.
    pub bytes: u64,
}

/// All counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsSnapshot {
    /// Of all calls together.
    pub total: RpcStats,
    /// By the call's name; those that were never made are left out.
    pub rpcs: BTreeMap<String, RpcStats>,
    /// Of the event stream; a proxy has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventStats>,
}

impl StatsSnapshot {
    /// The counters of one call, zero if it was never made.
    pub fn of(&self, rpc: Rpc) -> RpcStats {
        self.rpcs.get(rpc.name()).copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    errors: AtomicU64,
    abandoned: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    fn snapshot(&self) -> RpcStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RpcStats {
            calls: get(&self.calls),
            errors: get(&self.errors),
            abandoned: get(&self.abandoned),
            in_flight: get(&self.in_flight),
            most_in_flight: get(&self.most_in_flight),
            bytes: get(&self.bytes),
        }
    }

    fn begin(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Ordering::Relaxed);
    }
}

/// The counters. Clones share them.
#[derive(Debug, Clone)]
pub struct Stats(Arc<CounterTable>);

#[derive(Debug)]
struct CounterTable {
    total: Counters,
    /// In the order of [`Rpc::ALL`].
    rpcs: Vec<Counters>,
}

impl Default for Stats {
    fn default() -> Self {
        Self(Arc::new(CounterTable {
            total: Counters::default(),
            rpcs: Rpc::ALL.iter().map(|_| Counters::default()).collect(),
        }))
    }
}

impl Stats {
    /// All counters now.
    pub fn snapshot(&self) -> StatsSnapshot {
        let rpcs = Rpc::ALL.iter().zip(&self.0.rpcs);
        StatsSnapshot {
            total: self.0.total.snapshot(),
            rpcs: rpcs
                .map(|(rpc, counters)| (rpc.name().to_owned(), counters.snapshot()))
                .filter(|(_, stats)| stats.calls > 0)
                .collect(),
            events: None,
        }
    }

    /// A call arrives. `None` is a path that is no call of CRI.
    pub(crate) fn begin(&self, rpc: Option<Rpc>) -> Flight {
        let flight = Flight {
            stats: self.clone(),
            rpc,
            done: false,
        };
        flight.each(Counters::begin);
        flight
    }
}

/// A call in flight; dropped early, it was abandoned.
#[derive(Debug)]
pub(crate) struct Flight {
    stats: Stats,
    rpc: Option<Rpc>,
    done: bool,
}

impl Flight {
    fn each(&self, count: impl Fn(&Counters)) {
        count(&self.stats.0.total);
        if let Some(counters) = self.rpc.and_then(|rpc| self.stats.0.rpcs.get(rpc as usize)) {
            count(counters);
        }
    }

    /// The answer begins: counts its bytes until its end.
    pub(crate) fn answer(mut self, response: http::Response<Body>) -> http::Response<Body> {
        self.note_status(response.headers());
        response.map(|inner| {
            if inner.is_end_stream() {
                self.done = true;
            }
            Body::new(Counted { inner, flight: self })
        })
    }

    fn note_status(&mut self, headers: &http::HeaderMap) {
        if let Some(status) = headers.get(GRPC_STATUS) {
            self.done = true;
            if status != "0" {
                self.each(|counters| _ = counters.errors.fetch_add(1, Ordering::Relaxed));
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let abandoned = u64::from(!self.done);
        self.each(|counters| {
            counters.in_flight.fetch_sub(1, Ordering::Relaxed);
            counters.abandoned.fetch_add(abandoned, Ordering::Relaxed);
        });
    }
}

/// The body of an answer, whose bytes are counted as they are sent.
struct Counted {
    inner: Body,
    flight: Flight,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let bytes = data.len() as u64;
                    self.flight
                        .each(|counters| _ = counters.bytes.fetch_add(bytes, Ordering::Relaxed));
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.flight.note_status(trailers);
                }
            }
            Some(Err(_)) => {}
            None => self.flight.done = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
