//! The HTTP/2 connection to a runtime.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::status::transport_error;
use super::{Answer, timeout_header};
use crate::socket::Socket;
use crate::{Endpoint, ErrorKind};

/// The largest header block accepted from a runtime, in bytes.
const HEADERS_LIMIT: u32 = 16 << 10;

/// How many bytes may be on their way before they are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    /// Of one answer.
    pub(crate) stream: u32,
    /// Of all answers together.
    pub(crate) connection: u32,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            stream: 2 << 20,
            connection: 5 << 20,
        }
    }
}

/// A connection that is made by the first call, and made again by the first call after it broke. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    endpoint: Endpoint,
    connect_timeout: Duration,
    windows: Windows,
    // Held while connecting, so that calls that start together share one connection; not while a call runs.
    open: Mutex<Option<Open>>,
}

/// An established connection.
#[derive(Debug, Clone)]
struct Open {
    sender: SendRequest<Bytes>,
    /// Tells one connection from the next.
    serial: u64,
}

impl Connection {
    /// Does not connect yet.
    pub(crate) fn new(endpoint: Endpoint, connect_timeout: Duration, windows: Windows) -> Self {
        Self {
            link: Arc::new(Link {
                endpoint,
                connect_timeout,
                windows,
                open: Mutex::new(None),
            }),
        }
    }

    /// Sends a framed request to `path`. Returns when the head of the answer has arrived. Dropping the future, or the answer,
    /// cancels the call.
    pub(crate) async fn call(
        &self,
        path: &'static str,
        message: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Answer, ErrorKind> {
        let mut request = http::Request::post(http::Uri::from_static(path))
            .header(http::header::TE, "trailers")
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::USER_AGENT, concat!("pleg/", env!("CARGO_PKG_VERSION")));
        if let Some(timeout) = timeout {
            request = request.header("grpc-timeout", timeout_header(timeout));
        }
        let request = request
            .body(())
            .map_err(|error| ErrorKind::Malformed(error.to_string()))?;
        let mut sender = self.ready().await?;
        let (response, mut body) = sender.send_request(request, false).map_err(transport_error)?;
        // A runtime may refuse a call as soon as it has read the head, while we are about to send the rest. The stream takes no data then,
        // and has an answer all the same; where it has none, the response is the error.
        let _ = body.send_data(message, true);
        Answer::new(response.await.map_err(transport_error)?)
    }

    /// A sender that takes a request now. Connects where there is no usable connection.
    async fn ready(&self) -> Result<SendRequest<Bytes>, ErrorKind> {
        let open = self.link.open(None).await?;
        if let Ok(sender) = open.sender.ready().await {
            return Ok(sender);
        }
        // It broke, or the runtime announced its end, since it was last used.
        let open = self.link.open(Some(open.serial)).await?;
        open.sender.ready().await.map_err(transport_error)
    }
}

impl Link {
    /// The established connection, or a new one if there is none or it is the `broken` one.
    async fn open(&self, broken: Option<u64>) -> Result<Open, ErrorKind> {
        let mut current = self.open.lock().await;
        let serial = match &*current {
            Some(open) if Some(open.serial) != broken => return Ok(open.clone()),
            Some(open) => open.serial + 1,
            None => 0,
        };
        // If this attempt fails, the broken one stays, and the next call finds it broken again.
        // Boxed: rarely used, and large enough to swell the future of every call.
        let sender = Box::pin(self.connect()).await?;
        Ok(current.insert(Open { sender, serial }).clone())
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, ErrorKind> {
        let connecting = async {
            let socket = Socket::connect(self.endpoint.path())
                .await
                .map_err(|error| ErrorKind::Unreachable(error.to_string()))?;
            h2::client::Builder::new()
                .initial_window_size(self.windows.stream)
                .initial_connection_window_size(self.windows.connection)
                .max_header_list_size(HEADERS_LIMIT)
                .enable_push(false)
                .handshake(socket)
                .await
                .map_err(transport_error)
        };
        let (sender, connection) = timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| ErrorKind::Unreachable("connecting takes too long".to_owned()))??;
        // Ends by itself: when the socket closes, or when the last sender and the last answer are dropped.
        tokio::spawn(async move {
            // Calls that fail with it report the error.
            let _ = connection.await;
        });
        Ok(sender)
    }
}
