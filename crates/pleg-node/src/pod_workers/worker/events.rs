//! What a worker tells people: [`crate::events`].

use jiff::Timestamp;

use super::PodWorker;
use crate::events::failures::of_failure;
use crate::events::wording;
use crate::executor::ActionError;
use crate::reconcile::action::{Action, KillReason};
use crate::reconcile::backoff::PULL_FAILED;
use crate::reconcile::decide::{Decision, Goal};
use crate::reconcile::history::PodFailure;

/// Pod statuses begin with it, and events do not, as in the kubelet.
const REJECTED: &str = "Pod was rejected: ";

impl PodWorker {
    /// An action is about to be started.
    pub(super) fn tell_start(&self, action: &Action) {
        let (pod, events) = (&self.pod, &self.context.events);
        let killing = |name, reason| {
            events.container_normal(pod, name, "Killing", &wording::killing(pod, name, reason));
        };
        match action {
            Action::RunSandbox { replaces, .. } if !replaces.is_empty() => {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                events.pod_normal(pod, "SandboxChanged", message);
            }
            // A sidecar: its end begins with its hook.
            Action::PreStop { name, .. } => killing(name, KillReason::PodTerminating),
            Action::Kill { id, name, reason, .. } => {
                let history = self.history.container(name);
                let hooked = history.and_then(|history| history.pre_stopped.as_deref());
                if hooked != Some(id.as_str()) {
                    killing(name, *reason);
                }
            }
            _ => {}
        }
    }

    /// An action failed.
    pub(super) fn tell_failure(&self, action: &Action, error: &ActionError) {
        let terminating = self.history.finishing_since.is_some() || *self.goal.borrow() != Goal::Run;
        for event in of_failure(&self.pod, action, error, terminating) {
            self.context.events.record(event);
        }
    }

    /// The pod failed as a whole, or is not admitted.
    pub(super) fn tell_failed(&self, failure: &PodFailure) {
        let PodFailure { reason, message } = failure;
        if reason == "DeadlineExceeded" {
            // Somebody wanted it that way.
            return self.context.events.pod_normal(&self.pod, "DeadlineExceeded", message);
        }
        let message = message.strip_prefix(REJECTED).unwrap_or(message);
        self.context.events.pod_warning(&self.pod, reason.clone(), message);
    }

    /// Containers that have begun to wait for their next start, or for the next pull of their image.
    pub(super) fn tell_back_off(&mut self, decision: &Decision) {
        for (name, until) in &decision.backing_off {
            if self.is_news(name, *until) {
                let message = wording::back_off(&self.pod, name);
                self.context
                    .events
                    .container_warning(&self.pod, name, "BackOff", &message);
            }
        }
        let now = self.context.clock.now();
        let pulls = self.history.containers.iter().filter_map(|(name, history)| {
            let failure = history.failure.as_ref()?;
            // Before that, it is shown as failed.
            let waits = failure.reason == PULL_FAILED && failure.changes_at(now).is_none() && failure.until(now) > now;
            waits.then(|| (name.clone(), failure.at))
        });
        for (name, since) in pulls.collect::<Vec<_>>() {
            let Some(container) = self.pod.spec.container(&name).cloned() else {
                continue;
            };
            if self.is_news(&name, since) {
                let (pod, events) = (&self.pod, &self.context.events);
                let message = format!("Back-off pulling image \"{}\"", container.image);
                events.container_normal(pod, &name, "BackOff", &message);
                events.container_warning(pod, &name, "Failed", "Error: ImagePullBackOff");
            }
        }
    }

    /// Whether this back-off of a container has not been told yet.
    fn is_news(&mut self, name: &str, back_off: Timestamp) -> bool {
        self.told_back_off.insert(name.to_owned(), back_off) != Some(back_off)
    }
}
