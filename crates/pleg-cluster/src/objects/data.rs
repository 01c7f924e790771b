//! Config maps and secrets that pods of this node refer to.
//!
//! | reference | how it is kept up to date |
//! |---|---|
//! | a volume | a watch of that one object: an edit reaches the files within a moment |
//! | the environment, an image pull secret | fetched when it is needed |
//! | an immutable object | never fetched again |
//!
//! If the API server cannot be asked, the last known is returned. What no pod refers to is forgotten.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Resource;
use parking_lot::Mutex;
use pleg::PodUid;
use pleg_cri::duration::seconds;
use pleg_node::executor::objects::{ObjectData, ObjectsError, References, describe};
use pleg_node::manifest::{ObjectKind, Pod};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::{DEADLINE, LONGEST_PAUSE, call_for_pod, failed};
use crate::api::{Api, ApiError};
use crate::list_watch::{Follower, Selection, follow};

/// The most objects that are kept; others are fetched each time.
const MAX_OBJECTS: usize = 8192;
/// The most that the entries of one object may contain. The API server's own limit is about 1 MiB.
const MAX_BYTES: usize = 4 << 20;
/// After a call that was not answered, the last known is used without another call for this long.
const AWAY: Duration = Duration::from_secs(5);

/// An object: namespace, kind and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    namespace: String,
    kind: ObjectKind,
    name: String,
}

/// What is known of an object.
#[derive(Clone, PartialEq, Eq)]
struct Known {
    /// None if it does not exist.
    data: Option<Arc<ObjectData>>,
    immutable: bool,
}

impl fmt::Debug for Known {
    /// Without its entries, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.data.as_ref().map(|data| data.len());
        f.debug_struct("Known")
            .field("entries", &entries)
            .finish_non_exhaustive()
    }
}

impl Known {
    const MISSING: Self = Self {
        data: None,
        immutable: false,
    };
}

/// The last known state of an object.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// With the time up to which it is true; none before the first answer.
    known: Option<(Known, Instant)>,
    /// A watch keeps it current.
    live: bool,
    /// The watch, or its list, has failed since it was last live.
    failed: bool,
}

#[derive(Debug)]
struct Entry {
    slot: watch::Sender<Slot>,
    /// Pods that refer to it.
    pods: BTreeSet<PodUid>,
    /// Those that have it in a volume.
    followers: BTreeSet<PodUid>,
    /// Follows it, while there are followers.
    task: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Registered {
    keys: BTreeSet<Key>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry>,
    pods: HashMap<PodUid, Registered>,
    /// Until then the API server is taken for away.
    away_until: Option<Instant>,
}

/// The cache.
#[derive(Debug)]
pub(super) struct DataCache {
    api: Api,
    // Held for a lookup or a change; never across an await.
    state: Arc<Mutex<State>>,
}

impl DataCache {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            state: Arc::default(),
        }
    }

    /// What a pod refers to from now on.
    pub(super) fn register(&self, pod: &Pod, changed: &Arc<Notify>) {
        let key = |(kind, name)| Key {
            namespace: pod.id.namespace.to_string(),
            kind,
            name,
        };
        let keys: BTreeSet<Key> = References::of_pod(pod).data.into_iter().map(key).collect();
        let followed: BTreeSet<Key> = References::of_volumes(pod).data.into_iter().map(key).collect();
        let uid = &pod.id.uid;
        let mut state = self.state.lock();
        let before = state.pods.remove(uid).map(|before| before.keys).unwrap_or_default();
        for gone in before.difference(&keys) {
            state.release(gone, uid);
        }
        for key in &keys {
            if state.entries.len() >= MAX_OBJECTS && !state.entries.contains_key(key) {
                continue;
            }
            let entry = state.entries.entry(key.clone()).or_insert_with(|| Entry {
                slot: watch::Sender::default(),
                pods: BTreeSet::new(),
                followers: BTreeSet::new(),
                task: None,
            });
            entry.pods.insert(uid.clone());
            if followed.contains(key) {
                entry.followers.insert(uid.clone());
                if entry.task.is_none() {
                    entry.task = Some(self.follow(key, &entry.slot));
                }
            } else {
                entry.unfollow(uid);
            }
        }
        if !keys.is_empty() {
            let changed = Arc::clone(changed);
            state.pods.insert(uid.clone(), Registered { keys, changed });
        }
    }

    /// A pod is gone.
    pub(super) fn unregister(&self, uid: &PodUid) {
        let mut state = self.state.lock();
        let keys = state.pods.remove(uid).map(|gone| gone.keys).unwrap_or_default();
        for key in keys {
            state.release(&key, uid);
        }
    }

    /// The entries of an object; none if it does not exist.
    pub(super) async fn get(
        &self,
        namespace: &str,
        kind: ObjectKind,
        name: &str,
    ) -> Result<Option<Arc<ObjectData>>, ObjectsError> {
        let key = Key {
            namespace: namespace.to_owned(),
            kind,
            name: name.to_owned(),
        };
        let kept = self.state.lock().entries.get(&key).map(|entry| {
            let is_followed = entry.task.is_some();
            (entry.slot.clone(), is_followed)
        });
        let Some((slot, is_followed)) = kept else {
            let known = self.fetch(&key).await;
            return known
                .map(|known| known.data)
                .map_err(|error| failed(&key.describe(), &error));
        };
        if is_followed {
            // The first list is on its way, or a failure of it.
            let mut changes = slot.subscribe();
            let _ = timeout(DEADLINE, changes.wait_for(|slot| slot.live || slot.failed)).await;
        }
        let Slot { known, live, .. } = slot.borrow().clone();
        match known {
            Some((known, _)) if live || known.immutable => Ok(known.data),
            known => self.refetch(&key, &slot, known).await,
        }
    }

    /// Fetches an object that may have changed since it was last known.
    async fn refetch(
        &self,
        key: &Key,
        slot: &watch::Sender<Slot>,
        last: Option<(Known, Instant)>,
    ) -> Result<Option<Arc<ObjectData>>, ObjectsError> {
        let is_away = self.state.lock().away_until.is_some_and(|until| until > Instant::now());
        if let (Some((known, _)), true) = (&last, is_away) {
            return Ok(known.data.clone());
        }
        match (self.fetch(key).await, last) {
            (Ok(known), _) => {
                self.state.lock().away_until = None;
                let is_new = slot.send_if_modified(|slot| !slot.live && slot.set(known.clone()));
                if is_new {
                    self.state.lock().notify(key);
                }
                Ok(known.data)
            }
            (Err(error), Some((known, as_of))) => {
                if error.is_transient() {
                    self.state.lock().away_until = Some(Instant::now() + AWAY);
                }
                warn!(
                    %error,
                    "using {} as it was {} ago",
                    key.describe(),
                    seconds(Duration::from_secs(as_of.elapsed().as_secs()))
                );
                Ok(known.data)
            }
            (Err(error), None) => Err(failed(&key.describe(), &error)),
        }
    }

    async fn fetch(&self, key: &Key) -> Result<Known, ApiError> {
        let (what, name) = (key.describe(), &key.name);
        let found = match key.kind {
            ObjectKind::ConfigMap => {
                let get = async || {
                    let api = kube::Api::<ConfigMap>::namespaced(self.api.client(), &key.namespace);
                    api.get_opt(name).await
                };
                call_for_pod(&what, get).await?.map(Known::from)
            }
            ObjectKind::Secret => {
                let get = async || {
                    let api = kube::Api::<Secret>::namespaced(self.api.client(), &key.namespace);
                    api.get_opt(name).await
                };
                call_for_pod(&what, get).await?.map(Known::from)
            }
        };
        Ok(found.unwrap_or(Known::MISSING))
    }

    /// Follows an object from now on.
    fn follow(&self, key: &Key, slot: &watch::Sender<Slot>) -> AbortOnDropHandle<()> {
        let follower = ObjectFollower {
            key: key.clone(),
            slot: slot.clone(),
            state: Arc::downgrade(&self.state),
            found: None,
        };
        let api = self.api.clone();
        AbortOnDropHandle::new(match key.kind {
            ObjectKind::ConfigMap => tokio::spawn(follow::<ConfigMap>(api, key.selection(), follower)),
            ObjectKind::Secret => tokio::spawn(follow::<Secret>(api, key.selection(), follower)),
        })
    }

    /// The number of objects that are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().entries.len()
    }
}

impl Key {
    fn describe(&self) -> String {
        describe(&self.namespace, self.kind, &self.name)
    }

    fn selection<K>(&self) -> Selection<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + 'static,
    {
        Selection::one(self.describe(), &self.namespace, &self.name).one_of_many(LONGEST_PAUSE)
    }
}

impl Slot {
    /// Sets what is known now. Returns whether that is news.
    fn set(&mut self, known: Known) -> bool {
        let is_news = self.known.as_ref().is_some_and(|(before, _)| *before != known);
        self.known = Some((known, Instant::now()));
        is_news
    }
}

impl Entry {
    fn unfollow(&mut self, uid: &PodUid) {
        self.followers.remove(uid);
        if self.followers.is_empty() {
            self.task = None;
            // Nobody keeps it current any more.
            self.slot.send_modify(|slot| (slot.live, slot.failed) = (false, false));
        }
    }
}

impl State {
    /// A pod no longer refers to an object.
    fn release(&mut self, key: &Key, uid: &PodUid) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.pods.remove(uid);
        entry.unfollow(uid);
        if entry.pods.is_empty() {
            self.entries.remove(key);
        }
    }

    /// Tells the pods that have an object in a volume that it changed.
    fn notify(&self, key: &Key) {
        let followers = self.entries.get(key).map(|entry| &entry.followers);
        for uid in followers.into_iter().flatten() {
            if let Some(pod) = self.pods.get(uid) {
                pod.changed.notify_one();
            }
        }
    }
}

impl From<ConfigMap> for Known {
    fn from(object: ConfigMap) -> Self {
        let texts = object.data.unwrap_or_default().into_iter();
        let mut data: ObjectData = texts.map(|(key, text)| (key, text.into_bytes())).collect();
        let bytes = object.binary_data.unwrap_or_default().into_iter();
        data.extend(bytes.map(|(key, bytes)| (key, bytes.0)));
        Self::new(data, object.immutable)
    }
}

impl From<Secret> for Known {
    fn from(object: Secret) -> Self {
        let bytes = object.data.unwrap_or_default().into_iter();
        Self::new(bytes.map(|(key, bytes)| (key, bytes.0)).collect(), object.immutable)
    }
}

impl Known {
    fn new(mut data: ObjectData, immutable: Option<bool>) -> Self {
        let mut bytes = 0_usize;
        // No API server has an object that is larger.
        data.retain(|key, value| {
            bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
            bytes <= MAX_BYTES
        });
        Self {
            data: Some(Arc::new(data)),
            immutable: immutable == Some(true),
        }
    }
}

/// Keeps one object current.
struct ObjectFollower {
    key: Key,
    slot: watch::Sender<Slot>,
    // The cache owns the task, so the task must not own the cache.
    state: Weak<Mutex<State>>,
    /// While a list is read: what it has.
    found: Option<Known>,
}

impl ObjectFollower {
    fn update(&self, known: Known) {
        let mut is_news = false;
        self.slot.send_modify(|slot| {
            is_news = slot.set(known);
            (slot.live, slot.failed) = (true, false);
        });
        if let (true, Some(state)) = (is_news, self.state.upgrade()) {
            state.lock().notify(&self.key);
        }
    }
}

impl<K> Follower<K> for ObjectFollower
where
    Known: From<K>,
{
    fn begin(&mut self) {
        self.found = Some(Known::MISSING);
    }

    fn set(&mut self, object: K) {
        let known = Known::from(object);
        match &mut self.found {
            Some(found) => *found = known,
            None => self.update(known),
        }
    }

    fn remove(&mut self, _object: &K) {
        self.update(Known::MISSING);
    }

    fn listed(&mut self, _version: &str) {
        if let Some(found) = self.found.take() {
            self.update(found);
        }
    }

    fn failed(&mut self, error: &ApiError) {
        debug!(object = self.key.describe(), %error, "cannot follow an object; using the last known");
        self.found = None;
        self.slot.send_modify(|slot| (slot.live, slot.failed) = (false, true));
    }

    fn is_final(&self) -> bool {
        self.found.is_none() && matches!(&self.slot.borrow().known, Some((known, _)) if known.immutable)
    }
}
