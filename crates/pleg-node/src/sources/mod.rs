//! Sources of manifests, merged into one desired state.
//!
//! In: files of a directory, or the answers of a server. Out: a [`Snapshot`] of all pods of a source whenever they change, by a channel to
//! the node loop. Each source is a task that owns what it has read; [`DesiredState`] owns the merge. The loop knows nothing else about a
//! source, so an API server can be one too.
//!
//! Pods that a source can no longer read are kept: a pod is removed by removing its manifest, never by a broken manifest, a missing disk or
//! a server that is down. (A kubelet drops the pods of a file that it cannot parse.)
//!
//! | module | job |
//! |---|---|
//! | `desired` | the merge: pure |
//! | `directory` | the source of a directory: a task |
//! | `files` | what is known of the files of a directory: pure |
//! | `scan` | what is in a directory now, read with care: blocking |
//! | `watch` | inotify on a directory |
//! | `url` | the source of a URL: a task |
//! | `fetch` | one answer of a URL |
//! | [`static_pods`] | the pods of a text, and what makes them static pods: pure |
//! | `check` | checks manifests without a node |

mod check;
mod desired;
mod directory;
mod fetch;
mod files;
mod scan;
pub mod static_pods;
mod url;
mod watch;

use std::fmt;
use std::sync::Arc;

use pleg::PodRef;
use serde::{Deserialize, Serialize};

use self::static_pods::RefusedDocument;
use crate::manifest::Pod;

pub use check::{Checked, check};
pub use desired::{Change, DesiredState, Merged};
pub use directory::DirectorySource;
pub use url::{UrlError, UrlSource};

pub use crate::net::tls::TlsSetupError;

/// Where a pod comes from: a file, or a URL. Ordered by its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin(Arc<str>);

impl From<&str> for Origin {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Origin {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod that a source desires.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredPod {
    /// Where its manifest is.
    pub origin: Origin,
    /// The pod.
    pub pod: Arc<Pod>,
}

/// A problem with the manifests of an origin that an operator has to fix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceProblem {
    /// Where.
    pub origin: Origin,
    /// What is wrong, and what that means for its pods.
    pub what: String,
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.what)
    }
}

/// Most pods of one text that are shown as refused. The problem of the text names the others.
const MAX_REFUSED: usize = 64;

/// A pod whose manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its names.
    pub id: PodRef,
    /// Where its manifest is, and what is wrong with it.
    pub problem: SourceProblem,
}

/// Whether all pods that a text may define are known, if only by name.
fn all_known(refused: &[RefusedDocument]) -> bool {
    refused.len() <= MAX_REFUSED && !refused.iter().any(RefusedDocument::may_be_any)
}

impl RefusedPod {
    /// The refused pods of a text whose names are valid.
    fn of(refused: &[RefusedDocument], origin: &Origin) -> Vec<Self> {
        let named = refused.iter().filter_map(|refused| {
            Some(Self {
                id: refused.id.clone()?,
                problem: SourceProblem {
                    origin: origin.clone(),
                    what: refused.to_string(),
                },
            })
        });
        named.take(MAX_REFUSED).collect()
    }
}

/// Everything that a source has.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Which source: its directory or URL.
    pub source: Origin,
    /// The pods it desires.
    pub pods: Vec<DesiredPod>,
    /// What is wrong with its manifests.
    pub problems: Vec<SourceProblem>,
    /// The pods that are refused for it.
    pub refused: Vec<RefusedPod>,
    /// It knows all its pods, at least by name. While it does not, no pod may be terminated as an orphan.
    pub complete: bool,
}
