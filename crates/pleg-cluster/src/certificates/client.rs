//! The client certificate of the node: requested with a bootstrap token if there is none, and replaced before it expires.
//!
//! Only a certificate in the own file ([`ClientCertificate::file`]) is replaced; one that others put into the kubeconfig is theirs to
//! replace, and the kubeconfig is read again when they do. While nothing can be had, static pods run, and every failure is said once.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rcgen::KeyPair;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::kubeconfig::{KubeconfigState, examine, with_certificate};
use super::pair::{CertificateInfo, CertificatePair, PairError};
use super::request::{Template, user};
use super::rotation::{RetryDelays, rotate_at};
use super::signing::{self, SigningError};
use super::store::{self, FileError, PendingKeyError};
use crate::api::{Api, ApiError, read_kubeconfig, with_causes};

/// How often the state is looked at. The wall clock may be set meanwhile, so nothing sleeps until a date.
const PERIOD: Duration = Duration::from_secs(30);

/// Where things are.
#[derive(Debug, Clone)]
pub struct ClientCertificateConfig {
    /// The node's name.
    pub node: String,
    /// The kubeconfig of the node.
    pub kubeconfig: PathBuf,
    /// A kubeconfig with a token that may request certificates.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates and keys are.
    pub cert_dir: PathBuf,
}

/// The task that owns the client certificate.
#[derive(Debug)]
pub struct ClientCertificate {
    config: ClientCertificateConfig,
    api: Api,
    /// When in its last third a certificate is replaced, from 0 to 1.
    chance: f64,
    failures: u32,
    /// What was said last, so that it is said once.
    said: Option<String>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Nothing, for the time being.
    Nothing,
    /// Request the first certificate, because of this.
    Bootstrap(String),
    /// Replace the certificate.
    Rotate,
    /// Say that it cannot go on like this.
    Say(String),
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error("cannot use bootstrap kubeconfig {}", .path.display())]
    BootstrapKubeconfig {
        path: PathBuf,
        #[source]
        source: KubeconfigError,
    },
    #[error("bootstrap kubeconfig {} has no current cluster", .0.display())]
    NoCluster(PathBuf),
    #[error("cannot use the new kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    #[error("cannot use the certificate that was issued: {0}")]
    Issued(#[from] PairError),
    #[error("the certificate that was issued expired on {0}. Is the clock of this machine right?")]
    IssuedExpired(Timestamp),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] PendingKeyError),
    #[error(transparent)]
    Signing(#[from] SigningError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("file operations were interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl ClientCertificate {
    /// Nothing is read or requested yet.
    pub fn new(mut config: ClientCertificateConfig, api: Api) -> Self {
        // The kubeconfig refers to it, and may be in another directory than this process.
        config.cert_dir = std::path::absolute(&config.cert_dir).unwrap_or(config.cert_dir);
        Self {
            config,
            api,
            chance: fastrand::f64(),
            failures: 0,
            said: None,
        }
    }

    /// The file with certificate and key.
    fn file(&self) -> PathBuf {
        self.config.cert_dir.join("client-current.pem")
    }

    fn pending_key_file(&self) -> PathBuf {
        self.config.cert_dir.join("client-pending.key")
    }

    /// Looks after the certificate until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let working = async {
            loop {
                let delay = self.step().await;
                sleep(delay).await;
            }
        };
        // A request that waits is found again by the next run.
        shutdown.run_until_cancelled(working).await;
    }

    /// Does what is to be done. Returns when to look again.
    async fn step(&mut self) -> Duration {
        let done = match self.next().await {
            Next::Nothing => {
                self.said = None;
                return PERIOD;
            }
            Next::Say(what) => {
                self.say(&what);
                return PERIOD;
            }
            Next::Bootstrap(why) => {
                if self.failures == 0 {
                    info!("{why}; requesting a client certificate with the bootstrap kubeconfig");
                }
                self.bootstrap().await
            }
            Next::Rotate => self.rotate().await,
        };
        match done {
            Ok(info) => {
                info!(
                    "got a client certificate of {}, valid until {}",
                    info.common_name, info.not_after
                );
                (self.failures, self.said, self.chance) = (0, None, fastrand::f64());
                Duration::ZERO
            }
            Err(error) => self.on_failure(&error).await,
        }
    }

    async fn next(&self) -> Next {
        let (path, own) = (self.config.kubeconfig.clone(), self.file());
        let state = tokio::task::spawn_blocking(move || {
            // Makes it private, if it is not. What cannot be read is examined below.
            let _ = store::read(&own);
            examine(&path)
        });
        let state = state.await;
        // Only while the runtime shuts down.
        let Ok(state) = state else { return Next::Nothing };
        decide(&self.config, &self.file(), &state, now(), self.chance)
    }

    /// Requests the first certificate, and writes it and a kubeconfig that refers to it.
    async fn bootstrap(&self) -> Result<CertificateInfo, CertificateError> {
        let Some(path) = self.config.bootstrap_kubeconfig.clone() else {
            return Err(CertificateError::NoCluster(PathBuf::new()));
        };
        let unusable = |source| CertificateError::BootstrapKubeconfig {
            path: path.clone(),
            source,
        };
        let read = path.clone();
        let kubeconfig = tokio::task::spawn_blocking(move || Kubeconfig::read_from(read)).await?;
        let kubeconfig = kubeconfig.map_err(unusable)?;
        let made = with_certificate(&kubeconfig, &self.file());
        let made = made.ok_or_else(|| CertificateError::NoCluster(path.clone()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let api = Api::new(config.map_err(unusable)?)?;
        let info = self.request(&api).await?;
        self.write_kubeconfig(&made).await?;
        self.use_kubeconfig().await?;
        Ok(info)
    }

    /// Replaces the certificate by a new one.
    async fn rotate(&self) -> Result<CertificateInfo, CertificateError> {
        let info = self.request(&self.api).await?;
        self.use_kubeconfig().await?;
        Ok(info)
    }

    /// Requests a certificate and writes it with its key.
    async fn request(&self, api: &Api) -> Result<CertificateInfo, CertificateError> {
        let (pending, file) = (self.pending_key_file(), self.file());
        let path = pending.clone();
        let key = tokio::task::spawn_blocking(move || store::pending_key(&path)).await??;
        let template = Template::client(&self.config.node);
        let certificate = signing::certificate(api, &template, &key).await?;
        let (pem, info) = checked(&template, certificate, &key)?;
        tokio::task::spawn_blocking(move || {
            store::write(&file, &pem)?;
            store::remove(&pending)
        })
        .await??;
        Ok(info)
    }

    /// Writes the kubeconfig, unless somebody else has meanwhile written one that works.
    async fn write_kubeconfig(&self, kubeconfig: &Kubeconfig) -> Result<(), CertificateError> {
        if !matches!(self.next().await, Next::Bootstrap(_)) {
            info!(
                "kubeconfig {} can be used now; it stays as it is",
                self.config.kubeconfig.display()
            );
            return Ok(());
        }
        // JSON is YAML. It has texts and numbers only, so it can always be serialised.
        let text = serde_json::to_vec_pretty(kubeconfig).unwrap_or_default();
        let path = self.config.kubeconfig.clone();
        Ok(tokio::task::spawn_blocking(move || store::write(&path, &text)).await??)
    }

    /// From now on, calls have the new certificate.
    async fn use_kubeconfig(&self) -> Result<(), CertificateError> {
        let config = read_kubeconfig(&self.config.kubeconfig).await;
        Ok(self.api.replace(config.map_err(CertificateError::Kubeconfig)?)?)
    }

    async fn on_failure(&mut self, error: &CertificateError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let mut text = with_causes(error);
        let bootstrap = self.config.bootstrap_kubeconfig.as_deref();
        if let (CertificateError::Signing(SigningError::Api(error)), Some(path)) = (error, bootstrap) {
            text.push_str(&advice(error, path));
        }
        self.say(&text);
        let refused = matches!(error, CertificateError::Signing(error) if error.needs_new_key());
        if !refused {
            return RetryDelays::OUTAGE.after(self.failures);
        }
        let pending = self.pending_key_file();
        let removed = tokio::task::spawn_blocking(move || store::remove(&pending)).await;
        if let Ok(Err(error)) = removed {
            self.say(&with_causes(&error));
        }
        RetryDelays::REFUSED.after(self.failures)
    }

    /// Says something once.
    fn say(&mut self, what: &str) {
        if self.said.as_deref() != Some(what) {
            error!("{what}");
            self.said = Some(what.to_owned());
        }
    }
}

/// What to do about a client certificate. Pure.
fn decide(
    config: &ClientCertificateConfig,
    own_file: &Path,
    state: &KubeconfigState,
    now: Timestamp,
    chance: f64,
) -> Next {
    let path = config.kubeconfig.display();
    let bootstrap = |why: String| match &config.bootstrap_kubeconfig {
        Some(_) => Next::Bootstrap(why),
        None => Next::Nothing,
    };
    match state {
        KubeconfigState::Missing => bootstrap(format!("kubeconfig {path} does not exist")),
        // Without a bootstrap kubeconfig, the connection says so.
        KubeconfigState::Unusable(why) => bootstrap(format!("kubeconfig {path} cannot be used ({why})")),
        KubeconfigState::NoCertificate => Next::Nothing,
        KubeconfigState::Certificate { info, path: file } => {
            let is_own = file.as_deref() == Some(own_file);
            if info.has_expired(now) {
                let what = format!(
                    "the client certificate of kubeconfig {path} expired on {}",
                    info.not_after
                );
                return match &config.bootstrap_kubeconfig {
                    Some(_) => Next::Bootstrap(what),
                    None => Next::Say(format!(
                        "{what}. Write a new one there, or let this node request one: --bootstrap-kubeconfig. Is the clock right?"
                    )),
                };
            }
            if is_own && info.common_name != user(&config.node) {
                let node = &config.node;
                return bootstrap(format!(
                    "the client certificate is of {}, not of node {node}",
                    info.common_name
                ));
            }
            if is_own && now >= rotate_at(info, chance) {
                return Next::Rotate;
            }
            Next::Nothing
        }
    }
}

/// A certificate as it is written: with its key, if it can be used.
fn checked(
    template: &Template,
    certificate: Vec<u8>,
    key: &KeyPair,
) -> Result<(Vec<u8>, CertificateInfo), CertificateError> {
    let mut pem = certificate;
    if !pem.ends_with(b"\n") {
        pem.push(b'\n');
    }
    pem.extend_from_slice(key.serialize_pem().as_bytes());
    let info = CertificatePair::parse_of(&pem, &template.common_name())?.info;
    if info.has_expired(now()) {
        return Err(CertificateError::IssuedExpired(info.not_after));
    }
    Ok((pem, info))
}

/// What to do about a refusal of the bootstrap token.
fn advice(error: &ApiError, bootstrap: &Path) -> String {
    let file = bootstrap.display();
    if error.is_unauthorized() {
        return format!(". The token of {file} is wrong or has expired: write a new one there");
    }
    if error.is_forbidden() {
        return format!(". The user of {file} needs the cluster role system:node-bootstrapper");
    }
    String::new()
}

fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
