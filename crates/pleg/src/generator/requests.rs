//! Requests for relists and inspections, coalesced: a storm of events costs one relist.

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

/// What callers and events ask for. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RelistRequests {
    shared: Arc<RequestSets>,
    cache: Cache,
}

/// The two sets, and what wakes the generator.
#[derive(Debug, Default)]
struct RequestSets {
    // Held for an insertion or for taking the whole set; never across an await.
    requested: Mutex<PendingRequests>,
    // Its own, so that a storm of events does not keep a caller waiting. Held likewise.
    hints: Mutex<EventHints>,
    notify: Notify,
}

/// What callers asked to relist.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    /// Everything.
    pub(crate) all: Option<Source>,
    /// These pods, and the source of the first request.
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
                let hint = self.objects.entry(id).or_default();
                hint.reached = hint.reached.max(event.reached);
                hint.seen |= event.reached != Some(Reached::Gone);
                match (&hint.pod, pod) {
                    (None, pod) => hint.pod = pod,
                    // Two events differ about whose it is: both are relisted.
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

    /// Asks for a relist of one pod. The token names a relist that serves this request.
    pub(crate) fn pod(&self, uid: &PodUid, source: Source) -> Token {
        let mut requested = self.shared.requested.lock();
        requested.add(uid, source);
        // Under the lock: a relist that starts from now on takes the set with this request in it.
        let token = self.cache.token();
        drop(requested);
        self.shared.notify.notify_one();
        token
    }

    /// Asks for a relist of everything.
    pub(crate) fn all(&self, source: Source) -> Token {
        let mut requested = self.shared.requested.lock();
        requested.all.get_or_insert(source);
        let token = self.cache.token();
        drop(requested);
        self.shared.notify.notify_one();
        token
    }

    /// Notes what an event of the runtime was about.
    pub(crate) fn add_event(&self, event: RuntimeEvent) {
        self.shared.hints.lock().add(event);
        self.wake();
    }

    /// Takes what the events were about.
    pub(crate) fn take_event_hints(&self) -> EventHints {
        std::mem::take(&mut *self.shared.hints.lock())
    }

    /// Wakes the generator.
    pub(crate) fn wake(&self) {
        self.shared.notify.notify_one();
    }

    /// Takes the set and numbers the relist that serves it, in one step.
    pub(crate) fn take<T>(&self, start_relist: impl FnOnce() -> T) -> (PendingRequests, T) {
        let mut requested = self.shared.requested.lock();
        (std::mem::take(&mut *requested), start_relist())
    }

    /// Puts back what a failed relist has not served.
    pub(crate) fn put_back(&self, unserved: PendingRequests) {
        let mut requested = self.shared.requested.lock();
        if let Some(source) = unserved.all {
            requested.all.get_or_insert(source);
        }
        for (uid, source) in unserved.pods {
            requested.add(&uid, source);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.requested.lock().is_empty()
    }

    /// Resolves after a request or an event came. Cancel-safe.
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
        let requests = RelistRequests::new(Cache::default());
        requests.add_event(event(Some("c"), None, false));
        requests.add_event(event(Some("c"), Some("a"), true));
        for _ in 0..10_000 {
            requests.add_event(event(Some("c"), Some("a"), false));
        }
        let taken = requests.take_event_hints();
        let hint = &taken.objects["c"];
        assert_eq!((taken.objects.len(), taken.all), (1, false));
        assert_eq!(
            (hint.pod.as_ref().map(PodUid::as_str), hint.reached),
            (Some("a"), Some(Reached::Gone))
        );
        assert!(requests.take_event_hints().is_empty());
    }

    #[test]
    fn where_events_differ_about_the_pod_both_are_relisted() {
        let requests = RelistRequests::new(Cache::default());
        requests.add_event(event(Some("c"), Some("a"), true));
        requests.add_event(event(Some("c"), Some("b"), false));
        let taken = requests.take_event_hints();
        assert_eq!(taken.objects["c"].pod, Some("a".into()));
        assert_eq!(taken.pods, HashSet::from(["b".into()]));
    }

    #[test]
    fn events_without_an_object_or_beyond_the_limit_ask_for_everything() {
        let requests = RelistRequests::new(Cache::default());
        requests.add_event(event(None, Some("a"), false));
        assert!(!requests.take_event_hints().all);
        requests.add_event(event(None, None, false));
        assert!(requests.take_event_hints().all);
        for n in 0..2 * LIMIT {
            requests.add_event(event(Some(&format!("{n}")), None, false));
        }
        let taken = requests.take_event_hints();
        assert_eq!((taken.objects.len(), taken.all), (LIMIT, true));
    }

    #[test]
    fn relists_that_fail_again_and_again_do_not_make_the_set_grow() {
        let requests = RelistRequests::new(Cache::default());
        for round in 0..3 {
            for n in 0..LIMIT {
                requests.pod(&PodUid::from(format!("{round}-{n}").as_str()), Source::OnDemand);
            }
            let (taken, ()) = requests.take(|| ());
            assert!(taken.pods.len() <= LIMIT);
            // More is asked for while the relist is in flight.
            for n in 0..LIMIT {
                requests.pod(&PodUid::from(format!("{round}-late-{n}").as_str()), Source::OnDemand);
            }
            requests.put_back(taken);
        }
        let (taken, ()) = requests.take(|| ());
        assert_eq!(taken.pods.len(), LIMIT);
        assert!(taken.all.is_some(), "what did not fit is relisted too");
    }
}
