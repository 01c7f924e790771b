//! Authenticates requests, by a client certificate or by a token that the API server reviews. Anonymous requests are refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::client_ca::ClientCa;
use super::ttl_cache::TtlCache;
use crate::api::{self, Api, ApiError};

/// How long the API server's word about a token counts, as in a kubelet.
const TOKEN_TTL: Duration = Duration::from_mins(2);
/// How long a token that was refused is not asked for again.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// Most tokens that are remembered.
const TOKENS: usize = 1024;
/// Most questions to the API server at once: a client with many bad tokens must not fill the connection.
const REVIEWS: usize = 8;
/// Longest token that the API server is asked about.
const MAX_TOKEN: usize = 16 << 10;
/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// A user, as the API server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// The user that a certificate names, with its groups.
    pub(super) fn of_certificate(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            uid: None,
            groups: with_authenticated(groups.iter().map(|&group| group.to_owned()).collect()),
            extra: BTreeMap::new(),
        }
    }

    fn of_review(user: UserInfo) -> Option<Self> {
        Some(Self {
            name: user.username.filter(|name| !name.is_empty())?,
            uid: user.uid,
            groups: with_authenticated(user.groups.unwrap_or_default()),
            extra: user.extra.unwrap_or_default(),
        })
    }
}

fn with_authenticated(mut groups: Vec<String>) -> Vec<String> {
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    groups
}

/// Why a request is not authenticated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum AuthenticationError {
    /// There is no valid certificate and no valid token.
    #[error("Unauthorized: {0}")]
    Unauthorized(String),
    /// The API server could not be asked.
    #[error("cannot authenticate the request: {0}. Try again when the API server is back, or use a client certificate")]
    Unavailable(ApiError),
}

/// The client certificates of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerCertificates(pub(super) Arc<[CertificateDer<'static>]>);

#[derive(Debug)]
pub(super) struct Authenticator {
    client_ca: ClientCa,
    api: Api,
    /// By hash, so that no token stays in memory.
    tokens: TtlCache<[u8; 32], Option<Arc<Identity>>>,
    reviews: Semaphore,
}

impl Authenticator {
    pub(super) fn new(client_ca: ClientCa, api: Api) -> Self {
        Self {
            client_ca,
            api,
            tokens: TtlCache::new(TOKENS),
            reviews: Semaphore::new(REVIEWS),
        }
    }

    /// Who sends this request.
    pub(super) async fn authenticate(
        &self,
        peer: &PeerCertificates,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>, AuthenticationError> {
        let unauthorized = |what: &str| Err(AuthenticationError::Unauthorized(what.to_owned()));
        let by_certificate = match peer.0.as_ref() {
            [] => None,
            chain => Some(self.client_ca.identify(chain)),
        };
        match (by_certificate, bearer_token(headers)) {
            (Some(Ok(identity)), _) => Ok(Arc::new(identity)),
            (refused, Some(token)) => match (self.of_token(token).await?, refused) {
                (Some(identity), _) => Ok(identity),
                (None, Some(Err(why))) => unauthorized(&why),
                (None, _) => unauthorized("the bearer token is not valid"),
            },
            (Some(Err(why)), None) => unauthorized(&why),
            (None, None) => unauthorized("neither a client certificate nor a bearer token"),
        }
    }

    /// Whose token this is.
    async fn of_token(&self, token: &str) -> Result<Option<Arc<Identity>>, AuthenticationError> {
        if token.len() > MAX_TOKEN {
            return Ok(None);
        }
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.tokens.get(&key) {
            return Ok(known);
        }
        // It is never closed.
        let _permit = self.reviews.acquire().await;
        // Another request with the same token may have asked meanwhile.
        if let Some(known) = self.tokens.get(&key) {
            return Ok(known);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let reviews = kube::Api::<TokenReview>::all(self.api.client());
        let answer = api::call("review a token", reviews.create(&PostParams::default(), &review)).await;
        let status = answer
            .map_err(AuthenticationError::Unavailable)?
            .status
            .unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let identity = user.and_then(Identity::of_review).map(Arc::new);
        let ttl = if identity.is_some() { TOKEN_TTL } else { REFUSED_TTL };
        self.tokens.insert(key, identity.clone(), ttl);
        Ok(identity)
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_headers() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer ", None),
            ("Bearer", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(bearer_token(&headers), expected, "{value}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }
}
