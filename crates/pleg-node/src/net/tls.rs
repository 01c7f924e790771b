//! TLS, for HTTPS probes and manifest URLs.
//!
//! Probes do not verify certificates, as in a kubelet: any answer counts. A manifest URL decides what runs on this machine, so its server
//! must have a certificate that the machine trusts.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::NetError;

/// Why TLS cannot be used at all.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TlsSetupError {
    /// There is no certificate to trust.
    #[error("no trusted CA certificates are installed on this machine. {why}")]
    NoRoots {
        /// What was wrong with those that were found.
        why: String,
    },
    /// The TLS library refuses the configuration.
    #[error("invalid TLS configuration")]
    Config(#[from] rustls::Error),
}

/// Makes TLS connections. Clones share sessions.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Accepts every certificate.
    pub(crate) fn unverified() -> Result<Self, TlsSetupError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AcceptAll(Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        Ok(Self(TlsConnector::from(Arc::new(config.with_no_client_auth()))))
    }

    /// Accepts certificates that this machine trusts. Blocking: reads its CA certificates.
    pub(crate) fn with_system_roots() -> Result<Self, TlsSetupError> {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let why: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            return Err(TlsSetupError::NoRoots { why: why.join("; ") });
        }
        Self::with_roots(found.certs)
    }

    /// Accepts certificates signed by one of these. Entries that are not certificates are skipped, as other programs do.
    pub(crate) fn with_roots(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsSetupError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the handshake with `host`.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, NetError> {
        let failed = |source| NetError::Handshake {
            host: host.to_owned(),
            source,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(std::io::Error::other(error)))?;
        self.0.connect(name, stream).await.map_err(failed)
    }
}

/// Accepts every certificate, if the server has its key.
#[derive(Debug)]
struct AcceptAll(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A server with a certificate that no machine trusts.
#[cfg(test)]
pub(crate) mod testing {
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// For localhost and 127.0.0.1, made for these tests.
    const CERTIFICATE: &str = include_str!("tls/test-certificate.pem");
    const KEY: &str = include_str!("tls/test-key.pem");

    pub(crate) fn certificate() -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()
    }

    pub(crate) fn acceptor() -> TlsAcceptor {
        let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}
