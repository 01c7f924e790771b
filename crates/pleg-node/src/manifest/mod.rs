//! Manifests: parsed and validated.
//!
//! In: a text of one or several documents, YAML or JSON, each a Pod or a list of Pods. Out: pods, and refused documents with every problem
//! they have, each with its path. Pure. A field is either supported or refused: ignoring it would run another pod than the one that was
//! written.
//!
//! | module | job |
//! |---|---|
//! | `document` | documents of a text, and the metadata of a pod |
//! | `spec`, `container`, `volume`, `probe`, `security` | the fields of each |
//! | `read` | how a field is read, and problems collected |
//! | `tree`, `quantity`, `names` | YAML and JSON; quantities; valid texts |
//! | `identity` | the node's name, and the UID of a pod |
//!
//! # Identity
//!
//! Pods get their identity as the kubelet's static pods do: the UID is a hash of the document and the node's name, and the pod's name ends
//! with the node's. Unlike in the kubelet, the hash is taken of the document as it is written, not of a struct that changes with each
//! release, so an upgrade restarts nothing; and the origin of the document is not part of it, so moving a pod to another file changes
//! nothing either. The order of keys, comments, and YAML or JSON make no difference.

mod container;
mod document;
mod env;
mod identity;
mod names;
mod parse;
mod probe;
mod quantity;
mod read;
mod security;
mod spec;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pleg::PodRef;

pub use container::{Container, Port, Protocol, PullPolicy, Resources, Role, Stdin, TerminationMessage};
pub use document::read;
pub use env::{ContainerResource, EnvFrom, EnvValue, EnvVar, KeyRef, ObjectKind, ObjectRef, PodField, ResourceField};
pub use identity::{InvalidNodeName, NodeName};
pub use probe::{Hook, HttpGet, Probe, ProbeHandler, ProbeKind};
pub use quantity::{Quantity, QuantityError};
pub use read::Problem;
pub use security::{ContainerSecurity, FsGroup, PodSecurity, Seccomp};
pub use spec::{Dns, DnsConfig, HostAlias, Hostname, Overhead, PidNamespace, Priority, RestartPolicy, Spec};
pub use tree::{MAX_BYTES, SyntaxError, Tree};
pub use volume::{
    DownwardFile, DownwardValue, EmptyDir, HostPathKind, Medium, Mount, ObjectFile, ProjectedKind, ProjectedVolume,
    Projection, Propagation, SubPath, Volume,
};

/// A desired pod. Never changes: other content is another pod, with another UID.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its UID, namespace and name.
    pub id: PodRef,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What it runs.
    pub spec: Spec,
    /// The document as it is written, except for order and comments.
    pub document: Tree,
}

impl Pod {
    /// A pod of which only the identity is known, which is enough to terminate it.
    pub fn without_manifest(id: PodRef) -> Self {
        Self {
            id,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            spec: Spec::without_manifest(),
            document: Tree::Null,
        }
    }
}

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
