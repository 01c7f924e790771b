//! Whose certificate a kubeconfig has, and when it is valid: for errors that say what to do.

use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::config::AuthInfo;
use x509_parser::pem::parse_x509_pem;

/// The client certificate of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user that the API server sees: `system:node:NAME` for a node.
    pub user: String,
    /// Not valid before.
    pub not_before: Timestamp,
    /// Not valid after.
    pub not_after: Timestamp,
}

impl Identity {
    /// The certificate of these credentials; none if they have none, or one that cannot be read. Blocking.
    pub fn of(credentials: &AuthInfo) -> Option<Self> {
        let pem = match (&credentials.client_certificate_data, &credentials.client_certificate) {
            (Some(data), _) => serde_json::from_value::<ByteString>(data.as_str().into()).ok()?.0,
            (None, Some(path)) => std::fs::read(Path::new(path)).ok()?,
            (None, None) => return None,
        };
        Self::parse(&pem)
    }

    /// Of a certificate, the first of a file in PEM.
    pub fn parse(pem: &[u8]) -> Option<Self> {
        let (_, pem) = parse_x509_pem(pem).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let user = certificate.subject().iter_common_name().next()?.as_str().ok()?;
        let validity = certificate.validity();
        Some(Self {
            user: user.to_owned(),
            not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
        })
    }

    /// What is wrong with its validity, and what to do.
    pub fn invalid(&self, now: Timestamp) -> Option<String> {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        if now > self.not_after {
            return Some(format!(
                "the client certificate of {} expired at {}, and it is {now} now; get a new one, or correct the clock",
                self.user, self.not_after
            ));
        }
        (now < self.not_before).then(|| {
            format!(
                "the client certificate of {} is valid from {} on, and it is {now} now; correct the clock",
                self.user, self.not_before
            )
        })
    }

    /// What is wrong with it as the certificate of this node, and what to do.
    pub fn of_another_node(&self, node: &str) -> Option<String> {
        match self.user.strip_prefix("system:node:") {
            Some(name) if name == node => None,
            Some(other) => Some(format!(
                "the client certificate is that of node {other}, and this node is {node}; use --node-name {other}, or a certificate of \
                 system:node:{node}"
            )),
            None => Some(format!(
                "the client certificate is that of {}; a node needs one of system:node:{node} in the group system:nodes",
                self.user
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(user: &str) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn a_certificate_says_whose_it_is_and_when_it_is_valid() {
        let pem = certificate("system:node:a");
        let identity = Identity::parse(pem.as_bytes()).unwrap();
        assert_eq!(identity.user, "system:node:a");
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(identity.invalid(at("2026-06-01T00:00:00Z")), None);
        let late = identity.invalid(at("2027-06-01T00:00:00Z")).unwrap();
        assert!(late.contains("expired at 2027-01-01T00:00:00Z"), "{late}");
        let early = identity.invalid(at("2025-06-01T00:00:00Z")).unwrap();
        assert!(
            early.contains("valid from 2026-01-01T00:00:00Z") && early.contains("clock"),
            "{early}"
        );

        assert_eq!(identity.of_another_node("a"), None);
        assert!(identity.of_another_node("b").unwrap().contains("--node-name a"));
        let admin = Identity::parse(certificate("admin").as_bytes()).unwrap();
        assert!(admin.of_another_node("b").unwrap().contains("that of admin"));
        assert_eq!(Identity::parse(b"nonsense"), None);
    }

    #[test]
    fn it_is_read_from_a_file_or_from_the_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.crt");
        std::fs::write(&path, certificate("system:node:a")).unwrap();
        let by_file = AuthInfo {
            client_certificate: Some(path.display().to_string()),
            ..AuthInfo::default()
        };
        assert_eq!(Identity::of(&by_file).unwrap().user, "system:node:a");
        let encoded = serde_json::to_value(ByteString(certificate("system:node:b").into_bytes())).unwrap();
        let by_data = AuthInfo {
            client_certificate_data: encoded.as_str().map(str::to_owned),
            ..AuthInfo::default()
        };
        assert_eq!(Identity::of(&by_data).unwrap().user, "system:node:b");
        assert_eq!(Identity::of(&AuthInfo::default()), None);
    }
}
