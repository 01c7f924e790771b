//! The identity of static pods: the name of the node, and the UID.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use pleg::PodUid;
use sha2::{Digest, Sha256};

use super::names::{self, InvalidText};
use super::tree::Tree;

/// Why a text cannot be the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the node's name {0}")]
pub struct InvalidNodeName(InvalidText);

/// The name of this node: part of the name and the UID of every static pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A DNS name. Upper case becomes lower case.
    pub fn new(name: &str) -> Result<Self, InvalidNodeName> {
        let name = name.to_lowercase();
        names::subdomain(&name).map_err(InvalidNodeName)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
