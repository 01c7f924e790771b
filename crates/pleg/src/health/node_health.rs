//! Everything that is said about the node at one moment: the generator's report, and the Ready condition that follows from it.
//!
//! `health`, `/readyz`, the node conditions and the metrics are all made from one [`NodeHealth`], so that they cannot contradict each
//! other, not even around the moment in which the threshold passes.

use serde::{Deserialize, Serialize};

use crate::health::readiness::{NodeCondition, RuntimeChecks};
use crate::health::{Check, Report};

/// The health of the node at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The generator's.
    pub report: Report,
    /// What a kubelet would post. Its PLEG check fails if and only if the level of `report` is
    /// [`Level::Unhealthy`](crate::Level::Unhealthy).
    pub ready: NodeCondition,
    /// What the runtime says of itself.
    pub runtime: RuntimeChecks,
}

impl NodeHealth {
    /// Why the node is not ready: each reason once, with the pod and the call that is stuck, and without ages, so that the text stays the
    /// same as long as its cause does. Empty if the node is ready.
    pub fn not_ready_because(&self) -> Vec<String> {
        let RuntimeChecks {
            silence,
            runtime,
            network,
            ..
        } = &self.runtime;
        let pleg = self.report.why_unhealthy();
        // Lists that hang are not unhealthy yet when the runtime is down already, and may name who holds them up.
        let pleg = pleg.or_else(|| silence.as_ref().and_then(|_| self.report.why_stale()));
        let all = [silence.clone(), pleg, runtime.clone(), network.clone()];
        all.into_iter().flatten().collect()
    }

    /// The checks of `/readyz?verbose`. The node is ready if and only if the first four pass: `pleg`, `runtime-status`, `runtime-ready`
    /// and `network-ready`.
    pub fn checks(&self) -> Vec<Check> {
        let RuntimeChecks {
            status,
            runtime,
            network,
            ..
        } = self.runtime.clone();
        let of_runtime = [
            ("runtime-status", status),
            ("runtime-ready", runtime),
            ("network-ready", network),
        ];
        let mut checks = self.report.checks();
        // After `pleg`, which is the first.
        checks.splice(
            1..1,
            of_runtime.map(|(name, failed)| Check {
                name: name.into(),
                failed,
            }),
        );
        checks
    }
}

#[cfg(test)]
mod tests;
