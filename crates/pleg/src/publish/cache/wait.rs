//! Callers that wait for a pod: for a newer entry, or for one that is as they want it.

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::error::seconds;
use tokio::time::{Instant, timeout};

use super::{Cache, NotFresh, PodEntry, Token};
use crate::model::PodUid;
use crate::sync::Notify;

/// The pod did not meet the condition.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WaitError {
    /// The deadline passed.
    #[error("pod {uid} did not meet the condition within {}; last seen: {}", seconds(*.within), seen(.last.as_deref()))]
    Deadline {
        /// The pod.
        uid: PodUid,
        /// How long was waited.
        within: Duration,
        /// What the cache had of the pod at the end; none if it had nothing.
        last: Option<Box<PodEntry>>,
    },
    /// The generator has ended: the pod will not change in the cache any more.
    #[error("pod {uid} did not meet the condition before the generator ended; last seen: {}", seen(.last.as_deref()))]
    Ended {
        /// The pod.
        uid: PodUid,
        /// What the cache has of the pod.
        last: Option<Box<PodEntry>>,
    },
}

/// An entry in a few words, as in `default/web (app Running, init Exited), as of relist 17`.
fn seen(entry: Option<&PodEntry>) -> String {
    let Some(entry) = entry else {
        return "nothing".to_owned();
    };
    let containers = entry.status.containers.iter();
    let states: Vec<String> = containers
        .map(|container| format!("{} {}", container.name, container.state))
        .collect();
    let states = if states.is_empty() {
        "no containers".to_owned()
    } else {
        states.join(", ")
    };
    let quarantine = entry.error.as_ref().map(|error| format!("; {}", error.message));
    format!(
        "{} ({states}), as of relist {}{}",
        entry.status.pod.full_name(),
        entry.observed.number(),
        quarantine.unwrap_or_default()
    )
}

/// A wait in progress, for those who ask what is being waited for.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The pod.
    pub uid: PodUid,
    /// How many wait for it.
    pub waiters: usize,
    /// The newest relist any of them waits for; zero if all of them wait for a condition.
    pub token: Token,
    /// How long the first of them has waited.
    pub age: Duration,
}

/// The waiters of one pod.
#[derive(Debug)]
pub(super) struct Waiters {
    count: usize,
    pub(super) notify: Arc<Notify>,
    oldest: Instant,
    token: Token,
    /// How many of them wait for a newer entry, and since when the first one does.
    newer: Option<(usize, Instant)>,
}

impl Cache {
    /// Waits until the pod was observed at or after `token`: its sandboxes and containers, and the state of each, are then those of a
    /// look that started after the token was taken. The rest of the status may be older: see
    /// [what an entry promises](super#what-an-entry-promises).
    ///
    /// A pod the runtime does not know has an empty status after the next complete relist. A pod in quarantine is an error once it was
    /// tried, or once everything else was seen; so is everything once the generator has ended. Waits as long as that takes: put it into
    /// a [`tokio::time::timeout`] for a deadline. Cancel-safe.
    pub async fn newer_than(&self, uid: &PodUid, token: Token) -> Result<PodEntry, NotFresh> {
        if let Some(answer) = self.answer(uid, token) {
            return answer;
        }
        self.woken_until(uid, Some(token), || self.answer(uid, token)).await
    }

    /// Waits until the pod is as `condition` wants it, for up to `within`, and returns the entry that was. The condition is asked at
    /// once, and again whenever the pod is committed or a relist is complete; a pod that the cache does not have is `None`, and that is
    /// asked about only once a relist was complete. Nothing is requested of the runtime: changes that no list shows are found by
    /// [`Pleg::refresh`](crate::Pleg::refresh). A pod in quarantine goes on being waited for; its entry has the error. Cancel-safe.
    ///
    /// ```no_run
    /// # async fn example(pleg: pleg::Pleg, uid: pleg::PodUid) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// let gone = pleg.cache().wait_for(&uid, |pod| pod.is_none(), Duration::from_secs(30)).await?;
    /// assert!(gone.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn wait_for(
        &self,
        uid: &PodUid,
        condition: impl FnMut(Option<&PodEntry>) -> bool,
        within: Duration,
    ) -> Result<Option<PodEntry>, WaitError> {
        match timeout(within, self.satisfied(uid, condition)).await {
            Ok(Some(entry)) => Ok(entry),
            Ok(None) => Err(WaitError::Ended {
                uid: uid.clone(),
                last: self.get(uid).map(Box::new),
            }),
            Err(_) => Err(WaitError::Deadline {
                uid: uid.clone(),
                within,
                last: self.get(uid).map(Box::new),
            }),
        }
    }

    /// The entry that meets the condition; none if the generator ends before there is one.
    pub(crate) async fn satisfied(
        &self,
        uid: &PodUid,
        mut condition: impl FnMut(Option<&PodEntry>) -> bool,
    ) -> Option<Option<PodEntry>> {
        let check = || {
            let (entry, looked, ended) = {
                let state = self.shared.state.read();
                let entry = state.pods.get(uid).map(|slot| slot.entry(state.complete));
                (entry, state.complete > Token::default(), state.ended)
            };
            // The caller's code runs without our lock.
            if (looked || entry.is_some()) && condition(entry.as_ref()) {
                return Some(Some(entry));
            }
            ended.then_some(None)
        };
        self.woken_until(uid, None, check).await
    }

    /// Checks now and whenever the pod may have changed. `token`: the caller waits for a relist, so the generator hurries.
    async fn woken_until<T>(&self, uid: &PodUid, token: Option<Token>, mut check: impl FnMut() -> Option<T>) -> T {
        let waiting = Waiting::enter(self, uid, token);
        loop {
            let notified = waiting.notify.notified();
            tokio::pin!(notified);
            // Enrol before looking: what is committed in between wakes us.
            notified.as_mut().enable();
            if let Some(answer) = check() {
                return answer;
            }
            notified.await;
        }
    }

    /// Since when the first caller has been waiting for a newer entry. Waits for a condition may be long and are served by the relists
    /// that come anyway.
    pub(crate) fn oldest_wait(&self) -> Option<Instant> {
        let waiters = self.shared.waiters.lock();
        waiters.values().filter_map(|w| w.newer.map(|(_, since)| since)).min()
    }

    /// Lists the waits in progress.
    pub fn waits(&self) -> Vec<Wait> {
        let waiters = self.shared.waiters.lock();
        let wait = |(uid, w): (&PodUid, &Waiters)| Wait {
            uid: uid.clone(),
            waiters: w.count,
            token: w.token,
            age: w.oldest.elapsed(),
        };
        waiters.iter().map(wait).collect()
    }
}

/// One call that waits; leaves the table of waiters when dropped.
pub(super) struct Waiting<'a> {
    cache: &'a Cache,
    uid: &'a PodUid,
    newer: bool,
    notify: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn enter(cache: &'a Cache, uid: &'a PodUid, token: Option<Token>) -> Self {
        let now = Instant::now();
        let mut waiters = cache.shared.waiters.lock();
        let entry = waiters.entry_ref(uid).or_insert_with(|| Waiters {
            count: 0,
            notify: Arc::default(),
            oldest: now,
            token: Token::default(),
            newer: None,
        });
        entry.count += 1;
        if let Some(token) = token {
            entry.token = entry.token.max(token);
            entry.newer.get_or_insert((0, now)).0 += 1;
            cache.shared.wanted.notify_one();
        }
        Self {
            cache,
            uid,
            newer: token.is_some(),
            notify: Arc::clone(&entry.notify),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiters = self.cache.shared.waiters.lock();
        if let Some(entry) = waiters.get_mut(self.uid) {
            entry.count -= 1;
            if self.newer {
                entry.newer = entry
                    .newer
                    .and_then(|(n, since)| Some((n.checked_sub(1)?, since)))
                    .filter(|(n, _)| *n > 0);
            }
            if entry.count == 0 {
                waiters.remove(self.uid);
            }
        }
    }
}
