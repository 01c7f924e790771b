//! When the stop or removal of an object is tried again: later each time it fails, and also if it succeeds and the runtime still has the
//! object as it was.
//!
//! A runtime may say that it has stopped a container, and report it as running for a while: containerd does after the death of a shim. Every
//! decision in between would stop it again at once.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use pleg::PodStatus;
use tokio::time::Instant;

use crate::reconcile::action::Action;
use crate::reconcile::backoff::doubling;

/// Delay after a failure, and its maximum; doubles with each in a row.
const FAILED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The same, after a success without effect.
const NO_EFFECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The last stop or removal of each object, by its id.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeMap<String, Attempts>);

/// Attempts in a row with the same result.
#[derive(Debug)]
struct Attempts {
    kind: Discriminant<Action>,
    success: bool,
    count: u32,
    next: Instant,
}

impl Retries {
    /// When an action may be started; none if it may be now.
    pub(super) fn due(&self, action: &Action) -> Option<Instant> {
        let last = self.0.get(action.stopped_object()?)?;
        // After a success, the next step is not delayed: a stopped sandbox is removed.
        let concerns = !last.success || last.kind == discriminant(action);
        Some(last.next).filter(|next| concerns && *next > Instant::now())
    }

    /// Records how an action ended.
    pub(super) fn record(&mut self, action: &Action, success: bool) {
        let Some(id) = action.stopped_object() else { return };
        let kind = discriminant(action);
        let last = self.0.get(id);
        let last = last.filter(|last| last.success == success && (last.kind == kind || !success));
        let count = last.map_or(0, |last| last.count.saturating_add(1));
        let (first, longest) = if success { NO_EFFECT } else { FAILED };
        let attempts = Attempts {
            kind,
            success,
            count,
            next: Instant::now() + doubling(first, longest, count),
        };
        self.0.insert(id.to_owned(), attempts);
    }

    /// Forgets objects that are gone.
    pub(super) fn forget_gone(&mut self, status: &PodStatus) {
        self.0.retain(|id, _| {
            let is_sandbox = status.sandboxes.iter().any(|sandbox| sandbox.id.as_str() == id);
            is_sandbox || status.containers.iter().any(|container| container.id.as_str() == id)
        });
    }
}

#[cfg(test)]
mod tests {
    use pleg::SandboxId;

    use super::*;

    fn sandbox() -> SandboxId {
        SandboxId::from("s")
    }

    fn wait(retries: &Retries, action: &Action) -> Duration {
        let due = retries.due(action);
        due.map_or(Duration::ZERO, |at| at - Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_stops_without_effect_are_spaced_wider_and_wider() {
        let (stop, remove) = (Action::StopSandbox(sandbox()), Action::RemoveSandbox(sandbox()));
        for (success, waits) in [(false, [1000, 2000, 4000]), (true, [50, 100, 200])] {
            let mut retries = Retries::default();
            for millis in waits {
                retries.record(&stop, success);
                assert_eq!(wait(&retries, &stop), Duration::from_millis(millis));
            }
            for _ in 0..20 {
                retries.record(&stop, success);
            }
            let longest = if success { NO_EFFECT.1 } else { FAILED.1 };
            assert_eq!(wait(&retries, &stop), longest);
            // What was stopped may be removed at once; what could not be stopped may not.
            assert_eq!(retries.due(&remove).is_none(), success);
            // Another result begins anew.
            retries.record(&stop, !success);
            let first = if success { FAILED.0 } else { NO_EFFECT.0 };
            assert_eq!(wait(&retries, &stop), first);
            tokio::time::advance(first).await;
            assert_eq!(retries.due(&stop), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_are_gone_are_forgotten() {
        let mut retries = Retries::default();
        retries.record(&Action::StopSandbox(sandbox()), false);
        let pod = crate::testing::pod("containers: [{name: a, image: i}]");
        retries.forget_gone(&PodStatus::empty(pod.id.clone()));
        assert!(retries.0.is_empty());
    }
}
