//! One HTTP request over one connection: what probes, hooks, manifest URLs and the command line's requests to a daemon have in common.

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// The response to a request, and the connection it arrives on.
#[derive(Debug)]
pub struct Exchange {
    /// The response. Its body can be read as long as the exchange exists.
    pub response: Response<Incoming>,
    /// Keep it while the body is read: the connection ends with it.
    pub connection: Connection,
}

/// A connection, driven by a task that ends with it.
#[derive(Debug)]
pub struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request without a body over a new connection, and waits for the head of the response. Callers set the timeout.
pub async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Exchange, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection is an error of the request or of its body, too.
    let connection = Connection(tokio::spawn(async move { _ = connection.await }));
    let response = send.send_request(request).await?;
    Ok(Exchange { response, connection })
}
