//! Tokens of service accounts, each bound to its pod.
//!
//! A token is replaced when 80 % of its life are over, or after a day, as in the kubelet. By our own clock, from when it was issued: whether
//! the clocks of this machine and of the API server agree does not matter. Tokens are in memory and in the files of volumes, nowhere else.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest as Request, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use parking_lot::Mutex;
use pleg::PodUid;
use pleg_node::executor::objects::{ObjectsError, References, TokenRequest, describe_token};
use pleg_node::manifest::Pod;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{call_for_pod, failed};
use crate::api::Api;

/// A token is replaced after this at the latest.
const MAX_AGE: Duration = Duration::from_hours(24);
/// No token lives shorter: the API server's own limit is 10 min.
const MIN_LIFE: Duration = Duration::from_mins(1);
/// Up to this much earlier, so that not all pods of a node ask at once.
const JITTER: Duration = Duration::from_secs(10);
/// When a token that could not be replaced is tried again.
const RETRY: Duration = Duration::from_secs(15);

/// The tokens of this node's pods.
#[derive(Debug)]
pub(super) struct Tokens {
    api: Api,
    // Held for a lookup or a change; never across an await.
    pods: Mutex<HashMap<PodUid, PodTokens>>,
}

#[derive(Debug)]
struct PodTokens {
    changed: Arc<Notify>,
    tokens: BTreeMap<TokenRequest, Token>,
}

struct Token {
    text: String,
    refresh_at: Instant,
    expires_at: Instant,
    /// Tells the pod when it is to be replaced.
    _timer: AbortOnDropHandle<()>,
}

impl fmt::Debug for Token {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Tokens {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            pods: Mutex::default(),
        }
    }

    /// A pod may ask for tokens from now on.
    pub(super) fn register(&self, pod: &Pod, changed: &Arc<Notify>) {
        let wanted = References::of_volumes(pod).tokens;
        let mut pods = self.pods.lock();
        if wanted.is_empty() {
            pods.remove(&pod.id.uid);
            return;
        }
        let tokens = pods.entry(pod.id.uid.clone()).or_insert_with(|| PodTokens {
            changed: Arc::clone(changed),
            tokens: BTreeMap::new(),
        });
        if !Arc::ptr_eq(&tokens.changed, changed) {
            // Another worker: its timers must wake that one.
            tokens.tokens.clear();
            tokens.changed = Arc::clone(changed);
        }
        tokens.tokens.retain(|request, _| wanted.contains(request));
    }

    /// A pod is gone, and so are its tokens.
    pub(super) fn unregister(&self, uid: &PodUid) {
        self.pods.lock().remove(uid);
    }

    /// A token that is good for a while.
    pub(super) async fn get(&self, pod: &Pod, wanted: &TokenRequest) -> Result<String, ObjectsError> {
        let now = Instant::now();
        let last = {
            let pods = self.pods.lock();
            let token = pods.get(&pod.id.uid).and_then(|pod| pod.tokens.get(wanted));
            token.map(|token| (token.text.clone(), token.refresh_at, token.expires_at))
        };
        match last {
            Some((text, refresh_at, _)) if now < refresh_at => return Ok(text),
            _ => {}
        }
        let what = describe_token(&pod.id);
        match (self.request(pod, wanted).await, last) {
            (Ok((text, life)), _) => {
                self.keep(&pod.id.uid, wanted, text.clone(), now + refresh_after(life), now + life);
                Ok(text)
            }
            // The old one is good for a while.
            (Err(error), Some((text, _, expires_at))) if now < expires_at => {
                warn!(pod = %pod.id, %error, "cannot replace a service account token; using it on");
                self.keep(&pod.id.uid, wanted, text.clone(), now + RETRY, expires_at);
                Ok(text)
            }
            (Err(error), _) => Err(error.into_objects_error(&what)),
        }
    }

    /// Asks for a token. Returns it and its life.
    async fn request(&self, pod: &Pod, wanted: &TokenRequest) -> Result<(String, Duration), TokenError> {
        let account = pod.spec.service_account.as_deref().unwrap_or("default");
        let seconds = i64::try_from(wanted.expiration.as_secs()).unwrap_or(i64::MAX);
        let request = Request {
            spec: Some(TokenRequestSpec {
                audiences: Some(wanted.audience.iter().cloned().collect()),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(pod.id.name.to_string()),
                    uid: Some(pod.id.uid.to_string()),
                }),
                expiration_seconds: Some(seconds),
                ..TokenRequestSpec::default()
            }),
            ..Request::default()
        };
        let what = describe_token(&pod.id);
        let post = async || {
            let accounts = kube::Api::<ServiceAccount>::namespaced(self.api.client(), &pod.id.namespace);
            accounts
                .create_token_request(account, &PostParams::default(), &request)
                .await
        };
        let answer = call_for_pod(&what, post).await.map_err(TokenError::Call)?;
        let token = answer
            .status
            .and_then(|status| status.token)
            .filter(|token| !token.is_empty());
        let granted = answer
            .spec
            .and_then(|spec| spec.expiration_seconds)
            .and_then(|life| u64::try_from(life).ok());
        let life = granted.map_or(wanted.expiration, Duration::from_secs);
        Ok((token.ok_or(TokenError::Empty)?, life.max(MIN_LIFE)))
    }

    /// Caches a token, and wakes the pod when it has to be replaced. Does neither if the pod is gone meanwhile.
    fn keep(&self, uid: &PodUid, wanted: &TokenRequest, text: String, refresh_at: Instant, expires_at: Instant) {
        let mut pods = self.pods.lock();
        let Some(pod) = pods.get_mut(uid) else { return };
        let changed = Arc::clone(&pod.changed);
        let timer = tokio::spawn(async move {
            sleep_until(refresh_at).await;
            changed.notify_one();
        });
        let token = Token {
            text,
            refresh_at,
            expires_at,
            _timer: AbortOnDropHandle::new(timer),
        };
        pod.tokens.insert(wanted.clone(), token);
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
enum TokenError {
    #[error(transparent)]
    Call(crate::api::ApiError),
    #[error("the API server answered without a token")]
    Empty,
}

impl TokenError {
    fn into_objects_error(self, what: &str) -> ObjectsError {
        match self {
            Self::Call(error) => failed(what, &error),
            Self::Empty => ObjectsError::Failed {
                what: what.to_owned(),
                why: self.to_string(),
            },
        }
    }
}

/// How long a token of that life is used before it is replaced.
fn refresh_after(life: Duration) -> Duration {
    let after = life.mul_f64(0.8).min(MAX_AGE);
    after.saturating_sub(JITTER.mul_f64(fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_replaced_in_time() {
        for (life, latest) in [(600, 480), (3607, 2885), (7 * 86_400, 86_400)] {
            let after = refresh_after(Duration::from_secs(life)).as_secs_f64();
            let latest = f64::from(latest);
            assert!((latest - 11.0..=latest + 1.0).contains(&after), "{life}: {after}");
        }
    }
}
