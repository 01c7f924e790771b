//! One answer of a URL. Callers set the timeout.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::manifest::MAX_BYTES;
use crate::net::http_get::connect;
use crate::net::tls::Tls;
use crate::net::{NetError, exchange};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// There is no connection, or no HTTP response.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The server refuses to answer.
    #[error("the server returned {0}")]
    Status(http::StatusCode),
    /// The body is too large, or ends early.
    #[error("{0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not complete in time.
    #[error("no complete answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

pub(super) async fn fetch(uri: &http::Uri, tls: Option<&Tls>) -> Result<Bytes, FetchError> {
    // A resolver takes an IPv6 address without brackets.
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let default_port = if tls.is_some() { 443 } else { 80 };
    let stream = connect(Some(host), uri.port_u16().unwrap_or(default_port), None).await?;
    match tls {
        Some(tls) => fetch_over(tls.connect(host, stream).await?, uri).await,
        None => fetch_over(stream, uri).await,
    }
}

async fn fetch_over<S>(stream: S, uri: &http::Uri) -> Result<Bytes, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let request = http::Request::get(target)
        .header(http::header::HOST, authority)
        .header(
            http::header::USER_AGENT,
            concat!("pleg-node/", env!("CARGO_PKG_VERSION")),
        )
        .body(Empty::<Bytes>::new())
        .map_err(NetError::from)?;
    let answer = exchange(stream, request).await.map_err(NetError::from)?;
    if answer.response.status() != http::StatusCode::OK {
        return Err(FetchError::Status(answer.response.status()));
    }
    let body = Limited::new(answer.response.into_body(), MAX_BYTES).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(FetchError::Body)
}
