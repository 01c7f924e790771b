//! Whether the node admits the pod at all.

use pleg::PodStatus;
use tracing::warn;

use super::PodWorker;

impl PodWorker {
    /// Rejects a pod that this node must not run: it has failed, for good. A pod that runs already was admitted.
    pub(super) fn reject_forbidden(&mut self, status: &PodStatus) {
        if self.last.is_some() || self.history.failed.is_some() || !status.sandboxes.is_empty() {
            return;
        }
        if let Err(failure) = self.context.executor.admit(&self.pod) {
            warn!(pod = %self.pod.id, reason = failure.reason, "{}", failure.message);
            self.tell_failed(&failure);
            self.history.failed = Some(failure);
        }
    }
}
