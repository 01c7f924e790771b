//! Whether the node admits the pod at all.

use pleg::PodStatus;
use tracing::warn;

use super::PodWorker;

impl PodWorker {
    /// Rejects a pod that this node must not run: it has failed, for good. A pod that runs already was admitted.
    pub(super) fn reject_forbidden(&mut self, status: &PodStatus) {
        if self.last.is_some() || self.history.failed.is_some() || self.pod.is_over_in_api() {
            return;
        }
        // What cannot be used is not known well enough to go on with it.
        let is_unusable = self.pod.spec.containers.is_empty() && self.pod.rejected.is_some();
        if !status.sandboxes.is_empty() && !is_unusable {
            return;
        }
        let rejected = self.pod.rejected.clone().map_or(Ok(()), Err);
        if let Err(failure) = rejected.and_then(|()| self.context.executor.admit(&self.pod)) {
            warn!(pod = %self.pod.id, reason = failure.reason, "{}", failure.message);
            self.tell_failed(&failure);
            self.history.failed = Some(failure);
        }
    }
}
