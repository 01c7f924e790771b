//! Static pods: the pods of files and URLs.
//!
//! In: a text of one or several documents, YAML or JSON, each a Pod or a list of Pods. Out: pods with the identity of static pods, and
//! refused documents with every problem they have, each with its path. Pure. A field is either supported or refused: ignoring it would run
//! another pod than the one that was written.
//!
//! | module | job |
//! |---|---|
//! | `document` | the documents of a text, and the metadata of a pod |
//! | `identity` | UID and annotations |

mod document;
mod identity;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use pleg::PodRef;

use crate::manifest::{MAX_BYTES, Pod, Problem, SyntaxError};

pub use document::read;
pub use identity::ConfigSource;

/// The content of a text.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The pods, in the order of the text.
    pub pods: Vec<Arc<Pod>>,
    /// The documents that cannot be used.
    pub refused: Vec<RefusedDocument>,
}

/// A document that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RefusedDocument {
    /// Which of the text's documents, from 1.
    pub document: usize,
    /// The name of the pod as it is written, if it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The identity of the pod, if its metadata is valid.
    #[serde(skip)]
    pub id: Option<PodRef>,
    /// Its kind is something else than Pod.
    #[serde(skip)]
    pub is_other: bool,
    /// What is wrong: at least one problem.
    pub problems: Vec<Problem>,
    /// Problems that are not listed because there are too many.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_problems: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl RefusedDocument {
    /// It is not known which pod it is about: it may be any.
    pub fn may_be_any(&self) -> bool {
        self.id.is_none() && !self.is_other
    }
}

impl fmt::Display for RefusedDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        if let Some(pod) = &self.pod {
            write!(f, " (pod {pod})")?;
        }
        for (n, problem) in self.problems.iter().enumerate() {
            write!(f, "{} {problem}", if n == 0 { ":" } else { ";" })?;
        }
        if self.more_problems > 0 {
            write!(f, "; and {} more", self.more_problems)?;
        }
        Ok(())
    }
}

/// Why no document of a text can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is too large.
    #[error("is larger than {} MiB, the limit for a manifest", MAX_BYTES >> 20)]
    TooLarge,
    /// It is neither YAML nor JSON.
    #[error("is neither YAML nor JSON: {0}")]
    Syntax(SyntaxError),
    /// It is empty: it may be about to be written.
    #[error("contains no document")]
    Empty,
}
