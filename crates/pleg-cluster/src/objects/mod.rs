//! Objects that pods refer to: config maps, secrets, tokens, services, claims.
//!
//! In: pods of this node, as their workers register them. Out: what they refer to, as the API server has it or last had it, and a hint to a
//! pod when files of its volumes may have to be written anew. [`ClusterObjects`] owns what is cached; nothing is kept for a pod that is gone.
//!
//! The node authorizer lets a node read exactly the objects that its pods refer to, one by one. So what volumes contain is followed by a watch
//! for each object; what is needed only when a container starts is fetched then. In an outage the last known is used.
//!
//! | module | job | kind |
//! |---|---|---|
//! | `data` | config maps and secrets | a cache; a task for each object that volumes contain |
//! | `tokens` | tokens of service accounts | a cache; a timer for each token |
//! | `services` | services, for the environment of containers | a cache; one task |
//! | `service_variables` | variables of a service | pure |
//! | `claims` | the volume of a claim | calls, and a pure part |

mod claims;
mod data;
mod service_variables;
mod services;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pleg::PodUid;
use pleg_node::executor::objects::{ApiObjects, ClaimedVolume, ObjectData, ObjectsError, TokenRequest};
use pleg_node::manifest::{ObjectKind, Pod};
use tokio::sync::Notify;
use tokio::time::sleep;

use self::claims::Claims;
use self::data::DataCache;
use self::services::Services;
use self::tokens::Tokens;
use crate::api::{Api, ApiError, call_within};

/// Deadline of one call. Shorter than what callers wait, so that they get the last known instead of nothing.
const DEADLINE: Duration = Duration::from_secs(4);
/// Longest pause after failures to list or watch. There may be hundreds of such objects.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The node authorizer learns of a new pod a moment after we do: a refusal is tried again after these delays.
const AUTHORIZER_LAG: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
];

/// The objects of an API server. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct ClusterObjects {
    data: DataCache,
    tokens: Tokens,
    services: Services,
    claims: Claims,
}

impl ClusterObjects {
    /// Starts to follow the services of the cluster. Needs a tokio runtime.
    pub fn start(api: Api) -> Arc<Self> {
        Arc::new(Self {
            data: DataCache::new(api.clone()),
            tokens: Tokens::new(api.clone()),
            services: Services::start(api.clone()),
            claims: Claims::new(api),
        })
    }
}

impl ApiObjects for ClusterObjects {
    fn register(&self, pod: &Pod, changed: &Arc<Notify>) {
        self.data.register(pod, changed);
        self.tokens.register(pod, changed);
        self.claims.register(pod);
    }

    fn unregister(&self, uid: &PodUid) {
        self.data.unregister(uid);
        self.tokens.unregister(uid);
        self.claims.unregister(uid);
    }

    fn data<'a>(
        &'a self,
        namespace: &'a str,
        kind: ObjectKind,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>> {
        Box::pin(self.data.get(namespace, kind, name))
    }

    fn token<'a>(&'a self, pod: &'a Pod, wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>> {
        Box::pin(self.tokens.get(pod, wanted))
    }

    fn service_variables<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>> {
        Box::pin(self.services.variables(pod))
    }

    fn claim<'a>(&'a self, pod: &'a Pod, claim: &'a str) -> BoxFuture<'a, Result<ClaimedVolume, ObjectsError>> {
        Box::pin(self.claims.get(pod, claim))
    }
}

/// Makes a call about something that a pod refers to. A refusal is tried again for a moment.
async fn call_for_pod<T, F>(what: &str, calling: impl Fn() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    for delay in AUTHORIZER_LAG {
        match call_within(DEADLINE, format!("get {what}"), calling()).await {
            Err(error) if error.is_forbidden() => sleep(delay).await,
            answer => return answer,
        }
    }
    call_within(DEADLINE, format!("get {what}"), calling()).await
}

/// The error of a call, for the node loop: what could not be had, and why.
fn failed(what: &str, error: &ApiError) -> ObjectsError {
    ObjectsError::Failed {
        what: what.to_owned(),
        why: error.cause.to_string(),
    }
}

#[cfg(test)]
mod tests;
