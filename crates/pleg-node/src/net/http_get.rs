//! HTTP GET requests to containers, for probes and hooks; certificates are not verified.

use std::net::IpAddr;
use std::sync::LazyLock;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::NetError;
use super::exchange::{Exchange, exchange};
use super::tls::{Tls, TlsSetupError};
use crate::manifest::HttpGet;

static UNVERIFIED: LazyLock<Result<Tls, TlsSetupError>> = LazyLock::new(Tls::unverified);

/// The host to connect to: a name from the manifest, or the pod's address.
pub(crate) fn host_or_pod_ip(host: Option<&str>, ip: Option<IpAddr>) -> Result<String, NetError> {
    match (host, ip) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(ip)) => Ok(ip.to_string()),
        (None, None) => Err(NetError::NoAddress),
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

pub(crate) async fn connect(host: Option<&str>, port: u16, ip: Option<IpAddr>) -> Result<TcpStream, NetError> {
    let host = host_or_pod_ip(host, ip)?;
    let connected = TcpStream::connect((host.as_str(), port)).await;
    connected.map_err(|source| NetError::Connect { host, port, source })
}

/// Status and headers of a response.
pub(crate) type Head = (http::StatusCode, http::HeaderMap);

/// Sends a GET request and returns the head of the response. Callers set the timeout.
pub(crate) async fn get(get: &HttpGet, ip: Option<IpAddr>) -> Result<Head, NetError> {
    // The body does not matter, and may be endless.
    let (head, _) = start_get(get, ip).await?.response.into_parts();
    Ok((head.status, head.headers))
}

/// Sends a GET request; the body of the response is not read yet. Callers set the timeout.
pub(crate) async fn start_get(get: &HttpGet, ip: Option<IpAddr>) -> Result<Exchange, NetError> {
    let host = host_or_pod_ip(get.host.as_deref(), ip)?;
    let stream = connect(get.host.as_deref(), get.port, ip).await?;
    if get.tls {
        let stream = UNVERIFIED.clone()?.connect(&host, stream).await?;
        return get_over(stream, get, &host).await;
    }
    get_over(stream, get, &host).await
}

async fn get_over<S>(stream: S, get: &HttpGet, host: &str) -> Result<Exchange, NetError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Ok(exchange(stream, request(get, host)?).await?)
}

/// The beginning of a response's body, as text. Callers set the timeout.
pub(crate) async fn read_at_most(exchange: Exchange, limit: usize) -> String {
    let (mut body, mut text) = (exchange.response.into_body(), Vec::new());
    while let Some(Ok(frame)) = body.frame().await
        && text.len() < limit
    {
        text.extend(frame.into_data().unwrap_or_default());
    }
    text.truncate(limit);
    String::from_utf8_lossy(&text).into_owned()
}

fn request(get: &HttpGet, host: &str) -> Result<http::Request<Empty<Bytes>>, http::Error> {
    let mut request = http::Request::get(&get.path);
    let is_set = |name: &http::HeaderName| {
        let mut headers = get.headers.iter();
        headers.any(|(key, _)| key.eq_ignore_ascii_case(name.as_str()))
    };
    for (name, value) in [
        (http::header::HOST, authority(host, get.port)),
        (
            http::header::USER_AGENT,
            concat!("pleg-probe/", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        (http::header::ACCEPT, "*/*".to_owned()),
        (http::header::CONNECTION, "close".to_owned()),
    ] {
        // A manifest may set others, such as the name of a virtual host.
        if !is_set(&name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    request.body(Empty::new())
}
