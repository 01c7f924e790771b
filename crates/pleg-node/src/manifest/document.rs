//! Reads a text of one or several documents: pods, or lists of pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleg::PodRef;

use super::identity::{NodeName, UID_LENGTH, uid};
use super::read::{Field, Problem, Problems};
use super::tree::{MAX_BYTES, Tree};
use super::{ManifestError, Manifests, Pod, RefusedDocument, names, parse};

/// Most pods of one text.
const MAX_PODS: usize = 1024;
/// The longest file name on Linux: the log directory of a pod is `NAMESPACE_NAME_UID`.
const MAX_FILE_NAME: usize = 255;

/// Reads a text. Documents that cannot be used are refused; the others are read.
pub fn read(text: &[u8], node: &NodeName) -> Result<Manifests, ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(ManifestError::TooLarge);
    }
    let documents = Tree::parse(text).map_err(ManifestError::Syntax)?;
    if documents.is_empty() {
        return Err(ManifestError::Empty);
    }
    let mut found = Manifests::default();
    let mut names = BTreeMap::new();
    for (n, document) in documents.into_iter().enumerate() {
        let number = n + 1;
        let kind = document.get("kind").and_then(Tree::as_text).unwrap_or_default();
        let items = match kind {
            "PodList" => list_items(&document, number, true, &mut found.refused),
            "List" => list_items(&document, number, false, &mut found.refused),
            _ => vec![document],
        };
        for item in items {
            match read_pod(item, number, node).and_then(|pod| check_name(pod, number, &mut names)) {
                Err(refused) => found.refused.push(refused),
                Ok(pod) => found.pods.push(Arc::new(pod)),
            }
        }
    }
    Ok(found)
}

/// Refuses a pod whose name an earlier document of the text has, and pods beyond the limit. `names` are those of the text so far.
fn check_name(pod: Pod, number: usize, names: &mut BTreeMap<Arc<str>, usize>) -> Result<Pod, RefusedDocument> {
    let name = pod.id.full_name();
    let what = match names.get(&name) {
        Some(first) => format!("document {first} already has a pod of this name"),
        None if names.len() >= MAX_PODS => format!("at most {MAX_PODS} pods are read from one file"),
        None => {
            names.insert(name, number);
            return Ok(pod);
        }
    };
    Err(refused(number, &pod.document, "metadata.name", what))
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

/// The name of a pod as it is written, for messages.
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
        // The metadata that an API server writes is about the list, not about the pods.
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

/// Refuses a document that is not a Pod. Nothing else about it makes sense, and a long list of unknown fields would hide that.
fn check_kind(document: &Tree, number: usize) -> Result<(), RefusedDocument> {
    let text = |key: &str| document.get(key).and_then(Tree::as_text);
    let (version, kind) = (text("apiVersion"), text("kind"));
    let found = match (kind, version) {
        (Some("Pod"), Some("v1")) => return Ok(()),
        (None, _) => "required field is missing".to_owned(),
        (Some(kind), None) => format!("{} without an apiVersion is not supported", names::quoted(kind)),
        (Some(kind), Some(version)) => {
            let (kind, version) = (names::quoted(kind), names::quoted(version));
            format!("{kind} (apiVersion {version}) is not supported")
        }
    };
    let what = format!("{found}; expected Pod (apiVersion v1)");
    Err(RefusedDocument {
        // A document without a kind, or a Pod of another version, may be meant as a pod.
        is_other: kind.is_some_and(|kind| kind != "Pod"),
        ..refused(number, document, "kind", what)
    })
}

fn read_pod(document: Tree, number: usize, node: &NodeName) -> Result<Pod, RefusedDocument> {
    check_kind(&document, number)?;
    let problems = Problems::default();
    let read = Field::root(&document, &problems).object(&[], |pod| {
        pod.get("apiVersion");
        pod.get("kind");
        // Tools that serialise Go structs write an empty status.
        pod.only("status", &Tree::Map(BTreeMap::new()), "set by pleg node; remove it");
        let metadata = pod.need("metadata").and_then(|f| read_metadata(&f, node));
        let spec = pod.need("spec").and_then(|f| parse::read_spec(&f));
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
        // Metadata is read first, so its problems are always among the listed ones.
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
            && (name.len() > names::MAX_NAME || namespace.len() + name.len() + UID_LENGTH + 2 > MAX_FILE_NAME)
        {
            field.refuse(format!("is too long: namespace, name, node name ({node}) and UID together name a directory"));
        }
        let key = |field: &Field<'_>, key: &str| {
            if let Err(error) = names::qualified(key) {
                field.refuse(error.to_string());
            }
        };
        let labels = metadata.get("labels").map(|f| {
            f.text_map(|field, name, value| {
                key(field, name);
                if !names::is_label_value(value) {
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
