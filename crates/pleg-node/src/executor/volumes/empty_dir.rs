//! `emptyDir`: a directory of the pod, on disk or in memory. Blocking.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{VolumeError, cannot_create, create_dir};
use crate::executor::host_mounts::Mounts;
use crate::manifest::{Medium, Pod, Quantity, Role, Volume};

/// Creates the directory, and mounts a file system of at most `bytes` in memory on it unless that is mounted already.
pub(super) fn prepare(
    mounts: &dyn Mounts,
    name: &str,
    path: &Path,
    medium: Medium,
    bytes: u64,
) -> Result<(), VolumeError> {
    create_dir(path, 0o755, name)?;
    let prepared = || {
        if medium == Medium::Memory && !is_mounted(mounts, path)? {
            mounts.tmpfs(path, bytes)?;
        }
        // Any user of any container of the pod may write there. The umask would take that away from the mode above.
        let metadata = fs::metadata(path)?;
        let mode = metadata.permissions().mode() | 0o777;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    prepared().map_err(|error| cannot_create(path, name, error))
}

/// Whether something is mounted at a path.
pub(super) fn is_mounted(mounts: &dyn Mounts, path: &Path) -> io::Result<bool> {
    let real = fs::canonicalize(path)?;
    Ok(mounts.mounted()?.contains(&real))
}

/// The size of a volume in memory, in bytes: its limit, but not more than the memory limit of the pod, if every container has one, and not
/// more than the node has.
pub(super) fn memory_size(pod: &Pod, volume: &Volume, node_memory: u64) -> u64 {
    let limit = match volume {
        Volume::EmptyDir(volume) => volume.size_limit.map(bytes).filter(|limit| *limit > 0),
        _ => None,
    };
    let of_pod = pod_memory_limit(pod).filter(|limit| *limit > 0);
    limit.into_iter().chain(of_pod).fold(node_memory, u64::min)
}

fn bytes(quantity: Quantity) -> u64 {
    u64::try_from(quantity.units()).unwrap_or_default()
}

/// What the pod's cgroup may use at most, with init containers before the others; none if any container has no limit.
fn pod_memory_limit(pod: &Pod) -> Option<u64> {
    let (mut sidecars, mut most) = (0_u64, 0_u64);
    for container in &pod.spec.init_containers {
        let limit = bytes(container.resources.memory_limit?);
        if container.role == Role::Sidecar {
            sidecars = sidecars.saturating_add(limit);
            most = most.max(sidecars);
        } else {
            most = most.max(sidecars.saturating_add(limit));
        }
    }
    let mut sum = sidecars;
    for container in &pod.spec.containers {
        sum = sum.saturating_add(bytes(container.resources.memory_limit?));
    }
    Some(most.max(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::EmptyDir;
    use crate::testing::pod;

    #[test]
    fn the_size_is_the_smallest_limit() {
        let limited = |limit: &str| {
            format!(
                "{{name: {}, image: i, resources: {{limits: {{memory: {limit}}}}}}}",
                "x"
            )
        };
        let one = |limit: &str| limited(limit).replace("name: x", "name: a");
        let two = |limit: &str| limited(limit).replace("name: x", "name: b");
        for (spec, size_limit, wanted) in [
            ("containers: [{name: a, image: i}]".to_owned(), None, 1 << 30),
            ("containers: [{name: a, image: i}]".to_owned(), Some("64Mi"), 64 << 20),
            ("containers: [{name: a, image: i}]".to_owned(), Some("64Gi"), 1 << 30),
            ("containers: [{name: a, image: i}]".to_owned(), Some("0"), 1 << 30),
            (format!("containers: [{}, {}]", one("8Mi"), two("8Mi")), None, 16 << 20),
            (
                format!("containers: [{}, {}]", one("8Mi"), two("8Mi")),
                Some("1Mi"),
                1 << 20,
            ),
            (
                format!("containers: [{}, {{name: b, image: i}}]", one("8Mi")),
                None,
                1 << 30,
            ),
            (
                format!("initContainers: [{}], containers: [{}]", one("32Mi"), two("8Mi")),
                None,
                32 << 20,
            ),
        ] {
            let volume = Volume::EmptyDir(EmptyDir {
                medium: Medium::Memory,
                size_limit: size_limit.map(|limit| Quantity::parse(limit).unwrap()),
            });
            assert_eq!(
                memory_size(&pod(&spec), &volume, 1 << 30),
                wanted,
                "{spec} {size_limit:?}"
            );
        }
    }
}
