//! Reads what containers left about their exits, before anything is decided about them: their files go with them.

use pleg::{ContainerState, ContainerStatus, PodStatus};

use super::PodWorker;
use crate::executor::ExitedContainer;

impl PodWorker {
    /// Reads the termination messages of containers that exited since the last time, and keeps them in the history.
    pub(super) async fn read_termination_messages(&mut self, status: &PodStatus) {
        let is_unread = |container: &&ContainerStatus| {
            let history = self.history.container(&container.name);
            container.state == ContainerState::Exited
                && history.is_none_or(|history| history.wants_termination_message(container.attempt))
        };
        let unread: Vec<ContainerStatus> = status.containers.iter().filter(is_unread).cloned().collect();
        for container in unread {
            let exited = ExitedContainer {
                attempt: container.attempt,
                exit_code: container.exit_code.unwrap_or(-1),
                started: container.started_at.is_some(),
            };
            let name = &*container.name;
            let message = self.context.executor.termination_message(&self.pod, name, exited).await;
            let now = self.context.clock.now();
            let history = self.history.container_mut(name);
            history.record_termination_message(&container, &message, now);
        }
    }
}
