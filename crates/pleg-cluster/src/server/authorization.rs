//! What a user may do, as the API server decides it: each path is a subresource of this node, as in a kubelet.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use tokio::sync::Semaphore;

use super::authentication::Identity;
use super::ttl_cache::TtlCache;
use crate::api::{self, Api, ApiError};

/// How long the API server's answers count, as in a kubelet.
const ALLOWED_TTL: Duration = Duration::from_mins(5);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Most answers that are remembered.
const ANSWERS: usize = 2048;
/// Most questions to the API server at once.
const REVIEWS: usize = 8;

/// What a request needs: this verb on one of these subresources of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) verb: &'static str,
    /// Tried in this order: the narrow one, then `proxy`, which includes everything.
    pub(super) subresources: &'static [&'static str],
}

impl Access {
    /// What a request needs.
    ///
    /// Unlike in a kubelet, a session in a container always needs `create`: a WebSocket begins with a GET, and who may only read from the
    /// node must not run commands in its containers by that.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let below = |root: &str| {
            path.strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let subresources: &[&str] = match () {
            () if below("/pods") || below("/runningpods") || below("/allocatedPods") => &["pods", "proxy"],
            () if below("/healthz") => &["healthz", "proxy"],
            () if below("/configz") => &["configz", "proxy"],
            () if below("/stats") => &["stats"],
            () if below("/metrics") => &["metrics"],
            () if below("/logs") => &["log"],
            () if below("/checkpoint") => &["checkpoint"],
            () if below("/statusz") => &["statusz"],
            () if below("/flagz") => &["configz"],
            () => &["proxy"],
        };
        let is_session = ["/exec", "/attach", "/portForward", "/run"].into_iter().any(below);
        let verb = match *method {
            _ if is_session => "create",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            // No rule allows it but one for all verbs.
            _ => "unknown",
        };
        Self { verb, subresources }
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum AuthorizationError {
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])")]
    Forbidden {
        user: String,
        verb: &'static str,
        subresources: String,
    },
    #[error("cannot authorize the request of {user}: {cause}. Try again when the API server is back")]
    Unavailable { user: String, cause: ApiError },
}

/// A question to the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    identity: Arc<Identity>,
    verb: &'static str,
    subresource: &'static str,
}

#[derive(Debug)]
pub(super) struct Authorizer {
    api: Api,
    node: String,
    answers: TtlCache<Question, bool>,
    reviews: Semaphore,
}

impl Authorizer {
    pub(super) fn new(api: Api, node: String) -> Self {
        Self {
            api,
            node,
            answers: TtlCache::new(ANSWERS),
            reviews: Semaphore::new(REVIEWS),
        }
    }

    /// Whether this user may do this.
    pub(super) async fn authorize(&self, identity: &Arc<Identity>, access: Access) -> Result<(), AuthorizationError> {
        for subresource in access.subresources {
            let question = Question {
                identity: Arc::clone(identity),
                verb: access.verb,
                subresource,
            };
            let unavailable = |cause| AuthorizationError::Unavailable {
                user: identity.name.clone(),
                cause,
            };
            if self.is_allowed(question).await.map_err(unavailable)? {
                return Ok(());
            }
        }
        Err(AuthorizationError::Forbidden {
            user: identity.name.clone(),
            verb: access.verb,
            subresources: access.subresources.join(" "),
        })
    }

    async fn is_allowed(&self, question: Question) -> Result<bool, ApiError> {
        if let Some(known) = self.answers.get(&question) {
            return Ok(known);
        }
        // It is never closed.
        let _permit = self.reviews.acquire().await;
        if let Some(known) = self.answers.get(&question) {
            return Ok(known);
        }
        let review = self.review(&question);
        let reviews = kube::Api::<SubjectAccessReview>::all(self.api.client());
        let what = format!("review access to nodes/{}", question.subresource);
        let answer = api::call(what, reviews.create(&PostParams::default(), &review)).await?;
        let allowed = answer
            .status
            .is_some_and(|status| status.allowed && status.denied != Some(true));
        self.answers
            .insert(question, allowed, if allowed { ALLOWED_TTL } else { DENIED_TTL });
        Ok(allowed)
    }

    fn review(&self, question: &Question) -> SubjectAccessReview {
        let identity = &question.identity;
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(identity.name.clone()),
                uid: identity.uid.clone(),
                groups: Some(identity.groups.clone()),
                extra: (!identity.extra.is_empty()).then(|| identity.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(question.verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(question.subresource.to_owned()),
                    name: Some(self.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_subresources_of_the_node() {
        let get = Method::GET;
        let cases: [(&Method, &str, &str, &[&str]); 19] = [
            (&get, "/pods", "get", &["pods", "proxy"]),
            (&get, "/pods/", "get", &["pods", "proxy"]),
            (&get, "/podsx", "get", &["proxy"]),
            (&get, "/runningpods/", "get", &["pods", "proxy"]),
            (&get, "/healthz/syncloop", "get", &["healthz", "proxy"]),
            (&get, "/configz", "get", &["configz", "proxy"]),
            (&get, "/stats/summary", "get", &["stats"]),
            (&get, "/metrics", "get", &["metrics"]),
            (&get, "/metrics/resource", "get", &["metrics"]),
            (&Method::HEAD, "/metrics", "get", &["metrics"]),
            (&get, "/logs/messages", "get", &["log"]),
            (&Method::POST, "/checkpoint/a/b/c", "create", &["checkpoint"]),
            (&get, "/containerLogs/ns/pod/c", "get", &["proxy"]),
            (&get, "/api/v1/pods", "get", &["proxy"]),
            // Who may read must not run commands.
            (&get, "/exec/ns/pod/c", "create", &["proxy"]),
            (&Method::POST, "/attach/ns/pod/c", "create", &["proxy"]),
            (&get, "/portForward/ns/pod", "create", &["proxy"]),
            (&Method::OPTIONS, "/pods", "unknown", &["pods", "proxy"]),
            // Not decoded: what is not plainly one of these is everything.
            (&get, "/%6detrics", "get", &["proxy"]),
        ];
        for (method, path, verb, subresources) in cases {
            assert_eq!(
                Access::of(method, path),
                Access { verb, subresources },
                "{method} {path}"
            );
        }
    }
}
