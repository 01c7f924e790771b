//! Data for bug reports: the daemon's settings and its recording.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::query::NoQuery;
use super::routes::{App, error};

/// Lines are sent together, up to this many bytes.
const CHUNK: usize = 32 * 1024;

pub(super) async fn about(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    Json(app.setup.about().await).into_response()
}

/// The recording, one JSON object a line.
pub(super) async fn recorder(State(app): State<Arc<App>>, _: NoQuery) -> Response {
    let Some(recording) = app.pleg.recording().await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the generator has ended");
    };
    let chunks = stream::unfold(recording.into_lines(), async |mut lines| {
        // This may take long, and other tasks share the thread.
        tokio::task::yield_now().await;
        let mut chunk = Vec::new();
        for line in lines.by_ref() {
            let start = chunk.len();
            match serde_json::to_writer(&mut chunk, &line) {
                Ok(()) => chunk.push(b'\n'),
                // Never send half an object.
                Err(_) => chunk.truncate(start),
            }
            if chunk.len() >= CHUNK {
                break;
            }
        }
        let chunk = Ok::<_, std::convert::Infallible>(Bytes::from(chunk));
        chunk
            .as_ref()
            .is_ok_and(|chunk| !chunk.is_empty())
            .then_some((chunk, lines))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(chunks)).into_response()
}
