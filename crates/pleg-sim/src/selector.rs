//! How people name objects, and how names become the ids that are in requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The text is not the name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a pod; expected NAMESPACE/NAME, as in default/web-0", pleg_cri::error::quoted(.0))]
pub struct BadPodRef(String);

/// A pod by the names people use: `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodRef(String);

impl FromStr for PodRef {
    type Err = BadPodRef;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && text.len() <= 512 => {
                Ok(Self(text.to_owned()))
            }
            _ => {
                let text: String = text.chars().take(80).collect();
                Err(BadPodRef(text))
            }
        }
    }
}

impl TryFrom<String> for PodRef {
    type Error = BadPodRef;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PodRef> for String {
    fn from(pod: PodRef) -> Self {
        pod.0
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PodRef {
    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// For names that are known to be valid.
    pub(crate) fn from_parts(name: &str) -> Self {
        Self(name.to_owned())
    }
}

/// A pod, or one container of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: PodRef,
    /// One container of it, by name; all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.container {
            Some(container) => write!(f, "container {container} of pod {}", self.pod),
            None => write!(f, "pod {}", self.pod),
        }
    }
}

/// What a fault is about: a pod or a container by its names, or any object by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By names.
    Named(Selector),
    /// By the id that is in requests.
    Id(Arc<str>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(selector) => selector.fmt(f),
            Self::Id(id) => f.write_str(id),
        }
    }
}
