//! The connection to the API server.
//!
//! Each call has a deadline ([`call`]): the client itself would wait for ever. Heartbeats have connections of their own, so that a renewal
//! of the lease never waits behind a slow list. [`Api`] is what the parts of this crate share: certificates may be rotated while they run,
//! so they ask for a client whenever they need one, and do not keep it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Client, Config};
use pleg_cri::duration::seconds;
use tokio::time::timeout;
use tower::BoxError;
#[cfg(test)]
use tower::Service;

use crate::identity::Identity;
use crate::reach::{Observe, Reach};

/// Deadline of one call, unless its caller has a reason for another.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may take to be established.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The API server, for every part of this crate. Clones share their clients.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

struct Inner {
    clients: ArcSwap<Clients>,
    reach: Reach,
}

struct Clients {
    calls: Client,
    heartbeats: Client,
    server: String,
    identity: Option<Identity>,
    /// The certificates of the kubeconfig by which the API server is known, in DER; none if this machine's own are used.
    ca: Option<Arc<Vec<Vec<u8>>>>,
    /// They have credentials.
    usable: bool,
}

impl Api {
    /// The API server and the credentials of this configuration. Connects to nothing yet.
    pub fn new(config: Config) -> Result<Self, ApiError> {
        let reach = Reach::default();
        Ok(Self::of(Clients::new(config, &reach)?, reach))
    }

    /// No API server yet: every call fails, for this reason, until [`Api::replace`].
    pub fn unusable(why: &str) -> Self {
        Self::of(Clients::unusable(why), Reach::default())
    }

    /// Every call goes to this service, for tests with a server of their own.
    #[cfg(test)]
    pub(crate) fn with_service<S, B>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>, Error = BoxError> + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let reach = Reach::default();
        let client = ClientBuilder::new(service, "default")
            .with_layer(&Observe(reach.clone()))
            .build();
        let clients = Clients {
            calls: client.clone(),
            heartbeats: client,
            server: "http://fake".to_owned(),
            identity: None,
            ca: None,
            usable: true,
        };
        Self::of(clients, reach)
    }

    fn of(clients: Clients, reach: Reach) -> Self {
        reach.set(clients.server.clone(), clients.identity.clone());
        let clients = ArcSwap::from_pointee(clients);
        Self(Arc::new(Inner { clients, reach }))
    }

    /// There are credentials.
    pub(crate) fn is_usable(&self) -> bool {
        self.0.clients.load().usable
    }

    /// If there are no credentials yet, calls fail for this reason from now on.
    pub(crate) fn fail_unless_usable(&self, why: &str) {
        if !self.is_usable() {
            self.0.clients.store(Arc::new(Clients::unusable(why)));
        }
    }

    /// From now on, callers get clients with this configuration. Calls that are under way end with the old one.
    pub fn replace(&self, config: Config) -> Result<(), ApiError> {
        let clients = Clients::new(config, &self.0.reach)?;
        self.0.reach.set(clients.server.clone(), clients.identity.clone());
        self.0.clients.store(Arc::new(clients));
        Ok(())
    }

    /// Whether it can be reached.
    pub fn reach(&self) -> &Reach {
        &self.0.reach
    }

    /// Whose client certificate we have, if we have one.
    pub fn identity(&self) -> Option<Identity> {
        self.0.clients.load().identity.clone()
    }

    /// For everything but heartbeats. Do not keep it: [`Api::replace`].
    pub fn client(&self) -> Client {
        self.0.clients.load().calls.clone()
    }

    /// With connections of its own, for the lease and the conditions of the node.
    pub fn heartbeats(&self) -> Client {
        self.0.clients.load().heartbeats.clone()
    }

    /// The certificates of the cluster's CA in the kubeconfig, in DER; none if it has none. The same `Arc` until it is read again.
    pub(crate) fn ca(&self) -> Option<Arc<Vec<Vec<u8>>>> {
        self.0.clients.load().ca.clone()
    }

    /// The address of the API server, for messages.
    pub fn server(&self) -> String {
        self.0.clients.load().server.clone()
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Api").field(&self.server()).finish()
    }
}

impl Clients {
    fn new(mut config: Config, reach: &Reach) -> Result<Self, ApiError> {
        config.connect_timeout = Some(CONNECT_DEADLINE);
        // Callers retry by themselves: they know what may wait, and for how long.
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        let identity = Identity::of(&config.auth_info);
        let ca = config.root_cert.clone().map(Arc::new);
        let client = |config| {
            let builder =
                ClientBuilder::try_from(config).map_err(|error| ApiError::new("use the credentials", error))?;
            Ok::<_, ApiError>(builder.with_layer(&Observe(reach.clone())).build())
        };
        Ok(Self {
            calls: client(config.clone())?,
            heartbeats: client(config)?,
            server,
            identity,
            ca,
            usable: true,
        })
    }

    fn unusable(why: &str) -> Self {
        let why: Arc<str> = why.into();
        let fail = tower::service_fn(move |_: http::Request<Body>| {
            let why = Arc::clone(&why);
            async move { Err::<http::Response<Body>, BoxError>(why.as_ref().into()) }
        });
        let client = Client::new(fail, "default");
        Self {
            calls: client.clone(),
            heartbeats: client,
            server: "an unknown address".to_owned(),
            identity: None,
            ca: None,
            usable: false,
        }
    }
}

/// Reads a kubeconfig: its current context, with the files that it refers to.
pub async fn read_kubeconfig(path: &Path) -> Result<Config, KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
}

/// Makes a call with the usual deadline. `what` completes "cannot …".
pub async fn call<T>(
    what: impl fmt::Display,
    calling: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    call_within(CALL_DEADLINE, what, calling).await
}

/// Makes a call with a deadline of its own.
pub async fn call_within<T>(
    deadline: Duration,
    what: impl fmt::Display,
    calling: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match timeout(deadline, calling).await {
        Ok(answer) => answer.map_err(|error| ApiError::new(what, error)),
        Err(_) => Err(ApiError {
            what: what.to_string(),
            cause: Cause::Timeout(deadline),
        }),
    }
}

/// A call of the API server that failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("cannot {what}: {cause}")]
pub struct ApiError {
    /// What could not be done, as a verb and its object.
    pub what: String,
    /// Why.
    pub cause: Cause,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Cause {
    /// The API server did not answer in time.
    #[error("no answer within {}", seconds(*.0))]
    Timeout(Duration),
    /// The API server answered, and refused.
    #[error("{}", refusal(.0))]
    Refused(Box<Status>),
    /// There was no answer: no connection, no trust, credentials that cannot be used, or an answer that cannot be read.
    #[error("{0}")]
    Failed(String),
}

impl ApiError {
    /// Of an error of the client.
    pub fn new(what: impl fmt::Display, error: kube::Error) -> Self {
        let cause = match error {
            kube::Error::Api(status) => Cause::Refused(status),
            other => Cause::Failed(with_causes(&other)),
        };
        let what = what.to_string();
        Self { what, cause }
    }

    /// The status code of the answer; none if there was no answer.
    pub fn code(&self) -> Option<u16> {
        match &self.cause {
            Cause::Refused(status) => Some(status.code),
            _ => None,
        }
    }

    /// There is no such object, or no longer.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// The object has changed since it was read, or has another UID, or exists already.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The object cannot be created: one of this name exists.
    pub fn already_exists(&self) -> bool {
        matches!(&self.cause, Cause::Refused(status) if status.code == 409 && status.reason == "AlreadyExists")
    }

    /// The credentials are not accepted.
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// The credentials are accepted, and do not permit this.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// How long the API server wants us to wait before the next attempt.
    pub fn retry_after(&self) -> Option<Duration> {
        let Cause::Refused(status) = &self.cause else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// The same call may succeed later, without a change of ours.
    pub fn is_transient(&self) -> bool {
        self.code().is_none_or(|code| code == 429 || code >= 500)
    }
}

fn refusal(status: &Status) -> String {
    match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("the API server answered {}", status.code),
        ("", reason) => format!("{reason} ({})", status.code),
        (message, _) => message.to_owned(),
    }
}

/// An error with its causes, each of them once.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> ApiError {
        let status = Status::failure("no", reason).with_code(code).boxed();
        ApiError::new("get node a", kube::Error::Api(status))
    }

    #[test]
    fn answers_are_told_apart() {
        assert!(refused(404, "NotFound").is_not_found());
        assert!(refused(409, "Conflict").is_conflict() && !refused(409, "Conflict").already_exists());
        assert!(refused(409, "AlreadyExists").already_exists());
        assert!(refused(429, "TooManyRequests").is_transient() && refused(500, "").is_transient());
        assert!(!refused(403, "Forbidden").is_transient() && refused(403, "Forbidden").is_forbidden());
        assert_eq!(refused(403, "Forbidden").to_string(), "cannot get node a: no");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_is_not_waited_for_for_ever() {
        let error = call("get node a", std::future::pending::<Result<(), _>>())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "cannot get node a: no answer within 10s");
        assert!(error.is_transient());
    }
}
