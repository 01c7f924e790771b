//! One probe, within its timeout.

use std::net::IpAddr;

use tokio::time::timeout;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::Subject;
use crate::executor::RuntimeExecutor;
use crate::manifest::{HttpGet, Probe, ProbeHandler};
use crate::net::http_get::{self, connect, place};

/// Asks. An answer that comes too late is a bad one.
pub(super) async fn ask(hands: &RuntimeExecutor, subject: &Subject, probe: &Probe) -> Result<(), String> {
    let ip = || hands.address(&subject.pod, subject.ip.as_slice());
    let asking = async {
        match &probe.handler {
            ProbeHandler::Exec(command) => {
                hands
                    .exec(&subject.pod, &subject.name, &subject.id, command, probe.timeout)
                    .await
            }
            ProbeHandler::Http(get) => http(get, ip()).await,
            ProbeHandler::Tcp { host, port } => connect(host.as_deref(), *port, ip()).await.map(drop),
            ProbeHandler::Grpc { port, service } => grpc(service, *port, ip()).await,
        }
    };
    match timeout(probe.timeout, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", probe.timeout.as_secs())),
    }
}

async fn http(get: &HttpGet, ip: Option<IpAddr>) -> Result<(), String> {
    let status = http_get::get(get, ip).await?.as_u16();
    if (200..400).contains(&status) {
        return Ok(());
    }
    Err(format!("HTTP probe failed with statuscode: {status}"))
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

async fn grpc(service: &str, port: u16, ip: Option<IpAddr>) -> Result<(), String> {
    let host = place(None, ip)?;
    let authority = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{authority}"));
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| format!("cannot connect to {authority}: {error}"))?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| error.to_string())?;
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer = client
        .unary(request, path, codec)
        .await
        .map_err(|status| status.to_string())?;
    let status = answer.into_inner().status;
    if status == SERVING {
        return Ok(());
    }
    Err(format!("the server reports that it is not serving (status {status})"))
}

#[cfg(test)]
mod tests;
