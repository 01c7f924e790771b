//! The end of a pod that was deleted from its API server: its last status, and when that is reported.
//!
//! Once its containers have ended, the status of such a pod is final; what the runtime removes afterwards changes nothing about it. Once
//! its sandbox is stopped and its directories are gone, the pod is reported as gone, as in the kubelet. The sandbox is removed after that: the
//! runtime takes longer for it than for all the rest, and nobody waits for it but the next pod of the same name on this node.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use pleg::ContainerState;
use tracing::debug;

use super::PodWorker;
use crate::error::with_causes;
use crate::reconcile::decide::{Goal, Stage};

/// How far the end of a pod is.
#[derive(Debug, Default)]
pub(super) struct DeletionProgress {
    /// The status in which the pod ended.
    last_status: Option<Arc<core::PodStatus>>,
    /// The pod is reported as gone, and its record with it: nothing is reported or recorded any more.
    reported: bool,
}

impl DeletionProgress {
    pub(super) fn is_reported(&self) -> bool {
        self.reported
    }

    pub(super) fn last_status(&self) -> Option<&Arc<core::PodStatus>> {
        self.last_status.as_ref()
    }

    pub(super) fn set_last_status(&mut self, status: &Arc<core::PodStatus>) {
        self.last_status.get_or_insert_with(|| Arc::clone(status));
    }
}

impl PodWorker {
    /// Whether nothing of a deleted pod runs, and nothing will be started. The call that stopped its last container may still be under way:
    /// runtimes show an exit before they answer.
    pub(super) fn has_ended(&self) -> bool {
        let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        let Some((status, decision)) = &self.last else {
            return false;
        };
        self.pod.deletion.is_some()
            && matches!(*self.goal.borrow(), Goal::Terminate { .. })
            && matches!(decision.stage, Stage::Terminating | Stage::Terminated)
            && self.in_flight.starts.is_empty()
            && !status.containers.iter().any(|container| may_run(container.state))
    }

    /// The sandbox of the pod is stopped: removes its directories, and reports it as gone. If something cannot be removed, that is left to
    /// the time when nothing is left in the runtime either.
    pub(super) async fn finish_deletion(&mut self) {
        let has_one_sandbox = self
            .last
            .as_ref()
            .is_some_and(|(status, _)| status.sandboxes.len() == 1);
        if self.deletion.reported || !has_one_sandbox || !self.has_ended() {
            return;
        }
        self.refresh.stop().await;
        if let Err(error) = self.context.executor.clean_up(&self.pod).await {
            debug!(pod = %self.pod.id, "the directories of the pod are left until its sandbox is removed: {}", with_causes(&error));
            return;
        }
        self.release();
        let Some(report) = self.report(true) else { return };
        self.deletion.reported = true;
        self.context.reports.finish(report, self.context.store.clone());
    }
}
