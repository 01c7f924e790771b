//! The mounts of one container: its volumes, or parts of them. Blocking: parts are bound to paths of our own.

use std::path::PathBuf;

use pleg_cri::v1;

use super::{VolumeError, sub_path};
use crate::executor::objects::Objects;
use crate::executor::requests::{Environment, NodeConfig, text};
use crate::manifest::{Container, Mount, Pod, Propagation, SubPath, Volume};

/// The mounts of a container's volumes, in the order of the manifest. `environment` is for `subPathExpr`, `objects` for claims.
pub(crate) fn mounts(
    node: &NodeConfig,
    pod: &Pod,
    container: &Container,
    environment: &Environment,
    objects: &Objects,
) -> Result<Vec<v1::Mount>, VolumeError> {
    let mount = |(index, mount): (usize, &Mount)| {
        let volume = pod.spec.volumes.get(&mount.volume);
        let path = match volume {
            Some(Volume::PersistentVolumeClaim { claim, .. }) => objects.claim(claim).map(|found| found.path.clone()),
            _ => node.volume_path(pod, &mount.volume),
        };
        let (Some(volume), Some(path)) = (volume, path) else {
            return Err(VolumeError::NoApiServer {
                volume: mount.volume.clone(),
            });
        };
        let host_path = match expanded(mount, environment)? {
            Some(part) => bind(node, pod, container, (index, mount, &path), &part)?,
            None => path,
        };
        let propagation = match mount.propagation {
            Propagation::None => v1::MountPropagation::PropagationPrivate,
            Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
            Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
        };
        Ok(v1::Mount {
            container_path: mount.path.clone(),
            host_path: text(&host_path),
            readonly: mount.read_only || is_read_only(volume),
            // As in the kubelet, a path of the host keeps its label.
            selinux_relabel: node.host.selinux && !matches!(volume, Volume::HostPath { .. }),
            propagation: propagation.into(),
        })
    };
    container.mounts.iter().enumerate().map(mount).collect()
}

/// Whether containers cannot write to a volume, whatever they ask for: files of the API, and claims that are read-only.
fn is_read_only(volume: &Volume) -> bool {
    match volume {
        Volume::Projected(_) => true,
        Volume::PersistentVolumeClaim { read_only, .. } => *read_only,
        Volume::EmptyDir(_) | Volume::HostPath { .. } => false,
    }
}

/// The part of the volume that is mounted; none if all of it is.
fn expanded(mount: &Mount, environment: &Environment) -> Result<Option<String>, VolumeError> {
    let part = match &mount.sub_path {
        None => return Ok(None),
        Some(SubPath::Path(path)) => path.clone(),
        Some(SubPath::Expression(expression)) => {
            let unknown = |name| VolumeError::UnknownVariable {
                volume: mount.volume.clone(),
                name,
            };
            environment.expand_all(expression).map_err(unknown)?
        }
    };
    Ok(Some(part).filter(|part| !part.is_empty()))
}

/// Binds a part of a volume, and returns the path of ours where it is.
fn bind(
    node: &NodeConfig,
    pod: &Pod,
    container: &Container,
    (index, mount, volume): (usize, &Mount, &PathBuf),
    part: &str,
) -> Result<PathBuf, VolumeError> {
    let failed = |source| VolumeError::SubPath {
        volume: mount.volume.clone(),
        container: container.name.clone(),
        sub_path: part.to_owned(),
        source,
    };
    let opened = sub_path::open(volume, part).map_err(failed)?;
    let target = node
        .sub_paths(&pod.id.uid)
        .join(&mount.volume)
        .join(&container.name)
        .join(index.to_string());
    let bound = sub_path::bind(&*node.host.mounts, &opened, &target);
    bound.map_err(|error| failed(sub_path::SubPathError::Io(error)))?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;
    use crate::executor::cleanup;
    use crate::executor::host_mounts::testing::FakeMounts;
    use crate::executor::volumes::prepare;
    use crate::testing::{node, pod};

    fn spec(parts: &[SubPath]) -> Pod {
        let mut pod = Pod::clone(&pod(
            "volumes: [{name: data, emptyDir: {}}], containers: [{name: a, image: i}]",
        ));
        let mount = |part: &SubPath| Mount {
            volume: "data".to_owned(),
            path: "/data".to_owned(),
            sub_path: Some(part.clone()),
            read_only: false,
            propagation: Propagation::None,
        };
        pod.spec.containers[0].mounts = parts.iter().map(mount).collect();
        pod
    }

    #[test]
    fn parts_are_bound_and_unbound() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = node(dir.path());
        let bound = Arc::new(FakeMounts::default());
        node.host.mounts = bound.clone();
        let pod = spec(&[
            SubPath::Path("logs".to_owned()),
            SubPath::Expression("$(POD)/x$$(POD)".to_owned()),
        ]);
        prepare(&node, &pod, &Objects::default()).unwrap();
        let environment = Environment::from_iter([("POD", "p-n")]);
        let volume = fs::canonicalize(node.empty_dir(&pod, "data")).unwrap();
        // Twice: a container that is restarted has one mount, not two.
        for _ in 0..2 {
            let made = mounts(&node, &pod, &pod.spec.containers[0], &environment, &Objects::default()).unwrap();
            for (made, part) in made.iter().zip(["logs", "p-n/x$(POD)"]) {
                assert!(
                    made.host_path
                        .starts_with(node.sub_paths(&pod.id.uid).to_str().unwrap())
                );
                let source = bound.at(made.host_path.as_ref()).unwrap();
                assert_eq!(source, volume.join(part).to_str().unwrap());
            }
            assert_eq!(bound.0.lock().len(), 2);
        }
        // Another run of ours, which knows of no mount, unmounts them too.
        cleanup::remove(&node, &pod).unwrap();
        assert!(bound.0.lock().is_empty());
        assert!(!node.pod_directory(&pod.id.uid).exists());
    }

    #[test]
    fn what_leads_out_of_a_volume_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut node = node(dir.path());
        node.host.mounts = Arc::new(FakeMounts::default());
        for (part, wanted) in [
            (
                SubPath::Path("etc/passwd".to_owned()),
                "subPath etc/passwd of volume data cannot be mounted in container a: leads out of the volume",
            ),
            (
                SubPath::Expression("$(UP)/x".to_owned()),
                "subPath ../x of volume data cannot be mounted in container a: must be a relative path without \"..\"",
            ),
            (
                SubPath::Expression("$(NO)".to_owned()),
                "subPathExpr of volume data refers to NO, which is not a variable of the container",
            ),
        ] {
            let pod = spec(&[part]);
            prepare(&node, &pod, &Objects::default()).unwrap();
            let _ = symlink("/etc", node.empty_dir(&pod, "data").join("etc"));
            let environment = Environment::from_iter([("UP", "..")]);
            let error = mounts(&node, &pod, &pod.spec.containers[0], &environment, &Objects::default()).unwrap_err();
            assert_eq!(crate::error::with_causes(&error), wanted);
            assert_eq!(error.reason(), "CreateContainerConfigError");
        }
    }
}
