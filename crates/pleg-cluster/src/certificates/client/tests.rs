use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::certificates::pair::made;
use crate::testing::{Answer, FakeApi};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn config(directory: &Path, bootstrap: bool) -> ClientCertificateConfig {
    ClientCertificateConfig {
        node: "n1".to_owned(),
        kubeconfig: directory.join("kubeconfig"),
        bootstrap_kubeconfig: bootstrap.then(|| directory.join("bootstrap")),
        cert_dir: directory.join("pki"),
    }
}

#[test]
fn what_is_done_about_each_state() {
    let own = Path::new("/pki/client-current.pem");
    let certificate = |common_name: &str, path: &Path| KubeconfigState::Certificate {
        info: CertificateInfo {
            common_name: common_name.to_owned(),
            not_before: at(0),
            not_after: at(1000),
            names: Vec::new(),
            ips: Vec::new(),
        },
        path: Some(path.to_owned()),
    };
    let ours = certificate("system:node:n1", own);
    let foreign = certificate("system:node:n1", Path::new("/etc/kubelet.pem"));
    let renamed = certificate("system:node:old", own);
    let unusable = KubeconfigState::Unusable("why".to_owned());
    let cases = [
        // state, now, with bootstrap, without
        (&KubeconfigState::Missing, 0, "bootstrap", "nothing"),
        (&unusable, 0, "bootstrap", "nothing"),
        (&KubeconfigState::NoCertificate, 0, "nothing", "nothing"),
        (&ours, 0, "nothing", "nothing"),
        (&ours, 799, "nothing", "nothing"),
        (&ours, 800, "rotate", "rotate"),
        (&ours, 1000, "bootstrap", "say"),
        // Others replace it.
        (&foreign, 999, "nothing", "nothing"),
        (&foreign, 1000, "bootstrap", "say"),
        (&renamed, 0, "bootstrap", "nothing"),
    ];
    for (state, now, with, without) in cases {
        for (bootstrap, expected) in [(true, with), (false, without)] {
            let next = decide(&config(Path::new("/d"), bootstrap), own, state, at(now), 0.5);
            let word = match next {
                Next::Nothing => "nothing",
                Next::Bootstrap(_) => "bootstrap",
                Next::Rotate => "rotate",
                Next::Say(_) => "say",
            };
            assert_eq!(word, expected, "{state:?} at {now}, bootstrap {bootstrap}");
        }
    }
}

/// The certificate that the fake signs next: its life in seconds.
struct Signer {
    life: Mutex<i64>,
}

/// An API server that signs everything at once, or does what else is asked.
fn server(signer: std::sync::Arc<Signer>) -> FakeApi {
    let requests = Mutex::new(std::collections::BTreeMap::new());
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
        let bytes: k8s_openapi::ByteString = serde_json::from_value(object["spec"]["request"].clone()).unwrap();
        let life = *signer.life.lock();
        object["status"] = match life {
            0 => json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No", "message": "no"}]}),
            life => {
                let certificate = sign(&bytes.0, life);
                json!({"certificate": k8s_openapi::ByteString(certificate.into_bytes())})
            }
        };
        Answer::Json(200, object)
    })
}

fn sign(request: &[u8], life: i64) -> String {
    let (from, to) = (
        now() - SignedDuration::from_hours(1),
        now() + SignedDuration::from_secs(life),
    );
    made::sign(request, from, to)
}

/// A kubeconfig that refers to the certificate of a directory.
fn write_kubeconfig(directory: &Path) {
    let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
                clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}], \
                users: [{name: u, user: {client-certificate: pki/client-current.pem, client-key: pki/client-current.pem}}]}";
    std::fs::write(directory.join("kubeconfig"), text).unwrap();
}

fn write_certificate(directory: &Path, life: i64) -> Vec<u8> {
    let (from, to) = (
        now() - SignedDuration::from_hours(1),
        now() + SignedDuration::from_secs(life),
    );
    let (certificate, key) = made::pem("system:node:n1", from, to);
    let pem = format!("{certificate}{key}").into_bytes();
    store::write(&directory.join("pki/client-current.pem"), &pem).unwrap();
    pem
}

/// A certificate near its end is replaced in its file, and calls have the new one; a fresh one is left alone.
#[tokio::test]
async fn a_certificate_is_replaced_before_it_expires() {
    let directory = tempfile::tempdir().unwrap();
    write_kubeconfig(directory.path());
    let signer = std::sync::Arc::new(Signer {
        life: Mutex::new(36_000),
    });
    let fake = server(std::sync::Arc::clone(&signer));
    let fresh = write_certificate(directory.path(), 36_000);
    let mut task = ClientCertificate::new(config(directory.path(), false), fake.api());
    assert_eq!(task.step().await, PERIOD);
    let file = task.file();
    assert_eq!(std::fs::read(&file).unwrap(), fresh);
    assert!(fake.requests().is_empty());

    // 90 % of its life are over, whatever the chance is.
    let old = write_certificate(directory.path(), 300);
    assert_eq!(task.step().await, Duration::ZERO);
    let new = std::fs::read(&file).unwrap();
    assert_ne!(new, old);
    let pair = CertificatePair::parse_of(&new, "system:node:n1").unwrap();
    assert!(rotate_at(&pair.info, 0.0) > now());
    assert!(!task.pending_key_file().exists());
    assert_eq!(
        fake.api().server(),
        "https://127.0.0.1:1/",
        "calls use the new kubeconfig"
    );
    assert_eq!(task.step().await, PERIOD);
}

/// A denial is said, does no harm, and the next request has another key and is made much later.
#[tokio::test]
async fn a_denied_request_is_made_again_later_with_another_key() {
    let directory = tempfile::tempdir().unwrap();
    write_kubeconfig(directory.path());
    let old = write_certificate(directory.path(), 300);
    let signer = std::sync::Arc::new(Signer { life: Mutex::new(0) });
    let fake = server(std::sync::Arc::clone(&signer));
    let mut task = ClientCertificate::new(config(directory.path(), false), fake.api());
    assert_eq!(task.step().await, Duration::from_mins(1));
    assert!(
        task.said.as_ref().unwrap().contains("was denied (No: no)"),
        "{:?}",
        task.said
    );
    assert_eq!(task.step().await, Duration::from_mins(2));
    assert_eq!(std::fs::read(task.file()).unwrap(), old, "the old one stays");
    let names: std::collections::BTreeSet<String> = fake.requests().iter().map(|one| one.path.clone()).collect();
    assert_eq!(names.len(), 3, "the list, and two names: {names:?}");
    *signer.life.lock() = 36_000;
    assert_eq!(task.step().await, Duration::ZERO);
    assert_eq!((task.failures, task.said.clone()), (0, None));
}

/// A certificate that was signed for another key, or has expired already, is not written.
#[tokio::test]
async fn a_useless_certificate_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    write_kubeconfig(directory.path());
    let old = write_certificate(directory.path(), 300);
    let signer = std::sync::Arc::new(Signer { life: Mutex::new(-60) });
    let fake = server(std::sync::Arc::clone(&signer));
    let mut task = ClientCertificate::new(config(directory.path(), false), fake.api());
    assert_eq!(task.step().await, Duration::from_secs(1));
    assert!(
        task.said
            .as_ref()
            .unwrap()
            .contains("Is the clock of this machine right?"),
        "{:?}",
        task.said
    );
    assert_eq!(std::fs::read(task.file()).unwrap(), old);
    let key = KeyPair::generate().unwrap();
    let (other, _) = made::pem("system:node:n1", now(), now() + SignedDuration::from_hours(1));
    assert!(checked(&Template::client("n1"), other.into_bytes(), &key).is_err());
}

/// What is wrong with the bootstrap kubeconfig is said once, with what to do.
#[tokio::test]
async fn a_bootstrap_kubeconfig_that_cannot_be_used_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut task = ClientCertificate::new(config(directory.path(), true), Api::unusable("none yet"));
    assert_eq!(task.step().await, Duration::from_secs(1));
    let said = task.said.clone().unwrap();
    assert!(said.starts_with("cannot use bootstrap kubeconfig /"), "{said}");
    assert_eq!(task.step().await, Duration::from_secs(2));
    assert_eq!(task.said, Some(said));
    // It appears, and there is no API server.
    let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
                clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: a.b}}]}";
    std::fs::write(directory.path().join("bootstrap"), text).unwrap();
    task.step().await;
    let said = task.said.clone().unwrap();
    assert!(
        said.starts_with("cannot create certificate signing request node-csr-"),
        "{said}"
    );
    assert!(task.pending_key_file().exists(), "the next try has the same key");
    assert!(!directory.path().join("kubeconfig").exists());
    let refused = |code, reason: &str| {
        let status = kube::core::Status::failure("no", reason).with_code(code).boxed();
        advice(&ApiError::new("x", kube::Error::Api(status)), Path::new("/b"))
    };
    assert!(refused(401, "Unauthorized").contains("The token of /b is wrong or has expired"));
    assert!(refused(403, "Forbidden").contains("system:node-bootstrapper"));
}
