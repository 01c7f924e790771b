//! Whether the API server can be reached, as all calls together find out.
//!
//! A layer of the client sees how each request ends. An outage is one line in the log, with its cause and what to do, and its end is
//! another, however many parts and calls notice it. Parts that wait for their next attempt are woken when it is over
//! ([`Reach::recovered`]). Answers are counted for the metrics.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::client::Body;
use parking_lot::Mutex;
use pleg_cri::duration::seconds;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};
use tracing::{info, warn};

use crate::api::with_causes;
use crate::identity::Identity;

/// A request that was given up after this long is a sign that the API server does not answer.
const UNANSWERED: Duration = Duration::from_secs(5);
/// After an outage that was logged, a new one is logged only if it lasts [`LASTING`], for this long.
const QUIET: Duration = Duration::from_mins(1);
const LASTING: Duration = Duration::from_secs(10);
/// An outage that lasted at least this long wakes those who wait for its end.
const WORTH_WAKING: Duration = Duration::from_secs(1);
/// Clocks that differ by more than this are worth a word.
const CLOCK_SKEW: Duration = Duration::from_mins(5);
/// Different causes of one outage that are logged.
const MOST_CAUSES: usize = 8;

/// Whether the API server can be reached. Clones share it.
#[derive(Debug, Clone)]
pub struct Reach(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Held for a few comparisons; never across an await.
    state: Mutex<State>,
    /// Outages that are over.
    recoveries: watch::Sender<u64>,
    /// Once they are registered.
    metrics: OnceLock<ApiMetrics>,
}

#[derive(Debug)]
struct ApiMetrics {
    requests: IntCounterVec,
    last_answer: IntGauge,
    /// None where there is no lease to renew.
    last_heartbeat: Option<IntGauge>,
}

#[derive(Debug, Default)]
struct State {
    server: String,
    identity: Option<Identity>,
    outage: Option<Outage>,
    /// When an outage was last logged, or its end.
    logged_at: Option<Instant>,
    skew_logged: bool,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    /// The causes that were logged.
    logged: BTreeSet<String>,
}

impl Default for Reach {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            recoveries: watch::Sender::new(0),
            metrics: OnceLock::new(),
        }))
    }
}

impl ApiMetrics {
    fn new(registry: &Registry, has_lease: bool) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let about = Opts::new(
            "rest_client_requests_total",
            "Requests to the API server, by method and status code; <error> if there was no answer.",
        );
        let requests = IntCounterVec::new(about, &["method", "code"])?;
        registry.register(Box::new(requests.clone()))?;
        let heartbeat = || {
            gauge(
                "pleg_node_last_heartbeat_timestamp_seconds",
                "When the lease of the node was last renewed; 0 if it never was.",
            )
        };
        Ok(Self {
            requests,
            last_answer: gauge(
                "pleg_node_api_last_answer_timestamp_seconds",
                "When the API server last answered a request; 0 if it never did.",
            )?,
            last_heartbeat: has_lease.then(heartbeat).transpose()?,
        })
    }
}

impl Reach {
    /// The API server has this address now, and we are this user.
    pub(crate) fn set(&self, server: String, identity: Option<Identity>) {
        let mut state = self.0.state.lock();
        (state.server, state.identity) = (server, identity);
    }

    /// Exports the metrics from now on. Fails only if those of another node are registered already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let metrics = ApiMetrics::new(registry, true)?;
        // A second time is refused by the registry.
        let _ = self.0.metrics.set(metrics);
        Ok(())
    }

    /// The same for a process that has no lease to renew.
    pub fn register_requests(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let metrics = ApiMetrics::new(registry, false)?;
        let _ = self.0.metrics.set(metrics);
        Ok(())
    }

    /// The lease was renewed.
    pub(crate) fn heartbeat(&self) {
        let metrics = self.0.metrics.get();
        if let Some(heartbeat) = metrics.and_then(|metrics| metrics.last_heartbeat.as_ref()) {
            heartbeat.set(Timestamp::now().as_second());
        }
    }

    fn count(&self, method: &str, code: &str) {
        if let Some(metrics) = self.0.metrics.get() {
            metrics.requests.with_label_values(&[method, code]).inc();
        }
    }

    /// Waits for the end of an outage that is not over yet. Cancel-safe.
    pub async fn recovered(&self) {
        // It cannot be closed: we have the sender.
        let _ = self.0.recoveries.subscribe().changed().await;
    }

    /// Whether the last request was answered.
    pub fn is_reachable(&self) -> bool {
        self.0.state.lock().outage.is_none()
    }

    fn answered(&self, method: &str, status: u16, date: Option<Timestamp>) {
        self.count(method, code(status));
        let now = Timestamp::now();
        if let Some(metrics) = self.0.metrics.get() {
            metrics.last_answer.set(now.as_second());
        }
        let mut state = self.0.state.lock();
        state.compare_clocks(date, now);
        if status == 401 {
            let what = state.refused_credentials(date, now);
            return state.failed("401", &what);
        }
        let Some(outage) = state.outage.take() else { return };
        let lasted = outage.since.elapsed();
        if !outage.logged.is_empty() {
            info!(
                "the API server at {} answers again after {}",
                state.server,
                seconds(whole(lasted))
            );
            state.logged_at = Some(Instant::now());
        }
        drop(state);
        if lasted >= WORTH_WAKING {
            self.0.recoveries.send_modify(|count| *count += 1);
        }
    }

    fn failed(&self, method: &str, why: &str) {
        self.count(method, "<error>");
        let mut state = self.0.state.lock();
        let what = format!("cannot reach the API server at {}: {why}{}", state.server, hint(why));
        state.failed(why, &what);
    }
}

impl State {
    /// `what` is logged once in an outage for each cause, of which figures are no part: they change with each attempt.
    fn failed(&mut self, cause: &str, what: &str) {
        let now = Instant::now();
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: now,
            logged: BTreeSet::new(),
        });
        let quiet = self.logged_at.is_some_and(|at| at.elapsed() < QUIET) && outage.logged.is_empty();
        if quiet && outage.since.elapsed() < LASTING {
            return;
        }
        let cause: String = cause.chars().filter(|c| !c.is_ascii_digit()).collect();
        if outage.logged.len() < MOST_CAUSES && outage.logged.insert(cause) {
            warn!("{what}. Pods run on; it is tried again");
            self.logged_at = Some(now);
        }
    }

    /// Credentials that are not accepted: why, by our clock or else by that of the API server, and what to do.
    fn refused_credentials(&self, date: Option<Timestamp>, now: Timestamp) -> String {
        let invalid = |at: Timestamp| self.identity.as_ref()?.invalid(at);
        let why = invalid(now).or_else(|| invalid(date?));
        let why = why.unwrap_or_else(|| "get new ones for this node, or correct the kubeconfig".to_owned());
        format!(
            "the API server at {} does not accept our credentials: {why}",
            self.server
        )
    }

    fn compare_clocks(&mut self, date: Option<Timestamp>, now: Timestamp) {
        let Some(date) = date else { return };
        let skew = date.duration_since(now).unsigned_abs();
        if skew < CLOCK_SKEW {
            self.skew_logged = false;
        } else if !std::mem::replace(&mut self.skew_logged, true) {
            warn!(
                "this machine's clock and that of the API server differ by {}: it is {now} here and {date} there. Correct the clock: \
                 certificates, tokens and leases depend on it",
                seconds(whole(skew))
            );
        }
    }
}

fn whole(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

/// What to do about a connection that fails.
fn hint(why: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["UnknownIssuer", "BadSignature", "CaUsedAsEndEntity"]) {
        return "; its certificate is not signed by the certificate-authority of the kubeconfig: put the CA of this cluster there"
            .to_owned();
    }
    if has(&["NotValidForName"]) {
        return "; its certificate is for other names: correct the server address of the kubeconfig".to_owned();
    }
    if has(&["certificate expired", "not valid yet", "Expired", "NotValidYet"]) {
        return format!("; check the clock: it is {} here", Timestamp::now());
    }
    String::new()
}

/// As a label: few, fixed values.
fn code(status: u16) -> &'static str {
    match status {
        200 => "200",
        201 => "201",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        409 => "409",
        410 => "410",
        422 => "422",
        429 => "429",
        500 => "500",
        503 => "503",
        504 => "504",
        _ => "other",
    }
}

/// Sees how each request ends.
#[derive(Debug, Clone)]
pub(crate) struct Observe(pub(crate) Reach);

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, service: S) -> Self::Service {
        Observed {
            service,
            reach: self.0.clone(),
        }
    }
}

/// A client whose requests are observed.
#[derive(Debug)]
pub(crate) struct Observed<S> {
    service: S,
    reach: Reach,
}

impl<S, B> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut sent = Sent {
            reach: self.reach.clone(),
            method: method(request.method()),
            at: Instant::now(),
            ended: false,
        };
        let calling = self.service.call(request);
        Box::pin(async move {
            let answer = calling.await;
            sent.ended = true;
            match &answer {
                Ok(answer) => {
                    let date = answer
                        .headers()
                        .get(http::header::DATE)
                        .and_then(|date| date.to_str().ok());
                    let date = date.and_then(|date| rfc2822::parse(date).ok());
                    sent.reach
                        .answered(sent.method, answer.status().as_u16(), date.map(|date| date.timestamp()));
                }
                Err(error) => sent.reach.failed(sent.method, &with_causes(&**error)),
            }
            answer
        })
    }
}

/// A request in flight.
struct Sent {
    reach: Reach,
    method: &'static str,
    at: Instant,
    ended: bool,
}

impl Drop for Sent {
    /// The caller has given up.
    fn drop(&mut self) {
        if !self.ended && self.at.elapsed() >= UNANSWERED {
            self.reach.failed(self.method, "it does not answer");
        }
    }
}

/// As a label.
fn method(method: &http::Method) -> &'static str {
    match *method {
        http::Method::GET => "GET",
        http::Method::POST => "POST",
        http::Method::PUT => "PUT",
        http::Method::PATCH => "PATCH",
        http::Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(reach: &Reach) -> Option<usize> {
        reach.0.state.lock().outage.as_ref().map(|outage| outage.logged.len())
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_logged_once_for_each_cause() {
        let reach = Reach::default();
        for second in 0..60 {
            reach.failed("GET", "Connection refused");
            reach.failed("GET", &format!("certificate expired {second} seconds ago"));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((outage(&reach), reach.is_reachable()), (Some(2), false));
        let recovered = reach.recovered();
        let mut recovered = std::pin::pin!(recovered);
        assert!(futures_util::poll!(recovered.as_mut()).is_pending());
        reach.answered("GET", 200, None);
        assert!(futures_util::poll!(recovered).is_ready() && reach.is_reachable());

        // Shortly after it, only an outage that lasts is logged.
        reach.failed("GET", "Connection refused");
        assert_eq!(outage(&reach), Some(0));
        tokio::time::advance(LASTING).await;
        reach.failed("GET", "Connection refused");
        assert_eq!(outage(&reach), Some(1));
        // Credentials that are refused are an outage too.
        reach.answered("GET", 401, None);
        assert_eq!(outage(&reach), Some(2));
    }

    #[test]
    fn hints_say_what_to_do() {
        for (why, hint_has) in [
            ("invalid peer certificate: UnknownIssuer", "CA of this cluster"),
            (
                "invalid peer certificate: certificate not valid for name NotValidForName",
                "server address",
            ),
            (
                "invalid peer certificate: certificate expired: verification time",
                "check the clock",
            ),
            ("Connection refused", ""),
        ] {
            assert!(hint(why).contains(hint_has), "{why}: {}", hint(why));
        }
        assert_eq!(hint("Connection refused"), "");
    }

    #[test]
    fn clocks_that_differ_are_a_word_once() {
        let now = Timestamp::now();
        let mut state = State::default();
        state.compare_clocks(now.checked_add(Duration::from_hours(24)).ok(), now);
        assert!(state.skew_logged);
        state.compare_clocks(Some(now), now);
        assert!(!state.skew_logged);
    }

    #[test]
    fn credentials_are_judged_by_both_clocks() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let state = State {
            identity: Some(Identity {
                user: "system:node:a".to_owned(),
                not_before: at("2026-01-01T00:00:00Z"),
                not_after: at("2026-01-02T00:00:00Z"),
            }),
            ..State::default()
        };
        let (valid, late) = (at("2026-01-01T12:00:00Z"), at("2026-01-02T12:00:00Z"));
        for (date, now, has) in [
            (None, late, "expired at"),
            (Some(valid), late, "expired at"),
            (Some(late), valid, "expired at"),
            (Some(valid), valid, "get new ones"),
            (None, valid, "get new ones"),
        ] {
            let said = state.refused_credentials(date, now);
            assert!(said.contains(has), "{said}");
        }
    }

    #[test]
    fn requests_are_counted() {
        let (reach, registry) = (Reach::default(), Registry::new());
        reach.register(&registry).unwrap();
        reach.answered("GET", 200, None);
        reach.answered("GET", 418, None);
        reach.heartbeat();
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        assert!(
            text.contains("rest_client_requests_total{code=\"other\",method=\"GET\"} 1"),
            "{text}"
        );
        assert!(Reach::default().register(&registry).is_err());
    }
}
