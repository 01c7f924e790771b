//! The CRI socket: open, or closed for a while.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use pleg_cri::Endpoint;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tower::Service;

use super::connection::{Protocol, accept};
use super::socket::Bound;

/// Requests to go down that may wait.
const DOWN_QUEUE: usize = 16;
/// Pause before another attempt to bind the socket again.
const BIND_PAUSE: Duration = Duration::from_millis(100);

/// A request to close the socket for a while.
#[derive(Debug)]
struct Down {
    length: Duration,
    closed: oneshot::Sender<()>,
}

/// Closes the socket for a while, and knows whether it is open.
#[derive(Debug)]
pub(crate) struct Switch {
    downs: mpsc::Sender<Down>,
    up: watch::Receiver<bool>,
}

impl Switch {
    /// Closes the socket for a while; returns when it is closed. False if the server is ending.
    pub(crate) async fn down(&self, length: Duration) -> bool {
        let (closed, is_closed) = oneshot::channel();
        self.downs.send(Down { length, closed }).await.is_ok() && is_closed.await.is_ok()
    }

    /// Waits until the socket takes connections (again).
    pub(crate) async fn wait_up(&self) {
        // The sender is gone when the server ended: then there is nothing to wait for.
        _ = self.up.clone().wait_for(|&up| up).await;
    }
}

/// The task that owns the socket.
#[derive(Debug)]
pub(crate) struct Listening {
    endpoint: Endpoint,
    downs: mpsc::Receiver<Down>,
    up: watch::Sender<bool>,
    cancel: CancellationToken,
    tracker: TaskTracker,
}

impl Listening {
    pub(crate) fn new(endpoint: Endpoint, cancel: CancellationToken, tracker: TaskTracker) -> (Self, Switch) {
        let (sender, downs) = mpsc::channel(DOWN_QUEUE);
        let (up, is_up) = watch::channel(true);
        let listening = Self {
            endpoint,
            downs,
            up,
            cancel,
            tracker,
        };
        (
            listening,
            Switch {
                downs: sender,
                up: is_up,
            },
        )
    }

    /// Serves until cancelled.
    pub(crate) async fn run<S>(mut self, mut bound: Bound, service: S)
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        loop {
            // All connections end with this socket.
            let cut = self.cancel.child_token();
            let accepting = accept(
                &bound.listener,
                Protocol::Http2,
                service.clone(),
                cut.clone(),
                self.tracker.clone(),
            );
            let down = tokio::select! {
                () = accepting => return,
                Some(down) = self.downs.recv() => down,
            };
            cut.cancel();
            drop(bound);
            self.up.send_replace(false);
            let cancel = self.cancel.clone();
            match cancel.run_until_cancelled(self.wait(down)).await {
                Some(again) => bound = again,
                None => return,
            }
            self.up.send_replace(true);
        }
    }

    /// Stays closed for as long as asked, then opens the socket again.
    async fn wait(&mut self, down: Down) -> Bound {
        let mut until = Instant::now() + down.length;
        _ = down.closed.send(());
        while let Ok(Some(down)) = tokio::time::timeout_at(until, self.downs.recv()).await {
            until = until.max(Instant::now() + down.length);
            _ = down.closed.send(());
        }
        loop {
            match Bound::bind(self.endpoint.path()).await {
                Ok(bound) => return bound,
                Err(error) => {
                    tracing::warn!(%error, "cannot reopen the socket");
                    tokio::time::sleep(BIND_PAUSE).await;
                }
            }
        }
    }
}
