//! What containers and pods use. The numbers follow from the id and the time: plausible, the same in every run, and counters grow.

use std::hash::{Hash, Hasher};

use pleg_cri::v1;
use rustc_hash::FxHasher;

use super::object::{Container, Sandbox, map, selected};
use super::{World, WorldError};

/// Where writable layers would be; the images are there too.
pub(crate) const IMAGE_ROOT: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";

const MIB: u64 = 1 << 20;
/// What the pause process of a sandbox uses.
const PAUSE_MEMORY: u64 = MIB / 2;

fn number(value: u64) -> v1::UInt64Value {
    v1::UInt64Value { value }
}

/// A number below `below` that follows from the id; another one for each `what`.
fn chosen(id: &str, what: &str, below: u64) -> u64 {
    let mut hasher = FxHasher::default();
    (id, what).hash(&mut hasher);
    (hasher.finish() >> 8) % below
}

/// Something used at a steady rate since `since`, both per second and in nanoseconds.
fn counted(rate: u64, since: i64, now: i64) -> u64 {
    let elapsed = u128::try_from(now.saturating_sub(since)).unwrap_or(0);
    u64::try_from(u128::from(rate) * elapsed / 1_000_000_000).unwrap_or(u64::MAX)
}

/// CPU and memory of one process tree.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    nano_cores: u64,
    core_nanos: u64,
    memory: u64,
    /// Zero: no limit.
    memory_limit: u64,
}

impl Load {
    fn of(container: &Container, now: i64) -> Self {
        let limits = container.resources.clone().unwrap_or_default();
        let quota = match (u64::try_from(limits.cpu_quota), u64::try_from(limits.cpu_period)) {
            (Ok(quota @ 1..), Ok(period @ 1..)) => quota.saturating_mul(1_000_000_000) / period,
            _ => u64::MAX,
        };
        // 1 to 50 thousandths of a core, 4 to 64 MiB, and never more than the limits allow.
        let nano_cores = (1 + chosen(&container.id, "cpu", 50))
            .saturating_mul(1_000_000)
            .min(quota);
        let memory_limit = u64::try_from(limits.memory_limit_in_bytes).unwrap_or(0);
        let memory = (4 + chosen(&container.id, "memory", 60)) * MIB;
        Self {
            nano_cores,
            core_nanos: counted(nano_cores, container.started_at, now),
            memory: if memory_limit == 0 {
                memory
            } else {
                memory.min(memory_limit / 10 * 9)
            },
            memory_limit,
        }
    }

    fn cpu(self, now: i64) -> v1::CpuUsage {
        v1::CpuUsage {
            timestamp: now,
            usage_core_nano_seconds: Some(number(self.core_nanos)),
            usage_nano_cores: Some(number(self.nano_cores)),
        }
    }

    fn memory(self, now: i64) -> v1::MemoryUsage {
        let available = self.memory_limit.checked_sub(self.memory);
        v1::MemoryUsage {
            timestamp: now,
            working_set_bytes: Some(number(self.memory)),
            available_bytes: available.map(number),
            usage_bytes: Some(number(self.memory + self.memory / 16)),
            rss_bytes: Some(number(self.memory / 4 * 3)),
            page_faults: Some(number(self.memory / 4096)),
            major_page_faults: Some(number(0)),
        }
    }

    fn add(&mut self, other: Self) {
        self.nano_cores += other.nano_cores;
        self.core_nanos = self.core_nanos.saturating_add(other.core_nanos);
        self.memory += other.memory;
    }
}

/// One that does not run uses its disk only.
fn container_stats(container: &Container, now: i64) -> v1::ContainerStats {
    let load = container.running().then(|| Load::of(container, now));
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: container.id.to_string(),
            metadata: Some(container.metadata.clone()),
            labels: map(&container.labels),
            annotations: map(&container.annotations),
        }),
        cpu: load.map(|load| load.cpu(now)),
        memory: load.map(|load| load.memory(now)),
        writable_layer: Some(v1::FilesystemUsage {
            timestamp: now,
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: IMAGE_ROOT.to_owned(),
            }),
            used_bytes: Some(number((1 + chosen(&container.id, "disk", 256)) * 4096)),
            inodes_used: Some(number(8 + chosen(&container.id, "inodes", 56))),
        }),
        swap: load.map(|_| v1::SwapUsage {
            timestamp: now,
            swap_available_bytes: Some(number(0)),
            swap_usage_bytes: Some(number(0)),
        }),
    }
}

/// What goes through `eth0`. A pod in the host's network has no numbers of its own.
fn network(sandbox: &Sandbox, now: i64) -> Option<v1::NetworkUsage> {
    let rate = |what| counted(1000 + chosen(&sandbox.id, what, 9000), sandbox.created_at, now);
    let interface = v1::NetworkInterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: Some(number(rate("received"))),
        rx_errors: Some(number(0)),
        tx_bytes: Some(number(rate("sent"))),
        tx_errors: Some(number(0)),
    };
    (!sandbox.host_network).then(|| v1::NetworkUsage {
        timestamp: now,
        default_interface: Some(interface.clone()),
        interfaces: vec![interface],
    })
}

impl World {
    /// `ContainerStats`.
    pub fn container_stats(&self, id: &str) -> Result<v1::ContainerStats, WorldError> {
        let container = self
            .containers
            .get(id)
            .ok_or_else(|| super::lifecycle::not_found("container", id))?;
        Ok(container_stats(container, self.clock.now()))
    }

    /// `ListContainerStats`: of running containers, as containerd does.
    pub fn list_container_stats(&self, filter: &v1::ContainerStatsFilter) -> Vec<v1::ContainerStats> {
        let now = self.clock.now();
        let filter = v1::ContainerFilter {
            id: filter.id.clone(),
            pod_sandbox_id: filter.pod_sandbox_id.clone(),
            label_selector: filter.label_selector.clone(),
            state: None,
        };
        let running = |container: &&Container| container.running() && container.matches(&filter);
        self.containers
            .iter()
            .filter(running)
            .map(|container| container_stats(container, now))
            .collect()
    }

    /// `PodSandboxStats`.
    pub fn sandbox_stats(&self, id: &str) -> Result<v1::PodSandboxStats, WorldError> {
        let sandbox = self
            .sandboxes
            .get(id)
            .ok_or_else(|| super::lifecycle::not_found("sandbox", id))?;
        Ok(self.stats_of(sandbox, self.clock.now()))
    }

    /// `ListPodSandboxStats`: of ready sandboxes.
    pub fn list_sandbox_stats(&self, filter: &v1::PodSandboxStatsFilter) -> Vec<v1::PodSandboxStats> {
        let now = self.clock.now();
        let wanted = |sandbox: &&Sandbox| {
            sandbox.ready
                && (filter.id.is_empty() || *filter.id == *sandbox.id)
                && selected(&sandbox.labels, &filter.label_selector)
        };
        let sandboxes = self.sandboxes.iter().filter(wanted);
        sandboxes.map(|sandbox| self.stats_of(sandbox, now)).collect()
    }

    /// The sandbox and its running containers together.
    fn stats_of(&self, sandbox: &Sandbox, now: i64) -> v1::PodSandboxStats {
        let mut sum = Load {
            memory: PAUSE_MEMORY,
            ..Load::default()
        };
        let ids = self.containers_of(&sandbox.id);
        let running: Vec<&Container> = ids
            .iter()
            .filter_map(|id| self.containers.get(id))
            .filter(|container| container.running())
            .collect();
        for container in &running {
            sum.add(Load::of(container, now));
        }
        v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: sandbox.id.to_string(),
                metadata: Some(sandbox.metadata.clone()),
                labels: map(&sandbox.labels),
                annotations: map(&sandbox.annotations),
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                cpu: Some(sum.cpu(now)),
                memory: Some(sum.memory(now)),
                network: network(sandbox, now),
                process: Some(v1::ProcessUsage {
                    timestamp: now,
                    process_count: Some(number(1 + running.len() as u64)),
                }),
                containers: running
                    .iter()
                    .map(|container| container_stats(container, now))
                    .collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Clock, SimConfig};

    fn value(number: Option<v1::UInt64Value>) -> u64 {
        number.unwrap().value
    }

    #[test]
    fn counters_grow_by_their_rate_and_gauges_stay() {
        let clock = Clock::manual(1_000_000_000_000);
        let config = SimConfig {
            pods: 2,
            clock: clock.clone(),
            ..SimConfig::default()
        };
        let world = World::new(&config).unwrap();
        clock.advance(Duration::from_secs(10));
        let before = world.list_container_stats(&v1::ContainerStatsFilter::default());
        clock.advance(Duration::from_secs(5));
        let after = world.list_container_stats(&v1::ContainerStatsFilter::default());
        assert_eq!(before.len(), 4);
        for (before, after) in before.iter().zip(&after) {
            let (cpu, later) = (before.cpu.unwrap(), after.cpu.unwrap());
            let rate = value(cpu.usage_nano_cores);
            let grown = value(later.usage_core_nano_seconds) - value(cpu.usage_core_nano_seconds);
            assert!(rate > 0 && grown.abs_diff(rate * 5) <= 1, "{grown} in 5 s at {rate}");
            assert_eq!(
                before.memory.unwrap().working_set_bytes,
                after.memory.unwrap().working_set_bytes
            );
        }
    }

    #[test]
    fn a_pod_uses_what_its_running_containers_use() {
        let config = SimConfig {
            pods: 2,
            clock: Clock::manual(1_000_000_000_000),
            ..SimConfig::default()
        };
        let mut world = World::new(&config).unwrap();
        let pods = world.list_sandbox_stats(&v1::PodSandboxStatsFilter::default());
        assert_eq!(pods.len(), 2);
        let pod = pods[0].linux.clone().unwrap();
        let sum: u64 = pod
            .containers
            .iter()
            .map(|one| value(one.memory.unwrap().working_set_bytes))
            .sum();
        assert_eq!(value(pod.memory.unwrap().working_set_bytes), sum + PAUSE_MEMORY);
        assert_eq!(value(pod.process.unwrap().process_count), 3);

        let id = pod.containers[0].attributes.clone().unwrap().id;
        world.kill_container(&id);
        let dead = world.container_stats(&id).unwrap();
        assert!(dead.cpu.is_none() && dead.writable_layer.is_some());
        let sandbox = pods[0].attributes.clone().unwrap().id;
        let filter = v1::ContainerStatsFilter {
            pod_sandbox_id: sandbox,
            ..Default::default()
        };
        assert_eq!(world.list_container_stats(&filter).len(), 1, "only the one that runs");
    }

    #[test]
    fn limits_bound_what_is_used() {
        let config = SimConfig {
            pods: 1,
            clock: Clock::manual(1_000_000_000_000),
            ..SimConfig::default()
        };
        let mut world = World::new(&config).unwrap();
        let all = world.list_container_stats(&v1::ContainerStatsFilter::default());
        let id = all[0].attributes.clone().unwrap().id;
        let limits = v1::LinuxContainerResources {
            memory_limit_in_bytes: 2 << 20,
            cpu_quota: 50,
            cpu_period: 100_000,
            ..Default::default()
        };
        world.update_resources(&id, Some(limits)).unwrap();
        let stats = world.container_stats(&id).unwrap();
        let memory = stats.memory.unwrap();
        assert_eq!(value(memory.working_set_bytes) + value(memory.available_bytes), 2 << 20);
        assert_eq!(value(stats.cpu.unwrap().usage_nano_cores), 500_000);
    }
}
