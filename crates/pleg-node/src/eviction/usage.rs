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

/// The memory of a container. Runtimes name its cgroup differently.
fn container_memory(node: &NodeConfig, pod: &Path, id: &str) -> Option<u64> {
    let candidates = [
        id.to_owned(),
        format!("cri-containerd-{id}.scope"),
        format!("crio-{id}.scope"),
        format!("crio-{id}"),
    ];
    let mut found = candidates
        .iter()
        .map(|name| files::memory(&node.cgroup_mount, &pod.join(name)));
    found.find_map(|usage| usage)
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
        assert!(
            known.disk.unwrap() >= 64 << 10 && known.containers[0].disk.unwrap() >= 64 << 10,
            "{known:?}"
        );
        // The directory, that of the container, and the log.
        assert_eq!(known.inodes, Some(3));
    }
}
