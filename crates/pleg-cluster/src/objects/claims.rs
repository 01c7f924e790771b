//! Persistent volume claims: which volume a claim is bound to, and whether this node can mount it.
//!
//! Volumes that are paths of this machine (`hostPath`, `local`) can be mounted. Everything else needs a driver that attaches or mounts it, and
//! there is none here: the pod waits, and its status names the claim, the volume and its type. What a volume is never changes, so an answer is
//! kept for as long as the pod lives.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use pleg::PodUid;
use pleg_node::executor::objects::{ClaimedVolume, ObjectsError, References, describe_claim};
use pleg_node::manifest::{HostPathKind, Pod};

use super::{call_for_pod, failed};
use crate::api::Api;

/// The label that says which machine a local volume is on.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The claims of this node's pods.
#[derive(Debug)]
pub(super) struct Claims {
    api: Api,
    // Held for a lookup or a change; never across an await.
    pods: Mutex<HashMap<PodUid, BTreeMap<String, ClaimedVolume>>>,
}

impl Claims {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            pods: Mutex::default(),
        }
    }

    pub(super) fn register(&self, pod: &Pod) {
        if !References::of_volumes(pod).claims.is_empty() {
            self.pods.lock().entry(pod.id.uid.clone()).or_default();
        }
    }

    pub(super) fn unregister(&self, uid: &PodUid) {
        self.pods.lock().remove(uid);
    }

    /// The volume of a claim.
    pub(super) async fn get(&self, pod: &Pod, claim: &str) -> Result<ClaimedVolume, ObjectsError> {
        let known = self
            .pods
            .lock()
            .get(&pod.id.uid)
            .and_then(|claims| claims.get(claim).cloned());
        if let Some(known) = known {
            return Ok(known);
        }
        let namespace = &*pod.id.namespace;
        let what = describe_claim(namespace, claim);
        let unusable = |why| ObjectsError::Claim {
            claim: format!("{namespace}/{claim}"),
            why,
        };
        let get = async || {
            let claims = kube::Api::<PersistentVolumeClaim>::namespaced(self.api.client(), namespace);
            claims.get_opt(claim).await
        };
        let found = call_for_pod(&what, get).await.map_err(|error| failed(&what, &error))?;
        let found = found.ok_or_else(|| unusable("not found".to_owned()))?;
        let name = bound_volume(&found).map_err(unusable)?;
        let what = format!("persistentvolume {name} of {what}");
        let get = async || {
            let volumes = kube::Api::<PersistentVolume>::all(self.api.client());
            volumes.get_opt(name).await
        };
        let volume = call_for_pod(&what, get).await.map_err(|error| failed(&what, &error))?;
        let volume = volume.ok_or_else(|| unusable(format!("is bound to volume {name}, which does not exist")))?;
        let node = pod.object.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let usable = usable(&found, &volume, node).map_err(unusable)?;
        if let Some(claims) = self.pods.lock().get_mut(&pod.id.uid) {
            claims.insert(claim.to_owned(), usable.clone());
        }
        Ok(usable)
    }
}

/// The name of the volume that a claim is bound to, or what is the matter with the claim.
fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, String> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    match (phase, volume.filter(|name| !name.is_empty())) {
        (Some("Bound"), Some(volume)) => Ok(volume),
        (phase, _) => Err(format!(
            "is not bound to a volume yet (phase {})",
            phase.unwrap_or("Pending")
        )),
    }
}

/// The path of a volume on this machine, or why it cannot be mounted.
fn usable(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    node: Option<&str>,
) -> Result<ClaimedVolume, String> {
    let name = volume.name_any();
    let spec = volume
        .spec
        .as_ref()
        .ok_or_else(|| format!("is bound to volume {name}, which is empty"))?;
    let is_of_claim = spec.claim_ref.as_ref().is_some_and(|of| of.uid == claim.metadata.uid);
    if !is_of_claim {
        return Err(format!("is bound to volume {name}, which is bound to another claim"));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!(
            "is bound to volume {name} with volumeMode Block, which this node does not support"
        ));
    }
    if !is_on(volume, node) {
        return Err(format!(
            "is bound to volume {name}, which is on another node (nodeAffinity)"
        ));
    }
    let claimed = |path: &str, kind, owned_by_group| ClaimedVolume {
        volume: name.clone(),
        path: path.into(),
        kind,
        owned_by_group,
    };
    if let Some(host_path) = &spec.host_path {
        let kind = host_path_kind(host_path.type_.as_deref())
            .ok_or_else(|| format!("is bound to volume {name} with an unknown hostPath type"))?;
        return absolute(&name, &host_path.path).map(|path| claimed(path, kind, false));
    }
    if let Some(local) = &spec.local {
        return absolute(&name, &local.path).map(|path| claimed(path, HostPathKind::Directory, true));
    }
    Err(format!(
        "is bound to volume {name} of type {}; this node supports hostPath and local volumes only",
        volume_type(volume)
    ))
}

/// A path that starts at the root and does not go back.
fn absolute<'a>(volume: &str, path: &'a str) -> Result<&'a str, String> {
    if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        return Ok(path);
    }
    Err(format!(
        "is bound to volume {volume}, whose path is not absolute or contains \"..\""
    ))
}

/// Whether a volume can be used on a node, as far as its affinity names machines. The scheduler has checked the rest.
fn is_on(volume: &PersistentVolume, node: Option<&str>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else {
        return true;
    };
    required.node_selector_terms.iter().any(|term| {
        let mut names = term.match_expressions.iter().flatten();
        names.all(|expression| {
            let is_name = expression.key == HOSTNAME && expression.operator == "In";
            let values = expression.values.as_deref().unwrap_or_default();
            !is_name || values.iter().any(|value| Some(value.as_str()) == node)
        })
    })
}

fn host_path_kind(kind: Option<&str>) -> Option<HostPathKind> {
    Some(match kind.unwrap_or_default() {
        "" => HostPathKind::Any,
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "Directory" => HostPathKind::Directory,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "File" => HostPathKind::File,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        _ => return None,
    })
}

/// The type of a volume, as its field is named; with the driver, if it has one.
fn volume_type(volume: &PersistentVolume) -> String {
    const OTHER_FIELDS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let spec = serde_json::to_value(&volume.spec).unwrap_or_default();
    let fields = spec.as_object().into_iter().flatten();
    let source = fields
        .into_iter()
        .find(|(field, _)| !OTHER_FIELDS.contains(&field.as_str()));
    match source {
        Some((field, source)) => match source.get("driver").and_then(|driver| driver.as_str()) {
            Some(driver) => format!("{field} ({driver})"),
            None => field.clone(),
        },
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(value: Value) -> PersistentVolumeClaim {
        serde_json::from_value(value).unwrap()
    }

    fn bound() -> PersistentVolumeClaim {
        claim(json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "1"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        }))
    }

    /// The path of a volume with this source, or why it cannot be mounted.
    fn mounted(source: &Value) -> Result<String, String> {
        let mut spec =
            json!({"claimRef": {"uid": "1"}, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
        let fields = source.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(fields);
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
        let found = usable(&bound(), &volume, Some("n"))?;
        let path = found.path.display().to_string();
        Ok(format!("{path} {:?} {}", found.kind, found.owned_by_group))
    }

    #[test]
    fn only_bound_claims_have_a_volume() {
        assert_eq!(bound_volume(&bound()), Ok("pv"));
        for (value, wanted) in [
            (json!({"metadata": {}}), "is not bound to a volume yet (phase Pending)"),
            (
                json!({"metadata": {}, "spec": {"volumeName": "pv"}, "status": {"phase": "Lost"}}),
                "is not bound to a volume yet (phase Lost)",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-11-18T00:00:00Z"}, "status": {"phase": "Bound"}}),
                "is being deleted",
            ),
        ] {
            assert_eq!(bound_volume(&claim(value)), Err(wanted.to_owned()));
        }
    }

    #[test]
    fn paths_of_this_machine_are_mounted_and_others_named() {
        let local = |node: &str| {
            let expression = json!({"key": HOSTNAME, "operator": "In", "values": [node]});
            let terms = json!([{"matchExpressions": [expression]}]);
            json!({"local": {"path": "/mnt/a"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}})
        };
        for (source, wanted) in [
            (json!({"hostPath": {"path": "/data"}}), Ok("/data Any false")),
            (
                json!({"hostPath": {"path": "/data", "type": "DirectoryOrCreate"}}),
                Ok("/data DirectoryOrCreate false"),
            ),
            (local("n"), Ok("/mnt/a Directory true")),
            (
                local("m"),
                Err("is bound to volume pv, which is on another node (nodeAffinity)"),
            ),
            (
                json!({"nfs": {"path": "/x", "server": "s"}}),
                Err("is bound to volume pv of type nfs; this node supports hostPath and local volumes only"),
            ),
            (
                json!({"csi": {"driver": "disk.example.com", "volumeHandle": "h"}}),
                Err(
                    "is bound to volume pv of type csi (disk.example.com); this node supports hostPath and local volumes only",
                ),
            ),
            (
                json!({"claimRef": {"uid": "2"}, "hostPath": {"path": "/data"}}),
                Err("is bound to volume pv, which is bound to another claim"),
            ),
            (
                json!({"volumeMode": "Block", "local": {"path": "/dev/sdb"}}),
                Err("is bound to volume pv with volumeMode Block, which this node does not support"),
            ),
            (
                json!({"hostPath": {"path": "/data/../etc"}}),
                Err("is bound to volume pv, whose path is not absolute or contains \"..\""),
            ),
        ] {
            let found = mounted(&source);
            assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{source}");
        }
    }
}
