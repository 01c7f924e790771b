//! Limits of local storage: `sizeLimit` of `emptyDir` volumes, and `ephemeral-storage` of containers. A pod that exceeds one is evicted,
//! however much the node has left, in the kubelet's order and words. All but [`read`] is pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use pleg::{ContainerState, PodStatus};

use super::message::{Quantity as Shown, binary};
use super::usage::DiskUsage;
use crate::executor::requests::{NodeConfig, log_path};
use crate::manifest::{Container, Medium, Pod, Quantity, Role, Volume};

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// What a pod stores on this node, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StorageUsage {
    /// Each `emptyDir` on disk.
    pub(crate) volumes: BTreeMap<String, u64>,
    /// Each running container: its log, and its writable layer unless images have a file system of their own.
    pub(crate) containers: BTreeMap<String, u64>,
    /// All logs, writable layers and volumes.
    pub(crate) total: u64,
}

/// A limit that a pod exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// The label of the metric.
    pub(crate) signal: &'static str,
    pub(crate) message: String,
}

/// Whether the pod has any limit of local storage, so that its usage has to be read.
pub(crate) fn has_limits(pod: &Pod) -> bool {
    limited_volumes(pod).next().is_some() || has_container_limits(pod)
}

/// Whether a container of the pod has a limit, so that writable layers matter.
pub(crate) fn has_container_limits(pod: &Pod) -> bool {
    pod_limit(pod).is_some()
}

/// The first limit that the pod exceeds: of a volume, of the pod, of a container.
pub(crate) fn exceeded(pod: &Pod, usage: &StorageUsage) -> Option<Exceeded> {
    let of_volume = || {
        let mut volumes = limited_volumes(pod);
        let (name, limit) = volumes.find(|(name, limit)| is_over(usage.volumes.get(*name), *limit))?;
        let limit = shown(limit, volume_text(pod, name));
        Some(Exceeded {
            signal: "emptydirfs.limit",
            message: format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "),
        })
    };
    let of_pod = || {
        let limit = pod_limit(pod).filter(|limit| is_over(Some(&usage.total), *limit))?;
        let limit = shown(limit, any_container_text(pod));
        Some(Exceeded {
            signal: "ephemeralpodfs.limit",
            message: format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "),
        })
    };
    let of_container = || {
        let mut containers = long_running(pod).filter_map(|container| Some((&container.name, limit(container)?)));
        let (name, limit) = containers.find(|(name, limit)| is_over(usage.containers.get(*name), *limit))?;
        let limit = shown(limit, container_text(pod, name));
        Some(Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". "),
        })
    };
    of_volume().or_else(of_pod).or_else(of_container)
}

/// Reads what a pod stores. `layers` are the writable layers of its running containers, by name. Blocking.
pub(crate) fn read(
    node: &NodeConfig,
    pod: &Pod,
    status: &PodStatus,
    layers: &BTreeMap<String, u64>,
    has_image_fs: bool,
) -> StorageUsage {
    let logs = node.log_directory(pod);
    let mut usage = StorageUsage {
        // The volumes are in its directory. What is mounted there, such as volumes in memory, is not counted.
        total: DiskUsage::of(&logs).bytes + DiskUsage::of(&node.pod_directory(&pod.id.uid)).bytes,
        ..StorageUsage::default()
    };
    for (name, _) in limited_volumes(pod) {
        let bytes = DiskUsage::of(&node.empty_dir(pod, name)).bytes;
        usage.volumes.insert(name.to_owned(), bytes);
    }
    let running = |state: ContainerState| state == ContainerState::Running;
    for container in status.containers.iter().filter(|one| running(one.state)) {
        let layer = layers.get(&*container.name).copied().unwrap_or_default();
        usage.total = usage.total.saturating_add(layer);
        let log = DiskUsage::of(&logs.join(log_path(&container.name, container.attempt))).bytes;
        let of_container = if has_image_fs { log } else { log.saturating_add(layer) };
        usage.containers.insert(container.name.to_string(), of_container);
    }
    usage
}

/// Volumes on disk that have a limit. The kernel keeps those in memory within theirs.
fn limited_volumes(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    pod.spec.volumes.iter().filter_map(|(name, volume)| match volume {
        Volume::EmptyDir(volume) if volume.medium != Medium::Memory => Some((name.as_str(), set(volume.size_limit)?)),
        _ => None,
    })
}

/// Containers that may run as long as the pod does.
fn long_running(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod.spec.init_containers.iter();
    let sidecars = sidecars.filter(|container| container.role == Role::Sidecar);
    pod.spec.containers.iter().chain(sidecars)
}

fn limit(container: &Container) -> Option<Quantity> {
    set(container.resources.ephemeral_storage_limit)
}

/// Zero is no limit.
fn set(limit: Option<Quantity>) -> Option<Quantity> {
    limit.filter(|limit| limit.units() > 0)
}

/// What all containers may store together, or one init container if that is more; none if no container has a limit.
fn pod_limit(pod: &Pod) -> Option<Quantity> {
    let sum = |limits: &mut dyn Iterator<Item = Quantity>| limits.reduce(Quantity::saturating_add);
    let together = sum(&mut long_running(pod).filter_map(limit));
    together.max(pod.spec.init_containers.iter().filter_map(limit).max())
}

fn is_over(used: Option<&u64>, limit: Quantity) -> bool {
    used.is_some_and(|used| *used > limit.units().unsigned_abs())
}

/// A limit as Kubernetes shows it: with binary suffixes if it was written with one.
fn shown(limit: Quantity, text: Option<&ApiQuantity>) -> String {
    let units = limit.units().unsigned_abs();
    if text.is_some_and(|text| text.0.ends_with('i')) {
        binary(units)
    } else {
        Shown::decimal(units)
    }
}

fn volume_text<'a>(pod: &'a Pod, name: &str) -> Option<&'a ApiQuantity> {
    let mut volumes = pod.object.spec.as_ref()?.volumes.iter().flatten();
    let volume = volumes.find(|volume| volume.name == name)?;
    volume.empty_dir.as_ref()?.size_limit.as_ref()
}

fn containers(pod: &Pod) -> impl Iterator<Item = &core::Container> {
    let spec = pod.object.spec.iter();
    spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

fn text(container: &core::Container) -> Option<&ApiQuantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)
}

fn container_text<'a>(pod: &'a Pod, name: &str) -> Option<&'a ApiQuantity> {
    containers(pod).find(|container| container.name == name).and_then(text)
}

fn any_container_text(pod: &Pod) -> Option<&ApiQuantity> {
    containers(pod).find_map(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, node, pod};

    const MIB: u64 = 1 << 20;

    fn usage(volumes: &[(&str, u64)], containers: &[(&str, u64)], total: u64) -> StorageUsage {
        let map = |pairs: &[(&str, u64)]| pairs.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect();
        StorageUsage {
            volumes: map(volumes),
            containers: map(containers),
            total,
        }
    }

    /// The pod, what it stores, and what the kubelet says then.
    #[test]
    fn the_words_are_the_kubelets() {
        let volumes = "volumes: [{name: x, emptyDir: {sizeLimit: 1024Ki}}, {name: any, emptyDir: {}}, \
                       {name: ram, emptyDir: {medium: Memory, sizeLimit: 1Mi}}], containers: [{name: a, image: i}]";
        let limits = "initContainers: [{name: first, image: i, resources: {limits: {ephemeral-storage: 1Mi}}}, \
                      {name: side, image: i, restartPolicy: Always, resources: {limits: {ephemeral-storage: 1Mi}}}], \
                      containers: [{name: a, image: i, resources: {limits: {ephemeral-storage: 2Mi}}}, {name: b, image: i}]";
        let decimal = "containers: [{name: a, image: i, resources: {limits: {ephemeral-storage: 3M}}}]";
        let of_x = "Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ";
        let of_pod = "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ";
        let of_side = "Container side exceeded its local ephemeral storage limit \"1Mi\". ";
        for (spec, usage, expected) in [
            (volumes, usage(&[("x", MIB)], &[], 9 * MIB), None),
            (
                volumes,
                usage(&[("x", MIB + 1)], &[], 9 * MIB),
                Some(("emptydirfs.limit", of_x)),
            ),
            (
                volumes,
                usage(&[("any", 9 * MIB), ("ram", 9 * MIB)], &[], 9 * MIB),
                None,
            ),
            (limits, usage(&[], &[("a", 2 * MIB), ("b", MIB)], 3 * MIB), None),
            (
                limits,
                usage(&[], &[], 3 * MIB + 1),
                Some(("ephemeralpodfs.limit", of_pod)),
            ),
            (
                limits,
                usage(&[], &[("a", 1), ("side", MIB + 1)], 2 * MIB),
                Some(("ephemeralcontainerfs.limit", of_side)),
            ),
            // An init container is only counted with the pod.
            (limits, usage(&[], &[("first", 2 * MIB)], 2 * MIB), None),
            (
                decimal,
                usage(&[], &[("a", 3_000_001)], 3_000_000),
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container a exceeded its local ephemeral storage limit \"3M\". ",
                )),
            ),
        ] {
            let found = exceeded(&pod(spec), &usage);
            let found = found.as_ref().map(|found| (found.signal, found.message.as_str()));
            assert_eq!(found, expected, "{spec} {usage:?}");
            assert!(has_limits(&pod(spec)));
        }
        assert!(!has_limits(&pod(
            "volumes: [{name: x, emptyDir: {}}], containers: [{name: a, image: i}]"
        )));
        assert!(!has_limits(&pod(
            "volumes: [{name: x, emptyDir: {sizeLimit: 0}}], containers: [{name: a, image: i}]"
        )));
    }

    #[test]
    fn usage_is_that_of_logs_volumes_and_layers() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(dir.path());
        let case = Case::new("volumes: [{name: x, emptyDir: {sizeLimit: 1Mi}}], containers: [{name: app, image: i}]")
            .sandbox(true, 0)
            .running("app", 1);
        let write = |path: std::path::PathBuf, kib: usize| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![1; kib << 10]).unwrap();
        };
        write(node.empty_dir(&case.pod, "x").join("sub/file"), 256);
        write(node.log_directory(&case.pod).join("app/0.log"), 64);
        let layers = BTreeMap::from([("app".to_owned(), 10 * MIB)]);
        let read = |has_image_fs| read(&node, &case.pod, &case.status, &layers, has_image_fs);
        let usage = read(false);
        let kib = |bytes: u64| bytes >> 10;
        // Directories count too.
        assert!((256..300).contains(&kib(usage.volumes["x"])), "{usage:?}");
        assert!(
            (64 + 10_240..10_400).contains(&kib(usage.containers["app"])),
            "{usage:?}"
        );
        assert!((320 + 10_240..10_700).contains(&kib(usage.total)), "{usage:?}");
        assert_eq!(kib(read(true).containers["app"]), kib(usage.containers["app"]) - 10_240);
    }
}
