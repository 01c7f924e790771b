//! Objects of the API that a pod refers to: config maps, secrets, tokens of its service account, services, claims.
//!
//! The executor does not know where they come from: a source of pods that has an API server implements [`ApiObjects`]. Static pods cannot
//! refer to any (their manifests are refused), and a node without an API server has [`NoApiServer`].
//!
//! | module | job |
//! |---|---|
//! | this one | the seam: [`ApiObjects`], and what passes through it |
//! | `references` | which objects a pod refers to: pure |
//! | `fetch` | fetches everything that one action needs; what is computed from it is pure |

mod fetch;
mod references;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pleg::{PodRef, PodUid};
use pleg_cri::duration::seconds;
use tokio::sync::Notify;

use crate::manifest::{HostPathKind, ObjectKind, Pod};

pub use fetch::Objects;
pub use references::References;

pub(crate) use fetch::{for_environment, for_volumes, pull_secrets};

/// The entries of a config map or a secret, by key.
pub type ObjectData = BTreeMap<String, Vec<u8>>;

/// Where objects of the API come from. Implementations may cache; what they return is at most as old as they say.
pub trait ApiObjects: fmt::Debug + Send + Sync {
    /// A pod of this node, as it is from now on; called again when it changes. What it refers to may be cached until it is unregistered.
    /// `changed` is notified when a file of its volumes may have to be written anew: an object changed, or a token is to be replaced.
    fn register(&self, pod: &Pod, changed: &Arc<Notify>);

    /// Nothing is left of a pod, so nothing has to be kept for it.
    fn unregister(&self, uid: &PodUid);

    /// The entries of an object; none if it does not exist.
    fn data<'a>(
        &'a self,
        namespace: &'a str,
        kind: ObjectKind,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>>;

    /// A token of the pod's service account. One that is still good for long may be returned again.
    fn token<'a>(&'a self, pod: &'a Pod, wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>>;

    /// Variables for the services of the pod's namespace, in order; if the pod wants no links, only those of the API server.
    fn service_variables<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>>;

    /// The volume that a claim of the pod's namespace is bound to.
    fn claim<'a>(&'a self, pod: &'a Pod, claim: &'a str) -> BoxFuture<'a, Result<ClaimedVolume, ObjectsError>>;
}

/// What a token has to be good for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequest {
    /// For whom it is meant; the API server if none.
    pub audience: Option<String>,
    /// How long it is valid.
    pub expiration: Duration,
}

/// A persistent volume that is a path of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedVolume {
    /// The name of the `PersistentVolume`.
    pub volume: String,
    /// The path.
    pub path: PathBuf,
    /// What has to be at the path.
    pub kind: HostPathKind,
    /// `fsGroup` applies: the volume is `local`. As in the kubelet, a `hostPath` keeps its group.
    pub owned_by_group: bool,
}

/// Why objects of the API cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectsError {
    /// This node has no API server.
    #[error("{0} is an object of the API, and this node has no API server")]
    NoApiServer(String),
    /// The API server does not answer in time.
    #[error("cannot get {what}: no answer within {}", seconds(*.within))]
    Timeout {
        /// The object.
        what: String,
        /// The deadline.
        within: Duration,
    },
    /// The API server refuses, or cannot be reached.
    #[error("cannot get {what}: {why}")]
    Failed {
        /// The object.
        what: String,
        /// Why.
        why: String,
    },
    /// A claim has no volume that this node can mount.
    #[error("persistentvolumeclaim {claim} {why}")]
    Claim {
        /// The claim: `namespace/name`.
        claim: String,
        /// What is the matter with it, and with which volume.
        why: String,
    },
}

/// A node without an API server.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoApiServer;

impl ApiObjects for NoApiServer {
    fn register(&self, _pod: &Pod, _changed: &Arc<Notify>) {}

    fn unregister(&self, _uid: &PodUid) {}

    fn data<'a>(
        &'a self,
        namespace: &'a str,
        kind: ObjectKind,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>> {
        let what = describe(namespace, kind, name);
        Box::pin(async { Err(ObjectsError::NoApiServer(what)) })
    }

    fn token<'a>(&'a self, pod: &'a Pod, _wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>> {
        let what = describe_token(&pod.id);
        Box::pin(async { Err(ObjectsError::NoApiServer(what)) })
    }

    fn service_variables<'a>(&'a self, _pod: &'a Pod) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn claim<'a>(&'a self, pod: &'a Pod, claim: &'a str) -> BoxFuture<'a, Result<ClaimedVolume, ObjectsError>> {
        let what = describe_claim(&pod.id.namespace, claim);
        Box::pin(async { Err(ObjectsError::NoApiServer(what)) })
    }
}

/// The name of an object in messages.
pub fn describe(namespace: &str, kind: ObjectKind, name: &str) -> String {
    let kind = match kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
    };
    format!("{kind} {namespace}/{name}")
}

/// The name of a token in messages.
pub fn describe_token(pod: &PodRef) -> String {
    format!("a service account token for pod {}", pod.full_name())
}

/// The name of a claim in messages.
pub fn describe_claim(namespace: &str, claim: &str) -> String {
    format!("persistentvolumeclaim {namespace}/{claim}")
}
