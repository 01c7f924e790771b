//! One probe of one container, within its timeout.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::duration::seconds;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tracing::warn;

use super::ProbedContainer;
use crate::error::with_causes;
use crate::executor::{ExecError, RuntimeExecutor};
use crate::manifest::{HttpGet, Probe, ProbeHandler};
use crate::net::NetError;
use crate::net::http_get::{authority, connect, host_or_pod_ip};
use crate::net::redirect::get_following;

/// Most probed paths for which a redirect to another host is logged.
const MAX_LOGGED: usize = 1024;

/// Why a probe failed, or was not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The container does not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// Its command failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// There is no connection, or no HTTP response.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The HTTP response is not from 200 to 399.
    #[error("HTTP probe failed with statuscode: {0}")]
    HttpStatus(u16),
    /// There is no connection to the gRPC server.
    #[error("cannot connect to {authority}")]
    GrpcConnect {
        /// Host and port.
        authority: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The gRPC server does not answer a health check.
    #[error("gRPC health check failed")]
    Grpc(#[source] Box<tonic::Status>),
    /// The gRPC server answers that it is not serving.
    #[error("the server reports that it is not serving (status {0})")]
    NotServing(i32),
}

impl ProbeError {
    /// The runtime could not run the command, or does not answer. That says nothing about the container.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Exec(ExecError::Call(_)))
    }

    /// What the probe said, as in the events of a kubelet: of a command that failed, only what it printed.
    pub(super) fn output(&self) -> String {
        match self {
            Self::Exec(ExecError::Exited { output, .. }) => output.clone(),
            Self::Exec(ExecError::TimedOut { command, within }) => {
                format!("command timed out: \"{command}\" timed out after {}", seconds(*within))
            }
            other => with_causes(other),
        }
    }
}

/// How a probe succeeded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeSuccess {
    /// Something that someone should look at.
    pub(super) warning: Option<String>,
}

/// Runs a probe. No answer of the container within its timeout is a failure.
pub(super) async fn run_probe(
    executor: &RuntimeExecutor,
    container: &ProbedContainer,
    probe: &Probe,
) -> Result<ProbeSuccess, ProbeError> {
    let ip = || executor.address(&container.pod, container.ip.as_slice());
    let running = async {
        match &probe.handler {
            ProbeHandler::Exec(command) => {
                let ProbedContainer { pod, name, id, .. } = container;
                executor.exec(pod, name, id, command, probe.timeout).await?;
                Ok(ProbeSuccess::default())
            }
            ProbeHandler::Http(get) => http(get, ip()).await,
            ProbeHandler::Tcp { host, port } => {
                connect(host.as_deref(), *port, ip()).await?;
                Ok(ProbeSuccess::default())
            }
            ProbeHandler::Grpc { port, service } => grpc(service, *port, ip()).await,
        }
    };
    if matches!(probe.handler, ProbeHandler::Exec(_)) {
        // The runtime ends the command at its timeout and says so. If it says nothing, nothing is known.
        return running.await;
    }
    match timeout(probe.timeout, running).await {
        Ok(answer) => answer,
        Err(_) => Err(ProbeError::Timeout(probe.timeout)),
    }
}

async fn http(get: &HttpGet, ip: Option<IpAddr>) -> Result<ProbeSuccess, ProbeError> {
    let answer = get_following(get, ip).await?;
    let status = answer.status.as_u16();
    if (200..400).contains(&status) {
        let elsewhere = answer
            .elsewhere
            .inspect(|elsewhere| warn_once(get, &elsewhere.location));
        let warning =
            elsewhere.map(|elsewhere| format!("Probe terminated redirects, Response body: {}", elsewhere.body));
        return Ok(ProbeSuccess { warning });
    }
    Err(ProbeError::HttpStatus(status))
}

/// Logs once per probed path that it redirects to another host. The probe succeeds.
fn warn_once(get: &HttpGet, elsewhere: &str) {
    static LOGGED: Mutex<BTreeSet<(u16, String)>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock();
    if logged.len() < MAX_LOGGED && logged.insert((get.port, get.path.clone())) {
        warn!(
            port = get.port,
            path = get.path,
            "probe terminated redirects: the container redirects to {elsewhere}"
        );
    }
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SERVING`.
const SERVING: i32 = 1;

async fn grpc(service: &str, port: u16, ip: Option<IpAddr>) -> Result<ProbeSuccess, ProbeError> {
    let authority = authority(&host_or_pod_ip(None, ip)?, port);
    let connect = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{authority}"))?;
        let mut client = Grpc::new(endpoint.connect().await?);
        client.ready().await?;
        Ok(client)
    };
    let mut client = connect.await.map_err(|source| ProbeError::GrpcConnect {
        authority: authority.clone(),
        source,
    })?;
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer = client.unary(request, path, codec).await;
    match answer
        .map_err(|status| ProbeError::Grpc(Box::new(status)))?
        .into_inner()
        .status
    {
        SERVING => Ok(ProbeSuccess::default()),
        status => Err(ProbeError::NotServing(status)),
    }
}

#[cfg(test)]
mod tests;
