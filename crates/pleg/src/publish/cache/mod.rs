//! The pod status cache: one writer, many readers, and "newer than".
//!
//! # Freshness
//!
//! Relists are numbered in the order in which they *start*, before anything is sent to the runtime. A [`Token`] names the first relist
//! that had not started when the token was taken; whatever such a relist saw happened after the token. No clock is involved, so no
//! clock can go wrong (kubernetes/kubernetes#124297, #138024).
//!
//! A complete relist is news about every pod, also about those it found unchanged, except those that are *held*: their change was
//! seen but their inspection is not committed. A held pod never delays another.
//!
//! # What an entry promises
//!
//! A relist lists; it asks for the details of a pod only if the list shows a change. So an entry carries two points in the order of relists:
//!
//! | part of the status | true as of | because |
//! |---|---|---|
//! | which sandboxes and containers exist, and the state of each | [`PodEntry::observed`] | every complete relist lists them |
//! | the rest: IPs, resources, exit codes, reasons, times, images | [`PodEntry::inspected`] | only an inspection asks for it |
//!
//! [`Cache::newer_than`] waits for `observed` only. A change that no list shows, such as new limits after `UpdateContainerResources` or
//! another IP, is therefore *not* in an entry just because the entry is newer than the change. [`Pleg::refresh`](crate::Pleg::refresh)
//! inspects one pod anew, and its entry has both points after the call. Containers that have exited are the exception: the runtime does
//! not change their status any more, so that it is read once, and again only after a restart of the runtime.

mod since;
mod wait;
mod writer;

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health::diagnosis::Trouble;
use crate::model::status::PodStatus;
use crate::model::{ContainerId, ObjectRef, ObjectState, PodRef, PodUid};
use crate::sync::{AtomicU64, Mutex, Notify, Ordering, RwLock};
pub use since::Since;
use wait::WaitTable;
pub use wait::{Awaited, Wait, WaitError};
pub(crate) use writer::{CacheWriter, Committed};

/// A point in the order of relists. See the [module's text](self).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token(u64);

impl Token {
    /// The number of the relist.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Why a pod's status could not be brought up to date.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PodError {
    /// The call that failed, with its object and cause.
    pub message: Arc<str>,
    /// The trouble that usually causes it.
    pub trouble: Trouble,
    /// The call, such as `ContainerStatus`.
    pub rpc: Cow<'static, str>,
    /// The container it was about; none for the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// The same, as the runtime knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The sandbox that it is in, or is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Arc<str>>,
    /// Attempts that failed since it last answered.
    pub attempts: u32,
    /// When the first of them was sent. Its age in seconds on the wire.
    #[serde(rename = "age_seconds")]
    pub since: Since,
}

/// A container or sandbox whose part of a status is older than the rest of it, or was never inspected.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StalePart {
    /// Which one.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The state in which the lists show it; what is in the status may be older.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed: Option<ObjectState>,
    /// Why it could not be inspected. None: its inspection has not ended yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<PodError>>,
}

/// What the cache knows of a pod. Its JSON has the fields that a pod has in the HTTP API, and the points in the order of relists.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PodEntry {
    /// What the runtime said of each part of the pod when it was last asked for it.
    #[serde(flatten)]
    pub status: Arc<PodStatus>,
    /// The relist as of which the sandboxes and containers of the pod are these, each in this state. Says nothing about the rest of the
    /// status: see [what an entry promises](self#what-an-entry-promises).
    pub observed: Token,
    /// The same for every part that is not in `stale`.
    pub fresh: Token,
    /// The relist after which the runtime was last asked about the whole pod, and answered; zero before the first time. Every detail in
    /// the status is at least this new, but for containers that had already exited.
    pub inspected: Token,
    /// When the runtime last answered about the pod or a part of it, by the wall clock; none before the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inspected_at: Option<Timestamp>,
    /// Set while a part of the pod is in quarantine: the first error of `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<PodError>>,
    /// The parts that have not been inspected since they changed. A part that was never inspected is in the status as the lists
    /// show it.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub stale: Arc<[StalePart]>,
}

impl PodEntry {
    /// A pod that the runtime did not know in a complete relist.
    fn absent(uid: &PodUid, complete: Token) -> Self {
        let unknown = PodRef {
            uid: uid.clone(),
            namespace: Arc::default(),
            name: Arc::default(),
        };
        Self {
            status: Arc::new(PodStatus::empty(unknown)),
            observed: complete,
            fresh: complete,
            inspected: complete,
            inspected_at: None,
            error: None,
            stale: Arc::default(),
        }
    }

    /// The relist as of which the status of one container or sandbox is true.
    pub fn observed_of(&self, id: &str) -> Token {
        let stale = self.stale.iter().any(|part| &**part.object.id() == id);
        if stale {
            self.observed
        } else {
            self.fresh.max(self.observed)
        }
    }
}

#[derive(Debug)]
struct Slot {
    entry: PodEntry,
    /// A change was seen and is not committed: complete relists say nothing about this pod.
    held: bool,
    /// An inspection is under way.
    inspecting: bool,
    /// The newest relist after which an inspection failed.
    tried: Token,
    /// The relist after which the inspection under way was sent; none if it asks about a part of the pod only.
    asked: Option<Token>,
}

#[derive(Debug, Default)]
struct CacheState {
    pods: HashMap<PodUid, Slot>,
    /// The newest complete relist.
    complete: Token,
    /// There will be no more.
    ended: bool,
}

#[derive(Debug, Default)]
struct SharedCache {
    /// How many relists have started.
    started: AtomicU64,
    // Written by the generator for one pod at a time; never held across an await.
    state: RwLock<CacheState>,
    // Taken after `state` where both are needed.
    waiters: Mutex<WaitTable>,
    /// Signalled when a caller starts to wait.
    wanted: Notify,
}

/// Reads the statuses. Clones read the same cache.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    shared: Arc<SharedCache>,
}

impl Cache {
    /// A point in the order of relists that is now: a status observed at or after it reflects everything done before this call.
    pub fn token(&self) -> Token {
        Token(self.shared.started.load(Ordering::SeqCst) + 1)
    }

    /// The newest complete relist.
    pub fn complete(&self) -> Token {
        self.shared.state.read().complete
    }

    /// What is known of a pod now.
    pub fn get(&self, uid: &PodUid) -> Option<PodEntry> {
        let state = self.shared.state.read();
        state.pods.get(uid).map(|slot| slot.entry(state.complete))
    }

    /// Every pod, in no order.
    pub fn entries(&self) -> Vec<PodEntry> {
        let state = self.shared.state.read();
        state.pods.values().map(|slot| slot.entry(state.complete)).collect()
    }

    /// The pod with this name now. Where several have it, such as a static pod and the one that it replaces, the one whose newest
    /// sandbox is the newest. Searches all pods.
    pub fn find(&self, namespace: &str, name: &str) -> Option<PodEntry> {
        let state = self.shared.state.read();
        let named = state.pods.values().filter(|slot| {
            let pod = &slot.entry.status.pod;
            &*pod.namespace == namespace && &*pod.name == name
        });
        let created = |slot: &&Slot| {
            slot.entry
                .status
                .sandboxes
                .first()
                .and_then(|sandbox| sandbox.created_at)
        };
        named.max_by_key(created).map(|slot| slot.entry(state.complete))
    }

    /// The pod that has this container now. Searches all pods.
    pub fn find_container(&self, id: &ContainerId) -> Option<PodEntry> {
        let state = self.shared.state.read();
        let mut pods = state.pods.values();
        pods.find(|slot| slot.entry.status.container(id).is_some())
            .map(|slot| slot.entry(state.complete))
    }

    /// How many pods are known.
    pub fn len(&self) -> usize {
        self.shared.state.read().pods.len()
    }

    /// No pod is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry as of `token`, or why there will be none for now; none while the pod is to be waited for.
    fn answer(
        &self,
        uid: &PodUid,
        token: Token,
        ended: impl FnOnce() -> WaitError,
    ) -> Option<Result<PodEntry, WaitError>> {
        let state = self.shared.state.read();
        let newest = match state.pods.get(uid) {
            Some(slot) => {
                let entry = slot.entry(state.complete);
                let tried = slot.tried >= token || (state.complete >= token && !slot.inspecting);
                if entry.observed >= token {
                    Some(Ok(entry))
                } else if let (true, false, Some(error)) = (tried, state.ended, entry.error.clone()) {
                    let last = Box::new(entry);
                    Some(Err(WaitError::Quarantined { error, last }))
                } else {
                    None
                }
            }
            None if state.complete >= token => Some(Ok(PodEntry::absent(uid, state.complete))),
            None => None,
        };
        let has_ended = state.ended;
        // `ended` reads the cache again.
        drop(state);
        newest.or_else(|| has_ended.then(|| Err(ended())))
    }
}

impl Slot {
    fn entry(&self, complete: Token) -> PodEntry {
        let mut entry = self.entry.clone();
        if !self.held {
            entry.observed = entry.observed.max(complete);
        }
        entry.fresh = entry.fresh.max(entry.observed);
        entry
    }
}
