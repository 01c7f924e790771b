//! One certificate signing request: submitted, and waited for.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use kube::api::PostParams;
use pleg_cri::duration::seconds;
use rcgen::KeyPair;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::request::Template;
use crate::api::{Api, ApiError, call};

/// How long somebody may take to approve it. Then it is looked for again, in case it was cleaned up.
const PATIENCE: Duration = Duration::from_hours(1);
/// Delay between two looks at it, and its maximum; doubles each time.
const POLL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A controller usually approves it within this time.
const USUAL: Duration = Duration::from_secs(3);
/// How often people are reminded.
const REMIND: Duration = Duration::from_mins(5);

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum SigningError {
    /// The content cannot be a request.
    #[error("cannot make a certificate signing request: {0}")]
    Content(String),
    /// A call failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Somebody else has made a request of its name.
    #[error("certificate signing request {0} exists and is not ours. Delete it: kubectl delete csr {0}")]
    NotOurs(String),
    /// Somebody decided against it.
    #[error("certificate signing request {name} was denied ({why}). A new one follows; approve that one")]
    Denied {
        /// The request.
        name: String,
        /// The reason and message.
        why: String,
    },
    /// The signer could not sign it.
    #[error("certificate signing request {name} failed ({why}). Look at it: kubectl describe csr {name}")]
    Failed {
        /// The request.
        name: String,
        /// The reason and message.
        why: String,
    },
    /// Somebody deleted it, or it waited for too long.
    #[error("certificate signing request {0} was deleted")]
    Deleted(String),
    /// Nobody approved it.
    #[error(
        "certificate signing request {name} was not approved within {}. Approve it: kubectl certificate approve {name}",
        seconds(PATIENCE)
    )]
    NotApproved {
        /// The request.
        name: String,
    },
}

impl SigningError {
    /// Another request with the same key would end like this one.
    pub(super) fn needs_new_key(&self) -> bool {
        matches!(self, Self::NotOurs(_) | Self::Denied { .. } | Self::Failed { .. })
    }
}

/// Gets a certificate for a key: submits a request, or finds the one that an earlier run submitted, and waits until it is signed. The
/// certificate is in PEM, and not checked.
pub(super) async fn certificate(api: &Api, template: &Template, key: &KeyPair) -> Result<Vec<u8>, SigningError> {
    let object = template
        .object(key)
        .map_err(|error| SigningError::Content(error.to_string()))?;
    let name = template.request_name(key);
    let what = format!("create certificate signing request {name}");
    match call(what, requests(api).create(&PostParams::default(), &object)).await {
        Ok(_) => {}
        Err(error) if error.already_exists() => {
            if !template.is_ours(key, &get(api, &name).await?) {
                return Err(SigningError::NotOurs(name));
            }
        }
        Err(error) => return Err(error.into()),
    }
    wait(api, &name).await
}

async fn wait(api: &Api, name: &str) -> Result<Vec<u8>, SigningError> {
    let (began, mut delay, mut reminded) = (Instant::now(), POLL.0, None::<Instant>);
    loop {
        match get(api, name).await {
            Ok(request) => {
                if let Some(certificate) = verdict(name, request.status)? {
                    return Ok(certificate);
                }
            }
            Err(error) if error.is_not_found() => return Err(SigningError::Deleted(name.to_owned())),
            // It is there, and somebody may approve it meanwhile.
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
        let waited = began.elapsed();
        if waited > PATIENCE {
            return Err(SigningError::NotApproved { name: name.to_owned() });
        }
        if waited > USUAL && reminded.is_none_or(|at| at.elapsed() >= REMIND) {
            reminded = Some(Instant::now());
            info!(
                "certificate signing request {name} waits for approval since {}: kubectl certificate approve {name}",
                seconds(waited)
            );
        }
        sleep(delay).await;
        delay = delay.saturating_mul(2).min(POLL.1);
    }
}

/// What was decided about a request; none if nothing yet.
fn verdict(name: &str, status: Option<CertificateSigningRequestStatus>) -> Result<Option<Vec<u8>>, SigningError> {
    let Some(status) = status else { return Ok(None) };
    for condition in status.conditions.iter().flatten() {
        let name = name.to_owned();
        let texts = [condition.reason.as_deref(), condition.message.as_deref()];
        let texts: Vec<&str> = texts.into_iter().flatten().filter(|text| !text.is_empty()).collect();
        let why = texts.join(": ");
        match condition.type_.as_str() {
            "Denied" => return Err(SigningError::Denied { name, why }),
            "Failed" => return Err(SigningError::Failed { name, why }),
            _ => {}
        }
    }
    Ok(status
        .certificate
        .map(|bytes| bytes.0)
        .filter(|bytes| !bytes.is_empty()))
}

async fn get(api: &Api, name: &str) -> Result<CertificateSigningRequest, ApiError> {
    call(
        format!("get certificate signing request {name}"),
        requests(api).get(name),
    )
    .await
}

fn requests(api: &Api) -> kube::Api<CertificateSigningRequest> {
    kube::Api::all(api.client())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Answer, FakeApi};

    const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

    /// An API server with one request, which somebody decides about.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Option<Value>>>);

    impl Server {
        fn start(&self) -> FakeApi {
            let stored = Arc::clone(&self.0);
            FakeApi::start(move |request| {
                let mut stored = stored.lock();
                match (request.method.as_str(), &*stored) {
                    ("POST", Some(_)) => Answer::refuse(409, "AlreadyExists", "exists"),
                    ("POST", None) => {
                        *stored = Some(request.body.clone());
                        Answer::Json(201, request.body.clone())
                    }
                    (_, Some(object)) => Answer::Json(200, object.clone()),
                    (_, None) => Answer::not_found(),
                }
            })
        }

        fn decide(&self, status: Value) {
            if let Some(object) = &mut *self.0.lock() {
                object["status"] = status;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_waited_for_until_somebody_decides() {
        let key = KeyPair::generate().unwrap();
        let template = Template::client("n1");
        let name = template.request_name(&key);
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "Admin", "message": "said so"}]);
        let why = "Admin: said so".to_owned();
        let cases = [
            // Approved, and signed a moment later.
            (
                json!({"conditions": condition("Approved"), "certificate": "Q0VSVA=="}),
                Ok(b"CERT".to_vec()),
            ),
            (
                json!({"conditions": condition("Denied")}),
                Err(SigningError::Denied {
                    name: name.clone(),
                    why: why.clone(),
                }),
            ),
            (
                json!({"conditions": condition("Failed")}),
                Err(SigningError::Failed {
                    name: name.clone(),
                    why,
                }),
            ),
        ];
        for (status, expected) in cases {
            let server = Server::default();
            let fake = server.start();
            let deciding = async {
                fake.wait_for(|requests| requests.len() >= 3).await;
                server.decide(json!({"conditions": condition("Approved")}));
                fake.wait_for(|requests| requests.len() >= 5).await;
                server.decide(status);
            };
            let api = fake.api();
            let (got, ()) = tokio::join!(certificate(&api, &template, &key), deciding);
            assert_eq!(got, expected);
            assert_eq!(fake.lines()[..2], [format!("POST {CSR}"), format!("GET {CSR}/{name}")]);
        }
    }

    /// A restarted node has the same key, and finds its request again; not that of somebody else.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_exists_is_continued_if_it_is_ours() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let template = Template::client("n1");
        for (made_by, expected) in [
            (&key, Ok(b"CERT".to_vec())),
            (&other, Err(SigningError::NotOurs(template.request_name(&key)))),
        ] {
            let server = Server::default();
            *server.0.lock() = Some(serde_json::to_value(template.object(made_by).unwrap()).unwrap());
            server.decide(json!({"certificate": "Q0VSVA=="}));
            let fake = server.start();
            assert_eq!(certificate(&fake.api(), &template, &key).await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_decides_or_it_is_deleted() {
        let key = KeyPair::generate().unwrap();
        let template = Template::client("n1");
        let name = template.request_name(&key);
        let server = Server::default();
        let fake = server.start();
        let began = Instant::now();
        let error = certificate(&fake.api(), &template, &key).await.unwrap_err();
        assert_eq!(error, SigningError::NotApproved { name: name.clone() });
        assert!(began.elapsed() < PATIENCE + Duration::from_secs(10));
        let looks = fake.requests().len();
        assert!((700..750).contains(&looks), "{looks} requests in an hour");

        let server = Server::default();
        let fake = server.start();
        let deleting = async {
            fake.wait_for(|requests| requests.len() >= 3).await;
            *server.0.lock() = None;
        };
        let api = fake.api();
        let (got, ()) = tokio::join!(certificate(&api, &template, &key), deleting);
        assert_eq!(got, Err(SigningError::Deleted(name)));
    }

    /// An API server that is away for a moment loses nothing; one that refuses is not asked again.
    #[tokio::test(start_paused = true)]
    async fn outages_are_waited_for_and_refusals_are_not() {
        let key = KeyPair::generate().unwrap();
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let fake = FakeApi::start(move |request| {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match (request.method.as_str(), n) {
                ("POST", _) => Answer::Json(201, request.body.clone()),
                (_, 1..4) => Answer::Fail("connection refused"),
                (_, 4..6) => Answer::refuse(503, "ServiceUnavailable", "no"),
                _ => Answer::Json(
                    200,
                    json!({"metadata": {}, "spec": {"request": "", "signerName": "x"}, "status": {"certificate": "Q0VSVA=="}}),
                ),
            }
        });
        let template = Template::client("n1");
        assert_eq!(certificate(&fake.api(), &template, &key).await, Ok(b"CERT".to_vec()));

        let fake = FakeApi::start(|_| Answer::refuse(403, "Forbidden", "no"));
        let error = certificate(&fake.api(), &template, &key).await.unwrap_err();
        assert!(
            matches!(&error, SigningError::Api(error) if error.is_forbidden()),
            "{error}"
        );
        assert_eq!(fake.requests().len(), 1);
    }
}
