//! The identity of static pods, as the kubelet gives it: UID, name and annotations.
//!
//! The UID is a hash of the document and the node's name, and the pod's name ends with the node's. Unlike in the kubelet, the hash is taken
//! of the document as it is written, not of a struct that changes with each release, so an upgrade restarts nothing; and the origin of the
//! document is not part of it, so moving a pod to another file changes nothing either. The order of keys, comments, and YAML or JSON make
//! no difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleg::PodUid;
use sha2::{Digest, Sha256};

use crate::manifest::{NodeName, Tree};
use crate::sources::Origin;

/// The kind of source that a static pod comes from: the annotation `kubernetes.io/config.source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    /// A file of a directory.
    File,
    /// A URL.
    Http,
}

impl ConfigSource {
    /// The kind of source with this origin.
    pub fn of(origin: &Origin) -> Self {
        if origin.0.starts_with("http://") || origin.0.starts_with("https://") {
            Self::Http
        } else {
            Self::File
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// Characters of a UID: 128 bits in hex, as those of the kubelet's static pods.
pub(super) const UID_LENGTH: usize = 32;

/// The UID of a pod. Must not change from one release to the next: every pod of every node would be replaced.
pub(super) fn uid(document: &Tree, node: &NodeName) -> PodUid {
    let mut hash = Sha256::new();
    hash.update(b"pleg node 1\0");
    hash.update(node.as_str());
    hash.update(b"\0");
    // Keys are sorted. A tree of texts and numbers can always be serialised.
    hash.update(serde_json::to_vec(document).unwrap_or_default());
    let mut uid = String::with_capacity(UID_LENGTH);
    for byte in hash.finalize().iter().take(UID_LENGTH / 2) {
        // Writing to a string cannot fail.
        let _ = write!(uid, "{byte:02x}");
    }
    uid.into()
}

/// Adds the annotations that mark a static pod.
pub(super) fn annotate(annotations: &mut BTreeMap<String, String>, uid: &PodUid, source: ConfigSource) {
    annotations.extend([
        ("kubernetes.io/config.hash".to_owned(), uid.to_string()),
        ("kubernetes.io/config.source".to_owned(), source.name().to_owned()),
    ]);
}
