//! The certificate of the node's server, where no API server signs one: from files, or made by this process.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

/// How often the files are looked at.
const RELOAD: Duration = Duration::from_mins(1);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum ServingCertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Certificate and key cannot be used, or not together.
    #[error("cannot use the certificate {}: {cause}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate for the node's server: {0}")]
    SelfSigned(String),
}

/// A certificate, and where it comes from. Clones share it.
#[derive(Clone)]
pub struct ServingCertificate(Arc<Inner>);

struct Inner {
    key: ArcSwap<CertifiedKey>,
    files: Option<(PathBuf, PathBuf)>,
}

impl ServingCertificate {
    /// A new one, signed by its own key: clients can only use it without verification.
    pub fn self_signed(node: &str, ips: &[IpAddr]) -> Result<Self, ServingCertificateError> {
        let failed = |error: &dyn fmt::Display| ServingCertificateError::SelfSigned(error.to_string());
        let names = std::iter::once(node.to_owned()).chain(ips.iter().map(ToString::to_string));
        let made = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>()).map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let key = any_supported_type(&key).map_err(|error| failed(&error))?;
        let key = ArcSwap::from_pointee(CertifiedKey::new(vec![made.cert.der().clone()], key));
        Ok(Self(Arc::new(Inner { key, files: None })))
    }

    /// Of files in PEM. [`ServingCertificate::watch`] keeps up with changes of them. Blocking.
    pub fn of_files(certificate: &Path, key: &Path) -> Result<Self, ServingCertificateError> {
        let loaded = ArcSwap::from_pointee(load(certificate, key)?);
        let files = Some((certificate.to_owned(), key.to_owned()));
        Ok(Self(Arc::new(Inner { key: loaded, files })))
    }

    /// Reads changed files again, if there are any: certificates are renewed.
    pub async fn watch(&self, shutdown: &CancellationToken) {
        let Some((certificate, key)) = self.0.files.clone() else {
            return;
        };
        let mut seen = changed_at(&certificate);
        while shutdown.run_until_cancelled(tokio::time::sleep(RELOAD)).await.is_some() {
            let now = changed_at(&certificate);
            if now == seen {
                continue;
            }
            seen = now;
            let (from, with) = (certificate.clone(), key.clone());
            match tokio::task::spawn_blocking(move || load(&from, &with)).await {
                Ok(Ok(loaded)) => self.0.key.store(Arc::new(loaded)),
                Ok(Err(error)) => tracing::warn!("{error}; the node's server keeps the certificate that it has"),
                Err(_) => {}
            }
        }
    }
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServingCertificate").field(&self.0.files).finish()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.key.load_full())
    }
}

fn load(certificate: &Path, key: &Path) -> Result<CertifiedKey, ServingCertificateError> {
    let failed = |path: &Path, cause: String| ServingCertificateError::File {
        path: path.to_owned(),
        cause,
    };
    let read = |path: &Path| std::fs::read(path).map_err(|error: io::Error| failed(path, error.to_string()));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let chain = chain.map_err(|error| failed(certificate, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| failed(key, error.to_string()))?;
    let unusable = |cause: String| ServingCertificateError::Unusable {
        path: certificate.to_owned(),
        cause,
    };
    let private = any_supported_type(&private).map_err(|error| unusable(error.to_string()))?;
    let loaded = CertifiedKey::new(chain, private);
    loaded.keys_match().map_err(|error| unusable(error.to_string()))?;
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_must_fit_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "b"] {
            let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
            std::fs::write(path(&format!("{name}.crt")), made.cert.pem()).unwrap();
            std::fs::write(path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
        }
        assert!(ServingCertificate::of_files(&path("a.crt"), &path("a.key")).is_ok());
        for (certificate, key, message) in [
            ("a.crt", "b.key", "cannot use the certificate"),
            ("none", "b.key", "cannot read"),
            ("a.key", "b.key", "cannot use the certificate"),
            ("a.crt", "a.crt", "cannot read"),
        ] {
            let error = ServingCertificate::of_files(&path(certificate), &path(key))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(message) && error.contains(&dir.path().display().to_string()),
                "{error}"
            );
        }
        ServingCertificate::self_signed("node", &["10.0.0.1".parse().unwrap()]).unwrap();
    }
}
