//! What pods use. Blocking.
//!
//! Memory and processes come from the files of the pods' cgroups, not from CRI statistics: under pressure the runtime is slow, one hung shim
//! blocks the statistics of every pod, and these files are always there. Disk usage is that of logs and `emptyDir` volumes; the writable
//! layers of containers are not counted.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pleg::{ContainerState, PodStatus};

use super::ranking::{ContainerUsage, PodUsage, priority};
use crate::cgroups::{files, limits, names};
use crate::executor::requests::{Cgroups, NodeConfig, log_path};
use crate::manifest::Pod;
use crate::status::qos_class;

/// Most files of a pod that are counted.
const MAX_FILES: u64 = 1_000_000;
/// Deepest directory that is counted.
const MAX_DEPTH: usize = 64;

/// What a pod uses. Disk usage is only read `with_disk`: that walks directories.
pub(crate) fn of(node: &NodeConfig, pod: Arc<Pod>, status: &PodStatus, with_disk: bool) -> PodUsage {
    let cgroup = cgroup(node, &pod);
    let mut usage = PodUsage {
        priority: priority(&pod),
        memory: files::memory(&node.cgroup_mount, &cgroup),
        memory_request: limits::memory_request(&pod.spec).unsigned_abs(),
        processes: files::processes(&node.cgroup_mount, &cgroup),
        ..PodUsage::default()
    };
    let logs = node.log_directory(&pod);
    if with_disk {
        let mut sum = DiskUsage::default();
        sum.add(&logs, MAX_DEPTH);
        sum.add(&node.pod_directory(&pod.id.uid), MAX_DEPTH);
        usage.disk = Some(sum.bytes);
        usage.inodes = Some(sum.inodes);
    }
    for container in status
        .containers
        .iter()
        .filter(|one| one.state == ContainerState::Running)
    {
        let Some(spec) = pod.spec.container(&container.name) else {
            continue;
        };
        let disk = with_disk.then(|| {
            let log = logs.join(log_path(&container.name, container.attempt));
            DiskUsage::of(&log).bytes
        });
        usage.containers.push(ContainerUsage {
            name: container.name.to_string(),
            memory: container_memory(node, &cgroup, container.id.as_str()),
            memory_request: spec
                .resources
                .memory_request
                .map_or(0, |request| request.units().unsigned_abs()),
            disk,
        });
    }
    usage.pod = Some(pod);
    usage
}

/// The cgroup of a pod, below the mount point.
fn cgroup(node: &NodeConfig, pod: &Pod) -> PathBuf {
    let levels = names::pod(&node.cgroup_root, qos_class(pod), &pod.id.uid);
    match node.cgroups {
        Cgroups::Path => levels.iter().collect(),
        Cgroups::Systemd => names::slice_path(&levels),
    }
}

/// The memory that a container of a pod uses, if that can be read.
pub(crate) fn container_memory_of(node: &NodeConfig, pod: &Pod, id: &str) -> Option<u64> {
    container_memory(node, &cgroup(node, pod), id)
}

/// What the cgroup of a pod or container has used. What cannot be read is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuAndMemory {
    /// CPU time, in nanoseconds.
    pub cpu_nanoseconds: Option<u64>,
    /// Memory without what the kernel can drop at once, in bytes.
    pub working_set: Option<u64>,
}

/// What a pod and its running containers have used, as their cgroups say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Of the pod as a whole.
    pub pod: CpuAndMemory,
    /// Of its running containers, by name.
    pub containers: Vec<(String, CpuAndMemory)>,
}

/// What a pod has used. The files are there also while the runtime is stuck. Blocking.
pub fn cgroup_usage(node: &NodeConfig, pod: &Pod, status: &PodStatus) -> CgroupUsage {
    let cgroup = cgroup(node, pod);
    let running = status.containers.iter();
    let running = running.filter(|container| container.state == ContainerState::Running);
    let containers = running.map(|container| {
        let mut names = container_cgroups(&cgroup, container.id.as_str());
        let usage =
            names.find_map(|name| Some(cpu_and_memory(node, &name)).filter(|usage| *usage != CpuAndMemory::default()));
        (container.name.to_string(), usage.unwrap_or_default())
    });
    CgroupUsage {
        containers: containers.collect(),
        pod: cpu_and_memory(node, &cgroup),
    }
}

fn cpu_and_memory(node: &NodeConfig, cgroup: &Path) -> CpuAndMemory {
    CpuAndMemory {
        cpu_nanoseconds: files::cpu(&node.cgroup_mount, cgroup),
        working_set: files::memory(&node.cgroup_mount, cgroup),
    }
}

/// The names that the cgroup of a container may have. Runtimes name it differently.
fn container_cgroups(pod: &Path, id: &str) -> impl Iterator<Item = PathBuf> {
    let names = [
        id.to_owned(),
        format!("cri-containerd-{id}.scope"),
        format!("crio-{id}.scope"),
        format!("crio-{id}"),
    ];
    names.map(|name| pod.join(name)).into_iter()
}

/// The memory of a container.
fn container_memory(node: &NodeConfig, pod: &Path, id: &str) -> Option<u64> {
    container_cgroups(pod, id).find_map(|name| files::memory(&node.cgroup_mount, &name))
}

/// A sum over files. A link counts as itself.
#[derive(Debug, Default)]
pub(super) struct DiskUsage {
    pub(super) bytes: u64,
    inodes: u64,
}

impl DiskUsage {
    /// That of a file, or of a directory and what is in it.
    pub(super) fn of(path: &Path) -> Self {
        let mut sum = Self::default();
        sum.add(path, MAX_DEPTH);
        sum
    }

    fn add(&mut self, path: &Path, depth: usize) {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return;
        };
        self.bytes = self.bytes.saturating_add(metadata.blocks().saturating_mul(512));
        self.inodes += 1;
        if !metadata.is_dir() || depth == 0 || self.inodes > MAX_FILES {
            return;
        }
        let device = metadata.dev();
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            // What is mounted there is not the pod's.
            if entry.metadata().is_ok_and(|metadata| metadata.dev() == device) {
                self.add(&entry.path(), depth - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, node};

    #[test]
    fn usage_is_read_from_cgroups_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let case = Case::new("containers: [{name: app, image: i, resources: {requests: {memory: 1Mi}}}]")
            .sandbox(true, 0)
            .running("app", 1);
        let read = |with_disk| of(&node, Arc::clone(&case.pod), &case.status, with_disk);
        let unknown = read(false);
        assert_eq!((unknown.memory, unknown.processes, unknown.disk), (None, None, None));
        assert_eq!(unknown.memory_request, 1 << 20);

        let group = format!("pleg/kubepods/burstable/pod{}", case.pod.id.uid);
        for (controller, file, value) in [
            ("memory", "memory.usage_in_bytes", "5000"),
            ("memory", "app0/memory.usage_in_bytes", "4000"),
            ("pids", "pids.current", "7"),
        ] {
            let path = node.cgroup_mount.join(controller).join(&group).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        let log = node.log_directory(&case.pod).join("app/0.log");
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, vec![1; 64 << 10]).unwrap();
        let known = read(true);
        assert_eq!((known.memory, known.processes), (Some(5000), Some(7)));
        assert_eq!(known.containers[0].memory, Some(4000));
        let cpu = node
            .cgroup_mount
            .join("cpuacct")
            .join(&group)
            .join("app0/cpuacct.usage");
        fs::create_dir_all(cpu.parent().unwrap()).unwrap();
        fs::write(cpu, "7000000").unwrap();
        let in_use = cgroup_usage(&node, &case.pod, &case.status);
        assert_eq!((in_use.pod.working_set, in_use.pod.cpu_nanoseconds), (Some(5000), None));
        let app = CpuAndMemory {
            cpu_nanoseconds: Some(7_000_000),
            working_set: Some(4000),
        };
        assert_eq!(in_use.containers, [("app".to_owned(), app)]);
        assert!(
            known.disk.unwrap() >= 64 << 10 && known.containers[0].disk.unwrap() >= 64 << 10,
            "{known:?}"
        );
        // The directory, that of the container, and the log.
        assert_eq!(known.inodes, Some(3));
    }
}
