//! Limits of a container's cgroup, and its OOM score: which containers are killed first when memory is short.

use pleg_cri::v1;

use crate::manifest::{Container, Pod, Quantity};
use crate::status::{QosClass, qos_class};

/// The CPU period, in microseconds.
const PERIOD: i64 = 100_000;
/// The smallest quota that the kernel accepts.
const MIN_QUOTA: i64 = 1_000;
/// The weights that the kernel accepts.
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
/// The OOM score of guaranteed pods: they are killed last.
const GUARANTEED_SCORE: i64 = -997;

/// The limits of a container on a node with that much memory.
pub(super) fn of(pod: &Pod, container: &Container, memory: u64) -> v1::LinuxContainerResources {
    let resources = &container.resources;
    let units = |quantity: Option<Quantity>| quantity.map_or(0, Quantity::units);
    let quota = |limit: Quantity| (limit.milli().saturating_mul(PERIOD) / 1000).max(MIN_QUOTA);
    let request = resources.cpu_request.map_or(0, Quantity::milli);
    v1::LinuxContainerResources {
        cpu_period: PERIOD,
        // A limit of zero is no limit.
        cpu_quota: resources.cpu_limit.filter(|limit| limit.milli() > 0).map_or(0, quota),
        cpu_shares: (request.saturating_mul(1024) / 1000).clamp(*SHARES.start(), *SHARES.end()),
        memory_limit_in_bytes: units(resources.memory_limit),
        oom_score_adj: score(pod, units(resources.memory_request), memory),
        hugepage_limits: hugepages(container),
        ..Default::default()
    }
}

/// The limits of huge pages, by the kernel's names of their sizes.
fn hugepages(container: &Container) -> Vec<v1::HugepageLimit> {
    let limit = |(size, limit): (&String, &Quantity)| v1::HugepageLimit {
        // 2Mi is 2MB there.
        page_size: size.trim_end_matches('i').to_owned() + "B",
        limit: limit.units().unsigned_abs(),
    };
    container.resources.hugepages.iter().map(limit).collect()
}

/// The kubelet's policy: the larger the memory request of a container, the later it is killed.
fn score(pod: &Pod, request: i64, memory: u64) -> i64 {
    if pod.spec.priority.is_node_critical() {
        return GUARANTEED_SCORE;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => GUARANTEED_SCORE,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let share = i128::from(request) * 1000 / i128::from(memory.max(1));
            let score = 1000 - i64::try_from(share).unwrap_or(1000);
            // Always between guaranteed and best-effort pods.
            score.clamp(1000 + GUARANTEED_SCORE, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn the_table() {
        const GIB: i64 = 1 << 30;
        for (resources, [quota, shares, memory, score]) in [
            ("", [0, 2, 0, 1000]),
            ("limits: {cpu: 500m, memory: 1Gi}", [50_000, 512, GIB, -997]),
            ("limits: {cpu: 2}, requests: {cpu: 250m}", [200_000, 256, 0, 999]),
            ("requests: {memory: 4Gi}", [0, 2, 0, 500]),
            ("requests: {memory: 8Gi}", [0, 2, 0, 3]),
            ("requests: {cpu: 1m, memory: 1}", [0, 2, 0, 999]),
            ("limits: {cpu: 1m}", [1_000, 2, 0, 999]),
            ("requests: {cpu: 1000000}", [0, 262_144, 0, 999]),
        ] {
            let pod = pod(&format!(
                "containers: [{{name: a, image: i, resources: {{{resources}}}}}]"
            ));
            let of = of(&pod, &pod.spec.containers[0], 8 << 30);
            let found = [of.cpu_quota, of.cpu_shares, of.memory_limit_in_bytes, of.oom_score_adj];
            assert_eq!(found, [quota, shares, memory, score], "{resources}");
        }
        let mut large = Pod::clone(&pod("containers: [{name: a, image: i}]"));
        let hugepages = [("2Mi", "64Mi"), ("1Gi", "2Gi")];
        large.spec.containers[0].resources.hugepages = hugepages
            .map(|(size, limit)| (size.to_owned(), Quantity::parse(limit).unwrap()))
            .into();
        let limits = of(&large, &large.spec.containers[0], 1).hugepage_limits;
        let limits: Vec<_> = limits.iter().map(|one| (one.page_size.as_str(), one.limit)).collect();
        assert_eq!(limits, [("1GB", 2 << 30), ("2MB", 64 << 20)]);
        let critical = pod("priorityClassName: system-node-critical, containers: [{name: a, image: i}]");
        assert_eq!(of(&critical, &critical.spec.containers[0], 1).oom_score_adj, -997);
    }
}
