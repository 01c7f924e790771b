//! Whether the node admits the pod at all.

use pleg::PodStatus;
use tracing::{info, warn};

use super::PodWorker;
use crate::eviction::ranking::{CRITICAL, priority};
use crate::reconcile::history::PodFailure;

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
        let rejected = rejected.and_then(|()| self.context.executor.admit(&self.pod));
        if let Err(failure) = rejected.and_then(|()| self.find_room()) {
            warn!(pod = %self.pod.id, reason = failure.reason, "{}", failure.message);
            self.tell_failed(&failure);
            self.history.failed = Some(failure);
            self.history.rejected = true;
        }
    }

    /// Whether the pod fits on this node, beside the others. For a static pod there is no other node: it waits for ports, and until the
    /// pressure is over. Critical pods always fit: others make room for them.
    fn find_room(&self) -> Result<(), PodFailure> {
        let context = &self.context;
        if self.was_accepted || self.goal.borrow().is_terminating() {
            return Ok(());
        }
        if !self.pod.is_static() {
            context.reports.pressure().admit(&self.pod).map_err(rejected)?;
            context.host_ports.claim(&self.pod).map_err(|_| no_free_ports())?;
        }
        if priority(&self.pod) >= CRITICAL {
            let victims = context.requested.claim_critical(&self.pod);
            if !victims.is_empty() {
                info!(pod = %self.pod.id, pods = victims.len(), "ending pods to make room for a critical one");
                context.preemptions.add(victims);
            }
            return Ok(());
        }
        context.requested.claim(&self.pod)
    }
}

fn rejected(failure: PodFailure) -> PodFailure {
    PodFailure {
        message: format!("Pod was rejected: {}", failure.message),
        ..failure
    }
}

/// In the kubelet's words, which controllers and people know.
fn no_free_ports() -> PodFailure {
    rejected(PodFailure {
        reason: "NodePorts".to_owned(),
        message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned(),
    })
}
