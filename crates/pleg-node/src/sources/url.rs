//! The source of a URL: a Pod or a list of Pods that a server has, asked for every 20 s.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Complaint, DesiredPod, Origin, Outlet, RefusedPod, Snapshot, all_known};
use crate::manifest::{self, MAX_BYTES, NodeName, Pod};
use crate::net::tls::Tls;

/// How often the server is asked.
const PERIOD: Duration = Duration::from_secs(20);
/// How long all of an answer may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why a URL cannot be a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is none.
    #[error("{} is not a URL; expected for example http://example.com/pods.yaml", pleg_cri::error::quoted(.0))]
    Invalid(String),
    /// It is of another kind than HTTP.
    #[error("{} has an unsupported scheme; use http or https", pleg_cri::error::quoted(.0))]
    Scheme(String),
    /// There is a password in it, which would be in every log.
    #[error("the URL must not contain a user name or password: it would appear in logs")]
    Credentials,
    /// TLS cannot be had.
    #[error("cannot set up TLS for {}: {why}", pleg_cri::error::quoted(.url))]
    Tls {
        /// The URL.
        url: String,
        /// Why.
        why: String,
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
    /// The last good answer.
    pods: Vec<Arc<Pod>>,
    /// All of an answer was good once, or all pods of it are known by name.
    whole: bool,
    complaint: Option<String>,
    /// Pods of the last answer that cannot be run.
    refused: Vec<RefusedPod>,
    /// The last answer, good or bad.
    body: Option<Bytes>,
}

impl UrlSource {
    /// For the manifests at `url`. Does nothing before [`UrlSource::run`], but that for https the certificates of this machine are
    /// read: blocking.
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
            Some("https") => Some(Tls::system().map_err(|why| UrlError::Tls {
                url: url.to_owned(),
                why,
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
            complaint: None,
            refused: Vec::new(),
            body: None,
        })
    }

    /// What an earlier run of `pleg node` had read there: it is kept until the server answers.
    #[must_use]
    pub fn with_known(mut self, offers: &[DesiredPod]) -> Self {
        let own = offers.iter().filter(|offer| offer.origin == self.origin);
        self.pods = own.map(|offer| Arc::clone(&offer.pod)).collect();
        self.whole = !self.pods.is_empty();
        self
    }

    /// How this source is called: its URL.
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// Sends a snapshot after the first answer, or failure, and after each change, until shutdown or until the receiver is dropped.
    pub async fn run(mut self, outlet: Outlet, shutdown: CancellationToken) {
        shutdown
            .run_until_cancelled(async {
                let mut first = true;
                loop {
                    let answer = match tokio::time::timeout(DEADLINE, fetch(&self.uri, self.tls.as_ref())).await {
                        Ok(answer) => answer,
                        Err(_) => Err(format!("no complete answer within {} s", DEADLINE.as_secs())),
                    };
                    let news = self.take(answer) || first;
                    first = false;
                    if news && outlet.send(self.snapshot()).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PERIOD).await;
                }
            })
            .await;
    }

    /// Takes in an answer; whether it is news.
    fn take(&mut self, answer: Result<Bytes, String>) -> bool {
        let (complaint, read) = match answer {
            // What was bad stays bad; what was good may have been out of reach since.
            Ok(body) if self.body.as_ref() == Some(&body) && !self.is_out_of_reach() => return false,
            Ok(body) => {
                let complaint = self.read(&body);
                self.body = Some(body);
                (complaint, true)
            }
            Err(what) => {
                let complaint = format!("cannot be fetched: {what}{}", self.stay());
                (Some(complaint), false)
            }
        };
        if complaint.is_some() && complaint == self.complaint {
            // Said already; but beside what is wrong something may be new.
            return read;
        }
        if let Some(complaint) = &complaint {
            warn!(url = %self.origin, "{complaint}");
        } else {
            info!(url = %self.origin, pods = self.pods.len(), "manifests read");
        }
        self.complaint = complaint;
        true
    }

    fn is_out_of_reach(&self) -> bool {
        self.complaint
            .as_ref()
            .is_some_and(|what| what.starts_with("cannot be fetched"))
    }

    /// What becomes of the pods that are known.
    fn stay(&self) -> String {
        match self.pods.len() {
            0 => String::new(),
            1 => ". Its pod is kept as it was".to_owned(),
            pods => format!(". Its {pods} pods are kept as they were"),
        }
    }

    fn read(&mut self, body: &[u8]) -> Option<String> {
        let found = manifest::read(body, &self.node);
        let refused = found.as_ref().map(|found| found.refused.as_slice());
        self.refused = RefusedPod::of(refused.unwrap_or_default(), &self.origin);
        match found {
            Err(unreadable) => Some(format!("{unreadable}{}", self.stay())),
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
        let offer = |pod: &Arc<Pod>| DesiredPod {
            origin: self.origin.clone(),
            pod: Arc::clone(pod),
        };
        let complaint = |what: &String| Complaint {
            origin: self.origin.clone(),
            what: what.clone(),
        };
        Snapshot {
            source: self.origin.clone(),
            offers: self.pods.iter().map(offer).collect(),
            complaints: self.complaint.iter().map(complaint).collect(),
            refused: self.refused.clone(),
            complete: self.whole,
        }
    }
}

async fn fetch(uri: &http::Uri, tls: Option<&Tls>) -> Result<Bytes, String> {
    // Brackets are for the eye: a resolver takes an address of IPv6 without them.
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let usual = if tls.is_some() { 443 } else { 80 };
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(usual)))
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    match tls {
        Some(tls) => fetch_over(tls.connect(host, stream).await?, uri).await,
        None => fetch_over(stream, uri).await,
    }
}

async fn fetch_over<S>(stream: S, uri: &http::Uri) -> Result<Bytes, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Ends when `send` and the body are dropped.
    let connection = tokio::spawn(connection);
    let answer = async {
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = http::Request::get(target)
            .header(http::header::HOST, authority)
            .header(
                http::header::USER_AGENT,
                concat!("pleg-node/", env!("CARGO_PKG_VERSION")),
            )
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let response = send.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status() != http::StatusCode::OK {
            return Err(format!("the server returned {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| error.to_string())
    };
    let answer = answer.await;
    connection.abort();
    answer
}

#[cfg(test)]
mod tests;
