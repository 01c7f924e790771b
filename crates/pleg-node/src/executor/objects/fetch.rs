//! Fetches the objects that one action needs, as they are when it begins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::timeout;

use super::{
    ApiObjects, ClaimedVolume, ObjectData, ObjectsError, References, TokenRequest, describe, describe_claim,
    describe_token,
};
use crate::manifest::{Container, ObjectKind, Pod};

/// How long one object may take.
const FETCH_DEADLINE: Duration = Duration::from_secs(10);
/// How many objects of one action are fetched at once.
const CONCURRENT_FETCHES: usize = 8;

/// The objects that one action needs, as they were when it began.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    data: BTreeMap<(ObjectKind, String), Option<Arc<ObjectData>>>,
    tokens: BTreeMap<TokenRequest, String>,
    claims: BTreeMap<String, ClaimedVolume>,
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

    /// The volume of a claim.
    pub(crate) fn claim(&self, claim: &str) -> Option<&ClaimedVolume> {
        self.claims.get(claim)
    }

    /// Variables for services.
    pub(crate) fn service_variables(&self) -> &[(String, String)] {
        &self.service_variables
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
    let variables = api.service_variables(pod);
    objects.service_variables = within(variables, || "the services of the namespace".to_owned()).await?;
    Ok(objects)
}

/// An image pull secret: none if it does not exist.
type PullSecret = Result<Option<Arc<ObjectData>>, ObjectsError>;

/// The image pull secrets of a pod, with their names, in its order.
pub(crate) async fn pull_secrets(api: &dyn ApiObjects, pod: &Pod) -> Vec<(String, PullSecret)> {
    let (namespace, kind) = (&*pod.id.namespace, ObjectKind::Secret);
    let mut secrets = Vec::new();
    for name in &pod.spec.image_pull_secrets {
        let secret = within(api.data(namespace, kind, name), || describe(namespace, kind, name)).await;
        secrets.push((name.clone(), secret));
    }
    secrets
}

async fn fetch(api: &dyn ApiObjects, pod: &Pod, references: References) -> Result<Objects, ObjectsError> {
    let namespace = &*pod.id.namespace;
    let References { data, tokens, claims } = references;
    let data = stream::iter(data).map(|(kind, name)| async move {
        let fetched = within(api.data(namespace, kind, &name), || describe(namespace, kind, &name)).await?;
        Ok(((kind, name), fetched))
    });
    let tokens = stream::iter(tokens).map(|wanted| async move {
        let token = within(api.token(pod, &wanted), || describe_token(&pod.id)).await?;
        Ok((wanted, token))
    });
    let claims = stream::iter(claims).map(|claim| async move {
        let volume = within(api.claim(pod, &claim), || describe_claim(namespace, &claim)).await?;
        Ok((claim, volume))
    });
    let (data, tokens, claims) = tokio::try_join!(
        data.buffer_unordered(CONCURRENT_FETCHES).try_collect(),
        tokens.buffer_unordered(CONCURRENT_FETCHES).try_collect(),
        claims.buffer_unordered(CONCURRENT_FETCHES).try_collect(),
    )?;
    Ok(Objects {
        data,
        tokens,
        claims,
        service_variables: Vec::new(),
    })
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

#[cfg(test)]
mod tests {
    use super::super::NoApiServer;
    use super::super::testing::InMemory;
    use super::*;
    use crate::manifest::{EnvFrom, ObjectRef};
    use crate::testing::pod;

    fn refers_to_a_secret() -> Pod {
        let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
        pod.spec.containers[0].env_from.push(EnvFrom {
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
