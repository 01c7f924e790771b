//! The published conditions, and which pods may start while they hold.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use serde::{Serialize, Serializer};

use super::message::EVICTED;
use super::ranking::{CRITICAL, priority};
use super::signals::Pressure;
use crate::manifest::Pod;
use crate::reconcile::history::PodFailure;
use crate::status::{QosClass, qos_class};

/// A condition of the node, in the shape of the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureCondition {
    /// `MemoryPressure`, `DiskPressure` or `PIDPressure`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether it holds.
    #[serde(serialize_with = "capitalised")]
    pub status: bool,
    /// When it was last checked.
    #[serde(serialize_with = "whole_seconds")]
    pub last_heartbeat_time: Timestamp,
    /// Since when `status` is what it is.
    #[serde(serialize_with = "whole_seconds")]
    pub last_transition_time: Timestamp,
    /// The kubelet's reason.
    pub reason: &'static str,
    /// The kubelet's message.
    pub message: &'static str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn capitalised<S: Serializer>(status: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *status { "True" } else { "False" })
}

fn whole_seconds<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(*at);
    serializer.collect_str(&whole)
}

/// The conditions of a node. Clones share them. The eviction manager writes; pod workers and the HTTP API read.
#[derive(Debug, Clone, Default)]
pub struct NodePressure {
    // Held for a read or a write; never across an await. Empty until the first check.
    conditions: Arc<RwLock<Vec<PressureCondition>>>,
}

impl NodePressure {
    /// All three conditions; none before the first check, or if no threshold is set.
    pub fn conditions(&self) -> Vec<PressureCondition> {
        self.conditions.read().clone()
    }

    /// Publishes which conditions hold. Returns those that changed.
    pub(crate) fn set(&self, holding: &[Pressure], now: Timestamp) -> Vec<PressureCondition> {
        let mut conditions = self.conditions.write();
        let mut changed = Vec::new();
        let next = Pressure::ALL.map(|pressure| {
            let status = holding.contains(&pressure);
            let (reason, message) = pressure.reason(status);
            let before = conditions.iter().find(|before| before.kind == pressure.name());
            let same = before.filter(|before| before.status == status);
            let condition = PressureCondition {
                kind: pressure.name(),
                status,
                last_heartbeat_time: now,
                last_transition_time: same.map_or(now, |same| same.last_transition_time),
                reason,
                message,
            };
            // The first check is a change only if it is bad news.
            if same.is_none() && (status || before.is_some()) {
                changed.push(condition.clone());
            }
            condition
        });
        *conditions = next.into();
        changed
    }

    /// Whether a pod may start. Under memory pressure alone, pods that request something may; critical pods always may.
    pub(crate) fn admit(&self, pod: &Pod) -> Result<(), PodFailure> {
        let conditions = self.conditions.read();
        let holding: Vec<&str> = conditions.iter().filter(|one| one.status).map(|one| one.kind).collect();
        let only_memory = holding == [Pressure::Memory.name()];
        let may_start =
            holding.is_empty() || priority(pod) >= CRITICAL || (only_memory && qos_class(pod) != QosClass::BestEffort);
        if may_start {
            return Ok(());
        }
        Err(PodFailure {
            reason: EVICTED.to_owned(),
            message: format!("The node had condition: [{}]. ", holding.join(" ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pod};

    #[test]
    fn conditions_have_the_kubelets_words() {
        let pressure = NodePressure::default();
        assert_eq!(pressure.conditions(), []);
        assert_eq!(pressure.set(&[], at(0)), []);
        let changed = pressure.set(&[Pressure::Memory], at(10));
        assert_eq!(changed.len(), 1);
        assert_eq!(
            serde_json::to_value(&pressure.conditions()[..1]).unwrap(),
            serde_json::json!([{
                "type": "MemoryPressure", "status": "True", "reason": "KubeletHasInsufficientMemory",
                "message": "kubelet has insufficient memory available",
                "lastHeartbeatTime": "2027-01-15T08:00:10Z", "lastTransitionTime": "2027-01-15T08:00:10Z",
            }])
        );
        assert_eq!(pressure.set(&[Pressure::Memory], at(20)), []);
        let now = &pressure.conditions()[0];
        assert_eq!((now.last_heartbeat_time, now.last_transition_time), (at(20), at(10)));
        let changed = pressure.set(&[], at(30));
        assert_eq!((changed.len(), changed[0].reason), (1, "KubeletHasSufficientMemory"));
    }

    #[test]
    fn pods_that_are_admitted_under_pressure() {
        let best_effort = pod("containers: [{name: a, image: i}]");
        let burstable = pod("containers: [{name: a, image: i, resources: {requests: {memory: 1Mi}}}]");
        let critical = pod("priorityClassName: system-node-critical, containers: [{name: a, image: i}]");
        for (holding, [best_effort_may, burstable_may]) in [
            (vec![], [true, true]),
            (vec![Pressure::Memory], [false, true]),
            (vec![Pressure::Disk], [false, false]),
            (vec![Pressure::Memory, Pressure::Pid], [false, false]),
        ] {
            let pressure = NodePressure::default();
            pressure.set(&holding, at(0));
            assert_eq!(pressure.admit(&best_effort).is_ok(), best_effort_may, "{holding:?}");
            assert_eq!(pressure.admit(&burstable).is_ok(), burstable_may, "{holding:?}");
            assert!(pressure.admit(&critical).is_ok());
        }
        let pressure = NodePressure::default();
        pressure.set(&[Pressure::Memory, Pressure::Disk], at(0));
        let refused = pressure.admit(&best_effort).unwrap_err();
        assert_eq!(
            (refused.reason.as_str(), refused.message.as_str()),
            ("Evicted", "The node had condition: [MemoryPressure DiskPressure]. ")
        );
    }
}
