//! The runtime behind a proxy: requests and answers are forwarded unchanged.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use pleg_cri::Endpoint;
use pleg_cri::socket::Socket;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use crate::serve::connection::Tracked;

/// How long the runtime may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Flow-control window of one answer.
const STREAM_WINDOW: u32 = 2 << 20;
/// Flow-control window of all answers together: large enough that a client that reads nothing blocks no other.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// The runtime, by one connection that is made when it is needed, and made again after it broke.
#[derive(Debug, Clone)]
pub(super) struct Upstream(Arc<Link>);

#[derive(Debug)]
struct Link {
    endpoint: Endpoint,
    /// Held while connecting, so that many calls at once make one connection.
    sender: Mutex<Option<SendRequest<Body>>>,
    tasks: Tracked,
}

impl Upstream {
    pub(super) fn new(endpoint: Endpoint, cancel: CancellationToken, tracker: TaskTracker) -> Self {
        Self(Arc::new(Link {
            endpoint,
            sender: Mutex::new(None),
            tasks: Tracked { tracker, cut: cancel },
        }))
    }

    async fn connected(&self) -> Result<SendRequest<Body>, String> {
        let mut sender = self.0.sender.lock().await;
        if let Some(sender) = sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let connect = async {
            let socket = Socket::connect(self.0.endpoint.path())
                .await
                .map_err(|e| e.to_string())?;
            let mut builder = Builder::new(self.0.tasks.clone());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW);
            builder.handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())
        };
        let (made, connection) = timeout(CONNECT, connect)
            .await
            .map_err(|_| format!("no connection within {}s", CONNECT.as_secs()))??;
        let Tracked { tracker, cut } = self.0.tasks.clone();
        tracker.spawn(async move {
            if let Some(Err(error)) = cut.run_until_cancelled(connection).await {
                tracing::debug!(%error, "the connection to the runtime ended");
            }
        });
        *sender = Some(made.clone());
        Ok(made)
    }

    async fn forward(&self, request: Request<Body>) -> Result<Response<Incoming>, String> {
        let mut request = outgoing(request);
        let mut again = true;
        loop {
            let mut sender = self.connected().await?;
            let refused = match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(refused) => refused,
            };
            let mut refused = refused;
            match refused.take_message() {
                // The connection had ended, and the runtime saw nothing of the call.
                Some(unsent) if again => (request, again) = (unsent, false),
                _ => return Err(refused.into_error().to_string()),
            }
        }
    }

    fn unavailable(&self, why: &str) -> Status {
        Status::unavailable(format!("the runtime behind the proxy, {}: {why}", self.0.endpoint))
    }
}

/// The same request for another connection. gRPC over a unix socket wants the authority `localhost`.
fn outgoing(mut request: Request<Body>) -> Request<Body> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(Authority::from_static("localhost"));
    let path = request.uri().path_and_query().cloned();
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    request
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let upstream = self.clone();
        Box::pin(async move {
            Ok(match upstream.forward(request).await {
                Ok(response) => response.map(|inner| Body::new(Passing { inner, upstream })),
                Err(why) => upstream.unavailable(&why).into_http(),
            })
        })
    }
}

/// An answer in transit. If it breaks off, the client gets a gRPC error.
struct Passing {
    inner: Incoming,
    upstream: Upstream,
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Err(error)) => {
                let mut trailers = HeaderMap::new();
                let status = self.upstream.unavailable(&error.to_string());
                Poll::Ready(Some(
                    status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)),
                ))
            }
            frame => Poll::Ready(frame.map(|frame| frame.map_err(|error| Status::internal(error.to_string())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
