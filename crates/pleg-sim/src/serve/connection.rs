//! HTTP connections as tasks with an owner: all of them end when their token is cancelled.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tower::{Service, ServiceExt};

/// Connections at once; more wait to be accepted.
const MOST_CONNECTIONS: usize = 1024;
/// Calls at once on one connection: Go's servers set no limit, and calls that hang must not block the others.
const MOST_STREAMS: u32 = 8192;
/// Send buffer of one stream: large, so that a list goes out in large writes.
const SEND_BUFFER: usize = 1 << 20;
/// Pause after a failed `accept`, for example when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// gRPC.
    Http2,
    /// The control API.
    Http1,
}

/// Spawns the tasks that hyper starts for a connection on our tracker.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    pub(crate) tracker: TaskTracker,
    pub(crate) cut: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, future: F) {
        let cut = self.cut.clone();
        self.tracker.spawn(async move { cut.run_until_cancelled(future).await });
    }
}

/// Accepts connections until `cut` is cancelled; then all of them are cut.
pub(crate) async fn accept<S>(
    listener: &UnixListener,
    protocol: Protocol,
    service: S,
    cut: CancellationToken,
    tracker: TaskTracker,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    while let Some(accepted) = cut
        .run_until_cancelled(async {
            // The semaphore is never closed.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            (listener.accept().await, permit)
        })
        .await
    {
        match accepted {
            (Ok((stream, _)), permit) => {
                let served = serve(stream, protocol, service.clone(), cut.clone(), tracker.clone());
                tracker.spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
            (Err(error), _) => {
                tracing::warn!(%error, "cannot accept a connection");
                cut.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await;
            }
        }
    }
}

async fn serve<S>(stream: UnixStream, protocol: Protocol, service: S, cut: CancellationToken, tracker: TaskTracker)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let handler = service_fn(move |request: Request<Incoming>| service.clone().oneshot(request.map(Body::new)));
    let io = TokioIo::new(stream);
    let ended = match protocol {
        Protocol::Http2 => {
            let executor = Tracked {
                tracker,
                cut: cut.clone(),
            };
            let connection = http2::Builder::new(executor)
                .timer(TokioTimer::new())
                .max_concurrent_streams(MOST_STREAMS)
                .max_send_buf_size(SEND_BUFFER)
                .serve_connection(io, handler);
            cut.run_until_cancelled(connection).await
        }
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            let connection = builder.serve_connection(io, handler);
            cut.run_until_cancelled(connection).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
