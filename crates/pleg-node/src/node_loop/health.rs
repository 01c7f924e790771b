//! Whether the statuses of all pods are stale, because the runtime cannot be observed.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::NodeLoop;
use crate::metrics::Skip;
use crate::status::Stale;

impl NodeLoop {
    /// Tells all workers when statuses become stale, and when they are fresh again.
    pub(super) fn check_health(&mut self) {
        let context = &self.workers.context;
        let report = context.pleg.health().report();
        let why = report.why_stale();
        let is_stale = why.is_some();
        context.metrics.stale(is_stale);
        if is_stale {
            context.metrics.skip(Skip::Runtime);
        }
        self.stale.send_if_modified(|stale| {
            if stale.is_some() == is_stale {
                return false;
            }
            *stale = why.map(|why| {
                warn!("pausing all pods: their status is stale: {}", report.message);
                let as_of = self.last_observed(report.last_seen_seconds);
                Arc::new(Stale { as_of, why })
            });
            if !is_stale {
                info!("resuming all pods: their status is fresh again");
            }
            true
        });
    }

    /// When the runtime was last heard of, by a relist or by the monitor's heartbeat. None before the first relist: then nothing is known.
    fn last_observed(&self, relist_age: Option<f64>) -> Option<jiff::Timestamp> {
        let context = &self.workers.context;
        let relist_age = Duration::try_from_secs_f64(relist_age?).ok()?;
        let answer_age = context.pleg.readiness().since_last_answer();
        let age = answer_age.map_or(relist_age, |answer| answer.min(relist_age));
        context.clock.now().saturating_sub(age).ok()
    }
}
