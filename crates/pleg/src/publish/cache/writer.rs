//! The write half of the cache: what the generator saw and committed goes in here, and wakes the callers that wait for it.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Cache, PodEntry, Slot, StalePart, Token};
use crate::model::status::PodStatus;
use crate::model::{PodRef, PodUid};
use crate::sync::Ordering;

/// The write half. Only the generator holds it.
#[derive(Debug, Default)]
pub(crate) struct CacheWriter {
    cache: Cache,
}

impl Drop for CacheWriter {
    /// Wakes all waiters when the generator ends.
    fn drop(&mut self) {
        self.cache.shared.state.write().ended = true;
        self.cache.shared.waiters.lock().wake_all();
    }
}

/// What was last inspected of a pod.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) status: Arc<PodStatus>,
    /// The relist after which all of it was inspected.
    pub(crate) inspected: Token,
    /// When a part of it was last.
    pub(crate) at: Option<Timestamp>,
    /// What of it was not inspected then.
    pub(crate) stale: Arc<[StalePart]>,
}

/// How a pod stands with a commit.
#[derive(Debug)]
pub(crate) struct Committed {
    /// The relist that the inspection can vouch for.
    pub(crate) token: Token,
    pub(crate) at: Timestamp,
    /// What was not inspected.
    pub(crate) stale: Arc<[StalePart]>,
    /// A newer change of it was seen meanwhile, or a part is stale: complete relists say nothing about it.
    pub(crate) held: bool,
    /// More is being inspected.
    pub(crate) inspecting: bool,
}

impl CacheWriter {
    pub(crate) fn reader(&self) -> Cache {
        self.cache.clone()
    }

    /// Resolves after a caller began to wait for a newer status. Cancel-safe.
    pub(crate) async fn wanted(&self) {
        self.cache.shared.wanted.notified().await;
    }

    /// Numbers a relist that starts now.
    pub(crate) fn start_relist(&self) -> Token {
        Token(self.cache.shared.started.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// A change of this pod was seen: complete relists say nothing about it until it is committed. Until it is inspected, a new pod is
    /// what the lists say of it.
    pub(crate) fn hold(&self, pod: &PodRef, listed: impl FnOnce() -> (PodStatus, Arc<[StalePart]>)) {
        let mut state = self.cache.shared.state.write();
        let complete = state.complete;
        let slot = state.pods.entry_ref(&pod.uid).or_insert_with(|| {
            let (status, stale) = listed();
            Slot {
                entry: PodEntry {
                    status: Arc::new(status),
                    observed: Token::default(),
                    fresh: Token::default(),
                    inspected: Token::default(),
                    inspected_at: None,
                    error: None,
                    stale,
                },
                held: true,
                inspecting: true,
                tried: Token::default(),
                asked: None,
            }
        });
        if !slot.held {
            // What complete relists said about it so far stays true.
            slot.entry.observed = slot.entry.observed.max(complete);
            slot.held = true;
        }
        slot.inspecting = true;
    }

    /// What was last inspected of the pod.
    pub(crate) fn known(&self, uid: &PodUid) -> Option<Known> {
        let state = self.cache.shared.state.read();
        state
            .pods
            .get(uid)
            .filter(|slot| slot.entry.inspected_at.is_some())
            .map(|slot| Known {
                status: Arc::clone(&slot.entry.status),
                inspected: slot.entry.inspected,
                at: slot.entry.inspected_at,
                stale: Arc::clone(&slot.entry.stale),
            })
    }

    /// An inspection of the pod is sent now, after the relist `token`. `whole`: nothing of what is known is taken over, but for what has
    /// exited. Relists that list the same while it runs vouch for the pod's states, and not for what the inspection brings.
    pub(crate) fn inspecting(&self, uid: &PodUid, token: Token, whole: bool) {
        if let Some(slot) = self.cache.shared.state.write().pods.get_mut(uid) {
            slot.asked = whole.then_some(token);
        }
    }

    /// A full relist is complete.
    pub(crate) fn complete_relist(&self, token: Token) {
        self.cache.shared.state.write().complete = token;
        self.cache.shared.waiters.lock().wake_all();
    }

    /// The pod was inspected, as far as it answered.
    pub(crate) fn commit(&self, status: PodStatus, committed: Committed) {
        let uid = status.pod.uid.clone();
        let Committed {
            token,
            at,
            stale,
            held,
            inspecting,
        } = committed;
        let mut state = self.cache.shared.state.write();
        let before = state.pods.get(&uid);
        // What was seen by id while a list hangs vouches for no later relist, and takes nothing back either.
        let [observed, fresh, inspected] = before.map_or([Token::default(); 3], |slot| {
            [slot.entry.observed, slot.entry.fresh, slot.entry.inspected]
        });
        let asked = before.and_then(|slot| slot.asked);
        let whole = stale.is_empty();
        let slot = Slot {
            entry: PodEntry {
                status: Arc::new(status),
                observed: if whole { token.max(observed) } else { observed },
                fresh: fresh.max(token),
                inspected: asked.filter(|_| whole).unwrap_or_default().max(inspected),
                inspected_at: Some(at),
                error: stale.iter().find_map(|part| part.error.clone()),
                stale,
            },
            held,
            inspecting,
            tried: before.filter(|_| !whole).map_or(Token::default(), |slot| slot.tried),
            // What is stale was asked for then, or will be later.
            asked: asked.filter(|_| !whole),
        };
        state.pods.insert(uid.clone(), slot);
        drop(state);
        self.wake(&uid);
    }

    /// Notes which parts of the pod are stale. `tried`: the relist up to which one of them was asked for in vain.
    pub(crate) fn stale(&self, uid: &PodUid, stale: Arc<[StalePart]>, tried: Option<Token>, inspecting: bool) {
        if let Some(slot) = self.cache.shared.state.write().pods.get_mut(uid) {
            slot.entry.error = stale.iter().find_map(|part| part.error.clone());
            slot.entry.stale = stale;
            slot.tried = slot.tried.max(tried.unwrap_or_default());
            slot.inspecting = inspecting;
        }
        self.wake(uid);
    }

    /// A container or sandbox that was never inspected is gone: what the lists said of it goes with it.
    pub(crate) fn forget(&self, uid: &PodUid, id: &str) {
        if let Some(slot) = self.cache.shared.state.write().pods.get_mut(uid) {
            slot.entry.status = Arc::new(slot.entry.status.without(id));
        }
    }

    /// What was seen of the pod turned out to be no change: complete relists count for it again.
    pub(crate) fn release(&self, uid: &PodUid) {
        if let Some(slot) = self.cache.shared.state.write().pods.get_mut(uid) {
            slot.held = false;
            slot.inspecting = false;
            slot.entry.error = None;
            slot.entry.stale = Arc::default();
        }
        self.wake(uid);
    }

    /// The last trace of the pod is gone.
    pub(crate) fn remove(&self, uid: &PodUid) {
        self.cache.shared.state.write().pods.remove(uid);
        self.wake(uid);
    }

    fn wake(&self, uid: &PodUid) {
        self.cache.shared.waiters.lock().wake(uid);
    }
}
