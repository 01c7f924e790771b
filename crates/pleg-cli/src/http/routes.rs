//! The paths of the API and their handlers.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use pleg::{Pleg, PodEntry};
use pleg_node::PodReports;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::query::{Bad, Fields, Names, NoQuery};
use super::{debug, events, history, node, process, ready, web};
use crate::about::Setup;
use crate::wire::{Conditions, PodHealth, PodJson, PodRow, ReportJson};

/// Maximum number of readers of events and history.
const FOLLOWERS: usize = 64;

/// Every path, for the answer to an unknown one.
const PATHS: [&str; 15] = [
    "/metrics",
    "/healthz",
    "/livez",
    "/readyz",
    "/api/v1/health",
    "/api/v1/node/conditions",
    "/api/v1/pods",
    "/api/v1/pods/{namespace}/{name}",
    "/api/v1/runtime/pods",
    "/api/v1/events",
    "/api/v1/history",
    "/api/v1/history/hours",
    "/api/v1/history/pods",
    "/api/v1/debug/about",
    "/api/v1/debug/recorder",
];

/// The paths that only `pleg node` serves.
const NODE_PATHS: [&str; 3] = [
    "/api/v1/namespaces/{namespace}/pods",
    "/api/v1/namespaces/{namespace}/pods/{name}",
    "/api/v1/node/complaints",
];

/// State that the handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) pleg: Pleg,
    pub(super) setup: Setup,
    pub(super) shutdown: CancellationToken,
    pub(super) followers: Arc<Semaphore>,
    /// Set by `pleg node`.
    pub(super) board: Option<PodReports>,
}

/// The API of a generator, and of the node that `board` is of. Streams end at `shutdown`.
pub(crate) fn router(pleg: Pleg, setup: Setup, board: Option<PodReports>, shutdown: CancellationToken) -> Router {
    let (pods, pod, node) = match board {
        Some(_) => (get(node::pods), get(node::pod), node::routes()),
        None => (get(pods), get(pod), Router::new()),
    };
    let app = App {
        board,
        pleg,
        setup,
        shutdown,
        followers: Arc::new(Semaphore::new(FOLLOWERS)),
    };
    Router::new()
        .merge(web::routes())
        .route("/metrics", get(metrics))
        .route("/healthz", get(async |query| live("healthz", query)))
        .route("/livez", get(async |query| live("livez", query)))
        .route("/readyz", get(readyz))
        .route("/api/v1/health", get(health))
        .route("/api/v1/node/conditions", get(conditions))
        .route("/api/v1/pods", pods)
        .route("/api/v1/pods/{namespace}/{name}", pod)
        .route("/api/v1/runtime/pods", get(self::pods))
        .merge(node)
        .route("/api/v1/events", get(event_stream))
        .route("/api/v1/history", get(history::entries))
        .route("/api/v1/history/hours", get(history::hours))
        .route("/api/v1/history/pods", get(history::pods))
        .route("/api/v1/debug/about", get(debug::about))
        .route("/api/v1/debug/recorder", get(debug::recorder))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(Arc::new(app))
}

/// An answer that is an error.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": message}))).into_response()
}

async fn metrics(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    match app.pleg.render_metrics().map(|text| text + &process::metrics()) {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(reason) => error(StatusCode::INTERNAL_SERVER_ERROR, &reason.to_string()),
    }
}

/// Reports that the process is alive. A restart could repair nothing else.
fn live(name: &str, RawQuery(query): RawQuery) -> Result<String, Bad> {
    let verbose = Fields::read(query.as_deref(), &["verbose"])?.flag("verbose")?;
    Ok(if verbose {
        format!("[+]ping ok\n{name} check passed\n")
    } else {
        "ok".to_owned()
    })
}

async fn readyz(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let verbose = Fields::read(query.as_deref(), &["verbose"])?.flag("verbose")?;
    Ok(ready::answer(&app, verbose).into_response())
}

async fn health(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    let report = ReportJson::of(&app.pleg, app.board.as_ref());
    let report = report.with_cluster(app.setup.report());
    Json(report.with_history(app.setup.history_status())).into_response()
}

async fn conditions(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    Json(Conditions::of(&app.pleg, app.board.as_ref())).into_response()
}

async fn pods(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let fields = Fields::read(query.as_deref(), &["namespace", "pod", "summary"])?;
    let filter = fields.filter()?;
    let mut entries = app.pleg.cache().entries();
    entries.retain(|entry| filter.matches_pod(&entry.status.pod));
    entries.sort_by(|a, b| key(a).cmp(&key(b)));
    let report = app.pleg.health().report_in_full();
    let health = PodHealth::of(&report, Timestamp::now());
    if fields.flag("summary")? {
        let rows: Vec<_> = entries.iter().map(|entry| PodRow::new(entry, &health)).collect();
        return Ok(Json(rows).into_response());
    }
    let list: Vec<_> = entries.iter().map(|entry| PodJson::new(entry, &health)).collect();
    Ok(Json(list).into_response())
}

fn key(entry: &PodEntry) -> (&str, &str, &str) {
    let pod = &entry.status.pod;
    (&pod.namespace, &pod.name, pod.uid.as_str())
}

/// One pod by name; the newest if several UIDs have had the name.
async fn pod(State(app): State<Arc<App>>, Names((namespace, name)): Names<(String, String)>, _: NoQuery) -> Response {
    let entries = app.pleg.cache().entries();
    let newest = entries
        .iter()
        .filter(|entry| *entry.status.pod.namespace == *namespace && *entry.status.pod.name == *name)
        .max_by_key(|entry| {
            entry
                .status
                .sandboxes
                .iter()
                .filter_map(|sandbox| sandbox.created_at)
                .max()
        });
    match newest {
        Some(entry) => {
            let report = app.pleg.health().report_in_full();
            let health = PodHealth::of(&report, Timestamp::now());
            Json(PodJson::new(entry, &health)).into_response()
        }
        None => error(StatusCode::NOT_FOUND, &format!("no pod {namespace}/{name}")),
    }
}

async fn event_stream(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Bad> {
    let request = events::Request::read(query.as_deref(), &headers)?;
    Ok(events::answer(&app, request).await)
}

async fn no_such_path(State(app): State<Arc<App>>) -> Response {
    let node: &[&str] = if app.board.is_some() { &NODE_PATHS } else { &[] };
    let paths: Vec<&&str> = web::PATHS.iter().chain(&PATHS).chain(node).collect();
    (
        StatusCode::NOT_FOUND,
        Json(json!({"error": "no such path", "paths": paths})),
    )
        .into_response()
}

async fn no_such_method() -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, "only GET: nothing can be changed here")
}
