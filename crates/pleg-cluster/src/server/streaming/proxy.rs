//! Joins a client to the runtime's streaming server: the request is sent there as it is, and after both have switched protocols, bytes are
//! copied both ways. Setting up has a deadline; a session has none, but ends at shutdown.

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

use crate::server::answer::refuse;
use crate::server::sessions::{FULL, Sessions};

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
pub(super) async fn join(sessions: &Sessions, url: &str, mut request: Request) -> Response {
    if !is_upgrade(request.headers()) {
        return refuse(StatusCode::BAD_REQUEST, "Upgrade request required");
    }
    let Some(session) = sessions.begin() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, FULL);
    };
    let client = hyper::upgrade::on(&mut request);
    let answer = match timeout(SET_UP, send(sessions, url, &request.into_parts().0)).await {
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
    let shutdown = sessions.shutdown.clone();
    sessions.tasks.spawn(async move {
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
async fn send(sessions: &Sessions, url: &str, request: &Parts) -> Result<http::Response<Incoming>, ProxyError> {
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
    sessions
        .tasks
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::extract::State;
    use axum::routing::any;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::server::listener;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// A server that joins every request to `url`, and a connection to it.
    async fn client(url: String, shutdown: &CancellationToken) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sessions = Arc::new(Sessions::new(TaskTracker::new(), shutdown.clone()));
        let handler =
            async move |State(sessions): State<Arc<Sessions>>, request: Request| join(&sessions, &url, request).await;
        let router = Router::new().fallback(any(handler)).with_state(sessions);
        let ended = shutdown.clone();
        tokio::spawn(async move { listener::serve(&listener, None, router, &ended).await });
        TcpStream::connect(address).await.unwrap()
    }

    async fn read_until(stream: &mut TcpStream, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let byte = timeout(PATIENCE, stream.read_u8()).await.expect("nothing comes");
            text.push(byte.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text))));
        }
        String::from_utf8(text).unwrap()
    }

    const REQUEST: &str = "POST /exec/ns/pod/c?command=sh HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
        Authorization: Bearer secret\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n";

    #[tokio::test]
    async fn bytes_are_copied_both_ways_until_shutdown() {
        let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = CancellationToken::new();
        let url = format!("http://{}/exec/token?a=b", runtime.local_addr().unwrap());
        let mut client = client(url, &shutdown).await;
        client.write_all(REQUEST.as_bytes()).await.unwrap();
        let (mut runtime, _) = runtime.accept().await.unwrap();
        let head = read_until(&mut runtime, "\r\n\r\n").await.to_lowercase();
        assert!(head.starts_with("post /exec/token?a=b http/1.1\r\n"), "{head}");
        assert!(
            head.contains("upgrade: spdy/3.1\r\n") && head.contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"),
            "{head}"
        );
        assert!(!head.contains("secret"), "{head}");
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Chosen: v4\r\n\r\nhello";
        runtime.write_all(switch.as_bytes()).await.unwrap();
        let answer = read_until(&mut client, "hello").await.to_lowercase();
        assert!(
            answer.starts_with("http/1.1 101 ") && answer.contains("x-chosen: v4\r\n"),
            "{answer}"
        );
        client.write_all(b"ping").await.unwrap();
        assert_eq!(read_until(&mut runtime, "ping").await, "ping");
        // One side may end before the other.
        client.shutdown().await.unwrap();
        assert_eq!(timeout(PATIENCE, runtime.read(&mut [0])).await.unwrap().unwrap(), 0);
        runtime.write_all(b"last words").await.unwrap();
        assert_eq!(read_until(&mut client, "last words").await, "last words");
        shutdown.cancel();
        assert_eq!(
            timeout(PATIENCE, client.read(&mut [0]))
                .await
                .expect("the session goes on")
                .unwrap_or(0),
            0
        );
    }

    #[tokio::test]
    async fn a_refusal_is_passed_on() {
        let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shutdown = CancellationToken::new();
        let mut client = client(format!("http://{}/", runtime.local_addr().unwrap()), &shutdown).await;
        client.write_all(REQUEST.as_bytes()).await.unwrap();
        let (mut runtime, _) = runtime.accept().await.unwrap();
        read_until(&mut runtime, "\r\n\r\n").await;
        let refusal = "HTTP/1.1 404 Not Found\r\nContent-Length: 15\r\n\r\nno such session";
        runtime.write_all(refusal.as_bytes()).await.unwrap();
        let answer = read_until(&mut client, "no such session").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        shutdown.cancel();
    }

    #[tokio::test]
    async fn what_cannot_be_joined_is_explained() {
        let shutdown = CancellationToken::new();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = taken.local_addr().unwrap();
        drop(taken);
        let plain = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
        for (url, request, status, expected) in [
            (
                "http://127.0.0.1:1/".to_owned(),
                plain,
                "400",
                "Upgrade request required\n",
            ),
            (format!("http://{free}/"), REQUEST, "502", "refused (os error 111)\n"),
            (
                format!("https://{free}/"),
                REQUEST,
                "502",
                "expected http://HOST:PORT/PATH\n",
            ),
            (
                "nonsense".to_owned(),
                REQUEST,
                "502",
                "expected http://HOST:PORT/PATH\n",
            ),
        ] {
            let mut client = client(url.clone(), &shutdown).await;
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = read_until(&mut client, expected).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{url}: {answer}");
        }
        shutdown.cancel();
    }
}
