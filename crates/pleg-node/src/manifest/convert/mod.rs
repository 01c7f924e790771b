//! Converts a Pod of the Kubernetes API to the spec that a node runs, for every source.
//!
//! In: `k8s-openapi`'s Pod and a [`Policy`]. Out: a [`Spec`] with the defaults that an API server would have set, or problems with their
//! paths. Pure. Structs of the API are taken apart field by field, so that fields of a new API version are compile errors here: each field
//! is converted, or ignored or refused for a reason.
//!
//! | module | job |
//! |---|---|
//! | `spec` | the pod as a whole |
//! | `container`, `env`, `probe`, `resources`, `restart`, `security`, `volume` | the parts of a container and of the pod |

mod container;
mod env;
mod probe;
mod resources;
mod restart;
mod security;
mod spec;
mod volume;

use super::problem::At;

pub(crate) use spec::convert;

/// How strictly a Pod is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A static pod: a field that this node does not act on is refused. Ignoring it would run another pod than the one that was written.
    Static,
    /// A pod of an API server, which has validated it: fields for the scheduler and the control plane are ignored. A field that would
    /// change what runs here, and is not supported, is refused.
    Api,
}

impl At<'_> {
    /// A field that is not supported, for any pod.
    fn unsupported(&self, key: &str, is_set: bool) {
        if is_set {
            self.key(key).refuse(match self.policy() {
                Policy::Static => "field is not supported by pleg node; remove it",
                Policy::Api => "field is not supported by pleg node",
            });
        }
    }

    /// A field that means nothing on the node: for the scheduler, or for controllers.
    fn not_for_nodes(&self, key: &str, is_set: bool) {
        if self.policy() == Policy::Static {
            self.unsupported(key, is_set);
        }
    }

    /// A field that refers to an object of an API server.
    fn needs_api(&self, key: &str, is_set: bool) {
        if is_set && self.policy() == Policy::Static {
            self.key(key)
                .refuse("requires an API server: a static pod cannot refer to API objects; remove it");
        }
    }

    /// A field that may only have the value that says what we do anyway.
    fn only<T: PartialEq>(&self, key: &str, value: Option<&T>, only: &T, why: &str) {
        if value.is_some_and(|value| value != only) {
            self.key(key).refuse(why);
        }
    }

    /// Converts the items of a list.
    fn list<T, U>(&self, key: &str, items: Option<&Vec<T>>, mut each: impl FnMut(&T, &At<'_>) -> U) -> Vec<U> {
        let at = self.key(key);
        let items = items.into_iter().flatten().enumerate();
        items.map(|(n, item)| each(item, &at.index(n))).collect()
    }
}
