//! Collects statistics: from the runtime, else from cgroups, which are there also while the runtime is stuck.
//!
//! One collection runs at a time, and its result serves all requests within [`FRESH`]: scrapers do not add up to load.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{PodEntry, PodUid};
use pleg_cri::{ErrorKind, Subject, v1};
use pleg_node::host::resources::ThisMachine;
use pleg_node::{CgroupUsage, Report, cgroup_usage};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::model::{
    ContainerStats, CpuStats, MemoryStats, NodeStats, PodReference, PodStats, ProcessStats, RuntimeStats, Summary,
};
use super::{convert, host};
use crate::server::NodeState;

/// How long a result counts.
const FRESH: Duration = Duration::from_secs(2);
/// How long the runtime may take.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) summary: Summary,
    /// Why figures of the runtime are missing.
    pub(super) failed: Option<String>,
}

#[derive(Debug)]
pub(crate) struct StatsCollector {
    node: Arc<NodeState>,
    // Held while statistics are collected, so that others wait for the same result.
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    collected: Option<(Instant, Arc<Collected>)>,
    /// CPU times of the last collection, to compute rates: by container id, pod UID, or "" for the node.
    cpu: HashMap<String, (Timestamp, u64)>,
}

impl StatsCollector {
    pub(crate) fn new(node: Arc<NodeState>) -> Self {
        let last = Mutex::default();
        Self { node, last }
    }

    /// Statistics that are at most [`FRESH`] old.
    pub(super) async fn collect(&self) -> Arc<Collected> {
        let mut last = self.last.lock().await;
        if let Some((at, collected)) = &last.collected
            && at.elapsed() < FRESH
        {
            return Arc::clone(collected);
        }
        let mut collected = self.collect_now().await;
        let mut before = std::mem::take(&mut last.cpu);
        let mut rate = |key: String, cpu: &mut Option<CpuStats>| {
            if let Some(cpu) = cpu {
                cpu.usage_nano_cores = cpu.usage_nano_cores.or(nano_cores(before.remove(&key), cpu));
                last.cpu.insert(key, (cpu.time, cpu.usage_core_nano_seconds));
            }
        };
        rate(String::new(), &mut collected.summary.node.cpu);
        for pod in &mut collected.summary.pods {
            rate(pod.pod_ref.uid.clone(), &mut pod.cpu);
            for container in &mut pod.containers {
                rate(format!("{}/{}", pod.pod_ref.uid, container.name), &mut container.cpu);
            }
        }
        let collected = Arc::new(collected);
        last.collected = Some((Instant::now(), Arc::clone(&collected)));
        collected
    }

    async fn collect_now(&self) -> Collected {
        let now = Timestamp::now();
        let (sandboxes, images) = tokio::join!(self.sandboxes(), self.images());
        let failed = sandboxes.as_ref().err().cloned();
        let mut known: HashMap<PodUid, v1::PodSandboxStats> = HashMap::new();
        for stats in sandboxes.unwrap_or_default() {
            let metadata = stats
                .attributes
                .as_ref()
                .and_then(|attributes| attributes.metadata.as_ref());
            if let Some(metadata) = metadata {
                known.insert(PodUid::from(metadata.uid.as_str()), stats);
            }
        }
        let pods: Vec<(Report, PodEntry)> = self.running_pods();
        let (config, name) = (Arc::clone(&self.node.config), self.node.name.clone());
        let read = move || {
            let machine = ThisMachine {
                cgroup_mount: config.cgroup_mount.clone(),
            };
            let mut node = host::read(&machine, Path::new(&config.pods), now);
            node.node_name = name;
            node.runtime = images
                .and_then(|path| host::filesystem(&machine, Path::new(&path), now).ok())
                .map(|image_fs| RuntimeStats { image_fs });
            let pods = pods.iter().map(|(report, entry)| {
                let usage = || cgroup_usage(&config, &report.pod, &entry.status);
                match known.get(&report.pod.id.uid) {
                    Some(stats) if has_figures(stats) => {
                        let mut pod = of_runtime(report, entry, stats, now);
                        if pod.cpu.is_none() || pod.memory.is_none() {
                            complete(&mut pod, &usage(), now);
                        }
                        pod
                    }
                    _ => of_cgroups(report, entry, &usage(), now),
                }
            });
            Summary {
                node,
                pods: pods.collect(),
            }
        };
        let summary = tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| Summary {
            node: NodeStats::default(),
            pods: Vec::new(),
        });
        Collected { summary, failed }
    }

    /// Our pods with a container that runs.
    fn running_pods(&self) -> Vec<(Report, PodEntry)> {
        let cache = self.node.pleg.cache();
        let with_entry = |report: Report| {
            let entry = cache.get(&report.pod.id.uid)?;
            let runs = entry
                .status
                .containers
                .iter()
                .any(|one| one.state == pleg::ContainerState::Running);
            runs.then_some((report, entry))
        };
        self.node.reports.pods().into_iter().filter_map(with_entry).collect()
    }

    async fn sandboxes(&self) -> Result<Vec<v1::PodSandboxStats>, String> {
        let request = v1::ListPodSandboxStatsRequest::default();
        match self
            .node
            .runtime
            .call_within(&Subject::NODE, request, RUNTIME_DEADLINE)
            .await
        {
            Ok(answer) => Ok(answer.stats),
            // Then cgroups are all there is, and nothing is wrong.
            Err(error) if error.kind == ErrorKind::Unimplemented => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Where images are.
    async fn images(&self) -> Option<String> {
        let request = v1::ImageFsInfoRequest::default();
        let answer = self
            .node
            .runtime
            .call_within(&Subject::NODE, request, RUNTIME_DEADLINE)
            .await
            .ok()?;
        answer
            .image_filesystems
            .into_iter()
            .find_map(|fs| Some(fs.fs_id?.mountpoint))
    }
}

/// The average since the last collection.
fn nano_cores(before: Option<(Timestamp, u64)>, now: &CpuStats) -> Option<u64> {
    let (then, used) = before?;
    let passed = u128::try_from(now.time.as_nanosecond() - then.as_nanosecond())
        .ok()
        .filter(|&passed| passed > 0)?;
    let used = now.usage_core_nano_seconds.checked_sub(used)?;
    u64::try_from(u128::from(used) * 1_000_000_000 / passed).ok()
}

fn has_figures(stats: &v1::PodSandboxStats) -> bool {
    stats
        .linux
        .as_ref()
        .is_some_and(|linux| linux.cpu.is_some() || !linux.containers.is_empty())
}

fn pod_stats(report: &Report) -> PodStats {
    let id = &report.pod.id;
    PodStats {
        pod_ref: PodReference {
            name: id.name.to_string(),
            namespace: id.namespace.to_string(),
            uid: id.uid.as_str().to_owned(),
        },
        start_time: report.status.start_time.as_ref().map(|time| time.0).unwrap_or_default(),
        containers: Vec::new(),
        cpu: None,
        memory: None,
        network: None,
        processes: None,
    }
}

/// When the running container of a name started.
fn started(entry: &PodEntry, name: &str) -> Option<Timestamp> {
    let mut running = entry
        .status
        .containers
        .iter()
        .filter(|one| one.state == pleg::ContainerState::Running);
    running.find(|one| *one.name == *name)?.started_at
}

fn of_runtime(report: &Report, entry: &PodEntry, stats: &v1::PodSandboxStats, now: Timestamp) -> PodStats {
    let mut pod = pod_stats(report);
    let Some(linux) = &stats.linux else { return pod };
    pod.cpu = linux.cpu.as_ref().and_then(|usage| convert::cpu(usage, now));
    pod.memory = linux.memory.as_ref().and_then(|usage| convert::memory(usage, now));
    pod.network = linux.network.as_ref().map(|usage| convert::network(usage, now));
    pod.processes = linux
        .process
        .as_ref()
        .and_then(|usage| usage.process_count.as_ref())
        .map(|count| ProcessStats {
            process_count: count.value,
        });
    let mut newest: BTreeMap<&str, (u32, &v1::ContainerStats)> = BTreeMap::new();
    for stats in &linux.containers {
        let Some(metadata) = stats
            .attributes
            .as_ref()
            .and_then(|attributes| attributes.metadata.as_ref())
        else {
            continue;
        };
        if newest
            .get(metadata.name.as_str())
            .is_none_or(|(attempt, _)| *attempt <= metadata.attempt)
        {
            newest.insert(&metadata.name, (metadata.attempt, stats));
        }
    }
    let containers = newest.into_iter().filter_map(|(name, (_, stats))| {
        Some(ContainerStats {
            name: name.to_owned(),
            // One that has ended has no figures that mean anything.
            start_time: started(entry, name)?,
            cpu: stats.cpu.as_ref().and_then(|usage| convert::cpu(usage, now)),
            memory: stats.memory.as_ref().and_then(|usage| convert::memory(usage, now)),
            rootfs: stats.writable_layer.as_ref().map(|usage| convert::layer(usage, now)),
            swap: stats.swap.as_ref().map(|usage| convert::swap(usage, now)),
        })
    });
    pod.containers = containers.collect();
    pod
}

/// CRI-O has figures of containers, and none of pods: those of the pod's cgroup, else the sum of its containers.
fn complete(pod: &mut PodStats, usage: &CgroupUsage, now: Timestamp) {
    let cpus: Option<Vec<u64>> = (pod.containers.iter())
        .map(|container| container.cpu.map(|cpu| cpu.usage_core_nano_seconds))
        .collect();
    let memories: Option<Vec<u64>> = (pod.containers.iter())
        .map(|container| container.memory.map(|memory| memory.working_set_bytes))
        .collect();
    let sum = |all: Option<Vec<u64>>| all.filter(|all| !all.is_empty()).map(|all| all.iter().sum());
    pod.cpu = pod.cpu.or(cpu(usage.pod.cpu_nanoseconds.or(sum(cpus)), now));
    pod.memory = pod.memory.or(memory(usage.pod.working_set.or(sum(memories)), now));
}

fn cpu(nanoseconds: Option<u64>, now: Timestamp) -> Option<CpuStats> {
    nanoseconds.map(|usage_core_nano_seconds| CpuStats {
        time: now,
        usage_nano_cores: None,
        usage_core_nano_seconds,
    })
}

fn memory(bytes: Option<u64>, now: Timestamp) -> Option<MemoryStats> {
    bytes.map(|working_set_bytes| MemoryStats {
        time: now,
        available_bytes: None,
        usage_bytes: None,
        working_set_bytes,
        rss_bytes: None,
        page_faults: None,
        major_page_faults: None,
    })
}

fn of_cgroups(report: &Report, entry: &PodEntry, usage: &CgroupUsage, now: Timestamp) -> PodStats {
    let mut pod = pod_stats(report);
    pod.cpu = cpu(usage.pod.cpu_nanoseconds, now);
    pod.memory = memory(usage.pod.working_set, now);
    let containers = usage.containers.iter().filter_map(|(name, usage)| {
        Some(ContainerStats {
            name: name.clone(),
            start_time: started(entry, name)?,
            cpu: cpu(usage.cpu_nanoseconds, now),
            memory: memory(usage.working_set, now),
            rootfs: None,
            swap: None,
        })
    });
    pod.containers = containers.collect();
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_figures_has_those_of_its_cgroup_or_of_its_containers() {
        let now = Timestamp::UNIX_EPOCH;
        let container = |nanoseconds, bytes| ContainerStats {
            name: "c".to_owned(),
            start_time: now,
            cpu: cpu(Some(nanoseconds), now),
            memory: memory(Some(bytes), now),
            rootfs: None,
            swap: None,
        };
        let pod = PodStats {
            pod_ref: PodReference {
                name: String::new(),
                namespace: String::new(),
                uid: String::new(),
            },
            start_time: now,
            containers: vec![container(1, 10), container(2, 20)],
            cpu: None,
            memory: None,
            network: None,
            processes: None,
        };
        let completed = |pod: &PodStats, usage: &CgroupUsage| {
            let mut pod = pod.clone();
            complete(&mut pod, usage, now);
            let cpu = pod.cpu.map(|cpu| cpu.usage_core_nano_seconds);
            (cpu, pod.memory.map(|memory| memory.working_set_bytes))
        };
        let mut usage = CgroupUsage::default();
        assert_eq!(completed(&pod, &usage), (Some(3), Some(30)));
        usage.pod.working_set = Some(40);
        assert_eq!(completed(&pod, &usage), (Some(3), Some(40)));
        let empty = PodStats {
            containers: Vec::new(),
            ..pod
        };
        assert_eq!(completed(&empty, &usage), (None, Some(40)));
    }

    #[test]
    fn rates_are_averages_since_the_last_time() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let now = CpuStats {
            time: at(12),
            usage_nano_cores: None,
            usage_core_nano_seconds: 3_000_000_000,
        };
        assert_eq!(nano_cores(Some((at(10), 2_000_000_000)), &now), Some(500_000_000));
        assert_eq!(nano_cores(None, &now), None);
        // The same sample twice, or a container that started again.
        assert_eq!(nano_cores(Some((at(12), 3_000_000_000)), &now), None);
        assert_eq!(nano_cores(Some((at(10), 4_000_000_000)), &now), None);
    }
}
