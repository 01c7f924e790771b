//! Reads volumes and their mounts.

use std::collections::{BTreeMap, BTreeSet};

use super::super::names;
use super::super::read::Field;
use super::super::{EmptyDir, HostPathKind, Mount, Propagation, Volume};

/// The kinds of volumes of Kubernetes that are not supported.
const UNSUPPORTED_VOLUME: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

/// Reads `spec.volumes`, by name.
pub(super) fn read(field: &Field<'_>) -> BTreeMap<String, Volume> {
    let mut volumes = BTreeMap::new();
    field.list(|item| {
        let (name, volume) = item.object(UNSUPPORTED_VOLUME, |volume| {
            let name = volume
                .need("name")
                .and_then(|f| f.checked(names::label))
                .unwrap_or_default();
            let mut found = Vec::new();
            if let Some(empty) = volume.get("emptyDir") {
                found.push(empty.object(&["medium", "mode", "sizeLimit"], |_| {
                    Volume::EmptyDir(EmptyDir::default())
                }));
            }
            if let Some(host) = volume.get("hostPath") {
                found.push(read_host_path(&host));
            }
            // A kind that is not supported is refused as a field.
            if found.len() != 1 {
                volume.refuse(
                    "exactly one of emptyDir and hostPath must be set (write emptyDir: {} for an empty directory)",
                );
            }
            (name, found.pop().flatten())
        })?;
        if volumes.contains_key(&name) {
            item.refuse(format!("duplicate volume name {name}"));
        }
        volumes.insert(name, volume.unwrap_or(Volume::EmptyDir(EmptyDir::default())));
        Some(())
    });
    volumes
}

fn read_host_path(field: &Field<'_>) -> Option<Volume> {
    field.object(&[], |host| {
        let path = host.need("path").and_then(|f| f.checked(names::absolute_path));
        let kind = host.get("type").and_then(|f| {
            f.one_of(&[
                ("", HostPathKind::Any),
                ("DirectoryOrCreate", HostPathKind::DirectoryOrCreate),
                ("Directory", HostPathKind::Directory),
                ("FileOrCreate", HostPathKind::FileOrCreate),
                ("File", HostPathKind::File),
                ("Socket", HostPathKind::Socket),
                ("CharDevice", HostPathKind::CharDevice),
                ("BlockDevice", HostPathKind::BlockDevice),
            ])
        });
        Volume::HostPath {
            path: path.unwrap_or_default(),
            kind: kind.unwrap_or(HostPathKind::Any),
        }
    })
}

/// Reads a container's `volumeMounts`.
pub(super) fn read_mounts(field: &Field<'_>, volumes: &BTreeMap<String, Volume>, privileged: bool) -> Vec<Mount> {
    let mut paths = BTreeSet::new();
    field.list(|item| {
        item.object(
            &["bindMountOptions", "recursiveReadOnly", "subPath", "subPathExpr"],
            |mount| {
                let name = mount.need("name");
                let volume = name.as_ref().and_then(Field::text).unwrap_or_default().to_owned();
                if let Some(name) = name
                    && !volumes.contains_key(&volume)
                {
                    name.refuse(format!("the pod has no volume named {}", names::quoted(&volume)));
                }
                let path = mount
                    .need("mountPath")
                    .and_then(|f| f.checked(names::mount_path))
                    .unwrap_or_default();
                let normal = path
                    .split('/')
                    .filter(|part| !part.is_empty() && *part != ".")
                    .collect::<Vec<_>>()
                    .join("/");
                if !paths.insert(normal) {
                    mount.refuse_field("mountPath", format!("duplicate mount at {}", names::quoted(&path)));
                }
                let propagation = mount.get("mountPropagation");
                let wanted = propagation.as_ref().and_then(|f| {
                    f.one_of(&[
                        ("None", Propagation::None),
                        ("HostToContainer", Propagation::HostToContainer),
                        ("Bidirectional", Propagation::Bidirectional),
                    ])
                });
                if let (Some(field), Some(Propagation::Bidirectional), false) = (propagation, wanted, privileged) {
                    field.refuse("Bidirectional requires a privileged container");
                }
                Mount {
                    volume,
                    path,
                    sub_path: None,
                    read_only: mount.get("readOnly").and_then(|f| f.bool()).unwrap_or_default(),
                    propagation: wanted.unwrap_or_default(),
                }
            },
        )
    })
}
