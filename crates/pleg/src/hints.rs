//! What makes us look: hints, coalesced in a dirty set, so that a storm of hints costs one look.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::cache::{Cache, Token};
use crate::event::Source;
use crate::model::PodUid;

/// More pods than this are asked for at once: then a full look is cheaper, and the set stays bounded.
const LIMIT: usize = 4096;

/// The dirty set. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Hints {
    shared: Arc<Shared>,
    cache: Cache,
}

#[derive(Debug, Default)]
struct Shared {
    // Held for an insertion or for taking the whole set; never across an await.
    dirty: Mutex<Dirty>,
    notify: Notify,
}

/// What should be looked at.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Everything.
    pub(crate) all: Option<Source>,
    /// These pods, and who asked first.
    pub(crate) pods: HashMap<PodUid, Source>,
}

impl Dirty {
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

impl Hints {
    pub(crate) fn new(cache: Cache) -> Self {
        Self {
            shared: Arc::default(),
            cache,
        }
    }

    /// Asks for a look at one pod. The token names a look that takes this hint along.
    pub(crate) fn pod(&self, uid: &PodUid, source: Source) -> Token {
        let mut dirty = self.shared.dirty.lock();
        dirty.add(uid, source);
        // Under the lock: a look that starts from now on takes the set with this hint in it.
        let token = self.cache.token();
        drop(dirty);
        self.shared.notify.notify_one();
        token
    }

    /// Asks for a look at everything.
    pub(crate) fn all(&self, source: Source) -> Token {
        let mut dirty = self.shared.dirty.lock();
        dirty.all.get_or_insert(source);
        let token = self.cache.token();
        drop(dirty);
        self.shared.notify.notify_one();
        token
    }

    /// Takes the set and numbers the look that serves it, in one step.
    pub(crate) fn take<T>(&self, start_look: impl FnOnce() -> T) -> (Dirty, T) {
        let mut dirty = self.shared.dirty.lock();
        (std::mem::take(&mut *dirty), start_look())
    }

    /// Puts hints back that a failed look has not served.
    pub(crate) fn put_back(&self, hints: Dirty) {
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

    #[test]
    fn looks_that_fail_again_and_again_do_not_make_the_set_grow() {
        let hints = Hints::new(Cache::default());
        for round in 0..3 {
            for n in 0..LIMIT {
                hints.pod(&PodUid::from(format!("{round}-{n}").as_str()), Source::OnDemand);
            }
            let (taken, ()) = hints.take(|| ());
            assert!(taken.pods.len() <= LIMIT);
            // More is asked for while the look is in flight.
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
