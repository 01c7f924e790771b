//! What the API server has of each pod, and which pods are removed. Pure: the time is passed in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pleg::{PodRef, PodUid};
use pleg_node::manifest::Pod;
use pleg_node::reconcile::history::PodFailure;
use pleg_node::sources::{DesiredPod, Origin, Snapshot};
use tokio::time::Instant;
use tracing::warn;

use super::admission::check_os;
use crate::status::is_foreign;

/// Most pods of a node.
const MAX_PODS: usize = 16_384;
/// The annotation of mirror pods: the hash of their static pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long a pod is kept that is missing in a list and was not being deleted.
const MISSING: Duration = Duration::from_secs(30);
/// The same, if the API server has gone back in time.
const RESTORED: Duration = Duration::from_mins(5);
/// When a missing pod is asked for again after an answer that says nothing.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// A pod of the API server.
#[derive(Debug, Clone)]
pub(crate) struct ApiPod {
    /// As the node runs it. Replaced only if something changed that matters to the node.
    pub(crate) pod: Arc<Pod>,
    /// As the API server has it.
    pub(crate) status: Arc<core::PodStatus>,
    /// Its resource version; 0 if it is no number.
    version: u64,
    /// Set while no list has it: when it is asked for by name.
    missing: Option<Instant>,
}

impl ApiPod {
    /// It is being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.pod.deletion.is_some()
    }
}

/// The mirror pod of a static pod.
#[derive(Debug, Clone)]
pub(crate) struct Mirror {
    /// The object, without its status.
    pub(crate) object: Arc<core::Pod>,
    /// Its identity. Its UID is not that of the static pod.
    pub(crate) id: PodRef,
    /// Its status.
    pub(crate) status: Arc<core::PodStatus>,
    version: u64,
}

impl Mirror {
    /// The UID of its static pod.
    pub(crate) fn of(&self) -> Option<PodUid> {
        let annotations = self.object.metadata.annotations.as_ref()?;
        annotations.get(MIRROR).map(|hash| hash.as_str().into())
    }
}

/// The pods of a complete list.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) pods: Vec<core::Pod>,
    /// The resource version of the list.
    pub(crate) version: String,
    /// The newest version that was seen before it was asked for.
    pub(crate) newest_before: u64,
}

/// What is known of all pods.
#[derive(Debug, Default)]
pub(crate) struct KnownPods {
    pods: BTreeMap<PodUid, ApiPod>,
    /// By `namespace/name`.
    mirrors: BTreeMap<Arc<str>, Mirror>,
    /// Pods whose status was changed, as far as we know by somebody else.
    touched: BTreeSet<PodUid>,
    /// Pods of which it is not checked yet whether this node may run them.
    held: BTreeSet<PodUid>,
    /// The newest version that was seen.
    newest: u64,
    /// A complete list was taken in.
    synced: bool,
    /// It was logged that there are too many pods.
    logged_too_many: bool,
}

/// What a change means to readers of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The pods that the node runs.
    pub(crate) desired: bool,
    /// The mirror pods.
    pub(crate) mirrors: bool,
}

impl std::ops::BitOrAssign for Changed {
    fn bitor_assign(&mut self, other: Self) {
        self.desired |= other.desired;
        self.mirrors |= other.mirrors;
    }
}

const DESIRED: Changed = Changed {
    desired: true,
    mirrors: false,
};
const MIRRORS: Changed = Changed {
    desired: false,
    mirrors: true,
};

impl KnownPods {
    pub(crate) fn is_synced(&self) -> bool {
        self.synced
    }

    pub(crate) fn get(&self, uid: &PodUid) -> Option<&ApiPod> {
        self.pods.get(uid)
    }

    pub(crate) fn mirrors(&self) -> &BTreeMap<Arc<str>, Mirror> {
        &self.mirrors
    }

    /// The newest version that was seen.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The pods whose status somebody else may have written since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<PodUid> {
        std::mem::take(&mut self.touched)
    }

    /// An object as the API server has it, from a watch or an answer. Older ones than what is known are ignored.
    pub(crate) fn apply(&mut self, object: core::Pod) -> Changed {
        let version = version(&object.metadata);
        self.newest = self.newest.max(version);
        self.set(object, version)
    }

    /// The API server has deleted this object.
    pub(crate) fn delete(&mut self, object: &core::Pod) -> Changed {
        self.newest = self.newest.max(version(&object.metadata));
        let Some(uid) = object.metadata.uid.as_deref() else {
            return Changed::default();
        };
        if is_mirror(object) {
            return self.forget_mirror(&uid.into());
        }
        self.remove(&uid.into())
    }

    pub(crate) fn forget_mirror(&mut self, uid: &PodUid) -> Changed {
        let before = self.mirrors.len();
        self.mirrors.retain(|_, mirror| mirror.id.uid != *uid);
        if self.mirrors.len() < before {
            MIRRORS
        } else {
            Changed::default()
        }
    }

    /// Takes in a complete list. Pods that are not in it are removed or marked as missing, by the rules of the [module](super).
    pub(crate) fn relist(&mut self, listed: Listed, now: Instant) -> Changed {
        let version_of_list = listed.version.parse().unwrap_or(0);
        let restored = version_of_list != 0 && version_of_list < listed.newest_before;
        let mut changed = Changed {
            desired: !self.synced,
            mirrors: !self.synced,
        };
        self.synced = true;
        let (mut uids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for object in listed.pods {
            uids.extend(object.metadata.uid.as_deref().map(PodUid::from));
            names.insert(full_name(&object.metadata));
            let mut version = version(&object.metadata);
            if restored {
                // What it says now is true, however new it was before.
                version = version.max(1);
                self.forget_version(&object.metadata);
            }
            changed |= self.set(object, version);
        }
        self.newest = if restored {
            version_of_list
        } else {
            self.newest.max(version_of_list)
        };
        let mirrors = self.mirrors.len();
        self.mirrors.retain(|_, mirror| uids.contains(&mirror.id.uid));
        changed.mirrors |= self.mirrors.len() < mirrors;
        let delay = if restored { RESTORED } else { MISSING };
        let absent: Vec<PodUid> = self.pods.keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        for uid in absent {
            let Some(known) = self.pods.get_mut(&uid) else { continue };
            if known.is_deleting() || names.contains(&*known.pod.id.full_name()) {
                changed |= self.remove(&uid);
            } else if known.missing.is_none() {
                warn!(
                    pod = %known.pod.id,
                    "the API server no longer lists the pod, which was not being deleted; asking again in {} s",
                    delay.as_secs()
                );
                known.missing = Some(now + delay);
            }
        }
        changed
    }

    /// When the next missing pod is to be asked for.
    pub(crate) fn next_missing(&self) -> Option<(Instant, PodRef)> {
        let missing = self.pods.values();
        let missing = missing.filter_map(|known| Some((known.missing?, known.pod.id.clone())));
        missing.min_by_key(|(at, _)| *at)
    }

    /// A missing pod was asked for: the object of its name, if there is one.
    pub(crate) fn asked(&mut self, id: &PodRef, found: Option<core::Pod>) -> Changed {
        if self.pods.get(&id.uid).is_none_or(|known| known.missing.is_none()) {
            return Changed::default();
        }
        match found {
            Some(object) if object.metadata.uid.as_deref() == Some(id.uid.as_str()) => {
                self.forget_version(&object.metadata);
                self.apply(object)
            }
            _ => self.remove(&id.uid),
        }
    }

    /// A missing pod was asked for, and there was no answer.
    pub(crate) fn ask_again(&mut self, uid: &PodUid, now: Instant) {
        if let Some(known) = self.pods.get_mut(uid)
            && known.missing.is_some()
        {
            known.missing = Some(now + ASK_AGAIN);
        }
    }

    /// Pods of which it has to be checked whether this node may run them.
    pub(crate) fn held(&self) -> Vec<Arc<Pod>> {
        let held = self.held.iter().filter_map(|uid| self.pods.get(uid));
        held.map(|known| Arc::clone(&known.pod)).collect()
    }

    /// It was checked whether this node may run the pod.
    pub(crate) fn checked(&mut self, uid: &PodUid, verdict: Result<(), PodFailure>) -> Changed {
        if !self.held.remove(uid) {
            return Changed::default();
        }
        let Some(known) = self.pods.get_mut(uid) else {
            return Changed::default();
        };
        if let Err(failure) = verdict {
            let mut pod = (*known.pod).clone();
            pod.rejected = Some(failure);
            known.pod = Arc::new(pod);
        }
        DESIRED
    }

    /// All pods that the node runs.
    pub(crate) fn snapshot(&self, origin: &Origin) -> Snapshot {
        let desired = |(_, known): (&PodUid, &ApiPod)| DesiredPod {
            origin: origin.clone(),
            pod: Arc::clone(&known.pod),
        };
        let checked = self.pods.iter().filter(|(uid, _)| !self.held.contains(*uid));
        Snapshot {
            source: origin.clone(),
            pods: checked.map(desired).collect(),
            problems: Vec::new(),
            refused: Vec::new(),
            complete: true,
        }
    }

    fn remove(&mut self, uid: &PodUid) -> Changed {
        self.touched.remove(uid);
        self.held.remove(uid);
        match self.pods.remove(uid) {
            Some(_) => DESIRED,
            None => Changed::default(),
        }
    }

    fn forget_version(&mut self, metadata: &ObjectMeta) {
        let known = metadata
            .uid
            .as_deref()
            .and_then(|uid| self.pods.get_mut(&PodUid::from(uid)));
        if let Some(known) = known {
            known.version = 0;
        }
        if let Some(mirror) = self.mirrors.get_mut(&*full_name(metadata)) {
            mirror.version = 0;
        }
    }

    fn set(&mut self, object: core::Pod, version: u64) -> Changed {
        if is_mirror(&object) {
            return self.set_mirror(object, version);
        }
        let Some(uid) = object.metadata.uid.as_deref().map(PodUid::from) else {
            return Changed::default();
        };
        let Some(known) = self.pods.get_mut(&uid) else {
            return self.insert(uid, object, version);
        };
        if version != 0 && version <= known.version {
            // The echo of a write of ours, or something older.
            return Changed::default();
        }
        known.version = version;
        known.missing = None;
        if object.status.as_ref() != Some(&*known.status) {
            known.status = Arc::new(object.status.clone().unwrap_or_default());
            self.touched.insert(uid.clone());
        }
        if is_same(&object, &known.pod.object) {
            return Changed::default();
        }
        known.pod = Arc::new(updated(object, &known.pod));
        if known.is_deleting() {
            // It never starts.
            self.held.remove(&uid);
        }
        DESIRED
    }

    fn insert(&mut self, uid: PodUid, object: core::Pod, version: u64) -> Changed {
        if self.pods.len() >= MAX_PODS {
            if !std::mem::replace(&mut self.logged_too_many, true) {
                warn!("ignoring pods of the API server: this node has {MAX_PODS} already");
            }
            return Changed::default();
        }
        let status = Arc::new(object.status.clone().unwrap_or_default());
        let Some(pod) = new(object) else {
            return Changed::default();
        };
        // A pod with a start time was accepted before.
        if pod.deletion.is_none() && status.start_time.is_none() && pod.rejected.is_none() {
            self.held.insert(uid.clone());
        }
        let known = ApiPod {
            pod: Arc::new(pod),
            status,
            version,
            missing: None,
        };
        self.pods.insert(uid, known);
        DESIRED
    }

    fn set_mirror(&mut self, mut object: core::Pod, version: u64) -> Changed {
        let metadata = &object.metadata;
        let (Some(uid), Some(namespace), Some(name)) = (&metadata.uid, &metadata.namespace, &metadata.name) else {
            return Changed::default();
        };
        let id = PodRef {
            uid: uid.as_str().into(),
            namespace: namespace.as_str().into(),
            name: name.as_str().into(),
        };
        let full_name = id.full_name();
        let known = self.mirrors.get(&full_name).filter(|known| known.id.uid == id.uid);
        let is_old = known.is_some_and(|known| version != 0 && version <= known.version);
        if is_old || (known.is_none() && self.mirrors.len() >= MAX_PODS) {
            return Changed::default();
        }
        object.metadata.managed_fields = None;
        let mirror = Mirror {
            status: Arc::new(object.status.take().unwrap_or_default()),
            object: Arc::new(object),
            id,
            version,
        };
        self.mirrors.insert(full_name, mirror);
        MIRRORS
    }
}

fn is_mirror(object: &core::Pod) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Resource versions of Kubernetes are numbers that grow.
fn version(metadata: &ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_deref().unwrap_or_default();
    version.parse().unwrap_or(0)
}

fn full_name(metadata: &ObjectMeta) -> String {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

/// Whether an object is the same to the node: only what this node itself writes has changed.
fn is_same(new: &core::Pod, old: &core::Pod) -> bool {
    let metadata = |object: &core::Pod| ObjectMeta {
        resource_version: None,
        managed_fields: None,
        ..object.metadata.clone()
    };
    let others = |object: &core::Pod| {
        let status = object.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.unwrap_or_default();
        conditions.retain(is_foreign);
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        (conditions, is_over.then_some(status.phase))
    };
    new.spec == old.spec && metadata(new) == metadata(old) && others(new) == others(old)
}

/// A pod that was not known. None if it has no identity, which no API server sends.
fn new(object: core::Pod) -> Option<Pod> {
    let kept = object.clone();
    match Pod::from_object(object) {
        Ok(pod) => Some(pod),
        Err(unusable) => {
            let os = check_os(&kept);
            let mut pod = Pod::unusable(kept, &unusable);
            if let (Some(pod), Err(failure)) = (&mut pod, os) {
                pod.rejected = Some(failure);
            }
            if pod.is_none() {
                warn!("ignoring a pod of the API server: {unusable}");
            }
            pod
        }
    }
}

/// A known pod with other content. What cannot be used changes nothing but the metadata: what runs goes on.
fn updated(object: core::Pod, before: &Pod) -> Pod {
    if before.rejected.is_some() {
        return before.with_metadata_of(&object);
    }
    let kept = object.clone();
    Pod::from_object(object).unwrap_or_else(|unusable| {
        if kept.metadata.generation != before.object.metadata.generation {
            warn!(pod = %before.id, "the update of the pod cannot be used, and is not applied: {unusable}");
        }
        before.with_metadata_of(&kept)
    })
}

#[cfg(test)]
mod tests;
