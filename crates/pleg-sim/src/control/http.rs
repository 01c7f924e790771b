//! The commands as JSON over HTTP on a second socket.

use std::sync::Arc;

use ::http::StatusCode;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::command::{Command, CommandError, Reply};
use super::execute::{Commanded, execute};
use crate::serve::connection::{Protocol, accept};
use crate::serve::socket::Bound;
use crate::world::WorldError;

/// A command is a few words.
const BODY_LIMIT: usize = 64 * 1024;

/// What is answered when a command was not done.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Problem {
    pub(super) error: String,
}

struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(Problem { error: self.1 })).into_response()
    }
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        let code = match error {
            CommandError::World(WorldError::NoPod(_) | WorldError::NoContainer { .. }) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        Self(code, error.to_string())
    }
}

/// Serves the control API until cancelled.
pub(crate) async fn serve<C: Commanded>(
    commanded: Arc<C>,
    bound: Bound,
    cancel: CancellationToken,
    tracker: TaskTracker,
) {
    let router = Router::new()
        .route("/v1/command", post(command::<C>))
        .route("/v1/stats", get(stats::<C>))
        .route("/v1/pods", get(pods::<C>))
        .fallback(|| async {
            Failure(
                StatusCode::NOT_FOUND,
                "unknown path; use POST /v1/command, GET /v1/stats or GET /v1/pods".into(),
            )
        })
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(commanded);
    let service = router.map_request(|request: ::http::Request<tonic::body::Body>| request.map(axum::body::Body::new));
    let service = service.map_response(|response: Response| response.map(tonic::body::Body::new));
    accept(&bound.listener, Protocol::Http1, service, cancel, tracker).await;
}

async fn command<C: Commanded>(State(on): State<Arc<C>>, body: axum::body::Bytes) -> Result<Json<Reply>, Failure> {
    let command: Command = serde_json::from_slice(&body)
        .map_err(|error| Failure(StatusCode::BAD_REQUEST, format!("invalid command: {error}")))?;
    Ok(Json(execute(&*on, command).await?))
}

async fn stats<C: Commanded>(State(on): State<Arc<C>>) -> Result<Json<Reply>, Failure> {
    Ok(Json(execute(&*on, Command::Stats {}).await?))
}

async fn pods<C: Commanded>(State(on): State<Arc<C>>) -> Result<Json<Reply>, Failure> {
    Ok(Json(execute(&*on, Command::Pods {}).await?))
}
