//! Connections: TLS, limits and deadlines.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::ResolvesServerCert;
use rustls::version::{TLS12, TLS13};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::authentication::PeerCertificates;
use super::client_ca::RequestCertificate;

/// Most connections. Logs and sessions have a smaller limit, so they cannot use up all of them.
const CONNECTIONS: usize = 384;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the head of a request may take, and a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Largest head of a request: a command of `exec` is part of it.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 96;
/// After this long without a sign of life, the kernel asks whether the other side still exists.
const KEEPALIVE: Duration = Duration::from_mins(1);
/// Delay after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for open requests to finish at shutdown.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// A process that was just killed may hold its port for a moment.
const TAKEOVER: Duration = Duration::from_secs(2);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(50);

/// Listens on an address.
pub(super) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let until = Instant::now() + TAKEOVER;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                sleep(TAKEOVER_PAUSE).await;
            }
            bound => return bound,
        }
    }
}

/// How connections are encrypted: with this certificate, at least TLS 1.2.
pub(super) fn acceptor(certificate: Arc<dyn ResolvesServerCert>) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13, &TLS12])?;
    let config = config.with_client_cert_verifier(Arc::new(RequestCertificate(provider)));
    let mut config = config.with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves connections until shutdown, then drains them.
pub(super) async fn serve(
    listener: &TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    shutdown: &CancellationToken,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let tasks = TaskTracker::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely out of file descriptors: other connections have to close first.
                tracing::warn!("cannot accept a connection to the node's server: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Beyond the limit, a connection is closed: nothing is known of its client yet.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let (tls, router, shutdown) = (tls.clone(), router.clone(), shutdown.clone());
        tasks.spawn(async move {
            connection(stream, tls, router, &shutdown).await;
            drop(permit);
        });
    }
    tasks.close();
    // Connections that do not end in time are dropped with the runtime.
    let _ = timeout(DRAIN, tasks.wait()).await;
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, shutdown: &CancellationToken) {
    keep_alive(&stream);
    let Some(tls) = tls else {
        return http(stream, PeerCertificates::default(), router, shutdown).await;
    };
    let handshake = timeout(HANDSHAKE, tls.accept(stream));
    let Some(Ok(Ok(stream))) = shutdown.run_until_cancelled(handshake).await else {
        return;
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = PeerCertificates(
        certificates
            .iter()
            .cloned()
            .map(rustls::pki_types::CertificateDer::into_owned)
            .collect(),
    );
    http(stream, peer, router, shutdown).await;
}

async fn http<S>(stream: S, peer: PeerCertificates, router: Router, shutdown: &CancellationToken)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        biased;
        _ = &mut connection => {}
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Followed logs may be silent for days: only the kernel can tell that their reader has gone.
fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, KEEPALIVE))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 4));
    let _ = stream.set_nodelay(true);
}
