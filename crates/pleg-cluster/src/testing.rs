//! A fake API server at the HTTP level, for tests: a function answers, and requests are recorded.
//!
//! It runs in the test's own task and needs no socket, so paused time works.

use std::fmt;
use std::io;
use std::sync::{Arc, LazyLock};

use futures_util::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tower::BoxError;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::api::Api;

type ResponseBody = UnsyncBoxBody<bytes::Bytes, BoxError>;

/// A request, as the server got it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Without `?`; empty if there is none.
    pub(crate) query: String,
    /// `Null` if there is none.
    pub(crate) body: Value,
    /// Of the body.
    pub(crate) content_type: String,
}

impl Request {
    /// Method and path, for comparisons: `GET /api/v1/nodes/a`.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains("watch=1") || self.query.contains("watch=true")
    }
}

/// What the server answers.
pub(crate) enum Answer {
    /// A status code and a body.
    Json(u16, Value),
    /// The events of a watch, until the sender is dropped.
    Watch(mpsc::UnboundedReceiver<Value>),
    /// No answer at all.
    Hang,
    /// The connection fails for this reason.
    Fail(&'static str),
}

impl Answer {
    /// 200 with an object.
    pub(crate) fn ok(object: &impl serde::Serialize) -> Self {
        Self::Json(200, serde_json::to_value(object).unwrap())
    }

    /// A refusal with a reason of Kubernetes, such as 404 and `NotFound`.
    pub(crate) fn refuse(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "code": code, "reason": reason, "message": message,
        });
        Self::Json(code, status)
    }

    pub(crate) fn not_found() -> Self {
        Self::refuse(404, "NotFound", "not found")
    }
}

/// The fake. Clones are the same server.
#[derive(Clone)]
pub(crate) struct FakeApi {
    requests: Arc<Mutex<Vec<Request>>>,
    count: watch::Sender<usize>,
    api: Api,
}

impl fmt::Debug for FakeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeApi").finish_non_exhaustive()
    }
}

impl FakeApi {
    /// A server that answers each request by `answer`. Needs a tokio runtime.
    pub(crate) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let (requests, count) = (Arc::new(Mutex::new(Vec::new())), watch::Sender::new(0));
        let (recorded, counted, answer) = (Arc::clone(&requests), count.clone(), Arc::new(answer));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (recorded, counted, answer) = (Arc::clone(&recorded), counted.clone(), Arc::clone(&answer));
            async move {
                let request = read(request).await?;
                let answer = answer(&request);
                recorded.lock().push(request);
                counted.send_modify(|count| *count += 1);
                respond(answer).await
            }
        });
        let api = Api::with_service(service);
        Self { requests, count, api }
    }

    /// The connection to it, for the part under test.
    pub(crate) fn api(&self) -> Api {
        self.api.clone()
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    /// [`Request::line`] of all requests so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests.lock().iter().map(Request::line).collect()
    }

    /// Waits until the requests so far are as asked for.
    pub(crate) async fn wait_for(&self, is: impl Fn(&[Request]) -> bool) {
        let mut count = self.count.subscribe();
        // It cannot be closed: we have the sender.
        let _ = count.wait_for(|_| is(&self.requests.lock())).await;
    }
}

/// What is logged, line by line.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogLines(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogLines {
    /// Of this thread, until the answer is dropped.
    pub(crate) fn capture(&self) -> tracing::subscriber::DefaultGuard {
        // While there is one subscriber only, tracing decides about a line of the log by the thread that comes to it first, and that one may
        // run a test that captures nothing.
        static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
        LazyLock::force(&SECOND);
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// All of them so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

async fn read(request: http::Request<Body>) -> Result<Request, BoxError> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    Ok(Request {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: content_type.map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into()),
        body: if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)?
        },
    })
}

async fn respond(answer: Answer) -> Result<http::Response<ResponseBody>, BoxError> {
    let (code, body) = match answer {
        Answer::Hang => std::future::pending().await,
        Answer::Fail(why) => return Err(why.into()),
        Answer::Json(code, body) => (
            code,
            Full::from(serde_json::to_vec(&body)?)
                .map_err(BoxError::from)
                .boxed_unsync(),
        ),
        Answer::Watch(events) => {
            let lines = futures_util::stream::unfold(events, async |mut events| {
                let event = events.recv().await?;
                Some((event, events))
            });
            let frames = lines.map(|event| {
                let mut line = serde_json::to_vec(&event)?;
                line.push(b'\n');
                Ok::<_, BoxError>(http_body::Frame::data(bytes::Bytes::from(line)))
            });
            (200, StreamBody::new(frames).boxed_unsync())
        }
    };
    Ok(http::Response::builder().status(code).body(body)?)
}

#[tokio::test(start_paused = true)]
async fn the_fake_answers_watches_and_hangs() {
    use k8s_openapi::api::core::v1::Node;
    use kube::api::WatchParams;

    let (events, watch) = mpsc::unbounded_channel();
    let watch = Mutex::new(Some(watch));
    let fake = FakeApi::start(move |request| match request.line().as_str() {
        "GET /api/v1/nodes/a" => Answer::ok(&json!({"metadata": {"name": "a"}})),
        "GET /api/v1/nodes" if request.is_watch() => watch.lock().take().map_or(Answer::Hang, Answer::Watch),
        "DELETE /api/v1/nodes/a" => Answer::Fail("no route"),
        _ => Answer::not_found(),
    });
    let nodes = kube::Api::<Node>::all(fake.api().client());
    assert_eq!(nodes.get("a").await.unwrap().metadata.name.as_deref(), Some("a"));
    assert!(
        crate::api::call("get node b", nodes.get("b"))
            .await
            .unwrap_err()
            .is_not_found()
    );
    let error = crate::api::call("delete node a", nodes.delete("a", &kube::api::DeleteParams::default())).await;
    assert!(error.unwrap_err().to_string().contains("no route"));

    let stream = nodes.watch(&WatchParams::default(), "0").await.unwrap();
    let mut stream = std::pin::pin!(stream);
    events
        .send(json!({"type": "ADDED", "object": {"metadata": {"name": "a"}}}))
        .unwrap();
    assert!(matches!(stream.next().await, Some(Ok(kube::api::WatchEvent::Added(_)))));
    drop(events);
    assert!(stream.next().await.is_none());
    fake.wait_for(|requests| requests.len() == 4).await;
    assert_eq!(fake.lines()[0], "GET /api/v1/nodes/a");
    let hung = crate::api::call("watch nodes", nodes.watch(&WatchParams::default(), "0")).await;
    assert!(hung.is_err());
    assert_eq!(fake.requests()[4].query, fake.requests()[3].query);
}
