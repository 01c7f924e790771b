//! The node's own HTTPS server, as a kubelet has it on port 10250: what `kubectl logs`, `exec`, `attach`, `port-forward` and metrics-server
//! reach. It reads the reports of pods and the generator's cache, and changes nothing.
//!
//! A request passes: the connection (`listener`: TLS, limits), who sends it (`authentication`, `client_ca`), whether that user may
//! (`authorization`: the API server decides), and then a handler. Nothing is anonymous but `/healthz` on a loopback address of its own.

mod answer;
mod authentication;
mod authorization;
mod client_ca;
mod listener;
mod logs;
mod pods;
mod probe_metrics;
mod query;
mod serving_certificate;
mod sessions;
mod stats;
mod streaming;
mod ttl_cache;

pub use client_ca::{ClientCa, ClientCaError};
pub use serving_certificate::{ServingCertificate, ServingCertificateError};

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use http::request::Parts;
use pleg::Pleg;
use pleg_cri::Client;
use pleg_node::executor::requests::NodeConfig;
use pleg_node::{PodReports, Report};
use rustls::server::ResolvesServerCert;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::answer::refuse;
use self::authentication::{AuthenticationError, Authenticator, PeerCertificates};
use self::authorization::{Access, AuthorizationError, Authorizer};
use self::sessions::Sessions;
use self::stats::StatsCollector;
use self::streaming::{attach, attach_uid, exec, exec_uid, port_forward, port_forward_uid};
use crate::api::Api;
use crate::retry::TroubleLog;

/// The port of a kubelet's server.
pub const PORT: u16 = 10250;
/// The port of a kubelet's `/healthz` without authentication.
pub const HEALTHZ_PORT: u16 = 10248;
/// How often a port that another program has is tried again.
const PORT_RETRY: Duration = Duration::from_secs(5);
/// How long the API server may take to say who a user is and what the user may do.
const REVIEW_DEADLINE: Duration = Duration::from_secs(20);

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, or not of this machine.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// TLS cannot be used at all.
    #[error("cannot use TLS for the node's server: {0}")]
    Tls(#[from] rustls::Error),
}

/// What the server shows, and whom it asks.
#[derive(Debug, Clone)]
pub struct ServedNode {
    /// The name of the node.
    pub name: String,
    /// The API server, which knows users and their rights.
    pub api: Api,
    /// Who vouches for client certificates.
    pub client_ca: ClientCa,
    /// The pods.
    pub reports: PodReports,
    /// The generator, for its cache.
    pub pleg: Pleg,
    /// The runtime.
    pub runtime: Client,
    /// Where pods and their cgroups are.
    pub config: NodeConfig,
    /// Answers to all other paths: `/metrics`, `/healthz`, `/api/v1/…`.
    pub introspection: Router,
}

/// State that the handlers share.
#[derive(Debug)]
struct NodeState {
    name: String,
    config: Arc<NodeConfig>,
    reports: PodReports,
    pleg: Pleg,
    runtime: Client,
    sessions: Sessions,
}

impl NodeState {
    /// A pod by name; while it is replaced by another of the same name, the desired one.
    fn pod(&self, namespace: &str, name: &str) -> Option<Report> {
        self.reports.find(namespace, name)
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let bound = async {
            let listener = listener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|source| ServerError::Bind { address, source })
    }

    /// Listens on an address as soon as that is free. Pods must not wait for a port that another program has, and that program may end:
    /// the log says once what is missing until then, and it is tried again. None at shutdown.
    pub async fn bind_when_free(address: SocketAddr, missing: &str, shutdown: &CancellationToken) -> Option<Self> {
        let mut log = TroubleLog::default();
        loop {
            match shutdown.run_until_cancelled(Self::bind(address)).await? {
                Ok(server) => {
                    log.fine(format_args!("{address} is free now"));
                    return Some(server);
                }
                Err(error) => log.say(format!(
                    "{error}. Until it is free, {missing}; `ss -ltnp 'sport = :{}'` shows who has it. Pods run, and it is tried again",
                    address.port()
                )),
            }
            shutdown.run_until_cancelled(sleep(PORT_RETRY)).await?;
        }
    }

    /// The address, with the port that the kernel chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the node until shutdown, then drains.
    pub async fn run(
        self,
        node: ServedNode,
        certificate: Arc<dyn ResolvesServerCert>,
        shutdown: &CancellationToken,
    ) -> Result<(), ServerError> {
        let tls = listener::acceptor(certificate)?;
        let client_ca = node.client_ca.clone();
        let sessions = TaskTracker::new();
        let router = router(node, sessions.clone(), shutdown.clone());
        let serving = listener::serve(&self.listener, Some(tls), router, shutdown);
        tokio::join!(serving, client_ca.watch(shutdown));
        sessions.close();
        // They have been told to end.
        let _ = timeout(listener::DRAIN, sessions.wait()).await;
        Ok(())
    }

    /// Serves `/healthz` alone, without TLS or authentication, until shutdown.
    pub async fn run_healthz(self, shutdown: &CancellationToken) {
        let router = Router::new().route("/healthz", get(async || "ok"));
        listener::serve(&self.listener, None, router, shutdown).await;
    }
}

/// Everything that is served, behind authentication and authorisation.
fn router(node: ServedNode, session_tasks: TaskTracker, shutdown: CancellationToken) -> Router {
    let guard = Arc::new(Guard {
        authenticator: Authenticator::new(node.client_ca, node.api.clone()),
        authorizer: Authorizer::new(node.api, node.name.clone()),
    });
    let state = Arc::new(NodeState {
        name: node.name,
        config: Arc::new(node.config),
        reports: node.reports,
        pleg: node.pleg,
        runtime: node.runtime,
        sessions: Sessions::new(session_tasks, shutdown),
    });
    let stats = Router::new()
        .route("/stats/summary", get(stats::summary))
        .route("/metrics/resource", get(stats::resource_metrics))
        .with_state(Arc::new(StatsCollector::new(Arc::clone(&state))));
    Router::new()
        .route(
            "/containerLogs/{namespace}/{pod}/{container}",
            get(logs::container_logs),
        )
        .route("/exec/{namespace}/{pod}/{container}", get(exec).post(exec))
        .route(
            "/exec/{namespace}/{pod}/{uid}/{container}",
            get(exec_uid).post(exec_uid),
        )
        .route("/attach/{namespace}/{pod}/{container}", get(attach).post(attach))
        .route(
            "/attach/{namespace}/{pod}/{uid}/{container}",
            get(attach_uid).post(attach_uid),
        )
        .route("/portForward/{namespace}/{pod}", get(port_forward).post(port_forward))
        .route(
            "/portForward/{namespace}/{pod}/{uid}",
            get(port_forward_uid).post(port_forward_uid),
        )
        .route("/pods", get(pods::desired))
        .route("/pods/", get(pods::desired))
        .route("/runningpods", get(pods::running))
        .route("/runningpods/", get(pods::running))
        .route("/metrics/probes", get(probe_metrics::probe_metrics))
        .with_state(state)
        .merge(stats)
        .fallback_service(node.introspection)
        .layer(middleware::from_fn_with_state(guard, guarded))
}

#[derive(Debug)]
struct Guard {
    authenticator: Authenticator,
    authorizer: Authorizer,
}

async fn guarded(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let checked = timeout(REVIEW_DEADLINE, guard.check(&parts)).await;
    let request = Request::from_parts(parts, body);
    match checked {
        Ok(Ok(())) => next.run(request).await,
        Ok(Err((status, message))) => refuse(status, &message),
        Err(_) => refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            &"too many requests wait for the API server to authorize them",
        ),
    }
}

impl Guard {
    async fn check(&self, request: &Parts) -> Result<(), (StatusCode, String)> {
        let peer = request
            .extensions
            .get::<PeerCertificates>()
            .cloned()
            .unwrap_or_default();
        let identity = self.authenticator.authenticate(&peer, &request.headers).await;
        let identity = identity.map_err(|error| {
            let status = match error {
                AuthenticationError::Unauthorized(_) => StatusCode::UNAUTHORIZED,
                AuthenticationError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, error.to_string())
        })?;
        let access = Access::of(&request.method, request.uri.path());
        self.authorizer.authorize(&identity, access).await.map_err(|error| {
            let status = match error {
                AuthorizationError::Forbidden { .. } => StatusCode::FORBIDDEN,
                AuthorizationError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_that_another_program_has_is_taken_once_it_is_free() {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let binding = Server::bind_when_free(address, "nothing works", &shutdown);
        let mut binding = std::pin::pin!(binding);
        assert!(timeout(Duration::from_mins(1), &mut binding).await.is_err());
        drop(other);
        let bound = timeout(Duration::from_mins(1), &mut binding).await.unwrap();
        assert_eq!(bound.unwrap().address(), address);

        // Nobody waits for it at shutdown.
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap();
        shutdown.cancel();
        assert!(
            Server::bind_when_free(address, "nothing works", &shutdown)
                .await
                .is_none()
        );
    }
}
