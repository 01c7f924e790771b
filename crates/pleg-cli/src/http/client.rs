//! The HTTP client for a daemon, over its unix socket or TCP.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use anyhow::Context as _;
use bytes::BytesMut;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use pleg_cri::duration::seconds;
use pleg_node::net::{Connection, Exchange, exchange};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::address::DaemonAddress;
use crate::waiting;

/// Maximum size of an answer.
const LIMIT: usize = 256 << 20;
/// Maximum length of a line in a stream.
const LINE_LIMIT: usize = 1 << 20;

/// The daemon answered with an error.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

/// A daemon. Each request uses its own connection.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    address: DaemonAddress,
    timeout: Duration,
    /// Long waits are not reported on stderr.
    silent: bool,
}

impl Daemon {
    pub(crate) fn new(address: impl Into<DaemonAddress>, timeout: Duration) -> Self {
        Self {
            address: address.into(),
            timeout,
            silent: false,
        }
    }

    /// The same, but it never writes to stderr: that is where the caller draws.
    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    pub(crate) fn address(&self) -> &DaemonAddress {
        &self.address
    }

    /// Checks that a pleg daemon answers at this address.
    pub(crate) async fn hello(&self, within: Duration) -> anyhow::Result<()> {
        let hello = Self {
            timeout: within,
            ..self.clone()
        };
        hello.get("/livez").await.map(drop)
    }

    /// Gets an object.
    pub(crate) async fn get_json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let bytes = self.get_bytes(path).await?;
        serde_json::from_slice(&bytes)
            .with_context(|| format!("the daemon at {} has another version: {path}", self.address))
    }

    /// Gets an object, with a query.
    pub(crate) async fn query_json<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> anyhow::Result<T> {
        self.get_json(&uri(path, query)).await
    }

    /// Gets a text, with a query.
    pub(crate) async fn query_text(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<String> {
        let bytes = self.get_bytes(&uri(path, query)).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Gets the whole answer without decoding it.
    pub(crate) async fn get_bytes(&self, path: &str) -> anyhow::Result<Bytes> {
        let answer = async {
            let answer = self.get(path).await?;
            let body = Limited::new(answer.response.into_body(), LIMIT).collect();
            let body = self.within(body).await?;
            let body = body
                .map_err(|error| anyhow::anyhow!("{error}"))
                .with_context(|| format!("the connection to {} broke during the answer", self.address))?;
            Ok(body.to_bytes())
        };
        if self.silent {
            return answer.await;
        }
        waiting::told(|| Some(format!("the daemon at {}", self.address)), answer).await
    }

    /// Gets a stream of lines.
    pub(crate) async fn lines(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Lines> {
        let answer = self.get(&uri(path, query)).await?;
        Ok(Lines {
            body: answer.response.into_body(),
            _connection: answer.connection,
            read: BytesMut::new(),
        })
    }

    async fn get(&self, uri: &str) -> anyhow::Result<Exchange> {
        match &self.address {
            DaemonAddress::Unix(endpoint) => {
                let stream = self.within(UnixStream::connect(endpoint.path())).await?;
                let stream = stream.map_err(|error| self.unreachable(&error))?;
                self.ask(stream, "localhost", uri).await
            }
            DaemonAddress::Tcp(authority) => {
                let stream = self.within(TcpStream::connect(authority.as_str())).await?;
                let stream = stream.map_err(|error| self.unreachable(&error))?;
                self.ask(stream, authority.as_str(), uri).await
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> anyhow::Error {
        let at = &self.address;
        match error.kind() {
            io::ErrorKind::NotFound => {
                anyhow::anyhow!("no daemon at {at}: the socket does not exist. Start one with: pleg run")
            }
            io::ErrorKind::ConnectionRefused => {
                anyhow::anyhow!("no daemon at {at}: nothing listens on the socket. Start one with: pleg run")
            }
            io::ErrorKind::PermissionDenied => anyhow::anyhow!(
                "no access to {at}: permission denied. Run as the user of the daemon, or start it with --listen-group"
            ),
            _ => anyhow::anyhow!("cannot reach a daemon at {at}: {error}"),
        }
    }

    async fn ask<S>(&self, stream: S, host: &str, uri: &str) -> anyhow::Result<Exchange>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let at = &self.address;
        let no_http = |error: hyper::Error| anyhow::anyhow!("{at} does not answer as a pleg daemon does: {error}");
        let request = Request::get(uri)
            .header(http::header::HOST, host)
            .body(Empty::<Bytes>::new())?;
        let answer = self.within(exchange(stream, request)).await?.map_err(no_http)?;
        let status = answer.response.status();
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let body = Limited::new(answer.response.into_body(), LINE_LIMIT).collect();
        let body = self.within(body).await?;
        let text = body
            .map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned())
            .unwrap_or_default();
        let text = crate::text::clean(text.trim());
        let message = format!("the daemon at {at} answered {status}: {text}");
        Err(Refused { status, message }.into())
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> anyhow::Result<T> {
        let late = || {
            format!(
                "no answer from the daemon at {} within {}",
                self.address,
                seconds(self.timeout)
            )
        };
        timeout(self.timeout, future).await.map_err(|_| anyhow::anyhow!(late()))
    }
}

/// The lines of a stream, as they arrive.
#[derive(Debug)]
pub(crate) struct Lines {
    body: Incoming,
    /// Ends with the stream.
    _connection: Connection,
    read: BytesMut,
}

impl Lines {
    /// The next line without its line break; `None` once the daemon has ended the stream. Cancel-safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let mut line = self.read.split_to(end + 1);
                line.truncate(end);
                return Ok(Some(String::from_utf8(line.into())?));
            }
            anyhow::ensure!(self.read.len() <= LINE_LIMIT, "the daemon sent a line that is too long");
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.context("the connection to the daemon broke")?;
            if let Some(bytes) = frame.data_ref() {
                self.read.extend_from_slice(bytes);
            }
        }
    }
}

fn uri(path: &str, query: &[(&str, String)]) -> String {
    let mut uri = path.to_owned();
    for (n, (name, value)) in query.iter().enumerate() {
        uri.push(if n == 0 { '?' } else { '&' });
        uri.push_str(name);
        uri.push('=');
        encode(value, &mut uri);
    }
    uri
}

/// Percent-encodes everything except unreserved characters.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~,/".contains(&byte) {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}
