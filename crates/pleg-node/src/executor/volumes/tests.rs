//! Volumes are prepared, refreshed and removed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::sync::Arc;

use super::*;
use crate::executor::cleanup;
use crate::executor::host_mounts::testing::FakeMounts;
use crate::executor::objects::testing::InMemory;
use crate::executor::objects::{ClaimedVolume, for_volumes};
use crate::executor::requests::Environment;
use crate::manifest::{
    EmptyDir, FsGroup, HostPathKind, Medium, Mount, ObjectKind, ObjectRef, ProjectedKind, Projection, Propagation,
    Quantity,
};
use crate::testing::{node, pod};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn what_is_created_is_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path());
    let host = dir.path().join("host");
    let pod = pod(&format!(
        "volumes: [{{name: tmp, emptyDir: {{}}}}, {{name: host, hostPath: {{path: {}, type: DirectoryOrCreate}}}}], \
         containers: [{{name: a, image: i}}]",
        host.display()
    ));
    prepare(&node, &pod, &Objects::default()).unwrap();
    prepare(&node, &pod, &Objects::default()).unwrap();
    let cgroup = node.cgroup_mount.join("memory").join(&node.cgroup(&pod)[1..]);
    fs::create_dir_all(cgroup.join("left")).unwrap();
    let tmp = node.empty_dir(&pod, "tmp");
    assert_eq!(mode(&tmp), 0o777);
    // Only root and its group have access.
    assert_eq!(mode(&node.pod_directory(&pod.id.uid)) & 0o007, 0);
    assert_eq!(mode(&node.pods) & 0o007, 0);
    assert!(node.log_directory(&pod).join("a").is_dir());
    // A container may leave a symbolic link behind: its target is not removed.
    fs::write(host.join("keep"), "x").unwrap();
    symlink(&host, tmp.join("link")).unwrap();
    cleanup::remove(&node, &pod).unwrap();
    cleanup::remove(&node, &pod).unwrap();
    assert!(!cgroup.exists());
    assert!(!tmp.exists() && !node.log_directory(&pod).exists() && !node.pod_directory(&pod.id.uid).exists());
    assert_eq!(fs::read(host.join("keep")).unwrap(), b"x");
}

#[test]
fn a_volume_in_memory_is_mounted_once_and_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = node(dir.path());
    let mounts = Arc::new(FakeMounts::default());
    node.host.mounts = mounts.clone();
    let mut pod = Pod::clone(&pod(
        "volumes: [{name: tmp, emptyDir: {}}], containers: [{name: a, image: i}]",
    ));
    let volume = EmptyDir {
        medium: Medium::Memory,
        size_limit: Some(Quantity::whole(1 << 20)),
    };
    pod.spec.volumes.insert("mem".to_owned(), Volume::EmptyDir(volume));
    prepare(&node, &pod, &Objects::default()).unwrap();
    prepare(&node, &pod, &Objects::default()).unwrap();
    let path = node.empty_dir(&pod, "mem");
    assert_eq!(mounts.at(&path).unwrap(), "tmpfs 1048576");
    assert_eq!((mounts.0.lock().len(), mode(&path)), (1, 0o777));
    cleanup::remove(&node, &pod).unwrap();
    assert!(mounts.0.lock().is_empty() && !path.exists());
}

#[test]
fn an_empty_dir_is_its_groups() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path());
    let mut pod = Pod::clone(&pod(
        "volumes: [{name: tmp, emptyDir: {}}], containers: [{name: a, image: i}]",
    ));
    let gid = rustix::process::getgid().as_raw();
    pod.spec.security.fs_group = Some(FsGroup {
        gid: gid.into(),
        on_root_mismatch: false,
    });
    for _ in 0..2 {
        prepare(&node, &pod, &Objects::default()).unwrap();
        let metadata = fs::metadata(node.empty_dir(&pod, "tmp")).unwrap();
        assert_eq!((metadata.gid(), metadata.mode() & 0o7777), (gid, 0o2777));
    }
}

/// A claim is a path of the host: checked, given to the group if it is local, never removed.
#[tokio::test]
async fn a_claim_is_mounted_from_its_path_and_outlives_the_pod() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path());
    let disk = dir.path().join("disk");
    let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
    let claim = |read_only| Volume::PersistentVolumeClaim {
        claim: "data".to_owned(),
        read_only,
    };
    pod.spec.volumes.insert("v".to_owned(), claim(true));
    pod.spec.volumes.insert("w".to_owned(), claim(false));
    let mount = |volume: &str| Mount {
        volume: volume.to_owned(),
        path: "/data".to_owned(),
        sub_path: None,
        read_only: false,
        propagation: Propagation::None,
    };
    pod.spec.containers[0].mounts = vec![mount("v"), mount("w")];
    let gid = rustix::process::getgid().as_raw();
    pod.spec.security.fs_group = Some(FsGroup {
        gid: gid.into(),
        on_root_mismatch: false,
    });
    let mut api = InMemory::default();
    let error = for_volumes(&api, &pod).await.unwrap_err();
    let unbound = "persistentvolumeclaim default/data is not bound to a volume";
    assert_eq!(error.to_string(), unbound);
    let volume = ClaimedVolume {
        volume: "pv".to_owned(),
        path: disk.clone(),
        kind: HostPathKind::Directory,
        owned_by_group: true,
    };
    api.claims.insert("data".to_owned(), volume);
    let objects = for_volumes(&api, &pod).await.unwrap();
    assert_eq!(prepare(&node, &pod, &objects).unwrap_err().reason(), "FailedMount");
    fs::create_dir(&disk).unwrap();
    prepare(&node, &pod, &objects).unwrap();
    assert_eq!(mode(&disk) & 0o2070, 0o2070);
    let environment = Environment::default();
    let made = mounts(&node, &pod, &pod.spec.containers[0], &environment, &objects).unwrap();
    let made: Vec<(&str, bool)> = made.iter().map(|made| (&*made.host_path, made.readonly)).collect();
    let path = disk.to_str().unwrap();
    assert_eq!(made, [(path, true), (path, false)]);
    fs::write(disk.join("keep"), "x").unwrap();
    cleanup::remove(&node, &pod).unwrap();
    assert!(disk.join("keep").exists() && !node.pod_directory(&pod.id.uid).exists());
}

#[tokio::test]
async fn files_of_an_object_follow_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = node(dir.path());
    let mounts = Arc::new(FakeMounts::default());
    node.host.mounts = mounts.clone();
    let mut pod = Pod::clone(&pod("containers: [{name: a, image: i}]"));
    for (name, kind, of) in [
        ("map", ProjectedKind::ConfigMap, ObjectKind::ConfigMap),
        ("secret", ProjectedKind::Secret, ObjectKind::Secret),
    ] {
        let source = Projection::Object {
            object: ObjectRef {
                kind: of,
                name: "o".to_owned(),
                optional: false,
            },
            items: Vec::new(),
        };
        let volume = ProjectedVolume {
            kind,
            default_mode: 0o640,
            sources: vec![source],
        };
        pod.spec.volumes.insert(name.to_owned(), Volume::Projected(volume));
    }
    let api = InMemory::default();
    api.set(ObjectKind::ConfigMap, "o", &[("key", "1")]);
    let objects = for_volumes(&api, &pod).await.unwrap();
    let error = prepare(&node, &pod, &objects).unwrap_err();
    assert_eq!(error.to_string(), "volume secret: secret default/o not found");
    assert_eq!(error.reason(), "FailedMount");

    api.set(ObjectKind::Secret, "o", &[("password", "x")]);
    prepare(&node, &pod, &for_volumes(&api, &pod).await.unwrap()).unwrap();
    let path = |name: &str| node.volume_path(&pod, name).unwrap();
    assert!(path("map").ends_with("volumes/kubernetes.io~configmap/map"));
    assert_eq!(fs::read(path("map").join("key")).unwrap(), b"1");
    assert_eq!(mode(&path("secret").join("password")), 0o640);
    // Secrets are never written to a disk.
    assert!(mounts.at(&path("secret")).unwrap().starts_with("tmpfs ") && mounts.at(&path("map")).is_none());

    api.set(ObjectKind::ConfigMap, "o", &[("key", "2"), ("more", "")]);
    refresh(&node, &pod, &for_volumes(&api, &pod).await.unwrap()).unwrap();
    assert_eq!(fs::read(path("map").join("key")).unwrap(), b"2");
    assert!(path("map").join("more").exists());
    cleanup::remove(&node, &pod).unwrap();
    assert!(mounts.0.lock().is_empty() && !node.pod_directory(&pod.id.uid).exists());
}
