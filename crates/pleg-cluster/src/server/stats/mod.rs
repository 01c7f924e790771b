//! Statistics: `/stats/summary` as a kubelet has it ([`model`]), and `/metrics/resource` for metrics-server ([`resource_metrics`]). The figures
//! are those of the runtime ([`convert`]) or of cgroups, and of this machine ([`host`]); [`collect`] brings them together.

mod collect;
mod convert;
mod host;
mod model;
mod resource_metrics;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::CONTENT_TYPE;

pub(super) use collect::StatsCollector;

pub(super) async fn summary(State(stats): State<Arc<StatsCollector>>) -> Response {
    Json(&stats.collect().await.summary).into_response()
}

pub(super) async fn resource_metrics(State(stats): State<Arc<StatsCollector>>) -> Response {
    let collected = stats.collect().await;
    if let Some(why) = &collected.failed {
        tracing::debug!("figures of the runtime are missing from /metrics/resource: {why}");
    }
    let text = resource_metrics::render(&collected.summary, collected.failed.is_some());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
