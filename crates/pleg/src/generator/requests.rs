//! Requests for relists and inspections, coalesced into one set: a storm of hints costs one relist.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::evented::Reached;
use crate::model::PodUid;
use crate::model::event::Source;
use crate::publish::cache::{Cache, Token};
use crate::runtime::RuntimeEvent;
use crate::sync::{Mutex, Notify};

/// More pods than this are asked for at once: then a full relist is cheaper, and the set stays bounded.
const LIMIT: usize = 4096;

/// The dirty set. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RelistRequests {
    shared: Arc<Shared>,
    cache: Cache,
}

#[derive(Debug, Default)]
struct Shared {
    // Held for an insertion or for taking the whole set; never across an await.
    dirty: Mutex<PendingRequests>,
    // Its own, so that a storm of events does not keep a caller waiting. Held likewise.
    stirred: Mutex<EventHints>,
    notify: Notify,
}

/// What to relist.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    /// Everything.
    pub(crate) all: Option<Source>,
    /// These pods, and who asked first.
    pub(crate) pods: HashMap<PodUid, Source>,
}

/// What the runtime's events were about.
#[derive(Debug, Default)]
pub(crate) struct EventHints {
    /// An object that cannot be identified.
    pub(crate) all: bool,
    /// Containers and sandboxes.
    pub(crate) objects: HashMap<Arc<str>, ObjectHint>,
    /// Pods, where the event names no object.
    pub(crate) pods: HashSet<PodUid>,
}

/// What events reported about an object.
#[derive(Debug, Default)]
pub(crate) struct ObjectHint {
    /// Its pod, if the event named it.
    pub(crate) pod: Option<PodUid>,
    /// The most advanced state that an event claimed.
    pub(crate) reached: Option<Reached>,
    /// One of them said something else.
    pub(crate) seen: bool,
}

impl EventHints {
    pub(crate) fn is_empty(&self) -> bool {
        !self.all && self.objects.is_empty() && self.pods.is_empty()
    }

    fn add(&mut self, event: RuntimeEvent) {
        let full = self.objects.len() + self.pods.len() >= LIMIT;
        match (event.id, event.pod) {
            (Some(id), pod) if !full || self.objects.contains_key(&id) => {
                let stir = self.objects.entry(id).or_default();
                stir.reached = stir.reached.max(event.reached);
                stir.seen |= event.reached != Some(Reached::Gone);
                match (&stir.pod, pod) {
                    (None, pod) => stir.pod = pod,
                    // Two events differ about whose it is: both are looked at.
                    (Some(told), Some(other)) if *told != other => {
                        if full {
                            self.all = true;
                        } else {
                            self.pods.insert(other);
                        }
                    }
                    _ => {}
                }
            }
            (None, Some(pod)) if !full => {
                self.pods.insert(pod);
            }
            _ => self.all = true,
        }
    }
}

impl PendingRequests {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none() && self.pods.is_empty()
    }

    /// Beyond the limit it is everything: the pod is in that.
    fn add(&mut self, uid: &PodUid, source: Source) {
        if self.pods.len() < LIMIT {
            self.pods.entry_ref(uid).or_insert(source);
        } else if !self.pods.contains_key(uid) {
            self.all.get_or_insert(source);
        }
    }
}

impl RelistRequests {
    pub(crate) fn new(cache: Cache) -> Self {
        Self {
            shared: Arc::default(),
            cache,
        }
    }

    /// Asks for a relist of one pod. The token names a relist that takes this hint along.
    pub(crate) fn pod(&self, uid: &PodUid, source: Source) -> Token {
        let mut dirty = self.shared.dirty.lock();
        dirty.add(uid, source);
        // Under the lock: a relist that starts from now on takes the set with this hint in it.
        let token = self.cache.token();
        drop(dirty);
        self.shared.notify.notify_one();
        token
    }

    /// Asks for a relist of everything.
    pub(crate) fn all(&self, source: Source) -> Token {
        let mut dirty = self.shared.dirty.lock();
        dirty.all.get_or_insert(source);
        let token = self.cache.token();
        drop(dirty);
        self.shared.notify.notify_one();
        token
    }

    /// Takes in an event of the runtime.
    pub(crate) fn add_event(&self, event: RuntimeEvent) {
        self.shared.stirred.lock().add(event);
        self.wake();
    }

    /// Takes what the events were about.
    pub(crate) fn take_event_hints(&self) -> EventHints {
        std::mem::take(&mut *self.shared.stirred.lock())
    }

    /// Wakes the generator.
    pub(crate) fn wake(&self) {
        self.shared.notify.notify_one();
    }

    /// Takes the set and numbers the relist that serves it, in one step.
    pub(crate) fn take<T>(&self, start_relist: impl FnOnce() -> T) -> (PendingRequests, T) {
        let mut dirty = self.shared.dirty.lock();
        (std::mem::take(&mut *dirty), start_relist())
    }

    /// Puts hints back that a failed relist has not served.
    pub(crate) fn put_back(&self, hints: PendingRequests) {
        let mut dirty = self.shared.dirty.lock();
        if let Some(source) = hints.all {
            dirty.all.get_or_insert(source);
        }
        for (uid, source) in hints.pods {
            dirty.add(&uid, source);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.dirty.lock().is_empty()
    }

    /// Resolves after a hint came. Cancel-safe.
    pub(crate) async fn wait(&self) {
        self.shared.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, pod: Option<&str>, deleted: bool) -> RuntimeEvent {
        RuntimeEvent {
            id: id.map(Into::into),
            pod: pod.map(Into::into),
            reached: deleted.then_some(Reached::Gone),
            created_at: 0,
        }
    }

    #[test]
    fn a_storm_of_events_about_one_container_is_one_hint() {
        let hints = RelistRequests::new(Cache::default());
        hints.add_event(event(Some("c"), None, false));
        hints.add_event(event(Some("c"), Some("a"), true));
        for _ in 0..10_000 {
            hints.add_event(event(Some("c"), Some("a"), false));
        }
        let taken = hints.take_event_hints();
        let stir = &taken.objects["c"];
        assert_eq!((taken.objects.len(), taken.all), (1, false));
        assert_eq!(
            (stir.pod.as_ref().map(PodUid::as_str), stir.reached),
            (Some("a"), Some(Reached::Gone))
        );
        assert!(hints.take_event_hints().is_empty());
    }

    #[test]
    fn where_events_differ_about_the_pod_both_are_looked_at() {
        let hints = RelistRequests::new(Cache::default());
        hints.add_event(event(Some("c"), Some("a"), true));
        hints.add_event(event(Some("c"), Some("b"), false));
        let taken = hints.take_event_hints();
        assert_eq!(taken.objects["c"].pod, Some("a".into()));
        assert_eq!(taken.pods, HashSet::from(["b".into()]));
    }

    #[test]
    fn what_cannot_be_told_or_does_not_fit_is_everything() {
        let hints = RelistRequests::new(Cache::default());
        hints.add_event(event(None, Some("a"), false));
        assert!(!hints.take_event_hints().all);
        hints.add_event(event(None, None, false));
        assert!(hints.take_event_hints().all);
        for n in 0..2 * LIMIT {
            hints.add_event(event(Some(&format!("{n}")), None, false));
        }
        let taken = hints.take_event_hints();
        assert_eq!((taken.objects.len(), taken.all), (LIMIT, true));
    }

    #[test]
    fn looks_that_fail_again_and_again_do_not_make_the_set_grow() {
        let hints = RelistRequests::new(Cache::default());
        for round in 0..3 {
            for n in 0..LIMIT {
                hints.pod(&PodUid::from(format!("{round}-{n}").as_str()), Source::OnDemand);
            }
            let (taken, ()) = hints.take(|| ());
            assert!(taken.pods.len() <= LIMIT);
            // More is asked for while the relist is in flight.
            for n in 0..LIMIT {
                hints.pod(&PodUid::from(format!("{round}-late-{n}").as_str()), Source::OnDemand);
            }
            hints.put_back(taken);
        }
        let (taken, ()) = hints.take(|| ());
        assert_eq!(taken.pods.len(), LIMIT);
        assert!(taken.all.is_some(), "what did not fit is looked at too");
    }
}
