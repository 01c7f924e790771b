//! Containers that were killed a moment ago, to be inspected once more: the runtime learns of an OOM kill separately from the exit.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::inspect::may_learn_more;
use crate::model::PodUid;
use crate::model::status::PodStatus;
use crate::records::diff::Change;

/// Delay before a container killed by SIGKILL is inspected again.
const DELAY: Duration = Duration::from_secs(2);
/// Most pods that are inspected again for a reason. If many containers are killed at once, the cause is not an OOM kill of each.
const MOST: usize = 32;

/// Pods with a container that was killed, and when to ask again why: see [`may_learn_more`].
#[derive(Debug, Default)]
pub(super) struct LateReasons {
    pods: VecDeque<(Instant, PodUid)>,
}

impl LateReasons {
    /// Notes the pod if one of its containers was killed just now.
    pub(super) fn note(&mut self, changes: &[Change], status: &PodStatus) {
        let (died, now) = (status.by_id(), Timestamp::now());
        let killed = |change: &Change| {
            let Change::Died(container) = change else { return false };
            died.get(&container.id)
                .is_some_and(|status| may_learn_more(status, now))
        };
        if self.pods.len() < MOST && changes.iter().any(killed) {
            self.pods.push_back((Instant::now() + DELAY, status.pod.uid.clone()));
        }
    }

    /// When the next pod is to be inspected again.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.pods.front().map(|(at, _)| *at)
    }

    /// Takes the next pod whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<PodUid> {
        self.pods.pop_front_if(|(at, _)| *at <= now).map(|(_, uid)| uid)
    }
}
