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
use x509_parser::prelude::{AttributeTypeAndValue, FromDer as _, X509Certificate};

use super::authentication::Identity;
use crate::api::Api;

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
///
/// A file, or else the CA that the kubeconfig names: most clusters have one CA, for the API server's certificate and for those of clients,
/// so that an API server reaches this node without further flags. Only a CA that is in the kubeconfig counts, never those that this machine
/// trusts for other reasons: they have not promised anything about users of this cluster. Where clients have a CA of their own, the API
/// server is refused (401) until that is given as a file.
#[derive(Debug, Clone)]
pub struct ClientCa {
    verifier: Arc<ArcSwapOption<Verifier>>,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    File(Arc<Path>),
    Kubeconfig(Api),
}

#[derive(Debug)]
struct Verifier {
    certificates: Vec<CertificateDer<'static>>,
    /// What the kubeconfig had when this was made.
    of: Option<Arc<Vec<Vec<u8>>>>,
    webpki: Arc<dyn ClientCertVerifier>,
}

impl Verifier {
    fn new(certificates: Vec<CertificateDer<'static>>, of: Option<Arc<Vec<Vec<u8>>>>) -> Result<Self, ClientCaError> {
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
            of,
            webpki: webpki.map_err(|error| unusable(error.to_string()))?,
        })
    }
}

impl ClientCa {
    /// The CA of the kubeconfig, as it is at the time of each request.
    pub fn of_kubeconfig(api: Api) -> Self {
        Self {
            verifier: Arc::default(),
            source: Source::Kubeconfig(api),
        }
    }

    /// The certificates of a file in PEM. [`ClientCa::watch`] keeps up with changes of it.
    pub async fn of_file(path: &Path) -> Result<Self, ClientCaError> {
        let ca = Self {
            verifier: Arc::default(),
            source: Source::File(path.into()),
        };
        ca.reload(path).await?;
        Ok(ca)
    }

    /// Reads the file again once a minute, if there is one: authorities are rotated.
    pub async fn watch(&self, shutdown: &CancellationToken) {
        let Source::File(path) = &self.source else { return };
        let mut failed = None;
        while shutdown.run_until_cancelled(tokio::time::sleep(RELOAD)).await.is_some() {
            let now = self.reload(path).await.err();
            if now != failed
                && let Some(error) = &now
            {
                tracing::warn!("{error}; client certificates are verified with the last one that could be read");
            }
            failed = now;
        }
    }

    async fn reload(&self, path: &Path) -> Result<(), ClientCaError> {
        let named = |cause: String| ClientCaError::File {
            path: path.to_owned(),
            cause,
        };
        let from = path.to_owned();
        let read = tokio::task::spawn_blocking(move || read_certificates(&from)).await;
        let certificates = read.map_err(|error| named(error.to_string()))?.map_err(&named)?;
        let is_known = |verifier: &Arc<Verifier>| verifier.certificates == certificates;
        if !self.verifier.load_full().as_ref().is_some_and(is_known) {
            self.verifier.store(Some(Arc::new(Verifier::new(certificates, None)?)));
        }
        Ok(())
    }

    fn verifier(&self) -> Result<Arc<Verifier>, String> {
        let none = "client certificates are not accepted: there is no client CA (--client-ca-file)";
        let known = self.verifier.load_full();
        let Source::Kubeconfig(api) = &self.source else {
            return known.ok_or_else(|| none.to_owned());
        };
        let ca = api.ca().ok_or(none)?;
        match known {
            Some(known) if known.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &ca)) => Ok(known),
            _ => {
                let certificates = ca.iter().map(|der| CertificateDer::from(der.clone())).collect();
                let verifier = Verifier::new(certificates, Some(ca)).map_err(|error| error.to_string())?;
                let verifier = Arc::new(verifier);
                self.verifier.store(Some(Arc::clone(&verifier)));
                Ok(verifier)
            }
        }
    }

    /// The user of this certificate, or why it is not trusted.
    pub(super) fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, String> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err("no client certificate".to_owned());
        };
        let verifier = self.verifier()?;
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
    let names: Result<Vec<&str>, _> = parsed
        .subject()
        .iter_common_name()
        .map(AttributeTypeAndValue::as_str)
        .collect();
    let groups: Result<Vec<&str>, _> = parsed
        .subject()
        .iter_organization()
        .map(AttributeTypeAndValue::as_str)
        .collect();
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
