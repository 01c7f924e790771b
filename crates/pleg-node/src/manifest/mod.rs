//! Manifests: texts in, pods or reasons out. Pure.
//!
//! A text holds one or several documents, YAML or JSON, each a Pod or a list of Pods. A document that cannot be used is refused with
//! every problem it has, each with its path; the others of the text are read. A field is either supported or refused: to have it
//! ignored would be to run another pod than the one that was written.
//!
//! # Identity
//!
//! Pods of manifests have no API server that names them, so they get their names as the kubelet's static pods do: the UID is a hash of
//! the document and the node's name, and the pod's name ends with the node's. What differs from the kubelet: the hash is taken of the
//! document as it was written, not of a struct that changes with each release, so an upgrade of ours restarts nothing; and where the
//! document was found is no part of it, so moving a pod to another file changes nothing either. Order of keys, comments, and whether it
//! is YAML or JSON make no difference.

mod container;
mod names;
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
use std::fmt::Write as _;
use std::sync::Arc;

use pleg::{PodRef, PodUid};
use sha2::{Digest, Sha256};

use self::read::{Field, Problems};

pub use container::{Container, EnvValue, EnvVar, PodField, Port, Protocol, PullPolicy, Resources, Role};
pub use probe::{Hook, HttpGet, Probe, ProbeHandler, ProbeKind};
pub use quantity::Quantity;
pub use read::Problem;
pub use security::{ContainerSecurity, PodSecurity, Seccomp};
pub use spec::{Dns, DnsConfig, PidNamespace, RestartPolicy, Spec};
pub use tree::{MAX_BYTES, Tree};
pub use volume::{HostPathKind, Mount, Propagation, Volume};

/// Pods of one text. More is somebody's mistake.
const MOST_PODS: usize = 1024;
/// The longest name of a file, as Linux has it: the log directory of a pod is `NAMESPACE_NAME_UID`.
const LONGEST_FILE_NAME: usize = 255;

/// The name of this node: part of the name and the UID of every static pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A name as DNS has them; capitals become small.
    pub fn new(name: &str) -> Result<Self, String> {
        let name = name.to_lowercase();
        names::subdomain(&name).map_err(|what| format!("the node's name {what}"))?;
        Ok(Self(name.into()))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod as somebody wants it. Never changes: other content is another pod, with another UID.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its names.
    pub id: PodRef,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What it is made of.
    pub spec: Spec,
    /// The document as it was written, but for order and comments.
    pub document: Tree,
}

impl Pod {
    /// A pod of which only the names are left: to end it, that is enough.
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

/// What a text holds.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The pods, in the order of the text.
    pub pods: Vec<Arc<Pod>>,
    /// The documents that are no pods we can run.
    pub refused: Vec<RefusedDocument>,
}

/// A document that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RefusedDocument {
    /// Which of the text's documents, from 1.
    pub document: usize,
    /// The pod's name as it is written, if it can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod that it would be, if nothing is wrong with its names.
    #[serde(skip)]
    pub id: Option<PodRef>,
    /// It is something else than a pod, and says so.
    #[serde(skip)]
    pub is_other: bool,
    /// What is wrong, at least one.
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
    /// Which pod it is about cannot be told: it may be any.
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

/// Why nothing of a text can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is too large.
    #[error("is larger than {} MiB, the limit for a manifest", MAX_BYTES >> 20)]
    TooLarge,
    /// It is neither YAML nor JSON.
    #[error("is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// There is nothing in it: it may be about to be written.
    #[error("contains no document")]
    Empty,
}

/// Reads a text.
pub fn read(text: &[u8], node: &NodeName) -> Result<Manifests, ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(ManifestError::TooLarge);
    }
    let documents = Tree::parse(text).map_err(ManifestError::Syntax)?;
    if documents.is_empty() {
        return Err(ManifestError::Empty);
    }
    let mut found = Manifests::default();
    let mut seen = BTreeMap::new();
    for (n, document) in documents.into_iter().enumerate() {
        let number = n + 1;
        let kind = document
            .get("kind")
            .and_then(Tree::as_text)
            .unwrap_or_default()
            .to_owned();
        let items = if kind == "PodList" || kind == "List" {
            list_items(&document, number, kind == "PodList", &mut found.refused)
        } else {
            vec![document]
        };
        for item in items {
            match read_pod(item, number, node) {
                Err(refused) => found.refused.push(refused),
                Ok(pod) => {
                    let name = pod.id.full_name();
                    let what = match seen.get(&name) {
                        Some(first) => Some(format!("document {first} already has a pod of this name")),
                        None if seen.len() >= MOST_PODS => {
                            Some(format!("at most {MOST_PODS} pods are read from one file"))
                        }
                        None => None,
                    };
                    if let Some(what) = what {
                        found
                            .refused
                            .push(refused(number, &pod.document, "metadata.name", what));
                        continue;
                    }
                    seen.insert(name, number);
                    found.pods.push(Arc::new(pod));
                }
            }
        }
    }
    Ok(found)
}

fn refused(document: usize, tree: &Tree, path: &str, what: impl Into<String>) -> RefusedDocument {
    RefusedDocument {
        document,
        pod: written_name(tree),
        id: None,
        is_other: false,
        problems: vec![Problem {
            path: path.to_owned(),
            what: what.into(),
        }],
        more_problems: 0,
    }
}

/// The pod's name as it is written, for messages.
fn written_name(tree: &Tree) -> Option<String> {
    let metadata = tree.get("metadata")?;
    let name = metadata.get("name")?.as_text()?;
    let namespace = metadata.get("namespace").and_then(Tree::as_text).unwrap_or("default");
    let name: String = format!("{namespace}/{name}")
        .chars()
        .take(320)
        .flat_map(char::escape_debug)
        .collect();
    Some(name)
}

/// The items of a list. Those of a `PodList` need not say that they are pods.
fn list_items(document: &Tree, number: usize, typed: bool, refusals: &mut Vec<RefusedDocument>) -> Vec<Tree> {
    let problems = Problems::default();
    let items = Field::root(document, &problems).object(&[], |list| {
        list.get("kind");
        list.need("apiVersion").map(|f| f.one_of(&[("v1", ())]));
        // What an API server writes there is about the list, not about the pods.
        list.get("metadata");
        list.need("items")
            .map(|f| f.list(|item| Some(item.tree.clone())))
            .unwrap_or_default()
    });
    let (problems, more_problems) = problems.into_inner();
    if !problems.is_empty() {
        refusals.push(RefusedDocument {
            document: number,
            pod: None,
            id: None,
            is_other: false,
            problems,
            more_problems,
        });
        return Vec::new();
    }
    let mut items = items.unwrap_or_default();
    for item in &mut items {
        if let (Tree::Map(map), true) = (item, typed) {
            for (key, value) in [("apiVersion", "v1"), ("kind", "Pod")] {
                map.entry(key.to_owned())
                    .or_insert_with(|| Tree::Text(value.to_owned()));
            }
        }
    }
    items
}

fn read_pod(document: Tree, number: usize, node: &NodeName) -> Result<Pod, RefusedDocument> {
    // Of another kind nothing else makes sense, and a long list of unknown fields would hide it.
    let (version, kind) = (document.get("apiVersion"), document.get("kind"));
    let is = |tree: Option<&Tree>, wanted| tree.and_then(Tree::as_text) == Some(wanted);
    if !is(version, "v1") || !is(kind, "Pod") {
        let word = |tree: Option<&Tree>| tree.and_then(Tree::as_text).map(names::quoted);
        let found = match (word(kind), word(version)) {
            (None, _) => "required field is missing".to_owned(),
            (Some(kind), None) => format!("{kind} without an apiVersion is not supported"),
            (Some(kind), Some(version)) => format!("{kind} (apiVersion {version}) is not supported"),
        };
        let what = format!("{found}; expected Pod (apiVersion v1)");
        return Err(RefusedDocument {
            // Who says nothing, or Pod of another version, may mean one of ours.
            is_other: kind.and_then(Tree::as_text).is_some_and(|kind| kind != "Pod"),
            ..refused(number, &document, "kind", what)
        });
    }

    let problems = Problems::default();
    let read = Field::root(&document, &problems).object(&[], |pod| {
        pod.get("apiVersion");
        pod.get("kind");
        // As tools write it that make manifests from Go structs.
        pod.only("status", &Tree::Map(BTreeMap::new()), "set by pleg node; remove it");
        let metadata = pod.need("metadata").and_then(|f| read_metadata(&f, node));
        let spec = pod.need("spec").and_then(|f| spec::read(&f));
        (metadata, spec)
    });
    let (problems, more_problems) = problems.into_inner();
    let (metadata, spec) = read.unwrap_or_default();
    let id = metadata.as_ref().map(|metadata| PodRef {
        uid: uid(&document, node),
        namespace: metadata.namespace.as_str().into(),
        name: metadata.name.as_str().into(),
    });
    match (id, metadata, spec) {
        (Some(id), Some(metadata), Some(spec)) if problems.is_empty() => Ok(Pod {
            id,
            labels: metadata.labels,
            annotations: metadata.annotations,
            spec,
            document,
        }),
        // Metadata is read first: what is wrong with it is among those that are listed.
        (id, ..) => Err(RefusedDocument {
            document: number,
            pod: written_name(&document),
            is_other: false,
            id: id.filter(|_| !problems.iter().any(|problem| problem.path.starts_with("metadata"))),
            problems,
            more_problems,
        }),
    }
}

struct Metadata {
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

const UNSUPPORTED_METADATA: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
];

fn read_metadata(field: &Field<'_>, node: &NodeName) -> Option<Metadata> {
    field.object(UNSUPPORTED_METADATA, |metadata| {
        if let Some(uid) = metadata.get("uid") {
            uid.refuse("computed from the manifest; remove it");
        }
        let namespace = metadata.get("namespace").and_then(|f| f.checked(names::label));
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let field = metadata.need("name");
        let name = field.as_ref().and_then(|f| f.checked(names::subdomain)).unwrap_or_default();
        let name = format!("{name}-{node}");
        if let Some(field) = field
            && (name.len() > names::LONGEST_NAME || namespace.len() + name.len() + UID_LENGTH + 2 > LONGEST_FILE_NAME)
        {
            field.refuse(format!("is too long: namespace, name, node name ({node}) and UID together name a directory"));
        }
        let key = |field: &Field<'_>, key: &str| {
            if let Err(what) = names::qualified(key) {
                field.refuse(what);
            }
        };
        let labels = metadata.get("labels").map(|f| {
            f.text_map(|field, name, value| {
                key(field, name);
                if !names::label_value(value) {
                    field.refuse(format!(
                        "{} is not a valid label value; expected at most 63 characters of A-Z, a-z, 0-9, -, _ and ., starting and ending with a letter or digit",
                        names::quoted(value)
                    ));
                }
            })
        });
        let annotations = metadata.get("annotations").map(|f| f.text_map(|field, name, _| key(field, name)));
        Metadata {
            namespace,
            name,
            labels: labels.unwrap_or_default(),
            annotations: annotations.unwrap_or_default(),
        }
    })
}

/// Letters of a UID: 128 bits in hex, as the kubelet's static pods have them.
const UID_LENGTH: usize = 32;

/// The UID. Must not change from one release to the next: every pod of every node would be replaced.
fn uid(document: &Tree, node: &NodeName) -> PodUid {
    let mut hash = Sha256::new();
    hash.update(b"pleg node 1\0");
    hash.update(node.as_str());
    hash.update(b"\0");
    // Keys are sorted, and a tree of texts and numbers can always be written.
    hash.update(serde_json::to_vec(document).unwrap_or_default());
    let mut uid = String::with_capacity(UID_LENGTH);
    for byte in hash.finalize().iter().take(UID_LENGTH / 2) {
        // Writing to a string cannot fail.
        let _ = write!(uid, "{byte:02x}");
    }
    uid.into()
}
