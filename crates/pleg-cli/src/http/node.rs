//! The pods of `pleg node` as Kubernetes objects, and the problems of their manifests.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use pleg_node::{PodList, Report};

use super::query::{Bad, Fields, Names, NoQuery};
use super::routes::{App, error};

/// State that only `pleg node` has.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/namespaces/{namespace}/pods", get(of_namespace))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", get(pod))
        .route("/api/v1/node/complaints", get(complaints))
}

fn reports(app: &App, wanted: impl Fn(&Report) -> bool) -> Vec<Report> {
    let mut reports = app.board.as_ref().map(pleg_node::PodReports::pods).unwrap_or_default();
    reports.retain(wanted);
    reports
}

pub(super) async fn pods(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let filter = Fields::read(query.as_deref(), &["namespace", "pod"])?.filter()?;
    let reports = reports(&app, |report| filter.matches_pod(&report.pod.id));
    Ok(Json(PodList(reports)).into_response())
}

async fn of_namespace(State(app): State<Arc<App>>, Names(namespace): Names<String>, _: NoQuery) -> Response {
    let reports = reports(&app, |report| *report.pod.id.namespace == *namespace);
    Json(PodList(reports)).into_response()
}

/// One pod by name. While a pod terminates and its successor waits for the name, this is the terminating one.
pub(super) async fn pod(
    State(app): State<Arc<App>>,
    Names((namespace, name)): Names<(String, String)>,
    _: NoQuery,
) -> Response {
    let is = |report: &Report| *report.pod.id.namespace == *namespace && *report.pod.id.name == *name;
    match reports(&app, is).pop() {
        Some(report) => Json(report).into_response(),
        None => error(StatusCode::NOT_FOUND, &format!("no pod {namespace}/{name}")),
    }
}

async fn complaints(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    let complaints = app.board.as_ref().map(pleg_node::PodReports::complaints);
    Json(complaints.unwrap_or_default()).into_response()
}
