//! An API server that reviews tokens and access, and nothing else.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What was asked, and how it answers.
#[derive(Debug, Default)]
pub(crate) struct Reviews {
    /// The attributes of each access review: `user verb subresource`.
    pub(crate) access: Vec<String>,
    pub(crate) tokens: usize,
    /// Allowed: `user verb subresource`.
    pub(crate) allowed: Vec<String>,
    /// It answers 500.
    pub(crate) is_broken: bool,
}

pub(crate) struct FakeApi {
    pub(crate) url: String,
    pub(crate) reviews: Arc<Mutex<Reviews>>,
    task: JoinHandle<()>,
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let reviews = Arc::new(Mutex::new(Reviews::default()));
        let router = Router::new()
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token))
            .route("/apis/authorization.k8s.io/v1/subjectaccessreviews", post(access))
            .with_state(Arc::clone(&reviews));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, reviews, task }
    }

    pub(crate) fn allow(&self, what: &str) {
        self.reviews.lock().allowed.push(what.to_owned());
    }
}

fn broken() -> Response {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "etcd is away", "code": 500});
    (StatusCode::INTERNAL_SERVER_ERROR, Json(status)).into_response()
}

/// The token `token-of-NAME` is that of NAME.
async fn token(State(reviews): State<Arc<Mutex<Reviews>>>, Json(mut review): Json<Value>) -> Response {
    let mut reviews = reviews.lock();
    reviews.tokens += 1;
    if reviews.is_broken {
        return broken();
    }
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let status = match token.strip_prefix("token-of-") {
        Some(name) => json!({"authenticated": true, "user": {"username": name, "groups": ["readers"], "uid": "7"}}),
        None => json!({"error": "no such token"}),
    };
    review["status"] = status;
    Json(review).into_response()
}

async fn access(State(reviews): State<Arc<Mutex<Reviews>>>, Json(mut review): Json<Value>) -> Response {
    let mut reviews = reviews.lock();
    let attributes = &review["spec"]["resourceAttributes"];
    assert_eq!(
        (&attributes["resource"], &attributes["name"]),
        (&json!("nodes"), &json!("n"))
    );
    assert!(
        review["spec"]["groups"]
            .as_array()
            .unwrap()
            .contains(&json!("system:authenticated"))
    );
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let user = text(&review["spec"]["user"]);
    let asked = format!(
        "{user} {} {}",
        text(&attributes["verb"]),
        text(&attributes["subresource"])
    );
    let allowed = reviews.allowed.contains(&asked);
    reviews.access.push(asked);
    if reviews.is_broken {
        return broken();
    }
    review["status"] = json!({"allowed": allowed});
    Json(review).into_response()
}
