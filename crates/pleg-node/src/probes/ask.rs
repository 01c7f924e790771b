//! One question, within its time.

use std::net::IpAddr;
use std::sync::LazyLock;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::Subject;
use crate::hands::Hands;
use crate::manifest::{HttpGet, Probe, ProbeHandler};
use crate::tls::Tls;

/// A probe asks whether somebody answers, not who.
static ANYBODY: LazyLock<Result<Tls, String>> = LazyLock::new(Tls::anybody);

/// Asks. An answer that comes too late is a bad one.
pub(super) async fn ask(hands: &Hands, subject: &Subject, probe: &Probe) -> Result<(), String> {
    let asking = async {
        match &probe.handler {
            ProbeHandler::Exec(command) => {
                hands
                    .exec(&subject.pod, &subject.name, &subject.id, command, probe.timeout)
                    .await
            }
            ProbeHandler::Http(get) => http(get, subject.ip).await,
            ProbeHandler::Tcp { host, port } => connect(host.as_deref(), *port, subject.ip).await.map(drop),
            ProbeHandler::Grpc { port, service } => grpc(service, *port, subject.ip).await,
        }
    };
    match timeout(probe.timeout, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", probe.timeout.as_secs())),
    }
}

/// Where to ask: a name, or the pod's address.
fn place(host: Option<&str>, ip: Option<IpAddr>) -> Result<String, String> {
    match (host, ip) {
        (Some(host), _) => Ok(host.to_owned()),
        (None, Some(ip)) => Ok(ip.to_string()),
        (None, None) => Err("the pod has no address".to_owned()),
    }
}

async fn connect(host: Option<&str>, port: u16, ip: Option<IpAddr>) -> Result<TcpStream, String> {
    let host = place(host, ip)?;
    let connected = TcpStream::connect((host.as_str(), port)).await;
    connected.map_err(|error| format!("cannot connect to port {port} of {host}: {error}"))
}

async fn http(get: &HttpGet, ip: Option<IpAddr>) -> Result<(), String> {
    let stream = connect(get.host.as_deref(), get.port, ip).await?;
    if get.tls {
        let host = place(get.host.as_deref(), ip)?;
        let stream = ANYBODY.clone()?.connect(&host, stream).await?;
        return http_over(stream, get, ip).await;
    }
    http_over(stream, get, ip).await
}

async fn http_over<S>(stream: S, get: &HttpGet, ip: Option<IpAddr>) -> Result<(), String>
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
    let status = response.status();
    if (200..400).contains(&status.as_u16()) {
        return Ok(());
    }
    Err(format!("HTTP probe failed with statuscode: {}", status.as_u16()))
}

/// A task that ends with the question.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
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
    Err(format!("the server says that it is not serving (status {status})"))
}

#[cfg(test)]
mod tests;
