//! Pods of an API server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use pleg::PodRef;

use super::convert::{Policy, convert};
use super::problem::{At, Problem, Problems};
use super::{Deletion, Pod, names};
use crate::reconcile::history::PodFailure;

/// The longest file name on Linux: the log directory of a pod is `NAMESPACE_NAME_UID`.
pub(crate) const MAX_FILE_NAME: usize = 255;

/// A Pod of an API server that this node cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusablePod {
    /// Its identity; none if it has none that could be a file name.
    pub id: Option<PodRef>,
    /// Why: at least one problem.
    pub problems: Vec<Problem>,
    /// Problems that are not listed because there are too many.
    pub more_problems: usize,
}

impl UnusablePod {
    /// The reason of its status.
    pub const REASON: &'static str = "UnsupportedPodSpec";
}

impl fmt::Display for UnusablePod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pod was rejected: ")?;
        for (n, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { "; " })?;
        }
        if self.more_problems > 0 {
            write!(f, "; and {} more", self.more_problems)?;
        }
        Ok(())
    }
}

impl Pod {
    /// A pod of an API server. Fields that mean nothing on a node are ignored; unsupported ones make it unusable.
    pub fn from_object(mut object: core::Pod) -> Result<Self, Box<UnusablePod>> {
        object.metadata.managed_fields = None;
        let problems = Problems::new(Policy::Api);
        let at = At::root(&problems);
        let id = identity(&object, &at);
        let spec = object.spec.as_ref().map(|spec| convert(spec, &at.key("spec")));
        if spec.is_none() {
            at.key("spec").refuse("required field is missing");
        }
        let (problems, more_problems) = problems.into_inner();
        match (id, spec) {
            (Some(id), Some(spec)) if problems.is_empty() => Ok(Self {
                id,
                labels: object.metadata.labels.clone().unwrap_or_default(),
                annotations: object.metadata.annotations.clone().unwrap_or_default(),
                deletion: deletion(&object, spec.termination_grace),
                spec,
                object: Arc::new(object),
                document: None,
                rejected: None,
            }),
            (id, _) => Err(Box::new(UnusablePod {
                id,
                problems,
                more_problems,
            })),
        }
    }
}

impl Pod {
    /// A pod of an API server that cannot run: nothing of it is started, and it has failed. None if it has no identity.
    pub fn unusable(mut object: core::Pod, why: &UnusablePod) -> Option<Self> {
        object.metadata.managed_fields = None;
        let mut pod = Self::without_manifest(why.id.clone()?);
        pod.labels = object.metadata.labels.clone().unwrap_or_default();
        pod.annotations = object.metadata.annotations.clone().unwrap_or_default();
        pod.deletion = deletion(&object, pod.spec.termination_grace);
        pod.object = Arc::new(object);
        pod.rejected = Some(PodFailure {
            reason: UnusablePod::REASON.to_owned(),
            message: why.to_string(),
        });
        Some(pod)
    }

    /// The same pod with the metadata of a newer object, whose spec cannot be used: it goes on with the spec that it has.
    #[must_use]
    pub fn with_metadata_of(&self, newer: &core::Pod) -> Self {
        let object = core::Pod {
            metadata: newer.metadata.clone(),
            spec: self.object.spec.clone(),
            status: newer.status.clone(),
        };
        Self {
            labels: object.metadata.labels.clone().unwrap_or_default(),
            annotations: object.metadata.annotations.clone().unwrap_or_default(),
            deletion: deletion(&object, self.spec.termination_grace),
            object: Arc::new(object),
            ..self.clone()
        }
    }
}

/// Names and UID become file names.
fn identity(object: &core::Pod, at: &At<'_>) -> Option<PodRef> {
    let at = at.key("metadata");
    let [namespace, name, uid] = [
        ("namespace", &object.metadata.namespace, names::label as fn(&str) -> _),
        ("name", &object.metadata.name, names::subdomain),
        ("uid", &object.metadata.uid, names::uid),
    ]
    .map(|(key, text, check)| {
        let text = text.as_deref().unwrap_or_default();
        at.key(key).require(text, check);
        check(text).is_ok().then_some(text)
    });
    let (namespace, name, uid) = (namespace?, name?, uid?);
    if namespace.len() + name.len() + uid.len() + 2 > MAX_FILE_NAME {
        at.key("name")
            .refuse("is too long: namespace, name and UID together name a directory");
    }
    Some(PodRef {
        uid: uid.into(),
        namespace: namespace.into(),
        name: name.into(),
    })
}

fn deletion(object: &core::Pod, default: Duration) -> Option<Deletion> {
    let ends_at = object.metadata.deletion_timestamp.as_ref()?.0;
    let seconds = object.metadata.deletion_grace_period_seconds;
    let grace = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Some(Deletion {
        ends_at,
        grace: grace.map_or(default, Duration::from_secs),
    })
}

#[cfg(test)]
mod tests;
