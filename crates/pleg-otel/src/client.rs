//! One POST to a collector, on a connection of its own. The caller sets the timeout.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::SignalConfig;

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;
/// Characters of an answer that are shown.
const MAX_SHOWN: usize = 200;

/// Why a batch was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostError {
    pub(crate) text: String,
    /// The same may be taken later.
    pub(crate) is_transient: bool,
    /// Seconds that the collector asks us to wait.
    pub(crate) retry_after: Option<u64>,
}

impl PostError {
    #[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
    fn transient(error: impl ToString) -> Self {
        Self {
            text: error.to_string(),
            is_transient: true,
            retry_after: None,
        }
    }
}

/// Sends to one URL.
pub(crate) struct Client {
    config: SignalConfig,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("url", &self.config.url)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(config: SignalConfig) -> Self {
        Self { config, tls: None }
    }

    pub(crate) fn config(&self) -> &SignalConfig {
        &self.config
    }

    /// Sends a body.
    pub(crate) async fn post(&mut self, body: Vec<u8>) -> Result<(), PostError> {
        let url = &self.config.url;
        let (host, port) = address(url);
        let stream = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(PostError::transient)?;
        if url.scheme_str() != Some("https") {
            return self.exchange(stream, body).await;
        }
        let tls = if let Some(tls) = &self.tls {
            tls.clone()
        } else {
            let ca = self.config.ca.clone();
            let made = tokio::task::spawn_blocking(move || connector(ca.as_deref())).await;
            let made = made.map_err(PostError::transient)?.map_err(PostError::transient)?;
            self.tls.insert(made).clone()
        };
        let name = ServerName::try_from(host).map_err(PostError::transient)?;
        let stream = tls.connect(name, stream).await.map_err(PostError::transient)?;
        self.exchange(stream, body).await
    }

    async fn exchange<S>(&self, stream: S, body: Vec<u8>) -> Result<(), PostError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = self.request(body).map_err(PostError::transient)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut send, connection) = handshake.map_err(PostError::transient)?;
        let answering = async {
            let answer = send.send_request(request).await.map_err(PostError::transient)?;
            let (status, retry_after) = (answer.status(), answer.headers().get(RETRY_AFTER).cloned());
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            if status.is_success() {
                return Ok(());
            }
            let said = body.map(|body| shown(&body.to_bytes())).unwrap_or_default();
            Err(PostError {
                text: format!("{status} {said}").trim_end().to_owned(),
                // As the specification of OTLP has it.
                is_transient: matches!(status.as_u16(), 429 | 502 | 503 | 504),
                retry_after: retry_after.and_then(|seconds| seconds.to_str().ok()?.parse().ok()),
            })
        };
        tokio::pin!(answering);
        tokio::select! {
            answer = &mut answering => answer,
            // The connection may end before the answer was read to its end.
            _ = connection => answering.await,
        }
    }

    fn request(&self, body: Vec<u8>) -> Result<Request<Full<Bytes>>, http::Error> {
        let url = &self.config.url;
        let authority = url
            .authority()
            .map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
        let mut request = Request::post(url.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, authority.unwrap_or_default())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, concat!("pleg/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        request.body(Full::from(body))
    }
}

fn address(url: &Uri) -> (String, u16) {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
    (host, url.port_u16().unwrap_or(default))
}

/// A text of the collector, without what a terminal would obey.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.chars()
        .filter(|c| !c.is_control() && *c != '\u{fffd}')
        .take(MAX_SHOWN)
        .collect()
}

/// Blocking: reads certificates.
fn connector(ca: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let certificates: Vec<CertificateDer<'static>> = match ca {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        return Err("there is no CA certificate to trust: set OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
