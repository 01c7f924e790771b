//! A certificate with its chain and its key, checked. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Why a certificate cannot be used. What it was is said by callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PairError {
    /// There is no certificate in it.
    #[error("it contains no certificate")]
    NoCertificate,
    /// There is no key in it.
    #[error("it contains no private key")]
    NoKey,
    /// It is damaged, or something else.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// Certificate and key belong to different pairs.
    #[error("its key is not that of its certificate: {0}")]
    Mismatch(String),
    /// It is of another user.
    #[error("it is of {found}, not of {wanted}")]
    WrongSubject {
        /// Its common name.
        found: String,
        /// What it has to be.
        wanted: String,
    },
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CertificateInfo {
    pub(super) common_name: String,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    /// The names that a server has. Sorted.
    pub(super) names: Vec<String>,
    /// The addresses that a server has. Sorted.
    pub(super) ips: Vec<IpAddr>,
}

impl CertificateInfo {
    /// Of the first certificate in a text of PEM.
    pub(super) fn of_pem(pem: &[u8]) -> Result<Self, PairError> {
        let first = CertificateDer::pem_slice_iter(pem)
            .next()
            .ok_or(PairError::NoCertificate)?;
        let first = first.map_err(|error| PairError::Malformed(error.to_string()))?;
        Self::of_der(&first)
    }

    fn of_der(der: &[u8]) -> Result<Self, PairError> {
        let malformed = |why: &dyn std::fmt::Display| PairError::Malformed(why.to_string());
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| malformed(&error))?;
        let common_name = certificate.subject().iter_common_name().next();
        let common_name = common_name.and_then(|name| name.as_str().ok()).unwrap_or_default();
        let time = |seconds| Timestamp::from_second(seconds).map_err(|error| malformed(&error));
        let (mut names, mut ips) = (Vec::new(), Vec::new());
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        for name in alternatives.iter().flat_map(|found| &found.value.general_names) {
            match name {
                GeneralName::DNSName(name) => names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => ips.extend(ip(bytes)),
                _ => {}
            }
        }
        names.sort();
        ips.sort();
        Ok(Self {
            common_name: common_name.to_owned(),
            not_before: time(certificate.validity().not_before.timestamp())?,
            not_after: time(certificate.validity().not_after.timestamp())?,
            names,
            ips,
        })
    }

    /// Whether it is valid no longer.
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        now >= self.not_after
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// A certificate that can be used.
#[derive(Debug, Clone)]
pub(super) struct CertificatePair {
    pub(super) info: CertificateInfo,
    /// For a TLS server.
    pub(super) key: Arc<CertifiedKey>,
}

impl CertificatePair {
    /// Of a text of PEM with a chain, the own certificate first, and a key.
    pub(super) fn parse(pem: &[u8]) -> Result<Self, PairError> {
        let malformed = |error: rustls::pki_types::pem::Error| PairError::Malformed(error.to_string());
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain = chain.map_err(malformed)?;
        let info = CertificateInfo::of_der(chain.first().ok_or(PairError::NoCertificate)?)?;
        let key = match PrivateKeyDer::from_pem_slice(pem) {
            Err(rustls::pki_types::pem::Error::NoItemsFound) => return Err(PairError::NoKey),
            key => key.map_err(malformed)?,
        };
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider);
        let key = key.map_err(|error| PairError::Mismatch(error.to_string()))?;
        Ok(Self {
            info,
            key: Arc::new(key),
        })
    }

    /// The same, if it is of this user.
    pub(super) fn parse_of(pem: &[u8], common_name: &str) -> Result<Self, PairError> {
        let pair = Self::parse(pem)?;
        if pair.info.common_name != common_name {
            return Err(PairError::WrongSubject {
                found: pair.info.common_name,
                wanted: common_name.to_owned(),
            });
        }
        Ok(pair)
    }
}

/// Certificates for tests.
#[cfg(test)]
pub(super) mod made {
    use std::time::SystemTime;

    use rcgen::{
        CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, PublicKeyData, SanType, SignatureAlgorithm,
    };
    use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509CertificationRequest};

    use super::{Timestamp, ip};

    /// A certificate of this user, and its key, both in PEM.
    pub(in crate::certificates) fn pem(common_name: &str, from: Timestamp, to: Timestamp) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (certificate(&key, common_name, from, to), key.serialize_pem())
    }

    /// A certificate of a key.
    pub(in crate::certificates) fn certificate(
        key: &KeyPair,
        common_name: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> String {
        let mut params = CertificateParams::new(vec!["n1".to_owned(), "192.0.2.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = SystemTime::from(from).into();
        params.not_after = SystemTime::from(to).into();
        params.self_signed(key).unwrap().pem()
    }

    struct PublicKey(Vec<u8>);

    impl PublicKeyData for PublicKey {
        fn der_bytes(&self) -> &[u8] {
            &self.0
        }

        fn algorithm(&self) -> &'static SignatureAlgorithm {
            &rcgen::PKCS_ECDSA_P256_SHA256
        }
    }

    /// Signs a request, as an authority does.
    pub(in crate::certificates) fn sign(request: &[u8], from: Timestamp, to: Timestamp) -> String {
        let (_, pem) = x509_parser::pem::parse_x509_pem(request).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let info = &request.certification_request_info;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = info.subject.iter_common_name().next().unwrap().as_str().unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(alternatives) = extension else {
                continue;
            };
            let names = alternatives.general_names.iter().map(|name| match name {
                GeneralName::DNSName(name) => SanType::DnsName((*name).try_into().unwrap()),
                GeneralName::IPAddress(bytes) => SanType::IpAddress(ip(bytes).unwrap()),
                other => panic!("{other}"),
            });
            params.subject_alt_names.extend(names);
        }
        params.not_before = SystemTime::from(from).into();
        params.not_after = SystemTime::from(to).into();
        let key = PublicKey(info.subject_pki.subject_public_key.data.to_vec());
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        params.signed_by(&key, &issuer).unwrap().pem()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn what_a_certificate_says() {
        let (certificate, key) = made::pem("system:node:n1", at(0), at(100));
        let pair = CertificatePair::parse_of(format!("{certificate}{key}").as_bytes(), "system:node:n1").unwrap();
        let expected = CertificateInfo {
            common_name: "system:node:n1".to_owned(),
            not_before: at(0),
            not_after: at(100),
            names: vec!["n1".to_owned()],
            ips: vec!["192.0.2.1".parse().unwrap()],
        };
        assert_eq!(pair.info, expected);
        assert_eq!(CertificateInfo::of_pem(certificate.as_bytes()).unwrap(), expected);
        assert!(!expected.has_expired(at(99)) && expected.has_expired(at(100)));
    }

    /// Whatever is in a file, it is not taken for a certificate of ours.
    #[test]
    fn what_cannot_be_used() {
        let (certificate, key) = made::pem("system:node:n1", at(0), at(100));
        let (_, other_key) = made::pem("system:node:n1", at(0), at(100));
        let parse = |text: String| CertificatePair::parse_of(text.as_bytes(), "system:node:n1").unwrap_err();
        assert_eq!(parse(String::new()), PairError::NoCertificate);
        assert_eq!(parse("not PEM at all".to_owned()), PairError::NoCertificate);
        assert_eq!(parse(key.clone()), PairError::NoCertificate);
        assert_eq!(parse(certificate.clone()), PairError::NoKey);
        assert!(matches!(
            parse(format!("{certificate}{other_key}")),
            PairError::Mismatch(_)
        ));
        let bad = certificate.replace("-----BEGIN CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\nAAAA");
        assert!(matches!(parse(format!("{bad}{key}")), PairError::Malformed(_)), "{bad}");
        for cut in [certificate.len() / 2, certificate.len() + key.len() / 2] {
            let whole = format!("{certificate}{key}");
            assert!(
                CertificatePair::parse(&whole.as_bytes()[..cut]).is_err(),
                "cut at {cut}"
            );
        }
        let (of_other, key) = made::pem("system:node:other", at(0), at(100));
        let error = parse(format!("{of_other}{key}"));
        assert_eq!(error.to_string(), "it is of system:node:other, not of system:node:n1");
    }
}
