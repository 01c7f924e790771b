//! Spontaneous changes at a rate per second: containers exit and are restarted, pods are removed and others added.

use std::sync::Arc;
use std::time::Duration;

use super::{Ending, World};

/// Highest churn rate that makes sense.
const MOST_PER_SECOND: f64 = 1e6;
/// Most changes at once. Changes that this process is too slow for, or that it missed while it was paused, are not made up for.
const MOST_AT_ONCE: usize = 10_000;

/// The rate, and when the next change is due.
#[derive(Debug, Default)]
pub(crate) struct Churn {
    /// Nanoseconds between two changes; 0 is none.
    interval: i64,
    next: i64,
}

impl Churn {
    pub(crate) fn next(&self) -> Option<i64> {
        (self.interval > 0).then_some(self.next)
    }
}

impl World {
    /// Sets the changes per second; 0 ends them.
    pub fn set_churn(&mut self, per_second: f64) {
        self.churn.interval = if per_second > 0.0 {
            Duration::try_from_secs_f64(1.0 / per_second.min(MOST_PER_SECOND)).map_or(i64::MAX, crate::clock::nanos)
        } else {
            0
        };
        self.churn.next = self.clock.now().saturating_add(self.churn.interval);
        self.schedule.changed = true;
    }

    /// Makes the changes that are due `now`, until the clock shows `until`.
    pub(super) fn run_churn(&mut self, now: i64, until: i64) {
        if self.churn.interval == 0 {
            return;
        }
        for _ in 0..MOST_AT_ONCE {
            if self.churn.next > now {
                return;
            }
            self.churn.next = self.churn.next.saturating_add(self.churn.interval);
            self.change();
            if self.clock.now() > until {
                break;
            }
        }
        self.churn.next = now.saturating_add(self.churn.interval);
    }

    /// One change: mostly an exit, with a restart within a second; sometimes a pod is removed and another added.
    fn change(&mut self) {
        if self.containers.len() == 0 {
            return;
        }
        let place = self.rng.usize(..self.containers.len());
        let Some(container) = self.containers.at(place) else {
            return;
        };
        let (id, pod, name) = (
            Arc::clone(&container.id),
            Arc::clone(&container.pod),
            container.metadata.name.clone(),
        );
        if self.pods.get(&pod).is_none_or(|pod| pod.own.is_none()) {
            return; // A pod of a client: only the client changes it.
        }
        if self.rng.u8(..20) == 0 {
            self.remove_pod(&pod);
            if let Err(error) = self.add_pods(1) {
                tracing::debug!(%error, "churn could not add a pod");
            }
            return;
        }
        let ending = match self.rng.u8(..10) {
            0..5 => Ending::Exit(0),
            5..9 => Ending::Exit(1),
            _ => Ending::Oom,
        };
        if self.finish(&id, ending) {
            let after = Duration::from_millis(self.rng.u64(100..1000));
            self.plan_restart(&pod, &name, after);
        }
    }
}
