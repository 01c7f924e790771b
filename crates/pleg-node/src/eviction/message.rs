//! What an evicted pod says about its eviction, in the kubelet's words. Pure.

use super::ranking::PodUsage;
use super::signals::{Observations, Resource};
use super::thresholds::Threshold;

/// The reason of evicted pods, and of pods that are not admitted under pressure.
pub(crate) const EVICTED: &str = "Evicted";

/// Quantities as Kubernetes writes them.
pub(crate) struct Quantity;

impl Quantity {
    /// With decimal suffixes, if the number is a multiple.
    pub(crate) fn decimal(number: u64) -> String {
        suffixed(number, 1000, &["", "k", "M", "G", "T", "P", "E"])
    }
}

/// With binary suffixes, if the number is a multiple.
pub(crate) fn binary(number: u64) -> String {
    suffixed(number, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

fn suffixed(mut number: u64, step: u64, suffixes: &[&str]) -> String {
    let mut suffix = 0;
    while number > 0 && number.is_multiple_of(step) && suffix + 1 < suffixes.len() {
        number /= step;
        suffix += 1;
    }
    format!("{number}{}", suffixes[suffix])
}

/// Why a pod was evicted.
pub(crate) fn message(threshold: &Threshold, observations: &Observations, pod: &PodUsage) -> String {
    let resource = threshold.signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(observed) = observations.get(&threshold.signal) {
        let available = if resource.is_bytes() {
            binary(observed.available)
        } else {
            Quantity::decimal(observed.available)
        };
        let quantity = threshold.shown(observed.capacity);
        text += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    for container in &pod.containers {
        let (usage, request) = match resource {
            Resource::Memory => (container.memory, container.memory_request),
            Resource::EphemeralStorage => (container.disk, 0),
            Resource::Inodes | Resource::Pids => continue,
        };
        if let Some(usage) = usage.filter(|usage| *usage > request) {
            text += &format!(
                "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
                container.name,
                binary(usage),
                binary(request)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::ranking::ContainerUsage;
    use crate::eviction::signals::{Observation, Signal};

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (number, in_binary, in_decimal) in [
            (0, "0", "0"),
            (1000, "1000", "1k"),
            (1024, "1Ki", "1024"),
            (1536, "1536", "1536"),
            (100 << 20, "100Mi", "104857600"),
            (51_200 << 10, "50Mi", "52428800"),
            (50_001 << 10, "50001Ki", "51201024"),
            (5_000_000, "5000000", "5M"),
        ] {
            assert_eq!(
                (binary(number).as_str(), Quantity::decimal(number).as_str()),
                (in_binary, in_decimal)
            );
        }
    }

    #[test]
    fn the_words_are_the_kubelets() {
        let thresholds =
            Threshold::parse_hard("memory.available<100Mi,nodefs.inodesFree<5%,nodefs.available<1Gi").unwrap();
        let seen = |available, capacity| Observation { capacity, available };
        let observations = Observations::from([
            (Signal::MemoryAvailable, seen(50 << 20, 8 << 30)),
            (Signal::NodeFsInodesFree, seen(3_000, 100_000)),
            (Signal::NodeFsAvailable, seen(1 << 20, 8 << 30)),
        ]);
        let container = |name: &str, memory: u64, request: u64, disk: u64| ContainerUsage {
            name: name.to_owned(),
            memory: Some(memory),
            memory_request: request,
            disk: Some(disk),
        };
        let pod = PodUsage {
            containers: vec![
                container("app", 200 << 20, 64 << 20, 5 << 10),
                container("small", 1, 1 << 20, 0),
            ],
            ..PodUsage::default()
        };
        let of = |n: usize| message(&thresholds[n], &observations, &pod);
        assert_eq!(
            of(0),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container app was using 200Mi, request is \
             64Mi, has larger consumption of memory. "
        );
        assert_eq!(
            of(1),
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1Mi. Container app was using 5Ki, request \
             is 0, has larger consumption of ephemeral-storage. "
        );
        assert_eq!(
            of(2),
            "The node was low on resource: inodes. Threshold quantity: 5000, available: 3k. "
        );
    }
}
