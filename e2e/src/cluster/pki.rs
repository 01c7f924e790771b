//! Certificates and kubeconfigs: one CA, and what it signs.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::json;

/// A certificate authority. Its files are `NAME.crt` and `NAME.key` of a directory, and so are those of what it signs.
pub struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
    dir: PathBuf,
}

/// Keys are nobody's business.
impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Whom a certificate is for.
#[derive(Debug, Clone)]
pub struct Subject {
    name: String,
    organizations: Vec<String>,
    addresses: Vec<IpAddr>,
    dns: Vec<String>,
    expired: bool,
    left: Option<Duration>,
    starts_in: Option<Duration>,
}

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Subject {
    /// A client: who it is, and of which groups.
    pub fn client(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            organizations: groups.iter().map(|&group| group.to_owned()).collect(),
            addresses: Vec::new(),
            dns: Vec::new(),
            expired: false,
            left: None,
            starts_in: None,
        }
    }

    /// A node, as a kubelet is known to the API server.
    pub fn node(name: &str) -> Self {
        Self::client(&format!("system:node:{name}"), &["system:nodes"])
    }

    /// A server at these addresses and names.
    pub fn server(name: &str, addresses: &[IpAddr], dns: &[&str]) -> Self {
        Self {
            addresses: addresses.to_vec(),
            dns: dns.iter().map(|&name| name.to_owned()).collect(),
            ..Self::client(name, &[])
        }
    }

    /// The same, long ago.
    #[must_use]
    pub fn expired(mut self) -> Self {
        self.expired = true;
        self
    }
}

impl Subject {
    /// The same, most of an hour ago: this much is left.
    #[must_use]
    pub fn ending_in(mut self, left: Duration) -> Self {
        self.left = Some(left);
        self
    }

    /// The same, not valid yet for this long: as a clock that is late by as much sees it.
    #[must_use]
    pub fn starting_in(mut self, time: Duration) -> Self {
        self.starts_in = Some(time);
        self
    }
}

impl Ca {
    /// A new one, called `name`, in `dir`.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        valid_for_years(&mut params);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let pair = write_pair(dir, name, &issuer.pem(), &issuer.key().serialize_pem())?;
        Ok(Self {
            issuer,
            certificate: pair.certificate,
            dir: dir.to_owned(),
        })
    }

    /// The file of its certificate.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The file of its key.
    pub fn key(&self) -> PathBuf {
        self.certificate.with_extension("key")
    }

    /// Signs a certificate for both ends of a connection, and writes it to files called `file`.
    pub fn issue(&self, file: &str, subject: &Subject) -> Result<Pair> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, subject.name.as_str());
        for organization in &subject.organizations {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization.as_str());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        for &address in &subject.addresses {
            params.subject_alt_names.push(SanType::IpAddress(address));
        }
        for name in &subject.dns {
            params
                .subject_alt_names
                .push(SanType::DnsName(name.as_str().try_into()?));
        }
        valid_for_years(&mut params);
        if subject.expired {
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        if let Some(left) = subject.left {
            params.not_before = (SystemTime::now() - Duration::from_hours(1)).into();
            params.not_after = (SystemTime::now() + left).into();
        }
        if let Some(time) = subject.starts_in {
            params.not_before = (SystemTime::now() + time).into();
        }
        let key = KeyPair::generate()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign the certificate of {}", subject.name))?;
        write_pair(&self.dir, file, &certificate.pem(), &key.serialize_pem())
    }
}

/// From long ago, so that no clock matters; not as far as rcgen would go, which not every reader understands.
fn valid_for_years(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2100, 1, 1);
}

/// A key pair that signs the tokens of service accounts: the files of the private and of the public key.
pub fn signing_keys(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let (private, public) = (dir.join("service-accounts.key"), dir.join("service-accounts.pub"));
    write(&private, &key.serialize_pem())?;
    write(&public, &key.public_key_pem())?;
    Ok((private, public))
}

/// How somebody proves who they are.
#[derive(Debug, Clone, Copy)]
pub enum Credentials<'a> {
    /// By a client certificate.
    Certificate(&'a Pair),
    /// By a token.
    Token(&'a str),
}

/// Writes a kubeconfig.
pub fn kubeconfig(path: &Path, server: &str, ca: &Path, credentials: Credentials<'_>) -> Result<()> {
    let user = match credentials {
        Credentials::Certificate(pair) => json!({ "client-certificate": pair.certificate, "client-key": pair.key }),
        Credentials::Token(token) => json!({ "token": token }),
    };
    // JSON is YAML too.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": { "server": server, "certificate-authority": ca } }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    });
    write(path, &format!("{config:#}\n"))
}

fn write_pair(dir: &Path, name: &str, certificate: &str, key: &str) -> Result<Pair> {
    let pair = Pair {
        certificate: dir.join(format!("{name}.crt")),
        key: dir.join(format!("{name}.key")),
    };
    write(&pair.certificate, certificate)?;
    write(&pair.key, key)?;
    Ok(pair)
}

/// Only for us: most of it is secret.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut file = options
        .open(path)
        .with_context(|| format!("create {}", path.display()))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).with_context(|| format!("write {}", path.display()))
}
