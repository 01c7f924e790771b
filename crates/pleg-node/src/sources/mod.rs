//! Sources of manifests, and how they are merged into one desired state.
//!
//! A source is a task that sends a [`Snapshot`] of all its pods whenever they change; the sync loop knows nothing else about it, so an API
//! server can be a source too. [`Desired`] merges snapshots and returns what changed: pure.
//!
//! Pods that a source can no longer read are kept: a pod is removed by removing its manifest, never by a broken manifest, a missing disk or
//! a server that is down. (A kubelet drops the pods of a file that it cannot parse.)
//!
//! | module | job |
//! |---|---|
//! | `check` | checks manifests without a node |
//! | `desired` | the merge |
//! | `directory` | the source of a directory: a task |
//! | `scan` | what is in a directory now, read with care |
//! | `watch` | inotify on a directory |
//! | `url` | the source of a URL: a task |

mod check;
mod desired;
mod directory;
mod scan;
mod url;
mod watch;

use std::fmt;
use std::sync::Arc;

use pleg::PodRef;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::manifest::{Pod, Refused};

pub use check::{Checked, check};
pub use desired::{Change, Desired, Merged};
pub use directory::DirectorySource;
pub use url::{UrlError, UrlSource};

/// Where exactly a pod comes from: a file, or a URL. Ordered by its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
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

/// A pod that a source wants.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredPod {
    /// Where it is written.
    pub origin: Origin,
    /// The pod.
    pub pod: Arc<Pod>,
}

/// A problem of an origin that a person has to fix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Complaint {
    /// Where.
    pub origin: Origin,
    /// What, and what that means for the pods of it.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.what)
    }
}

/// Pods of one text that are shown as refused. There may be more in a text that is all wrong; the complaint about it has them.
const MOST_REFUSED: usize = 64;

/// A pod that a source would want, if its manifest were one that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its names.
    pub id: PodRef,
    /// Where it is written, and what is wrong with it.
    pub complaint: Complaint,
}

/// Whether all pods are known that a text may be about, if only by their names.
fn all_known(refused: &[Refused]) -> bool {
    refused.len() <= MOST_REFUSED && !refused.iter().any(Refused::may_be_any)
}

impl RefusedPod {
    /// Those of a text's documents whose names are good.
    fn of(refused: &[Refused], origin: &Origin) -> Vec<Self> {
        let named = refused.iter().filter_map(|refused| {
            Some(Self {
                id: refused.id.clone()?,
                complaint: Complaint {
                    origin: origin.clone(),
                    what: refused.to_string(),
                },
            })
        });
        named.take(MOST_REFUSED).collect()
    }
}

/// All that a source has.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Which source: its directory or URL.
    pub source: Origin,
    /// The pods it wants.
    pub offers: Vec<DesiredPod>,
    /// What it cannot use.
    pub complaints: Vec<Complaint>,
    /// The pods among that.
    pub refused: Vec<RefusedPod>,
    /// It has read everything at least once. While it has not, it may want pods that it neither offers nor refuses, so no pod may be
    /// called unwanted.
    pub complete: bool,
}

/// Where a source sends its snapshots.
pub type Outlet = mpsc::Sender<Snapshot>;
