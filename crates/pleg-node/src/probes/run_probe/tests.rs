//! Real servers on real ports.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::error::with_causes;

const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

/// Answers each request with this, and returns the request.
async fn serve(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let request = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request[..read].to_vec()).unwrap()
    });
    (port, request)
}

fn get(port: u16, headers: &[(&str, &str)]) -> HttpGet {
    HttpGet {
        tls: false,
        host: None,
        port,
        path: "/healthz?x=1".to_owned(),
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

#[tokio::test]
async fn http_probes_succeed_from_200_to_399() {
    for (answer, good) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
        // An endless body is not read.
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx", true),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        ("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false),
        ("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", false),
        ("SSH-2.0-OpenSSH_9.2\r\n", false),
    ] {
        let (port, _request) = serve(answer).await;
        let found = http(&get(port, &[]), HERE).await;
        assert_eq!(found.is_ok(), good, "{answer}: {found:?}");
    }
}

/// As in the kubelet, certificates are not verified; but a server that does not speak TLS fails.
#[tokio::test]
async fn https_probes_do_not_verify_certificates() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = crate::net::tls::testing::acceptor();
    tokio::spawn(async move {
        for status in ["200 OK", "503 No"] {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let by_tls = |port| HttpGet {
        tls: true,
        ..get(port, &[])
    };
    http(&by_tls(port), HERE).await.unwrap();
    let error = http(&by_tls(port), HERE).await.unwrap_err();
    assert_eq!(error.to_string(), "HTTP probe failed with statuscode: 503");
    let (plain, _request) = serve("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let error = http(&by_tls(plain), HERE).await.unwrap_err();
    let error = with_causes(&error);
    assert!(error.starts_with("TLS handshake with 127.0.0.1 failed: "), "{error}");
}

#[tokio::test]
async fn the_request_is_what_the_manifest_says() {
    let (port, request) = serve("HTTP/1.1 204 No Content\r\n\r\n").await;
    http(&get(port, &[("Host", "shop.example.com"), ("X-Probe", "1")]), HERE)
        .await
        .unwrap();
    let request = request.await.unwrap().to_lowercase();
    assert!(request.starts_with("get /healthz?x=1 http/1.1\r\n"), "{request}");
    assert!(
        request.contains("host: shop.example.com\r\n") && request.contains("x-probe: 1\r\n"),
        "{request}"
    );
    assert_eq!(request.matches("host:").count(), 1, "{request}");
}

#[tokio::test]
async fn a_tcp_probe_succeeds_if_something_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(connect(None, port, HERE).await.is_ok());
    assert!(connect(Some("127.0.0.1"), port, None).await.is_ok());
    assert_eq!(
        connect(None, port, None).await.unwrap_err().to_string(),
        "the pod has no IP address"
    );
    drop(listener);
    let refused = with_causes(&connect(None, port, HERE).await.unwrap_err());
    assert!(
        refused.starts_with(&format!("cannot connect to port {port} of 127.0.0.1: ")),
        "{refused}"
    );
}

/// A health service: one service is serving, one is not, others are unknown.
#[tokio::test]
async fn a_grpc_server_is_asked_for_its_health() {
    use tonic::codegen::{Body, Service, http as wire};
    use tonic::server::{NamedService, UnaryService};

    #[derive(Clone)]
    struct Health;
    impl NamedService for Health {
        const NAME: &'static str = "grpc.health.v1.Health";
    }
    struct Check;
    impl UnaryService<HealthCheckRequest> for Check {
        type Response = HealthCheckResponse;
        type Future = std::future::Ready<Result<tonic::Response<HealthCheckResponse>, tonic::Status>>;
        fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
            std::future::ready(match request.get_ref().service.as_str() {
                "" => Ok(tonic::Response::new(HealthCheckResponse { status: 1 })),
                "sick" => Ok(tonic::Response::new(HealthCheckResponse { status: 2 })),
                _ => Err(tonic::Status::not_found("unknown service")),
            })
        }
    }
    impl<B> Service<wire::Request<B>> for Health
    where
        B: Body + Send + 'static,
        B::Error: Into<tonic::codegen::StdError> + Send + 'static,
        B::Data: Send,
    {
        type Response = wire::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: wire::Request<B>) -> Self::Future {
            Box::pin(async move {
                let codec = ProstCodec::<HealthCheckResponse, HealthCheckRequest>::default();
                Ok(tonic::server::Grpc::new(codec).unary(Check, request).await)
            })
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let server = tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(Health)
            .serve_with_incoming(incoming),
    );
    grpc("", port, HERE).await.unwrap();
    let error = async |service| with_causes(&grpc(service, port, HERE).await.unwrap_err());
    assert!(error("sick").await.contains("not serving"));
    assert!(error("other").await.contains("unknown service"));
    server.abort();
    let _ = server.await;
    assert!(
        tokio::time::timeout(Duration::from_secs(5), grpc("", port, HERE))
            .await
            .unwrap()
            .is_err()
    );
}
