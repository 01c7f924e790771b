//! The certificate of the node's server, signed by the cluster.
//!
//! Clients of the server (the API server with `--kubelet-certificate-authority`, metrics-server) can verify it then. The names and addresses
//! in it are those of the Node object; if these change, a new one is requested. Nobody approves such requests by default, so one may wait
//! for long: until it is signed, the server has another certificate.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::pair::{CertificateInfo, CertificatePair, PairError};
use super::request::{Signer, Template};
use super::rotation::{RetryDelays, rotate_at};
use super::signing::{self, SigningError};
use super::store::{self, FileError, PendingKeyError};
use crate::api::{Api, with_causes};
use crate::node::NodeObject;

/// How often the state is looked at. The wall clock may be set meanwhile, so nothing sleeps until a date.
const PERIOD: Duration = Duration::from_secs(30);

/// Names and addresses of the node's server, each once, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServingNames {
    names: Vec<String>,
    ips: Vec<IpAddr>,
}

impl ServingNames {
    /// Of the addresses of a Node object.
    fn of(addresses: &[NodeAddress]) -> Self {
        let (mut names, mut ips) = (Vec::new(), Vec::new());
        for NodeAddress { type_, address } in addresses {
            match (type_.as_str(), address.parse()) {
                ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => ips.push(ip),
                ("Hostname" | "InternalDNS" | "ExternalDNS", _) if !address.is_empty() => names.push(address.clone()),
                _ => {}
            }
        }
        names.sort();
        names.dedup();
        ips.sort();
        ips.dedup();
        Self { names, ips }
    }
}

/// A certificate, for a TLS server. Clones share it.
#[derive(Clone)]
pub struct SignedServingCertificate(Arc<Inner>);

struct Inner {
    signed: ArcSwapOption<CertifiedKey>,
    /// Until there is a signed one.
    fallback: Arc<dyn ResolvesServerCert>,
    node: String,
    cert_dir: PathBuf,
}

impl fmt::Debug for SignedServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_signed = self.0.signed.load().is_some();
        f.debug_struct("SignedServingCertificate")
            .field("is_signed", &is_signed)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for SignedServingCertificate {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let signed = self.0.signed.load_full();
        signed.or_else(|| self.0.fallback.resolve(client))
    }
}

impl SignedServingCertificate {
    /// For the server of this node. Until there is a signed certificate, it has that of `fallback`.
    pub fn new(node: &str, cert_dir: PathBuf, fallback: Arc<dyn ResolvesServerCert>) -> Self {
        Self(Arc::new(Inner {
            signed: ArcSwapOption::empty(),
            fallback,
            node: node.to_owned(),
            cert_dir,
        }))
    }

    /// Requests and replaces certificates until shutdown, with the addresses of the Node object.
    pub async fn run(self, api: Api, node: NodeObject, shutdown: CancellationToken) {
        let (sender, names) = watch::channel(names_of(&node));
        let following = follow_names(node, sender);
        let requesting = self.run_with(api, names, shutdown);
        tokio::select! {
            () = requesting => {}
            // It never ends.
            () = following => {}
        }
    }

    async fn run_with(self, api: Api, names: watch::Receiver<ServingNames>, shutdown: CancellationToken) {
        let mut task = ServingTask {
            certificate: self,
            api,
            names,
            chance: fastrand::f64(),
            failures: 0,
            said: None,
        };
        // A request that waits is found again by the next run.
        shutdown.run_until_cancelled(task.work()).await;
    }
}

/// The names of the node's server; none while there is no Node object.
fn names_of(node: &NodeObject) -> ServingNames {
    let node = node.get();
    let status = node.as_ref().and_then(|node| node.status.as_ref());
    let addresses = status.and_then(|status| status.addresses.as_deref());
    ServingNames::of(addresses.unwrap_or_default())
}

/// Passes on the names of the node's server when they change, which most changes of the Node object are not.
async fn follow_names(mut node: NodeObject, names: watch::Sender<ServingNames>) {
    loop {
        node.changed().await;
        let now = names_of(&node);
        // Without an object, the last names are as good as any.
        names.send_if_modified(|names| {
            let is_news = *names != now && now != ServingNames::default();
            if is_news {
                names.clone_from(&now);
            }
            is_news
        });
    }
}

struct ServingTask {
    certificate: SignedServingCertificate,
    api: Api,
    names: watch::Receiver<ServingNames>,
    chance: f64,
    failures: u32,
    /// What was said last, so that it is said once.
    said: Option<String>,
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
enum ServingError {
    #[error("cannot use the serving certificate that was issued: {0}")]
    Issued(#[from] PairError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Key(#[from] PendingKeyError),
    #[error(transparent)]
    Signing(#[from] SigningError),
    #[error("file operations were interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl ServingTask {
    async fn work(&mut self) {
        loop {
            let names = self.names.borrow_and_update().clone();
            let mut changes = self.names.clone();
            // Without an address nobody can reach the server.
            let is_known = !names.ips.is_empty();
            let delay = tokio::select! {
                delay = self.step(names), if is_known => delay,
                // A request with names that are wrong now need not be waited for.
                Ok(()) = changes.changed() => continue,
                else => return,
            };
            tokio::select! {
                () = sleep(delay) => {}
                Ok(()) = changes.changed() => {}
            }
        }
    }

    /// Uses the certificate of the file, or requests one. Returns when to look again.
    async fn step(&mut self, names: ServingNames) -> Duration {
        let template = Template {
            signer: Signer::Serving,
            node: self.certificate.0.node.clone(),
            names: names.names,
            ips: names.ips,
        };
        let got = match self.load(&template).await {
            Ok(Some(pair)) if is_current(&pair.info, &template, now(), self.chance) => {
                self.certificate.0.signed.store(Some(pair.key));
                self.said = None;
                return PERIOD;
            }
            Ok(old) => {
                // Better than one that nobody can verify, as long as it is valid.
                let valid = old.filter(|pair| !pair.info.has_expired(now()));
                self.certificate.0.signed.store(valid.map(|pair| pair.key));
                self.request(&template).await
            }
            Err(error) => Err(error),
        };
        match got {
            Ok(info) => {
                info!("got a serving certificate, valid until {}", info.not_after);
                (self.failures, self.said, self.chance) = (0, None, fastrand::f64());
                Duration::ZERO
            }
            Err(error) => self.on_failure(&error).await,
        }
    }

    /// The certificate of the file; none if there is none, or one that is of no use.
    async fn load(&self, template: &Template) -> Result<Option<CertificatePair>, ServingError> {
        let (file, name) = (self.file(), template.common_name());
        let read = tokio::task::spawn_blocking(move || {
            let content = store::read(&file)?;
            Ok::<_, FileError>(content.map(|pem| CertificatePair::parse_of(&pem, &name)))
        });
        match read.await?? {
            Some(Ok(pair)) => Ok(Some(pair)),
            Some(Err(error)) => {
                info!(
                    "the serving certificate in {} cannot be used: {error}",
                    self.file().display()
                );
                Ok(None)
            }
            None => Ok(None),
        }
    }

    async fn request(&self, template: &Template) -> Result<CertificateInfo, ServingError> {
        let pending = self.pending_key_file();
        let path = pending.clone();
        let key = tokio::task::spawn_blocking(move || store::pending_key(&path)).await??;
        let mut pem = signing::certificate(&self.api, template, &key).await?;
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend_from_slice(key.serialize_pem().as_bytes());
        let pair = CertificatePair::parse_of(&pem, &template.common_name())?;
        let file = self.file();
        tokio::task::spawn_blocking(move || {
            store::write(&file, &pem)?;
            store::remove(&pending)
        })
        .await??;
        self.certificate.0.signed.store(Some(pair.key));
        Ok(pair.info)
    }

    async fn on_failure(&mut self, error: &ServingError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let text = with_causes(error);
        if self.said.as_deref() != Some(&text) {
            warn!("{text}. Until there is a signed certificate, the node's server uses another one");
            self.said = Some(text);
        }
        let refused = matches!(error, ServingError::Signing(error) if error.needs_new_key());
        if !refused {
            return RetryDelays::OUTAGE.after(self.failures);
        }
        let pending = self.pending_key_file();
        // If it cannot be removed, the next request says so.
        let _ = tokio::task::spawn_blocking(move || store::remove(&pending)).await;
        RetryDelays::REFUSED.after(self.failures)
    }

    fn file(&self) -> PathBuf {
        self.certificate.0.cert_dir.join("server-current.pem")
    }

    fn pending_key_file(&self) -> PathBuf {
        self.certificate.0.cert_dir.join("server-pending.key")
    }
}

/// Whether a certificate has all that it should, and is not to be replaced yet. Pure.
fn is_current(info: &CertificateInfo, wanted: &Template, now: Timestamp, chance: f64) -> bool {
    wanted.names.iter().all(|name| info.names.contains(name))
        && wanted.ips.iter().all(|ip| info.ips.contains(ip))
        && now < rotate_at(info, chance)
}

fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;
    use crate::certificates::pair::made;
    use crate::testing::{Answer, FakeApi};

    fn address(kind: &str, address: &str) -> NodeAddress {
        NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        }
    }

    #[test]
    fn names_come_from_the_addresses_of_the_node() {
        let all = [
            address("InternalIP", "192.0.2.2"),
            address("InternalIP", "192.0.2.1"),
            address("ExternalIP", "192.0.2.1"),
            address("Hostname", "n1"),
            address("InternalDNS", "n1"),
            address("ExternalDNS", "n1.example"),
            address("Hostname", "2001:db8::1"),
            address("InternalIP", "nonsense"),
            address("Hostname", ""),
            address("Other", "x"),
        ];
        let expected = ServingNames {
            names: vec!["n1".to_owned(), "n1.example".to_owned()],
            ips: ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
                .map(|ip| ip.parse().unwrap())
                .into(),
        };
        assert_eq!(ServingNames::of(&all), expected);
    }

    #[test]
    fn a_certificate_is_current_until_its_names_or_its_age_say_otherwise() {
        let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).unwrap();
        let info = CertificateInfo {
            common_name: "system:node:n1".to_owned(),
            not_before: at(0),
            not_after: at(1000),
            names: vec!["n1".to_owned()],
            ips: vec!["192.0.2.1".parse().unwrap()],
        };
        let wanted = |names: &[&str], ips: &[&str]| Template {
            signer: Signer::Serving,
            node: "n1".to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        for (names, ips, now, expected) in [
            (&["n1"][..], &["192.0.2.1"][..], 0, true),
            (&[], &["192.0.2.1"], 0, true),
            (&["n1", "n2"], &["192.0.2.1"], 0, false),
            (&["n1"], &["192.0.2.9"], 0, false),
            (&["n1"], &["192.0.2.1"], 699, true),
            (&["n1"], &["192.0.2.1"], 700, false),
        ] {
            assert_eq!(
                is_current(&info, &wanted(names, ips), at(now), 0.0),
                expected,
                "{names:?} {ips:?} {now}"
            );
        }
    }

    #[derive(Debug)]
    struct Nothing;

    impl ResolvesServerCert for Nothing {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    /// An API server whose signer signs everything at once.
    fn signer() -> FakeApi {
        let requests = parking_lot::Mutex::new(std::collections::BTreeMap::new());
        FakeApi::start(move |request| {
            let mut requests = requests.lock();
            if request.method == "POST" {
                let name = request.body["metadata"]["name"].as_str().unwrap().to_owned();
                requests.insert(name, request.body.clone());
                return Answer::Json(201, request.body.clone());
            }
            let name = request.path.rsplit('/').next().unwrap();
            let Some(mut object) = requests.get(name).cloned() else {
                return Answer::not_found();
            };
            let bytes: ByteString = serde_json::from_value(object["spec"]["request"].clone()).unwrap();
            object["status"] = json!({"certificate": ByteString(made::sign(&bytes.0, now(), now() + SignedDuration::from_mins(10)).into_bytes())});
            Answer::Json(200, object)
        })
    }

    #[tokio::test]
    async fn a_certificate_is_requested_kept_and_replaced_when_the_addresses_change() {
        let directory = tempfile::tempdir().unwrap();
        let cert_dir = directory.path().join("pki");
        let file = cert_dir.join("server-current.pem");
        // Whatever is there before.
        std::fs::create_dir(&cert_dir).unwrap();
        std::fs::write(&file, "half a certifi").unwrap();
        let names = |ip: &str| ServingNames::of(&[address("InternalIP", ip), address("Hostname", "n1")]);
        let start = |fake: &FakeApi, names| {
            let certificate = SignedServingCertificate::new("n1", cert_dir.clone(), Arc::new(Nothing));
            let shutdown = CancellationToken::new();
            tokio::spawn(certificate.clone().run_with(fake.api(), names, shutdown.clone()));
            (certificate, shutdown)
        };
        let signed = async |certificate: &SignedServingCertificate, not: Option<Arc<CertifiedKey>>| {
            loop {
                let found = certificate.0.signed.load_full();
                if let Some(found) = found
                    && not.as_ref().is_none_or(|not| not.cert != found.cert)
                {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(60);
        let test = async {
            let fake = signer();
            let (sender, receiver) = watch::channel(ServingNames::default());
            let (certificate, shutdown) = start(&fake, receiver.clone());
            tokio::task::yield_now().await;
            assert!(fake.requests().is_empty(), "no address is known yet");
            sender.send_replace(names("192.0.2.1"));
            let first = signed(&certificate, None).await;
            sender.send_replace(names("192.0.2.2"));
            let second = signed(&certificate, Some(first)).await;
            let pair = CertificatePair::parse(&std::fs::read(&file).unwrap()).unwrap();
            assert_eq!(pair.key.cert, second.cert);
            assert_eq!(pair.info.ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
            assert!(!cert_dir.join("server-pending.key").exists());
            shutdown.cancel();
            // The next run has it from the file.
            let fake = signer();
            let (certificate, shutdown) = start(&fake, receiver);
            assert_eq!(signed(&certificate, None).await.cert, second.cert);
            assert!(fake.requests().is_empty());
            shutdown.cancel();
        };
        tokio::time::timeout(limit, test).await.unwrap();
    }

    /// Until a new one is signed, an old one is used as long as it is valid.
    #[tokio::test(start_paused = true)]
    async fn an_old_certificate_is_used_while_the_new_one_waits() {
        for (left, is_used) in [
            (SignedDuration::from_secs(60), true),
            (SignedDuration::from_secs(-60), false),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let from = now() - SignedDuration::from_hours(10);
            let (certificate, key) = made::pem("system:node:n1", from, now() + left);
            store::write(
                &directory.path().join("server-current.pem"),
                format!("{certificate}{key}").as_bytes(),
            )
            .unwrap();
            let waits = FakeApi::start(|request| Answer::Json(200, request.body.clone()));
            let (_sender, names) = watch::channel(ServingNames::of(&[address("InternalIP", "192.0.2.1")]));
            let certificate = SignedServingCertificate::new("n1", directory.path().to_owned(), Arc::new(Nothing));
            let shutdown = CancellationToken::new();
            let task = tokio::spawn(certificate.clone().run_with(waits.api(), names, shutdown.clone()));
            waits.wait_for(|requests| !requests.is_empty()).await;
            assert_eq!(certificate.0.signed.load().is_some(), is_used);
            shutdown.cancel();
            task.await.unwrap();
        }
    }
}
