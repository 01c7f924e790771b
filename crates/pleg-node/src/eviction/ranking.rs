//! Which pod is evicted first, by the kubelet's rules. Pure.
//!
//! | resource | order |
//! |---|---|
//! | memory | usage over its request first; then the lower priority; then the largest usage over the request |
//! | disk, inodes | the same, by the disk usage of logs and volumes |
//! | pids | the lower priority first; then the most processes |
//!
//! The class of service is not compared: a best-effort pod requests nothing, so whatever it uses is over its request, and a guaranteed pod cannot
//! use more than its limit, which is its request. A pod whose usage is not known goes before one whose usage is.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use super::signals::Resource;
use crate::manifest::Pod;

/// Pods of this priority and above are never evicted.
pub(crate) const CRITICAL: i64 = 2_000_000_000;

/// What a container uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ContainerUsage {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) memory: Option<u64>,
    pub(crate) memory_request: u64,
    /// Of its logs, in bytes.
    pub(crate) disk: Option<u64>,
}

/// What a pod uses. None where it is not known.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PodUsage {
    pub(crate) pod: Option<Arc<Pod>>,
    pub(crate) priority: i64,
    pub(crate) memory: Option<u64>,
    pub(crate) memory_request: u64,
    /// Of its logs and volumes, in bytes.
    pub(crate) disk: Option<u64>,
    /// Of its logs and volumes.
    pub(crate) inodes: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) containers: Vec<ContainerUsage>,
}

impl PodUsage {
    /// Whether it is never evicted.
    pub(crate) fn is_critical(&self) -> bool {
        self.priority >= CRITICAL
    }

    fn usage(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Memory => self.memory,
            Resource::EphemeralStorage => self.disk,
            Resource::Inodes => self.inodes,
            Resource::Pids => self.processes,
        }
    }

    fn request(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.memory_request,
            // Manifests with other requests are refused.
            Resource::EphemeralStorage | Resource::Inodes | Resource::Pids => 0,
        }
    }

    /// By how much it exceeds its request; negative if it does not.
    fn excess(&self, resource: Resource) -> Option<i128> {
        Some(i128::from(self.usage(resource)?) - i128::from(self.request(resource)))
    }
}

/// The priority of a pod.
pub(crate) fn priority(pod: &Pod) -> i64 {
    i64::from(pod.spec.priority.value)
}

/// Sorts pods: the first is evicted first.
pub(crate) fn rank(pods: &mut [PodUsage], resource: Resource) {
    pods.sort_by(|one, other| compare(one, other, resource));
}

fn compare(one: &PodUsage, other: &PodUsage, resource: Resource) -> Ordering {
    let unknown = |pod: &PodUsage| pod.usage(resource).is_none();
    let by_priority = one.priority.cmp(&other.priority);
    let by_usage = Reverse(one.excess(resource)).cmp(&Reverse(other.excess(resource)));
    let first = |of: fn(&PodUsage, Resource) -> bool| of(other, resource).cmp(&of(one, resource));
    if resource == Resource::Pids {
        return by_priority.then(unknown(other).cmp(&unknown(one))).then(by_usage);
    }
    if unknown(one) != unknown(other) {
        return unknown(other).cmp(&unknown(one));
    }
    first(|pod, resource| pod.excess(resource).is_some_and(|excess| excess > 0))
        .then(by_priority)
        .then(by_usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod by its name, which is its only container's: priority, request, usage.
    fn pod(name: &str, priority: i64, request: u64, usage: Option<u64>) -> PodUsage {
        PodUsage {
            priority,
            memory: usage,
            memory_request: request,
            disk: usage,
            inodes: usage,
            processes: usage,
            containers: vec![ContainerUsage {
                name: name.to_owned(),
                ..ContainerUsage::default()
            }],
            pod: None,
        }
    }

    fn ranked(mut pods: Vec<PodUsage>, resource: Resource) -> Vec<String> {
        rank(&mut pods, resource);
        pods.into_iter().map(|pod| pod.containers[0].name.clone()).collect()
    }

    #[test]
    fn the_table() {
        for (resource, pods, order) in [
            // Over the request goes before any priority.
            (
                Resource::Memory,
                vec![pod("within", 0, 100, Some(90)), pod("over", 1000, 100, Some(101))],
                vec!["over", "within"],
            ),
            // Of those over their request: the lower priority, then the larger excess.
            (
                Resource::Memory,
                vec![
                    pod("large", 10, 0, Some(500)),
                    pod("low", 0, 100, Some(101)),
                    pod("small", 10, 400, Some(500)),
                ],
                vec!["low", "large", "small"],
            ),
            // A best-effort pod that uses something is over its request; a guaranteed one never is.
            (
                Resource::Memory,
                vec![pod("guaranteed", 0, 1000, Some(900)), pod("besteffort", 0, 0, Some(10))],
                vec!["besteffort", "guaranteed"],
            ),
            // Within the request: the pod that uses most of it.
            (
                Resource::Memory,
                vec![pod("idle", 0, 100, Some(10)), pod("busy", 0, 100, Some(90))],
                vec!["busy", "idle"],
            ),
            (
                Resource::Memory,
                vec![pod("known", 0, 0, Some(1000)), pod("unknown", 1000, 0, None)],
                vec!["unknown", "known"],
            ),
            // Disk is not requested.
            (
                Resource::EphemeralStorage,
                vec![
                    pod("little", 0, 0, Some(1)),
                    pod("none", 0, 0, Some(0)),
                    pod("much", 0, 0, Some(9)),
                ],
                vec!["much", "little", "none"],
            ),
            (
                Resource::Inodes,
                vec![pod("high", 1, 0, Some(9)), pod("low", 0, 0, Some(1))],
                vec!["low", "high"],
            ),
            // Processes: the priority comes first.
            (
                Resource::Pids,
                vec![
                    pod("high", 10, 0, Some(1000)),
                    pod("few", 0, 0, Some(1)),
                    pod("many", 0, 0, Some(50)),
                ],
                vec!["many", "few", "high"],
            ),
        ] {
            assert_eq!(ranked(pods, resource), order);
        }
    }

    #[test]
    fn critical_pods_are_known() {
        let critical =
            crate::testing::pod("priorityClassName: system-node-critical, containers: [{name: a, image: i}]");
        let usage = |pod: &Pod| PodUsage {
            priority: priority(pod),
            ..PodUsage::default()
        };
        assert!(usage(&critical).is_critical());
        assert!(!usage(&crate::testing::pod("containers: [{name: a, image: i}]")).is_critical());
    }
}
