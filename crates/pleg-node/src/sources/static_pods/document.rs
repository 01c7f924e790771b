//! Reads a text of one or several documents: pods, or lists of pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pleg::PodRef;

use super::identity::{ConfigSource, UID_LENGTH, annotate, uid};
use super::{ManifestError, Manifests, RefusedDocument};
use crate::manifest::{
    At, MAX_BYTES, MAX_FILE_NAME, MAX_NAME, NodeName, Pod, Policy, Problem, Problems, Spec, Tree, convert_spec,
    from_tree, is_label_value, label, nearest, qualified, quoted, subdomain,
};

/// Most pods of one text.
const MAX_PODS: usize = 1024;

/// Reads a text of a `source` of this kind. Documents that cannot be used are refused; the others are read.
pub fn read(text: &[u8], node: &NodeName, source: ConfigSource) -> Result<Manifests, ManifestError> {
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
            match read_pod(item, number, node, source).and_then(|pod| check_name(pod, number, &mut names)) {
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
    let document = pod.document.as_deref().unwrap_or(&Tree::Null);
    Err(refused(number, document, "metadata.name", what))
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
    // The metadata that an API server writes is about the list, not about the pods.
    const FIELDS: &[&str] = &["apiVersion", "items", "kind", "metadata"];
    let problems = Problems::new(Policy::Static);
    let at = At::root(&problems);
    match document.get("apiVersion").and_then(Tree::as_text) {
        Some(version) => _ = at.key("apiVersion").one_of(version, &[("v1", ())]),
        None => at.key("apiVersion").refuse("required field is missing"),
    }
    if let Tree::Map(map) = document {
        for key in map.keys().filter(|key| !FIELDS.contains(&key.as_str())) {
            at.key(key).refuse(match nearest(key, FIELDS) {
                Some(near) => format!("unknown field; did you mean {near}?"),
                None => "unknown field".to_owned(),
            });
        }
    }
    let mut items = match document.get("items") {
        Some(Tree::List(items)) => items.clone(),
        Some(other) => {
            at.key("items")
                .refuse(format!("expected a list, found {}", other.kind()));
            Vec::new()
        }
        None => {
            at.key("items").refuse("required field is missing");
            Vec::new()
        }
    };
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
        (Some(kind), None) => format!("{} without an apiVersion is not supported", quoted(kind)),
        (Some(kind), Some(version)) => {
            let (kind, version) = (quoted(kind), quoted(version));
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

fn read_pod(document: Tree, number: usize, node: &NodeName, source: ConfigSource) -> Result<Pod, RefusedDocument> {
    check_kind(&document, number)?;
    let problems = Problems::new(Policy::Static);
    let at = At::root(&problems);
    let object: Option<core::Pod> = from_tree(&document, &at);
    let converted = object.as_ref().map(|object| convert(object, node, &at));
    let (problems, more_problems) = problems.into_inner();
    let (id, spec) = match converted {
        Some((Some((namespace, name)), spec)) => {
            let id = PodRef {
                uid: uid(&document, node),
                namespace,
                name,
            };
            (Some(id), spec)
        }
        Some((None, spec)) => (None, spec),
        None => (None, None),
    };
    match (id, object, spec) {
        (Some(id), Some(object), Some(spec)) if problems.is_empty() => {
            Ok(identified(id, object, spec, document, source))
        }
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

/// The namespace and the name of a pod.
type Names = (Arc<str>, Arc<str>);

/// The namespace and the name, if they are valid, and the spec, if there is one.
fn convert(object: &core::Pod, node: &NodeName, at: &At<'_>) -> (Option<Names>, Option<Spec>) {
    let core::Pod { metadata, spec, status } = object;
    // Tools that serialise Go structs write an empty status.
    if status
        .as_ref()
        .is_some_and(|status| *status != core::PodStatus::default())
    {
        at.key("status").refuse("set by pleg node; remove it");
    }
    let names = check_metadata(metadata, node, &at.key("metadata"));
    let at = at.key("spec");
    if spec.is_none() {
        at.refuse("required field is missing");
    }
    (names, spec.as_ref().map(|spec| convert_spec(spec, &at)))
}

/// Gives a pod the identity of a static pod.
fn identified(id: PodRef, mut object: core::Pod, spec: Spec, document: Tree, source: ConfigSource) -> Pod {
    let metadata = &mut object.metadata;
    let annotations = metadata.annotations.get_or_insert_default();
    annotate(annotations, &id.uid, source);
    metadata.namespace = Some(id.namespace.to_string());
    metadata.name = Some(id.name.to_string());
    metadata.uid = Some(id.uid.to_string());
    object.status = None;
    Pod {
        id,
        labels: object.metadata.labels.clone().unwrap_or_default(),
        annotations: object.metadata.annotations.clone().unwrap_or_default(),
        spec,
        deletion: None,
        object: Arc::new(object),
        document: Some(Arc::new(document)),
        rejected: None,
    }
}

/// Checks the metadata of a static pod. Returns its namespace and its name on this node, if they are valid.
fn check_metadata(metadata: &ObjectMeta, node: &NodeName, at: &At<'_>) -> Option<Names> {
    let ObjectMeta {
        annotations,
        creation_timestamp,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
        generation,
        labels,
        managed_fields,
        name,
        namespace,
        owner_references,
        resource_version,
        self_link,
        uid,
    } = metadata;
    for (key, is_set) in [
        ("creationTimestamp", creation_timestamp.is_some()),
        ("deletionGracePeriodSeconds", deletion_grace_period_seconds.is_some()),
        ("deletionTimestamp", deletion_timestamp.is_some()),
        ("finalizers", finalizers.is_some()),
        ("generateName", generate_name.is_some()),
        ("generation", generation.is_some()),
        ("managedFields", managed_fields.is_some()),
        ("ownerReferences", owner_references.is_some()),
        ("resourceVersion", resource_version.is_some()),
        ("selfLink", self_link.is_some()),
    ] {
        if is_set {
            at.key(key).refuse("field is not supported by pleg node; remove it");
        }
    }
    if uid.is_some() {
        at.key("uid").refuse("computed from the manifest; remove it");
    }
    check_pairs(labels.as_ref(), annotations.as_ref(), at);
    let namespace = namespace.as_deref().unwrap_or("default");
    at.key("namespace").check(namespace, label);
    let written = name.as_deref().unwrap_or_default();
    at.key("name").require(written, subdomain);
    let name = format!("{written}-{node}");
    if name.len() > MAX_NAME || namespace.len() + name.len() + UID_LENGTH + 2 > MAX_FILE_NAME {
        at.key("name").refuse(format!(
            "is too long: namespace, name, node name ({node}) and UID together name a directory"
        ));
        return None;
    }
    let valid = label(namespace).is_ok() && subdomain(written).is_ok() && uid.is_none();
    valid.then(|| (namespace.into(), name.into()))
}

type Pairs = BTreeMap<String, String>;

/// Checks labels and annotations.
fn check_pairs(labels: Option<&Pairs>, annotations: Option<&Pairs>, at: &At<'_>) {
    let labels_at = at.key("labels");
    for (key, value) in labels.into_iter().flatten() {
        let at = labels_at.key(key);
        at.check(key, qualified);
        if !is_label_value(value) {
            at.refuse(format!(
                "{} is not a valid label value; expected at most 63 characters of A-Z, a-z, 0-9, -, _ and ., starting and ending with a \
                 letter or digit",
                quoted(value)
            ));
        }
    }
    let annotations_at = at.key("annotations");
    for key in annotations.into_iter().flatten().map(|(key, _)| key) {
        annotations_at.key(key).check(key, qualified);
    }
}
