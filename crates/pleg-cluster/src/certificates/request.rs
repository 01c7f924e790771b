//! What a certificate signing request contains. Pure, except for the randomness of keys and signatures.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1 as certificates;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

/// The group of all nodes.
const GROUP: &str = "system:nodes";

/// Who signs, and so what a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signer {
    /// A client of the API server.
    Client,
    /// The server of the node.
    Serving,
}

impl Signer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The usages that the signer accepts of a key that is not RSA.
    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) signer: Signer,
    /// The name of the node.
    pub(super) node: String,
    /// The names that a server has. Sorted.
    pub(super) names: Vec<String>,
    /// The addresses that a server has. Sorted.
    pub(super) ips: Vec<IpAddr>,
}

impl Template {
    /// Of a client certificate.
    pub(super) fn client(node: &str) -> Self {
        Self {
            signer: Signer::Client,
            node: node.to_owned(),
            names: Vec::new(),
            ips: Vec::new(),
        }
    }

    /// The common name: the user, to the API server.
    pub(super) fn common_name(&self) -> String {
        user(&self.node)
    }

    /// The object, to be created.
    pub(super) fn object(&self, key: &KeyPair) -> Result<certificates::CertificateSigningRequest, rcgen::Error> {
        let usages = self.signer.usages().map(str::to_owned);
        Ok(certificates::CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(self.request_name(key)),
                ..Default::default()
            },
            spec: certificates::CertificateSigningRequestSpec {
                request: ByteString(self.pem(key)?.into_bytes()),
                signer_name: self.signer.name().to_owned(),
                usages: Some(usages.into()),
                ..Default::default()
            },
            status: None,
        })
    }

    fn pem(&self, key: &KeyPair) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, GROUP);
        subject.push(DnType::CommonName, self.common_name());
        params.distinguished_name = subject;
        for name in &self.names {
            params
                .subject_alt_names
                .push(SanType::DnsName(name.as_str().try_into()?));
        }
        params
            .subject_alt_names
            .extend(self.ips.iter().copied().map(SanType::IpAddress));
        params.serialize_request(key)?.pem()
    }

    /// The name of the request: the same for the same key and content, so that a restarted node finds the request that it made.
    pub(super) fn request_name(&self, key: &KeyPair) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(bytes);
        };
        add(&key.subject_public_key_info());
        add(self.signer.name().as_bytes());
        add(self.common_name().as_bytes());
        for name in &self.names {
            add(name.as_bytes());
        }
        for ip in &self.ips {
            add(ip.to_string().as_bytes());
        }
        let mut name = "node-csr-".to_owned();
        for byte in hash.finalize().iter().take(20) {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Whether a request of the API server is ours: somebody else could have taken its name.
    pub(super) fn is_ours(&self, key: &KeyPair, found: &certificates::CertificateSigningRequest) -> bool {
        if found.spec.signer_name != self.signer.name() {
            return false;
        }
        let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&found.spec.request.0) else {
            return false;
        };
        let Ok((_, request)) = X509CertificationRequest::from_der(&pem.contents) else {
            return false;
        };
        request.certification_request_info.subject_pki.raw == key.subject_public_key_info()
    }
}

/// The user that a node is to the API server.
pub(super) fn user(node: &str) -> String {
    format!("system:node:{node}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{GeneralName, ParsedExtension};

    fn serving(names: &[&str], ips: &[&str]) -> Template {
        Template {
            signer: Signer::Serving,
            node: "n1".to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }

    /// Common name, organisation, names and addresses of a request.
    fn content(template: &Template) -> (String, String, Vec<String>) {
        let key = KeyPair::generate().unwrap();
        let object = template.object(&key).unwrap();
        assert!(template.is_ours(&key, &object));
        let (_, pem) = x509_parser::pem::parse_x509_pem(&object.spec.request.0).unwrap();
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let info = &request.certification_request_info;
        let text = |mut values: Vec<&str>| values.pop().unwrap().to_owned();
        let name = text(
            info.subject
                .iter_common_name()
                .map(|name| name.as_str().unwrap())
                .collect(),
        );
        let group = text(
            info.subject
                .iter_organization()
                .map(|name| name.as_str().unwrap())
                .collect(),
        );
        let mut sans = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(alternatives) = extension else {
                continue;
            };
            sans.extend(alternatives.general_names.iter().map(|name| match name {
                GeneralName::DNSName(name) => (*name).to_owned(),
                GeneralName::IPAddress(bytes) => format!("{bytes:?}"),
                other => panic!("{other}"),
            }));
        }
        (name, group, sans)
    }

    #[test]
    fn a_client_request_is_what_the_approver_accepts() {
        let template = Template::client("n1");
        let (name, group, sans) = content(&template);
        // With a name or an address, the controller manager would not approve it.
        assert_eq!(
            (name.as_str(), group.as_str(), sans),
            ("system:node:n1", "system:nodes", vec![])
        );
        let spec = template.object(&KeyPair::generate().unwrap()).unwrap().spec;
        assert_eq!(spec.signer_name, "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(spec.usages.unwrap(), ["digital signature", "client auth"]);
    }

    #[test]
    fn a_serving_request_has_the_names_and_addresses() {
        let template = serving(&["n1", "n1.lan"], &["192.0.2.1", "2001:db8::1"]);
        let (name, group, sans) = content(&template);
        assert_eq!(
            (name.as_str(), group.as_str(), sans.len()),
            ("system:node:n1", "system:nodes", 4)
        );
        assert_eq!(sans[..3], ["n1", "n1.lan", "[192, 0, 2, 1]"]);
        let spec = template.object(&KeyPair::generate().unwrap()).unwrap().spec;
        assert_eq!(spec.signer_name, "kubernetes.io/kubelet-serving");
        assert_eq!(spec.usages.unwrap(), ["digital signature", "server auth"]);
        assert!(
            serving(&["bad\u{fc}name"], &[])
                .object(&KeyPair::generate().unwrap())
                .is_err()
        );
    }

    #[test]
    fn the_same_key_and_content_have_the_same_name() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let client = Template::client("n1");
        assert_eq!(client.request_name(&one), client.request_name(&one));
        assert_eq!(client.request_name(&one).len(), "node-csr-".len() + 40);
        let others = [
            client.request_name(&other),
            Template::client("n2").request_name(&one),
            serving(&["n1"], &[]).request_name(&one),
            serving(&[], &["192.0.2.1"]).request_name(&one),
        ];
        assert!(!others.contains(&client.request_name(&one)));
        // Somebody else's request of that name is not taken for ours.
        assert!(!client.is_ours(&one, &client.object(&other).unwrap()));
        assert!(!client.is_ours(&one, &serving(&[], &[]).object(&one).unwrap()));
        let mut garbage = client.object(&one).unwrap();
        garbage.spec.request = ByteString(b"-----BEGIN".to_vec());
        assert!(!client.is_ours(&one, &garbage));
    }
}
