//! The source of a URL: a server is asked for a Pod or a list of Pods every 20 s.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::fetch::{FetchError, fetch};
use super::static_pods::{self, ConfigSource};
use super::{DesiredPod, Origin, RefusedPod, Snapshot, SourceProblem, all_known};
use crate::error::with_causes;
use crate::manifest::{NodeName, Pod};
use crate::net::tls::{Tls, TlsSetupError};

/// How often the server is asked.
const PERIOD: Duration = Duration::from_secs(20);
/// How long a complete answer may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why a URL cannot be a source.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UrlError {
    /// It is not a URL.
    #[error("{} is not a URL; expected for example http://example.com/pods.yaml", pleg_cri::error::quoted(.0))]
    Invalid(String),
    /// Its scheme is neither http nor https.
    #[error("{} has an unsupported scheme; use http or https", pleg_cri::error::quoted(.0))]
    Scheme(String),
    /// It contains a password, which would be in every log.
    #[error("the URL must not contain a user name or password: it would appear in logs")]
    Credentials,
    /// TLS cannot be set up.
    #[error("cannot set up TLS for {}", pleg_cri::error::quoted(.url))]
    Tls {
        /// The URL.
        url: String,
        /// Why.
        #[source]
        source: TlsSetupError,
    },
}

/// Reads manifests from a URL.
#[derive(Debug)]
pub struct UrlSource {
    uri: http::Uri,
    /// Set for https.
    tls: Option<Tls>,
    origin: Origin,
    node: NodeName,
    /// The pods of the last valid answer.
    pods: Vec<Arc<Pod>>,
    /// All its pods are known: all of an answer was valid once, or at least all names were.
    whole: bool,
    problem: Option<String>,
    /// Refused pods of the last answer.
    refused: Vec<RefusedPod>,
    /// The last answer, valid or not.
    body: Option<Bytes>,
    /// There was no answer since.
    out_of_reach: bool,
}

impl UrlSource {
    /// For the manifests at `url`. Does nothing before [`UrlSource::run`], except that for https it reads the CA certificates of this
    /// machine: blocking.
    pub fn new(url: &str, node: NodeName) -> Result<Self, UrlError> {
        let uri: http::Uri = url.parse().map_err(|_| UrlError::Invalid(url.to_owned()))?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(UrlError::Invalid(url.to_owned()));
        }
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(UrlError::Credentials);
        }
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(Tls::with_system_roots().map_err(|source| UrlError::Tls {
                url: url.to_owned(),
                source,
            })?),
            _ => return Err(UrlError::Scheme(url.to_owned())),
        };
        Ok(Self {
            tls,
            origin: uri.to_string().into(),
            uri,
            node,
            pods: Vec::new(),
            whole: false,
            problem: None,
            refused: Vec::new(),
            body: None,
            out_of_reach: false,
        })
    }

    /// What an earlier run of `pleg node` had read there: it is kept until the server answers.
    #[must_use]
    pub fn with_known(mut self, pods: &[DesiredPod]) -> Self {
        let own = pods.iter().filter(|desired| desired.origin == self.origin);
        self.pods = own.map(|desired| Arc::clone(&desired.pod)).collect();
        self.whole = !self.pods.is_empty();
        self
    }

    /// The name of this source: its URL.
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// Sends a snapshot after the first answer, or failure, and after each change, until shutdown or until the receiver is dropped.
    pub async fn run(mut self, snapshots: mpsc::Sender<Snapshot>, shutdown: CancellationToken) {
        let send_changes = async {
            let mut first = true;
            loop {
                let answer = tokio::time::timeout(DEADLINE, fetch(&self.uri, self.tls.as_ref())).await;
                let answer = answer.unwrap_or(Err(FetchError::Timeout(DEADLINE)));
                let changed = self.apply(answer);
                if (changed || first) && snapshots.send(self.snapshot()).await.is_err() {
                    return;
                }
                first = false;
                tokio::time::sleep(PERIOD).await;
            }
        };
        shutdown.run_until_cancelled(send_changes).await;
    }

    /// Applies an answer. Returns whether the snapshot may have changed.
    fn apply(&mut self, answer: Result<Bytes, FetchError>) -> bool {
        let (problem, read) = match answer {
            // The same answer has the same problems; but it may have been out of reach since.
            Ok(body) if self.body.as_ref() == Some(&body) && !self.out_of_reach => return false,
            Ok(body) => {
                let problem = self.read(&body);
                self.body = Some(body);
                self.out_of_reach = false;
                (problem, true)
            }
            Err(error) => {
                self.out_of_reach = true;
                let problem = format!("cannot be fetched: {}{}", with_causes(&error), self.kept());
                (Some(problem), false)
            }
        };
        if problem.is_some() && problem == self.problem {
            // Already logged; but the pods beside the problem may have changed.
            return read;
        }
        if let Some(problem) = &problem {
            warn!(url = %self.origin, "{problem}");
        } else {
            info!(url = %self.origin, pods = self.pods.len(), "manifests read");
        }
        self.problem = problem;
        true
    }

    /// The end of a problem: what it means for the known pods.
    fn kept(&self) -> String {
        match self.pods.len() {
            0 => String::new(),
            1 => ". Its pod is kept as it was".to_owned(),
            pods => format!(". Its {pods} pods are kept as they were"),
        }
    }

    /// Reads an answer. Its valid pods are desired from now on; returns what is wrong with the rest.
    fn read(&mut self, body: &[u8]) -> Option<String> {
        let found = static_pods::read(body, &self.node, ConfigSource::Http);
        let refused = found.as_ref().map(|found| found.refused.as_slice());
        self.refused = RefusedPod::of(refused.unwrap_or_default(), &self.origin);
        match found {
            Err(error) => Some(format!("{error}{}", self.kept())),
            Ok(found) if found.refused.is_empty() => {
                (self.pods, self.whole) = (found.pods, true);
                None
            }
            Ok(found) => {
                self.whole |= all_known(&found.refused);
                let refused: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
                let new: Vec<_> = found.pods.iter().map(|pod| pod.id.full_name()).collect();
                let old = std::mem::replace(&mut self.pods, found.pods);
                self.pods
                    .extend(old.into_iter().filter(|pod| !new.contains(&pod.id.full_name())));
                Some(format!("{}. Existing pods are kept as they were", refused.join(". ")))
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let desired = |pod: &Arc<Pod>| DesiredPod {
            origin: self.origin.clone(),
            pod: Arc::clone(pod),
        };
        let problem = |what: &String| SourceProblem {
            origin: self.origin.clone(),
            what: what.clone(),
        };
        Snapshot {
            source: self.origin.clone(),
            pods: self.pods.iter().map(desired).collect(),
            problems: self.problem.iter().map(problem).collect(),
            refused: self.refused.clone(),
            complete: self.whole,
        }
    }
}

#[cfg(test)]
mod tests;
