//! Client certificates: whom the certificate authority of the cluster has vouched for.
//!
//! The TLS handshake only makes a client prove that it has the key of its certificate. Whether the certificate is of use is decided for each
//! request: a client whose certificate has expired or is of another authority gets an answer that says so (401), may use a token instead,
//! and a connection that stays open for days does not outlive its certificate. A kubelet does the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::authentication::Identity;

/// How often the file of the authority is read again.
const RELOAD: Duration = Duration::from_mins(1);
/// Largest file of certificates.
const MAX_FILE: u64 = 1 << 20;

/// Why certificates cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientCaError {
    /// The file cannot be read.
    #[error("cannot read the client CA {path}: {cause}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// No certificate in it can be used.
    #[error("the client CA has no certificate that can be used: {0}")]
    Unusable(String),
}

/// The authority whose certificates identify clients. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ClientCa {
    verifier: Arc<ArcSwapOption<Verifier>>,
    file: Option<Arc<Path>>,
}

#[derive(Debug)]
struct Verifier {
    certificates: Vec<CertificateDer<'static>>,
    webpki: Arc<dyn ClientCertVerifier>,
}

impl Verifier {
    fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, ClientCaError> {
        let unusable = |error: String| ClientCaError::Unusable(error);
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots
                .add(certificate.clone())
                .map_err(|error| unusable(error.to_string()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self {
            certificates,
            webpki: webpki.map_err(|error| unusable(error.to_string()))?,
        })
    }
}

impl ClientCa {
    /// No certificate identifies anybody: clients need tokens.
    pub fn none() -> Self {
        Self::default()
    }

    /// These certificates, in DER: those of the kubeconfig.
    pub fn of(certificates: &[Vec<u8>]) -> Result<Self, ClientCaError> {
        let certificates = certificates
            .iter()
            .map(|der| CertificateDer::from(der.clone()))
            .collect();
        let ca = Self::default();
        ca.verifier.store(Some(Arc::new(Verifier::new(certificates)?)));
        Ok(ca)
    }

    /// The certificates of a file in PEM. [`ClientCa::watch`] keeps up with changes of it.
    pub async fn of_file(path: &Path) -> Result<Self, ClientCaError> {
        let ca = Self {
            file: Some(path.into()),
            ..Self::default()
        };
        ca.reload().await?;
        Ok(ca)
    }

    /// Reads the file again once a minute, if there is one: authorities are rotated.
    pub async fn watch(&self, shutdown: &CancellationToken) {
        let mut failed = None;
        while self.file.is_some() && shutdown.run_until_cancelled(tokio::time::sleep(RELOAD)).await.is_some() {
            let now = self.reload().await.err();
            if now != failed
                && let Some(error) = &now
            {
                tracing::warn!("{error}; client certificates are verified with the last one that could be read");
            }
            failed = now;
        }
    }

    async fn reload(&self) -> Result<(), ClientCaError> {
        let Some(path) = self.file.clone() else { return Ok(()) };
        let named = |cause: String| ClientCaError::File {
            path: path.to_path_buf(),
            cause,
        };
        let from = Arc::clone(&path);
        let read = tokio::task::spawn_blocking(move || read_certificates(&from)).await;
        let certificates = read.map_err(|error| named(error.to_string()))?.map_err(&named)?;
        let is_known = |verifier: &Arc<Verifier>| verifier.certificates == certificates;
        if !self.verifier.load_full().as_ref().is_some_and(is_known) {
            self.verifier.store(Some(Arc::new(Verifier::new(certificates)?)));
        }
        Ok(())
    }

    /// Who has this certificate; an error in words if nobody can be trusted to.
    pub(super) fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, String> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err("no client certificate".to_owned());
        };
        let Some(verifier) = self.verifier.load_full() else {
            return Err("client certificates are not accepted: there is no client CA (--client-ca-file)".to_owned());
        };
        let verified = verifier.webpki.verify_client_cert(leaf, intermediates, UnixTime::now());
        verified.map_err(|error| format!("client certificate: {error}"))?;
        subject(leaf)
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE {
        return Err(format!("larger than {MAX_FILE} bytes"));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(certificates)
}

/// The user and the groups that a certificate names: `CN` and `O`.
fn subject(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| format!("client certificate: {error}"))?;
    let unreadable = |_| "client certificate: its subject is not text".to_owned();
    let names: Result<Vec<&str>, _> = parsed.subject().iter_common_name().map(|name| name.as_str()).collect();
    let groups: Result<Vec<&str>, _> = parsed.subject().iter_organization().map(|name| name.as_str()).collect();
    match (names.map_err(unreadable)?.as_slice(), groups.map_err(unreadable)?) {
        ([name], groups) if !name.is_empty() => Ok(Identity::of_certificate(name, &groups)),
        _ => Err("client certificate: its subject must have one common name (CN), the user".to_owned()),
    }
}

/// Requests a certificate, and makes the client prove that it has the key. See above for the rest.
#[derive(Debug)]
pub(super) struct RequestCertificate(pub(super) Arc<CryptoProvider>);

impl ClientCertVerifier for RequestCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
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
