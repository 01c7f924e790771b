//! Volumes of a pod, and their mounts in containers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;

use super::super::problem::At;
use super::super::{
    DownwardFile, DownwardValue, EmptyDir, HostPathKind, Medium, Mount, ObjectFile, ObjectKind, ObjectRef,
    ProjectedKind, ProjectedVolume, Projection, Propagation, SubPath, Volume, names,
};
use super::env::{self, Use};
use super::{Policy, resources};

/// The mode of files of a volume, by default.
const DEFAULT_MODE: i32 = 0o644;

/// Converts `volumes`, by name.
pub(super) fn convert_all(volumes: Option<&Vec<core::Volume>>, at: &At<'_>) -> BTreeMap<String, Volume> {
    let mut all = BTreeMap::new();
    at.list("volumes", volumes, |volume, at| {
        at.key("name").require(&volume.name, names::label);
        let kind = convert(volume, at);
        let empty = Volume::EmptyDir(EmptyDir::default());
        if all.insert(volume.name.clone(), kind.unwrap_or(empty)).is_some() {
            at.refuse(format!("duplicate volume name {}", volume.name));
        }
    });
    all
}

fn convert(volume: &core::Volume, at: &At<'_>) -> Option<Volume> {
    let refused = refuse_unsupported(volume, at);
    at.needs_api("configMap", volume.config_map.is_some());
    at.needs_api("secret", volume.secret.is_some());
    at.needs_api("persistentVolumeClaim", volume.persistent_volume_claim.is_some());
    let mut kinds = Vec::new();
    kinds.extend(
        volume
            .empty_dir
            .as_ref()
            .map(|empty| convert_empty_dir(empty, &at.key("emptyDir"))),
    );
    kinds.extend(
        volume
            .host_path
            .as_ref()
            .map(|host| convert_host_path(host, &at.key("hostPath"))),
    );
    kinds.extend(
        volume
            .config_map
            .as_ref()
            .map(|map| convert_config_map(map, &at.key("configMap"))),
    );
    kinds.extend(
        volume
            .secret
            .as_ref()
            .map(|secret| convert_secret(secret, &at.key("secret"))),
    );
    kinds.extend(
        volume
            .downward_api
            .as_ref()
            .map(|api| convert_downward_api(api, &at.key("downwardAPI"))),
    );
    kinds.extend(
        volume
            .projected
            .as_ref()
            .map(|projected| convert_projected(projected, &at.key("projected"))),
    );
    kinds.extend(volume.persistent_volume_claim.as_ref().map(|claim| {
        let core::PersistentVolumeClaimVolumeSource { claim_name, read_only } = claim;
        at.key("persistentVolumeClaim")
            .key("claimName")
            .require(claim_name, names::subdomain);
        Volume::PersistentVolumeClaim {
            claim: claim_name.clone(),
            read_only: read_only.unwrap_or_default(),
        }
    }));
    // A kind that is not supported is refused already.
    if kinds.len() != 1 && !refused {
        at.refuse(
            "exactly one of emptyDir, hostPath, downwardAPI and projected must be set (write emptyDir: {} for an empty directory)",
        );
    }
    kinds.pop()
}

/// Refuses kinds of volumes that are not supported. Returns whether it is one.
fn refuse_unsupported(volume: &core::Volume, at: &At<'_>) -> bool {
    let core::Volume {
        aws_elastic_block_store,
        azure_disk,
        azure_file,
        cephfs,
        cinder,
        config_map: _,
        csi,
        downward_api: _,
        empty_dir: _,
        ephemeral,
        fc,
        flex_volume,
        flocker,
        gce_persistent_disk,
        git_repo,
        glusterfs,
        host_path: _,
        image,
        iscsi,
        name: _,
        nfs,
        persistent_volume_claim: _,
        photon_persistent_disk,
        portworx_volume,
        projected: _,
        quobyte,
        rbd,
        scale_io,
        secret: _,
        storageos,
        vsphere_volume,
    } = volume;
    let mut refused = false;
    for (key, is_set) in [
        ("awsElasticBlockStore", aws_elastic_block_store.is_some()),
        ("azureDisk", azure_disk.is_some()),
        ("azureFile", azure_file.is_some()),
        ("cephfs", cephfs.is_some()),
        ("cinder", cinder.is_some()),
        ("csi", csi.is_some()),
        ("ephemeral", ephemeral.is_some()),
        ("fc", fc.is_some()),
        ("flexVolume", flex_volume.is_some()),
        ("flocker", flocker.is_some()),
        ("gcePersistentDisk", gce_persistent_disk.is_some()),
        ("gitRepo", git_repo.is_some()),
        ("glusterfs", glusterfs.is_some()),
        ("image", image.is_some()),
        ("iscsi", iscsi.is_some()),
        ("nfs", nfs.is_some()),
        ("photonPersistentDisk", photon_persistent_disk.is_some()),
        ("portworxVolume", portworx_volume.is_some()),
        ("quobyte", quobyte.is_some()),
        ("rbd", rbd.is_some()),
        ("scaleIO", scale_io.is_some()),
        ("storageos", storageos.is_some()),
        ("vsphereVolume", vsphere_volume.is_some()),
    ] {
        at.unsupported(key, is_set);
        refused |= is_set;
    }
    refused
}

fn convert_empty_dir(empty: &core::EmptyDirVolumeSource, at: &At<'_>) -> Volume {
    let core::EmptyDirVolumeSource {
        medium,
        mode,
        size_limit,
    } = empty;
    at.unsupported("mode", mode.is_some());
    let words = [("", Medium::Disk), ("Memory", Medium::Memory)];
    let medium = medium
        .as_deref()
        .and_then(|medium| at.key("medium").one_of(medium, &words));
    Volume::EmptyDir(EmptyDir {
        medium: medium.unwrap_or_default(),
        size_limit: size_limit
            .as_ref()
            .and_then(|limit| resources::quantity(limit, &at.key("sizeLimit"))),
    })
}

fn convert_host_path(host: &core::HostPathVolumeSource, at: &At<'_>) -> Volume {
    let core::HostPathVolumeSource { path, type_ } = host;
    at.key("path").require(path, names::absolute_path);
    let words = [
        ("", HostPathKind::Any),
        ("DirectoryOrCreate", HostPathKind::DirectoryOrCreate),
        ("Directory", HostPathKind::Directory),
        ("FileOrCreate", HostPathKind::FileOrCreate),
        ("File", HostPathKind::File),
        ("Socket", HostPathKind::Socket),
        ("CharDevice", HostPathKind::CharDevice),
        ("BlockDevice", HostPathKind::BlockDevice),
    ];
    let kind = type_.as_deref().and_then(|kind| at.key("type").one_of(kind, &words));
    Volume::HostPath {
        path: path.clone(),
        kind: kind.unwrap_or(HostPathKind::Any),
    }
}

fn convert_config_map(map: &core::ConfigMapVolumeSource, at: &At<'_>) -> Volume {
    let core::ConfigMapVolumeSource {
        default_mode,
        default_user,
        items,
        name,
        optional,
    } = map;
    at.unsupported("defaultUser", default_user.is_some());
    let source = object_files(
        ObjectKind::ConfigMap,
        name,
        items.as_ref(),
        *optional,
        &at.key("name"),
        at,
    );
    projected_volume(ProjectedKind::ConfigMap, *default_mode, vec![source], at)
}

fn convert_secret(secret: &core::SecretVolumeSource, at: &At<'_>) -> Volume {
    let core::SecretVolumeSource {
        default_mode,
        default_user,
        items,
        optional,
        secret_name,
    } = secret;
    at.unsupported("defaultUser", default_user.is_some());
    let name = secret_name.as_deref().unwrap_or_default();
    let source = object_files(
        ObjectKind::Secret,
        name,
        items.as_ref(),
        *optional,
        &at.key("secretName"),
        at,
    );
    projected_volume(ProjectedKind::Secret, *default_mode, vec![source], at)
}

fn convert_downward_api(api: &core::DownwardAPIVolumeSource, at: &At<'_>) -> Volume {
    let core::DownwardAPIVolumeSource {
        default_mode,
        default_user,
        items,
    } = api;
    at.unsupported("defaultUser", default_user.is_some());
    let files = at.list("items", items.as_ref(), downward_file);
    let source = Projection::DownwardApi(files.into_iter().flatten().collect());
    projected_volume(ProjectedKind::DownwardApi, *default_mode, vec![source], at)
}

fn convert_projected(volume: &core::ProjectedVolumeSource, at: &At<'_>) -> Volume {
    let core::ProjectedVolumeSource {
        default_mode,
        default_user,
        sources,
    } = volume;
    at.unsupported("defaultUser", default_user.is_some());
    let sources = at.list("sources", sources.as_ref(), projection);
    let sources = sources.into_iter().flatten().collect();
    projected_volume(ProjectedKind::Projected, *default_mode, sources, at)
}

fn projection(source: &core::VolumeProjection, at: &At<'_>) -> Option<Projection> {
    let core::VolumeProjection {
        cluster_trust_bundle,
        config_map,
        downward_api,
        pod_certificate,
        secret,
        service_account_token,
    } = source;
    let refused = cluster_trust_bundle.is_some() || pod_certificate.is_some();
    at.unsupported("clusterTrustBundle", cluster_trust_bundle.is_some());
    at.unsupported("podCertificate", pod_certificate.is_some());
    at.needs_api("configMap", config_map.is_some());
    at.needs_api("secret", secret.is_some());
    at.needs_api("serviceAccountToken", service_account_token.is_some());
    let mut kinds = Vec::new();
    if let Some(core::ConfigMapProjection { items, name, optional }) = config_map {
        let at = at.key("configMap");
        let files = object_files(
            ObjectKind::ConfigMap,
            name,
            items.as_ref(),
            *optional,
            &at.key("name"),
            &at,
        );
        kinds.push(files);
    }
    if let Some(core::SecretProjection { items, name, optional }) = secret {
        let at = at.key("secret");
        let files = object_files(
            ObjectKind::Secret,
            name,
            items.as_ref(),
            *optional,
            &at.key("name"),
            &at,
        );
        kinds.push(files);
    }
    if let Some(core::DownwardAPIProjection { items }) = downward_api {
        let files = at.key("downwardAPI").list("items", items.as_ref(), downward_file);
        kinds.push(Projection::DownwardApi(files.into_iter().flatten().collect()));
    }
    if let Some(token) = service_account_token {
        kinds.push(convert_token(token, &at.key("serviceAccountToken")));
    }
    if kinds.len() != 1 && !refused {
        at.refuse("exactly one of configMap, secret, downwardAPI and serviceAccountToken must be set");
    }
    kinds.pop()
}

fn convert_token(token: &core::ServiceAccountTokenProjection, at: &At<'_>) -> Projection {
    let core::ServiceAccountTokenProjection {
        audience,
        expiration_seconds,
        path,
        user,
    } = token;
    at.unsupported("user", user.is_some());
    at.key("path").require(path, names::relative_path);
    let seconds = expiration_seconds.unwrap_or(3600);
    at.key("expirationSeconds")
        .check_range(seconds, 600..=i64::from(u32::MAX));
    Projection::ServiceAccountToken {
        audience: audience.clone().filter(|audience| !audience.is_empty()),
        expiration: Duration::from_secs(seconds.unsigned_abs()),
        path: path.clone(),
    }
}

fn projected_volume(kind: ProjectedKind, default_mode: Option<i32>, sources: Vec<Projection>, at: &At<'_>) -> Volume {
    Volume::Projected(ProjectedVolume {
        kind,
        default_mode: mode(default_mode.unwrap_or(DEFAULT_MODE), &at.key("defaultMode")),
        sources,
    })
}

fn mode(mode: i32, at: &At<'_>) -> u32 {
    at.check_range(mode.into(), 0..=0o777);
    mode.unsigned_abs()
}

fn object_files(
    kind: ObjectKind,
    name: &str,
    items: Option<&Vec<core::KeyToPath>>,
    optional: Option<bool>,
    name_at: &At<'_>,
    at: &At<'_>,
) -> Projection {
    name_at.require(name, names::subdomain);
    Projection::Object {
        object: ObjectRef {
            kind,
            name: name.to_owned(),
            optional: optional.unwrap_or_default(),
        },
        items: at.list("items", items, |item, at| {
            let core::KeyToPath {
                key,
                mode: own,
                path,
                user,
            } = item;
            at.unsupported("user", user.is_some());
            at.key("key").require(key, names::data_key);
            at.key("path").require(path, names::relative_path);
            ObjectFile {
                key: key.clone(),
                path: path.clone(),
                mode: own.map(|own| mode(own, &at.key("mode"))),
            }
        }),
    }
}

fn downward_file(file: &core::DownwardAPIVolumeFile, at: &At<'_>) -> Option<DownwardFile> {
    let core::DownwardAPIVolumeFile {
        field_ref,
        mode: own,
        path,
        resource_field_ref,
        user,
    } = file;
    at.unsupported("user", user.is_some());
    at.key("path").require(path, names::relative_path);
    let value = match (field_ref, resource_field_ref) {
        (Some(field), None) => env::field_reference(field, Use::File, &at.key("fieldRef")).map(DownwardValue::Field),
        (None, Some(resource)) => {
            env::resource_reference(resource, Use::File, &at.key("resourceFieldRef")).map(DownwardValue::Resource)
        }
        _ => {
            at.refuse("exactly one of fieldRef and resourceFieldRef must be set");
            None
        }
    };
    Some(DownwardFile {
        path: path.clone(),
        value: value?,
        mode: own.map(|own| mode(own, &at.key("mode"))),
    })
}

/// Converts a container's `volumeMounts`.
pub(super) fn convert_mounts(
    mounts: Option<&Vec<core::VolumeMount>>,
    volumes: &BTreeMap<String, Volume>,
    privileged: bool,
    at: &At<'_>,
) -> Vec<Mount> {
    let mut paths = BTreeSet::new();
    at.list("volumeMounts", mounts, |mount, at| {
        let mount = convert_mount(mount, volumes, privileged, at);
        let parts = mount.path.split('/').filter(|part| !part.is_empty() && *part != ".");
        if !paths.insert(parts.collect::<Vec<_>>().join("/")) {
            at.key("mountPath")
                .refuse(format!("duplicate mount at {}", names::quoted(&mount.path)));
        }
        mount
    })
}

fn convert_mount(
    mount: &core::VolumeMount,
    volumes: &BTreeMap<String, Volume>,
    privileged: bool,
    at: &At<'_>,
) -> Mount {
    let core::VolumeMount {
        bind_mount_options,
        mount_path,
        mount_propagation,
        name,
        read_only,
        recursive_read_only,
        sub_path,
        sub_path_expr,
    } = mount;
    at.unsupported("bindMountOptions", bind_mount_options.is_some());
    // `IfPossible` allows a node to mount without it.
    let enabled = recursive_read_only.as_deref() == Some("Enabled");
    at.unsupported("recursiveReadOnly", enabled);
    if name.is_empty() {
        at.key("name").refuse("required field is missing");
    } else if !volumes.contains_key(name) {
        at.key("name")
            .refuse(format!("the pod has no volume named {}", names::quoted(name)));
    }
    // An API server accepts a relative path, and the kubelet takes it as below the root.
    let path = match at.policy() {
        Policy::Api if !mount_path.is_empty() && !mount_path.starts_with('/') => format!("/{mount_path}"),
        _ => mount_path.clone(),
    };
    at.key("mountPath").require(&path, names::mount_path);
    let words = [
        ("None", Propagation::None),
        ("HostToContainer", Propagation::HostToContainer),
        ("Bidirectional", Propagation::Bidirectional),
    ];
    let propagation = mount_propagation
        .as_deref()
        .and_then(|propagation| at.key("mountPropagation").one_of(propagation, &words));
    if propagation == Some(Propagation::Bidirectional) && !privileged {
        at.key("mountPropagation")
            .refuse("Bidirectional requires a privileged container");
    }
    Mount {
        volume: name.clone(),
        path,
        sub_path: convert_sub_path(sub_path.as_deref(), sub_path_expr.as_deref(), at),
        read_only: read_only.unwrap_or_default(),
        propagation: propagation.unwrap_or_default(),
    }
}

fn convert_sub_path(path: Option<&str>, expression: Option<&str>, at: &At<'_>) -> Option<SubPath> {
    let is_set = |text: &&str| !text.is_empty();
    match (path.filter(is_set), expression.filter(is_set)) {
        (None, None) => None,
        (Some(path), None) => {
            at.key("subPath").check(path, names::relative_path);
            Some(SubPath::Path(path.to_owned()))
        }
        (None, Some(expression)) => {
            at.key("subPathExpr").check(expression, names::relative_path);
            Some(SubPath::Expression(expression.to_owned()))
        }
        (Some(_), Some(_)) => {
            at.refuse("subPath and subPathExpr must not both be set");
            None
        }
    }
}
