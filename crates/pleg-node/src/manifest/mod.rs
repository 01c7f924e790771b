//! Pods: what is written, and what a node runs.
//!
//! In: a Pod of the Kubernetes API, from a text of YAML or JSON or from an API server. Out: a [`Pod`] with its [`Spec`], or every problem it
//! has, each with its path. Pure. What makes a pod of a file or URL a static pod is in `sources`.
//!
//! | module | job |
//! |---|---|
//! | `tree` | YAML and JSON |
//! | `deserialize` | a tree as a Pod of the API, with unknown fields and wrong types as problems |
//! | `convert` | a Pod of the API as a [`Spec`]: defaults, and what is refused |
//! | `spec`, `container`, `env`, `volume`, `probe`, `security` | the types of a [`Spec`] |
//! | `problem`, `quantity`, `names`, `node_name` | problems with paths; quantities; valid texts; the node's name |

mod container;
mod convert;
mod deserialize;
mod env;
mod names;
mod node_name;
mod object;
mod probe;
mod problem;
mod quantity;
mod restart;
mod security;
mod spec;
mod tree;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use pleg::PodRef;

use crate::reconcile::history::PodFailure;

pub use container::{Container, Port, Protocol, PullPolicy, ResizePolicy, Resources, Role, Stdin, TerminationMessage};
pub use convert::Policy;
pub use env::{ContainerResource, EnvFrom, EnvValue, EnvVar, KeyRef, ObjectKind, ObjectRef, PodField, ResourceField};
pub use node_name::{InvalidNodeName, NodeName};
pub use object::UnusablePod;
pub use probe::{Hook, HttpGet, Probe, ProbeHandler, ProbeKind};
pub use problem::Problem;
pub use quantity::{Quantity, QuantityError};
pub use restart::{ContainerRestart, RestartPolicy, RestartRule};
pub use security::{ContainerSecurity, FsGroup, PodSecurity, Seccomp};
pub use spec::{Dns, DnsConfig, HostAlias, Hostname, Overhead, PidNamespace, Priority, Spec};
pub use tree::{MAX_BYTES, SyntaxError, Tree};
pub use volume::{
    DownwardFile, DownwardValue, EmptyDir, HostPathKind, Medium, Mount, ObjectFile, ProjectedKind, ProjectedVolume,
    Projection, Propagation, SubPath, Volume,
};

pub(crate) use convert::convert as convert_spec;
pub(crate) use deserialize::{from_tree, nearest};
pub(crate) use names::{MAX_NAME, is_label_value, label, qualified, quoted, subdomain};
pub(crate) use object::MAX_FILE_NAME;
pub(crate) use problem::{At, Problems};

/// A desired pod, as it is now. A pod of a file or URL never changes: other content is another pod, with another UID. A pod of an API server
/// keeps its UID when its labels, annotations, images, deadline or deletion change.
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
    /// Set once it is being deleted.
    pub deletion: Option<Deletion>,
    /// The object as its source has it, without `managedFields`; with the identity above.
    pub object: Arc<core::Pod>,
    /// Of a static pod: the document as it is written, except for order and comments.
    pub document: Option<Arc<Tree>>,
    /// Why its source does not let it start. It fails for good, unless it runs already.
    pub rejected: Option<PodFailure>,
}

/// The deletion of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// `deletionTimestamp`: when the grace period ends.
    pub ends_at: Timestamp,
    /// `deletionGracePeriodSeconds`.
    pub grace: Duration,
}

impl Pod {
    /// A pod of which only the identity is known, which is enough to terminate it.
    pub fn without_manifest(id: PodRef) -> Self {
        let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some(id.name.to_string()),
            namespace: Some(id.namespace.to_string()),
            uid: Some(id.uid.to_string()),
            ..Default::default()
        };
        Self {
            id,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            spec: Spec::without_manifest(),
            deletion: None,
            object: Arc::new(core::Pod {
                metadata,
                ..Default::default()
            }),
            document: None,
            rejected: None,
        }
    }

    /// It comes from a file or a URL, not from an API server.
    pub fn is_static(&self) -> bool {
        self.document.is_some()
    }

    /// The API server has it as Succeeded or Failed, which is final.
    pub(crate) fn is_over_in_api(&self) -> bool {
        let status = self.object.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
}
