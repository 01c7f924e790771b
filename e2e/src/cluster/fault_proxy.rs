//! A proxy between one node and the API server, which injects faults and counts requests.
//!
//! It ends the node's TLS with a certificate of the cluster's CA, and calls the API server with the node's own credentials. The API
//! server's connections to the node (logs, exec) do not pass here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use http::header::{CONNECTION, DATE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::pki::{Credentials, Pair, Subject, kubeconfig};
use super::{ControlPlane, client};

/// What is wrong with the API server, as its node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections break, and new ones are closed at once.
    pub down: bool,
    /// Every answer comes so much later.
    pub delay: Duration,
    /// Every request is answered with this status, and does not reach the API server.
    pub status: Option<u16>,
    /// Every watch is cut after so long.
    pub cut_watches: Option<Duration>,
    /// The API server does what it is asked for, and its answer is lost: the connection ends instead.
    pub lose_answers: bool,
    /// The clock of the API server is ahead by this much, by the `Date` of its answers.
    pub clock_ahead: Duration,
    /// Of 100 requests, so many are spared by `status` and `lose_answers`.
    pub spared: u8,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A proxy. It ends when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    url: String,
    faults: watch::Sender<Faults>,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    _task: AbortOnDropHandle<()>,
}

impl FaultProxy {
    /// Starts one that calls the API server as this node.
    pub async fn start(cluster: &ControlPlane, node: &str) -> Result<Self> {
        Self::start_as(cluster, node, &Self::subject()).await
    }

    /// Whom its certificate is for.
    pub fn subject() -> Subject {
        Subject::server("kube-apiserver", &[IpAddr::V4(Ipv4Addr::LOCALHOST)], &["localhost"])
    }

    /// The same, with another certificate.
    pub async fn start_as(cluster: &ControlPlane, node: &str, serving: &Subject) -> Result<Self> {
        let file = |what: &str| format!("proxy-{what}-{node}");
        let acceptor = acceptor(&cluster.ca().issue(&file("serving"), serving)?)?;
        let pair = cluster.ca().issue(&file("client"), &Subject::node(node))?;
        let config = cluster.dir().join(file("kubeconfig"));
        upstream(&config, cluster, &pair)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind the fault proxy")?;
        let url = format!("https://{}", listener.local_addr()?);
        let (faults, seen) = watch::channel(Faults::default());
        let counts = Arc::default();
        let proxy = Proxy {
            client: client(&config).await?,
            faults: seen,
            counts: Arc::clone(&counts),
        };
        let task = tokio::spawn(accept(listener, acceptor, proxy));
        Ok(Self {
            url,
            faults,
            counts,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// What the node takes for the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on this is wrong; the default heals everything.
    pub fn set(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// The requests since the last call, by method, resource and whether it was a watch.
    pub fn take_counts(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.counts.lock())
    }
}

fn upstream(path: &Path, cluster: &ControlPlane, pair: &Pair) -> Result<()> {
    kubeconfig(
        path,
        cluster.server(),
        cluster.ca().certificate(),
        Credentials::Certificate(pair),
    )
}

fn acceptor(pair: &Pair) -> Result<TlsAcceptor> {
    let certificates = CertificateDer::pem_file_iter(&pair.certificate)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(&pair.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, proxy: Proxy) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let mut faults = proxy.faults.clone();
        if faults.borrow().down {
            continue;
        }
        let (acceptor, proxy) = (acceptor.clone(), proxy.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(|request| proxy.answer(request));
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = serving => {}
                _ = faults.wait_for(|faults| faults.down) => {}
            }
        });
    }
}

#[derive(Clone)]
struct Proxy {
    client: kube::Client,
    faults: watch::Receiver<Faults>,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let query = request.uri().query().unwrap_or_default();
        let watches = query
            .split('&')
            .any(|part| part == "watch=true" || part == "watch=1" || part == "watch");
        let kind = kind(request.method(), request.uri().path(), watches);
        *self.counts.lock().entry(kind).or_default() += 1;
        let faults = self.faults.borrow().clone();
        sleep(faults.delay).await;
        let spared = fastrand::u8(..100) < faults.spared;
        if let Some(status) = faults.status.filter(|_| !spared) {
            return Ok(refusal(status));
        }
        let answer = match self.forward(request).await {
            Ok(answer) => answer,
            Err(error) => {
                let mut answer = Response::new(text(format!("the fault proxy got no answer: {error}")));
                *answer.status_mut() = StatusCode::BAD_GATEWAY;
                answer
            }
        };
        if faults.lose_answers && !spared {
            return Err(io::Error::other("injected: the answer is lost"));
        }
        let answer = with_clock(answer, faults.clock_ahead);
        match faults.cut_watches.filter(|_| watches) {
            Some(after) => {
                let (head, body) = answer.into_parts();
                let frames = BodyStream::new(body).take_until(Box::pin(sleep(after)));
                Ok(Response::from_parts(head, StreamBody::new(frames).boxed_unsync()))
            }
            None => Ok(answer),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>> {
        let (mut head, body) = request.into_parts();
        for name in [HOST, CONNECTION, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        let body = body.collect().await?.to_bytes();
        let answer = self
            .client
            .send(Request::from_parts(head, kube::client::Body::from(body)))
            .await?;
        let (mut head, body) = answer.into_parts();
        head.version = http::Version::HTTP_11;
        for name in [CONNECTION, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        Ok(Response::from_parts(
            head,
            body.map_err(io::Error::other).boxed_unsync(),
        ))
    }
}

/// The answer of an API server whose clock is ahead.
fn with_clock(mut answer: Response<Body>, ahead: Duration) -> Response<Body> {
    let date = (jiff::Timestamp::now() + ahead).strftime("%a, %d %b %Y %H:%M:%S GMT");
    if let (false, Ok(date)) = (ahead.is_zero(), date.to_string().parse()) {
        answer.headers_mut().insert(DATE, date);
    }
    answer
}

/// `GET pods`, `WATCH pods`, `PATCH pods/status`: what is asked for, without whose it is.
fn kind(method: &Method, path: &str, watches: bool) -> String {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // `api/v1/…` or `apis/GROUP/VERSION/…`
    let skipped = if parts.next() == Some("apis") { 2 } else { 1 };
    let rest: Vec<&str> = parts.skip(skipped).collect();
    let rest = match rest.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let resource = match rest {
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
        [resource, ..] => (*resource).to_owned(),
        [] => path.to_owned(),
    };
    let verb = if watches { "WATCH" } else { method.as_str() };
    format!("{verb} {resource}")
}

/// As an API server refuses.
fn refusal(status: u16) -> Response<Body> {
    let reason = if status == 429 {
        "TooManyRequests"
    } else {
        "InternalError"
    };
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status, "reason": reason,
        "message": format!("injected: {reason}"), "details": { "retryAfterSeconds": 1 },
    });
    let mut answer = Response::new(text(body.to_string()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    headers.insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
    answer
}

fn text(text: String) -> Body {
    Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_by_what_they_ask_for() {
        for (path, watches, kind_of) in [
            ("/api/v1/pods", true, "WATCH pods"),
            ("/api/v1/namespaces/a/pods/p/status", false, "GET pods/status"),
            ("/api/v1/nodes/n", false, "GET nodes"),
            (
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
                false,
                "GET leases",
            ),
            ("/api/v1/namespaces/a", false, "GET namespaces"),
        ] {
            assert_eq!(kind(&Method::GET, path, watches), kind_of);
        }
    }
}
