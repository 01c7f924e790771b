//! Which pods are shown, and in which order: the same for pods of a runtime and of a node.

use jiff::Timestamp;

use crate::args::{Pods, SortBy};
use crate::output;
use crate::{node_pod, wire};

/// What pods are chosen and ordered by.
pub(crate) trait Choosable {
    /// Namespace, name and UID.
    fn names(&self) -> [&str; 3];
    fn label(&self, name: &str) -> Option<&str>;
    fn created(&self) -> Option<Timestamp>;
    fn restarts(&self) -> u64;
    fn state(&self) -> String;
    /// What stands under READY.
    fn ready(&self) -> String;
    fn is_ready(&self) -> bool;
}

impl Choosable for wire::Pod {
    fn names(&self) -> [&str; 3] {
        [&self.pod.namespace, &self.pod.name, self.pod.uid.as_str()]
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.sandboxes.first()?.labels.get(name)
    }

    fn created(&self) -> Option<Timestamp> {
        output::pod::created(self)
    }

    fn restarts(&self) -> u64 {
        self.restarts
    }

    fn state(&self) -> String {
        output::pod::state(self)
    }

    fn ready(&self) -> String {
        format!("{}/{}", self.running, self.total)
    }

    /// A runtime does not know init containers, which have ended: what counts is that nothing failed.
    fn is_ready(&self) -> bool {
        matches!(self.state().as_str(), "Running" | "Completed")
    }
}

impl Choosable for node_pod::Pod {
    fn names(&self) -> [&str; 3] {
        [self.view.namespace(), self.view.name(), self.view.uid()]
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.view.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    fn created(&self) -> Option<Timestamp> {
        node_pod::time(self.view.metadata.creation_timestamp.as_ref())
    }

    fn restarts(&self) -> u64 {
        self.view.restarts().0
    }

    fn state(&self) -> String {
        self.view.word()
    }

    fn ready(&self) -> String {
        let (ready, total) = self.view.ready();
        format!("{ready}/{total}")
    }

    fn is_ready(&self) -> bool {
        let (ready, total) = self.view.ready();
        match self.view.word().as_str() {
            "Completed" => true,
            "Running" => ready == total,
            _ => false,
        }
    }
}

/// Whether a pod of these names is asked for.
pub(super) fn is_named(args: &Pods, namespace: &str, name: &str) -> bool {
    let in_namespace = args.namespace.as_deref().is_none_or(|wanted| wanted == namespace);
    let named = args.names.is_empty() || args.names.iter().any(|wanted| wanted.matches(namespace, name));
    in_namespace && named
}

/// Keeps what is asked for, of pods that have the right names.
pub(super) fn choose<P: Choosable>(pods: &mut Vec<P>, args: &Pods) {
    pods.retain(|pod| {
        let labelled = args.selector.as_ref();
        labelled.is_none_or(|selector| selector.matches(|name| pod.label(name))) && !(args.not_ready && pod.is_ready())
    });
    // They come by name, and those that are equal stay so.
    match args.sort_by {
        SortBy::Name => {}
        SortBy::Age => pods.sort_by_key(|pod| std::cmp::Reverse(pod.created())),
        SortBy::Restarts => pods.sort_by_key(|pod| std::cmp::Reverse(pod.restarts())),
        SortBy::State => pods.sort_by_cached_key(Choosable::state),
    }
}
