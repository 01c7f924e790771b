//! The limits of a pod's cgroup, from the resources of its containers, by the kubelet's rules. Pure.

use crate::manifest::{Container, Pod, Quantity, Role, Spec};
use crate::status::{QosClass, qos_class};

/// The CPU period, in microseconds.
pub(crate) const PERIOD: i64 = 100_000;
/// The smallest quota that the kernel accepts.
const MIN_QUOTA: i64 = 1_000;
/// The smallest weight: that of everything without a request.
pub(crate) const MIN_SHARES: i64 = 2;
/// The largest weight.
const MAX_SHARES: i64 = 262_144;

/// The limits of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CgroupLimits {
    /// The weight against its neighbours, on the scale of version 1.
    pub(crate) cpu_shares: i64,
    /// CPU time per [`PERIOD`], in microseconds.
    pub(crate) cpu_quota: Option<i64>,
    /// In bytes.
    pub(crate) memory: Option<i64>,
}

impl Default for CgroupLimits {
    fn default() -> Self {
        Self {
            cpu_shares: MIN_SHARES,
            cpu_quota: None,
            memory: None,
        }
    }
}

/// The limits of a pod as a whole. A limit counts only if every container has one: otherwise one container without a limit would be
/// limited by the others'.
pub(crate) fn of(pod: &Pod) -> CgroupLimits {
    let spec = &pod.spec;
    if qos_class(pod) == QosClass::BestEffort {
        return CgroupLimits::default();
    }
    let declared = |limit: fn(&Container) -> Option<Quantity>| {
        let has = |container: &Container| limit(container).is_some_and(|limit| limit.milli() > 0);
        spec.init_containers.iter().chain(&spec.containers).all(has)
    };
    let cpu_limit = |container: &Container| container.resources.cpu_limit;
    let memory_limit = |container: &Container| container.resources.memory_limit;
    CgroupLimits {
        cpu_shares: shares(cpu_request(spec)),
        cpu_quota: declared(cpu_limit).then(|| {
            let containers = total(spec, |container| milli(cpu_limit(container)));
            quota(containers.saturating_add(milli(spec.overhead.cpu)))
        }),
        memory: declared(memory_limit).then(|| {
            let containers = total(spec, |container| units(memory_limit(container)));
            containers.saturating_add(units(spec.overhead.memory))
        }),
    }
}

/// The CPU that a pod requests with its overhead, in thousandths of a core.
pub(crate) fn cpu_request(spec: &Spec) -> i64 {
    let containers = total(spec, |container| milli(container.resources.cpu_request));
    containers.saturating_add(milli(spec.overhead.cpu))
}

/// The memory that a pod requests with its overhead, in bytes.
pub(crate) fn memory_request(spec: &Spec) -> i64 {
    let containers = total(spec, |container| units(container.resources.memory_request));
    containers.saturating_add(units(spec.overhead.memory))
}

/// The local storage that a pod requests, in bytes.
pub(crate) fn ephemeral_storage_request(spec: &Spec) -> i64 {
    total(spec, |container| units(container.resources.ephemeral_storage_request))
}

/// What a pod needs at most at any time: sidecars and main containers together, or an init container beside the sidecars before it.
fn total(spec: &Spec, of: impl Fn(&Container) -> i64) -> i64 {
    let (mut sidecars, mut largest) = (0_i64, 0_i64);
    for container in &spec.init_containers {
        if container.role == Role::Sidecar {
            sidecars = sidecars.saturating_add(of(container));
            largest = largest.max(sidecars);
        } else {
            largest = largest.max(sidecars.saturating_add(of(container)));
        }
    }
    let main = spec.containers.iter().map(of).fold(sidecars, i64::saturating_add);
    main.max(largest)
}

fn milli(quantity: Option<Quantity>) -> i64 {
    quantity.map_or(0, Quantity::milli)
}

fn units(quantity: Option<Quantity>) -> i64 {
    quantity.map_or(0, Quantity::units)
}

/// The weight of a CPU request, in thousandths of a core.
pub(crate) fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CPU time per [`PERIOD`] for a limit in thousandths of a core.
fn quota(milli: i64) -> i64 {
    (milli.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA)
}

/// A weight on the scale of version 2, 1 to 10,000, as the kubelet converts it.
pub(crate) fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9_999 / (MAX_SHARES - MIN_SHARES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    const MIB: i64 = 1 << 20;

    /// Containers of a pod, each with its resources; those that begin with `init` or `sidecar` are init containers.
    fn limits(containers: &[(&str, &str)]) -> CgroupLimits {
        let one = |(name, resources): &(&str, &str)| {
            let more = if name.starts_with("sidecar") {
                ", restartPolicy: Always"
            } else {
                ""
            };
            format!("{{name: {name}, image: i, resources: {{{resources}}}{more}}}")
        };
        let (init, main): (Vec<_>, Vec<_>) = containers.iter().partition(|(name, _)| !name.starts_with("app"));
        let join = |list: Vec<&(&str, &str)>| list.into_iter().map(one).collect::<Vec<_>>().join(", ");
        of(&pod(&format!(
            "initContainers: [{}], containers: [{}]",
            join(init),
            join(main)
        )))
    }

    #[test]
    fn the_table() {
        let half = "limits: {cpu: 500m, memory: 64Mi}";
        for (containers, shares, quota, memory) in [
            (vec![("app", "")], 2, None, None),
            (vec![("app", half)], 512, Some(50_000), Some(64)),
            (vec![("app", half), ("app2", half)], 1024, Some(100_000), Some(128)),
            // Burstable: what only some containers limit does not limit the pod.
            (vec![("app", half), ("app2", "")], 512, None, None),
            (
                vec![("app", half), ("app2", "limits: {memory: 1Mi}")],
                512,
                None,
                Some(65),
            ),
            (
                vec![("app", "requests: {cpu: 250m}, limits: {cpu: 2}")],
                256,
                Some(200_000),
                None,
            ),
            (vec![("app", "requests: {memory: 1Gi}")], 2, None, None),
            (vec![("app", "limits: {cpu: 1m}")], 2, Some(1_000), None),
            // An init container that needs more than all others.
            (
                vec![("init", "limits: {cpu: 2, memory: 1Mi}"), ("app", half)],
                2048,
                Some(200_000),
                Some(64),
            ),
            // It runs beside the sidecars before it, not beside those after it.
            (
                vec![
                    ("sidecar", half),
                    ("init", "limits: {cpu: 1, memory: 1Mi}"),
                    ("sidecar2", half),
                    ("app", "limits: {cpu: 100m, memory: 1Mi}"),
                ],
                1536,
                Some(150_000),
                Some(129),
            ),
            (vec![("init", ""), ("app", half)], 512, None, None),
        ] {
            let expected = CgroupLimits {
                cpu_shares: shares,
                cpu_quota: quota,
                memory: memory.map(|memory| memory * MIB),
            };
            assert_eq!(limits(&containers), expected, "{containers:?}");
        }
    }

    /// What a runtime class needs beside its containers is added, and limits nothing by itself.
    #[test]
    fn overhead_is_added() {
        let with_overhead = |resources: &str| {
            let mut pod = pod(&format!(
                "containers: [{{name: app, image: i, resources: {{{resources}}}}}]"
            ));
            let spec = &mut std::sync::Arc::make_mut(&mut pod).spec;
            spec.overhead.cpu = Quantity::parse("250m").ok();
            spec.overhead.memory = Quantity::parse("16Mi").ok();
            pod
        };
        let limited = with_overhead("limits: {cpu: 500m, memory: 64Mi}");
        let expected = CgroupLimits {
            cpu_shares: 768,
            cpu_quota: Some(75_000),
            memory: Some(80 * MIB),
        };
        assert_eq!(of(&limited), expected);
        assert_eq!(memory_request(&limited.spec), 80 * MIB);
        let requests = of(&with_overhead("requests: {cpu: 500m}"));
        assert_eq!(
            (requests.cpu_shares, requests.cpu_quota, requests.memory),
            (768, None, None)
        );
    }

    #[test]
    fn weights_are_those_of_the_kubelet() {
        for (milli, shares_1, weight_2) in [
            (0, 2, 1),
            (1, 2, 1),
            (100, 102, 4),
            (1000, 1024, 39),
            (2000, 2048, 79),
            (1_000_000, 262_144, 10_000),
        ] {
            let shares = shares(milli);
            assert_eq!((shares, weight(shares)), (shares_1, weight_2), "{milli}");
        }
    }
}
