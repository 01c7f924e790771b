//! The name of the node.

use std::fmt;
use std::sync::Arc;

use super::names::{self, InvalidText};

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
