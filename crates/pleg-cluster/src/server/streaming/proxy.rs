//! Joins a client to the runtime's streaming server: the request is sent there as it is, and after both have switched protocols, bytes are
//! copied both ways. Setting up has a deadline; a session has none, but ends at shutdown.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body_util::{BodyExt as _, Collected, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::server::NodeState;
use crate::server::answer::refuse;

/// How long it may take until both sides have switched protocols.
const SET_UP: Duration = Duration::from_secs(30);
/// Largest refusal of the runtime that is passed on.
const MAX_REFUSAL: usize = 64 << 10;
/// Bytes on their way in one direction.
const BUFFER: usize = 32 << 10;

/// Why a session cannot begin.
#[derive(Debug, thiserror::Error)]
enum ProxyError {
    #[error("the runtime's streaming server has an address that cannot be used ({0}): expected http://HOST:PORT/PATH")]
    Address(String),
    #[error("cannot connect to the runtime's streaming server at {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("the runtime's streaming server at {address} does not answer as HTTP servers do: {source}")]
    Http { address: String, source: hyper::Error },
}

/// Sends the request to `url`, and joins the two connections.
pub(super) async fn join(state: &Arc<NodeState>, url: &str, mut request: Request) -> Response {
    if !is_upgrade(request.headers()) {
        return refuse(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let Ok(session) = Arc::clone(&state.sessions).try_acquire_owned() else {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many logs and sessions are open on this node",
        );
    };
    let client = hyper::upgrade::on(&mut request);
    let answer = match timeout(SET_UP, send(state, url, &request.into_parts().0)).await {
        Err(_) => {
            return refuse(
                StatusCode::GATEWAY_TIMEOUT,
                "the runtime's streaming server did not answer within 30s",
            );
        }
        Ok(Err(error)) => return refuse(StatusCode::BAD_GATEWAY, &error),
        Ok(Ok(answer)) => answer,
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return pass_on(answer).await;
    }
    let mut switched = Response::new(Body::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    switched.headers_mut().clone_from(answer.headers());
    let shutdown = state.shutdown.clone();
    state.session_tasks.spawn(async move {
        let both = timeout(SET_UP, async { tokio::try_join!(client, hyper::upgrade::on(answer)) });
        if let Some(Ok(Ok((client, runtime)))) = shutdown.run_until_cancelled(both).await {
            let (mut client, mut runtime) = (TokioIo::new(client), TokioIo::new(runtime));
            let copied = copy_bidirectional_with_sizes(&mut client, &mut runtime, BUFFER, BUFFER);
            // An error is the end of one of them: there is nobody left who could be told.
            let _ = shutdown.run_until_cancelled(copied).await;
        }
        drop(session);
    });
    switched
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let mut values = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let has_token = values.any(|value| {
        value
            .split(',')
            .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
    });
    has_token && headers.contains_key(UPGRADE)
}

/// Sends the request over a new connection, and waits for the head of the answer.
async fn send(state: &NodeState, url: &str, request: &Parts) -> Result<http::Response<Incoming>, ProxyError> {
    let unusable = || ProxyError::Address(url.chars().take(200).collect());
    let target: Uri = url.parse().map_err(|_| unusable())?;
    let authority = target
        .authority()
        .filter(|_| target.scheme() == Some(&Scheme::HTTP))
        .ok_or_else(unusable)?;
    let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(&address)
        .await
        .map_err(|source| ProxyError::Connect {
            address: address.clone(),
            source,
        })?;
    let _ = stream.set_nodelay(true);
    let failed = |source| ProxyError::Http {
        address: address.clone(),
        source,
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // It ends with the session: with its upgrade, or with the answer.
    state
        .session_tasks
        .spawn(async move { _ = connection.with_upgrades().await });
    let mut forwarded = http::Request::new(Empty::<Bytes>::new());
    *forwarded.method_mut() = request.method.clone();
    *forwarded.uri_mut() = target
        .path_and_query()
        .map_or_else(Uri::default, |path| Uri::from(path.clone()));
    *forwarded.headers_mut() = forwarded_headers(&request.headers);
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        forwarded.headers_mut().insert(HOST, host);
    }
    sender.send_request(forwarded).await.map_err(failed)
}

/// All headers but credentials, which are not the runtime's business, and those of a body.
fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = headers.clone();
    for name in [AUTHORIZATION, COOKIE, CONTENT_LENGTH, TRANSFER_ENCODING] {
        forwarded.remove(name);
    }
    forwarded
}

/// The runtime's refusal, as far as it fits.
async fn pass_on(answer: http::Response<Incoming>) -> Response {
    let (parts, body) = answer.into_parts();
    let body = timeout(SET_UP, Limited::new(body, MAX_REFUSAL).collect()).await;
    let body = body
        .ok()
        .and_then(Result::ok)
        .map(Collected::to_bytes)
        .unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(http::header::CONTENT_TYPE) {
        response.headers_mut().insert(http::header::CONTENT_TYPE, kind.clone());
    }
    response
}
