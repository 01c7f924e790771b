//! HTTP GET requests to containers, for probes and hooks; certificates are not verified.

use std::net::IpAddr;
use std::sync::LazyLock;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::manifest::HttpGet;
use crate::net::tls::Tls;

static ANYBODY: LazyLock<Result<Tls, String>> = LazyLock::new(Tls::anybody);

/// Where to ask: a name, or the pod's address.
pub(crate) fn place(host: Option<&str>, ip: Option<IpAddr>) -> Result<String, String> {
    match (host, ip) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(ip)) => Ok(ip.to_string()),
        (None, None) => Err("the pod has no IP address".to_owned()),
    }
}

pub(crate) async fn connect(host: Option<&str>, port: u16, ip: Option<IpAddr>) -> Result<TcpStream, String> {
    let host = place(host, ip)?;
    let connected = TcpStream::connect((host.as_str(), port)).await;
    connected.map_err(|error| format!("cannot connect to port {port} of {host}: {error}"))
}

/// Sends a GET request and returns the status of the response. The caller sets the timeout.
pub(crate) async fn get(get: &HttpGet, ip: Option<IpAddr>) -> Result<http::StatusCode, String> {
    let stream = connect(get.host.as_deref(), get.port, ip).await?;
    if get.tls {
        let host = place(get.host.as_deref(), ip)?;
        let stream = ANYBODY.clone()?.connect(&host, stream).await?;
        return get_over(stream, get, ip).await;
    }
    get_over(stream, get, ip).await
}

async fn get_over<S>(stream: S, get: &HttpGet, ip: Option<IpAddr>) -> Result<http::StatusCode, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let connection = AbortOnDrop(tokio::spawn(async move { _ = connection.await }));
    let mut request = http::Request::get(&get.path);
    let is_set = |name: &http::HeaderName| {
        get.headers
            .iter()
            .any(|(key, _)| key.eq_ignore_ascii_case(name.as_str()))
    };
    let host = place(get.host.as_deref(), ip)?;
    let authority = if host.contains(':') {
        format!("[{host}]:{}", get.port)
    } else {
        format!("{host}:{}", get.port)
    };
    for (name, value) in [
        (http::header::HOST, authority),
        (
            http::header::USER_AGENT,
            concat!("pleg-probe/", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        (http::header::ACCEPT, "*/*".to_owned()),
        (http::header::CONNECTION, "close".to_owned()),
    ] {
        // A manifest may ask for other ones, a virtual host say.
        if !is_set(&name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    // The body is of no interest, and may be endless.
    let response = send.send_request(request).await.map_err(|error| error.to_string())?;
    drop(connection);
    Ok(response.status())
}

/// A task that ends with the question.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
