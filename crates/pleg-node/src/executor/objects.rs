//! Objects of the API that a pod refers to: config maps, secrets, tokens of its service account.
//!
//! The executor does not know where they come from: a source of pods that has an API server implements [`ApiObjects`]. Static pods cannot
//! refer to any (their manifests are refused), and a node without an API server has [`NoApiServer`].
//!
//! Everything that one action needs is fetched first ([`Objects`]); what is computed from it is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use pleg::PodRef;
use pleg_cri::duration::seconds;
use tokio::time::timeout;

use crate::manifest::{Container, EnvValue, KeyRef, ObjectKind, ObjectRef, Pod, Projection, Volume};

/// How long one object may take.
const FETCH_DEADLINE: Duration = Duration::from_secs(10);

/// The entries of a config map or a secret, by key.
pub type ObjectData = BTreeMap<String, Vec<u8>>;

/// Where objects of the API come from. Implementations may cache; what they return is at most as old as they say.
pub trait ApiObjects: fmt::Debug + Send + Sync {
    /// The entries of an object; none if it does not exist.
    fn data<'a>(
        &'a self,
        namespace: &'a str,
        kind: ObjectKind,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>>;

    /// A token of the pod's service account. One that is still good for long may be returned again.
    fn token<'a>(&'a self, pod: &'a Pod, wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>>;

    /// Variables for the services of a namespace, in order. If not `links`, only those of the API server.
    fn service_variables<'a>(
        &'a self,
        namespace: &'a str,
        links: bool,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>>;
}

/// What a token has to be good for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequest {
    /// For whom it is meant; the API server if none.
    pub audience: Option<String>,
    /// How long it is valid.
    pub expiration: Duration,
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
}

/// A node without an API server.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoApiServer;

impl ApiObjects for NoApiServer {
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

    fn service_variables<'a>(
        &'a self,
        _namespace: &'a str,
        _links: bool,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The name of an object in messages.
pub(crate) fn describe(namespace: &str, kind: ObjectKind, name: &str) -> String {
    let kind = match kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
    };
    format!("{kind} {namespace}/{name}")
}

fn describe_token(pod: &PodRef) -> String {
    format!("a service account token for pod {}", pod.full_name())
}

/// The objects that one action needs, as they were when it began.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    data: BTreeMap<(ObjectKind, String), Option<Arc<ObjectData>>>,
    tokens: BTreeMap<TokenRequest, String>,
    service_variables: Vec<(String, String)>,
}

impl Objects {
    /// An object; none if it does not exist.
    pub(crate) fn data(&self, kind: ObjectKind, name: &str) -> Option<&ObjectData> {
        self.data.get(&(kind, name.to_owned()))?.as_deref()
    }

    /// The token that was asked for.
    pub(crate) fn token(&self, wanted: &TokenRequest) -> Option<&str> {
        self.tokens.get(wanted).map(String::as_str)
    }

    /// Variables for services.
    pub(crate) fn service_variables(&self) -> &[(String, String)] {
        &self.service_variables
    }
}

/// References to objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct References {
    data: BTreeSet<(ObjectKind, String)>,
    tokens: BTreeSet<TokenRequest>,
}

impl References {
    fn add(&mut self, object: &ObjectRef) {
        self.data.insert((object.kind, object.name.clone()));
    }

    fn add_key(&mut self, kind: ObjectKind, key: &KeyRef) {
        self.data.insert((kind, key.name.clone()));
    }

    /// Of the volumes of a pod.
    fn of_volumes(pod: &Pod) -> Self {
        let mut found = Self::default();
        for volume in pod.spec.volumes.values() {
            let Volume::Projected(volume) = volume else { continue };
            for source in &volume.sources {
                match source {
                    Projection::Object { object, .. } => found.add(object),
                    Projection::ServiceAccountToken {
                        audience, expiration, ..
                    } => {
                        found.tokens.insert(TokenRequest {
                            audience: audience.clone(),
                            expiration: *expiration,
                        });
                    }
                    Projection::DownwardApi(_) => {}
                }
            }
        }
        found
    }

    /// Of the environment of a container.
    fn of_environment(container: &Container) -> Self {
        let mut found = Self::default();
        for from in &container.env_from {
            found.add(&from.source);
        }
        for var in &container.env {
            match &var.value {
                EnvValue::ConfigMapKey(key) => found.add_key(ObjectKind::ConfigMap, key),
                EnvValue::SecretKey(key) => found.add_key(ObjectKind::Secret, key),
                EnvValue::Text(_) | EnvValue::Field(_) | EnvValue::Resource(_) => {}
            }
        }
        found
    }
}

/// Fetches what the volumes of a pod need.
pub(crate) async fn for_volumes(api: &dyn ApiObjects, pod: &Pod) -> Result<Objects, ObjectsError> {
    fetch(api, pod, References::of_volumes(pod)).await
}

/// Fetches what the environment of a container needs.
pub(crate) async fn for_environment(
    api: &dyn ApiObjects,
    pod: &Pod,
    container: &Container,
) -> Result<Objects, ObjectsError> {
    let mut objects = fetch(api, pod, References::of_environment(container)).await?;
    let variables = api.service_variables(&pod.id.namespace, pod.spec.enable_service_links);
    objects.service_variables = within(variables, || "the services of the namespace".to_owned()).await?;
    Ok(objects)
}

async fn fetch(api: &dyn ApiObjects, pod: &Pod, references: References) -> Result<Objects, ObjectsError> {
    let namespace = &*pod.id.namespace;
    let mut objects = Objects::default();
    for (kind, name) in references.data {
        let data = within(api.data(namespace, kind, &name), || describe(namespace, kind, &name)).await?;
        objects.data.insert((kind, name), data);
    }
    for wanted in references.tokens {
        let token = within(api.token(pod, &wanted), || describe_token(&pod.id)).await?;
        objects.tokens.insert(wanted, token);
    }
    Ok(objects)
}

async fn within<T>(
    fetching: BoxFuture<'_, Result<T, ObjectsError>>,
    what: impl FnOnce() -> String,
) -> Result<T, ObjectsError> {
    let late = |_| ObjectsError::Timeout {
        what: what(),
        within: FETCH_DEADLINE,
    };
    timeout(FETCH_DEADLINE, fetching).await.map_err(late)?
}

/// Objects in memory, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    pub(crate) struct InMemory {
        pub(crate) data: Mutex<BTreeMap<(String, ObjectKind, String), ObjectData>>,
        pub(crate) services: Vec<(String, String)>,
        pub(crate) hangs: bool,
    }

    impl InMemory {
        pub(crate) fn set(&self, kind: ObjectKind, name: &str, entries: &[(&str, &str)]) {
            let entries = entries
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()));
            let key = ("default".to_owned(), kind, name.to_owned());
            self.data.lock().insert(key, entries.collect());
        }
    }

    impl ApiObjects for InMemory {
        fn data<'a>(
            &'a self,
            namespace: &'a str,
            kind: ObjectKind,
            name: &'a str,
        ) -> BoxFuture<'a, Result<Option<Arc<ObjectData>>, ObjectsError>> {
            Box::pin(async move {
                if self.hangs {
                    std::future::pending::<()>().await;
                }
                let key = (namespace.to_owned(), kind, name.to_owned());
                Ok(self.data.lock().get(&key).cloned().map(Arc::new))
            })
        }

        fn token<'a>(&'a self, pod: &'a Pod, wanted: &'a TokenRequest) -> BoxFuture<'a, Result<String, ObjectsError>> {
            let audience = wanted.audience.as_deref().unwrap_or("api");
            let token = format!("token of {} for {audience}", pod.id.name);
            Box::pin(async { Ok(token) })
        }

        fn service_variables<'a>(
            &'a self,
            _namespace: &'a str,
            links: bool,
        ) -> BoxFuture<'a, Result<Vec<(String, String)>, ObjectsError>> {
            let all = self
                .services
                .iter()
                .filter(|(name, _)| links || name.starts_with("KUBERNETES_"));
            let all = all.cloned().collect();
            Box::pin(async { Ok(all) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::InMemory;
    use super::*;
    use crate::testing::pod;

    fn refers_to_a_secret() -> Pod {
        let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
        pod.spec.containers[0].env_from.push(crate::manifest::EnvFrom {
            prefix: String::new(),
            source: ObjectRef {
                kind: ObjectKind::Secret,
                name: "s".to_owned(),
                optional: true,
            },
        });
        pod
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_hangs_is_not_waited_for_for_ever() {
        let api = InMemory {
            hangs: true,
            ..InMemory::default()
        };
        let pod = refers_to_a_secret();
        let error = for_environment(&api, &pod, &pod.spec.containers[0]).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot get secret default/s: no answer within 10s");
    }

    /// An object that is optional may be missing, but without an API server nobody knows whether it is.
    #[tokio::test]
    async fn without_an_api_server_there_are_no_objects() {
        let pod = refers_to_a_secret();
        let error = for_environment(&NoApiServer, &pod, &pod.spec.containers[0])
            .await
            .unwrap_err();
        let wanted = "secret default/s is an object of the API, and this node has no API server";
        assert_eq!(error.to_string(), wanted);
        let objects = for_environment(&InMemory::default(), &pod, &pod.spec.containers[0])
            .await
            .unwrap();
        assert_eq!(objects.data(ObjectKind::Secret, "s"), None);
    }
}
