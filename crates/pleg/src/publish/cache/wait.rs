//! Callers that wait: for a newer entry of a pod, for an entry that meets a condition, or for a complete relist.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use pleg_cri::duration::seconds;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::{Cache, PodEntry, PodError, Token};
use crate::model::PodUid;
use crate::sync::Notify;

/// What a caller waited for has not happened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The pod is in quarantine: a call about it fails, so it cannot be brought up to date. Can be retried; the generator retries too.
    #[error("pod {} cannot be inspected: {}", .last.status.pod, .error.message)]
    Quarantined {
        /// The call that failed.
        error: Arc<PodError>,
        /// The last good entry.
        last: Box<PodEntry>,
    },
    /// The deadline passed. Can be retried.
    #[error("{awaited} within {}{}", seconds(*.within), seen(.awaited, .last.as_deref()))]
    Deadline {
        /// What was waited for.
        awaited: Awaited,
        /// The deadline.
        within: Duration,
        /// The entry of the pod at the end; none if there was none.
        last: Option<Box<PodEntry>>,
    },
    /// The generator has ended: there will be no more relists.
    #[error("{awaited} before the generator ended{}", seen(.awaited, .last.as_deref()))]
    Ended {
        /// What was waited for.
        awaited: Awaited,
        /// The entry of the pod; none if there is none.
        last: Option<Box<PodEntry>>,
    },
}

/// What a caller waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Awaited {
    /// An entry of this pod that meets a condition: [`Cache::wait_for`].
    Condition(PodUid),
    /// An entry of this pod as of a relist: [`Cache::newer_than`], [`Pleg::refresh`](crate::Pleg::refresh).
    Newer(PodUid, Token),
    /// A complete relist: [`Cache::synced`].
    Sync(Token),
}

impl fmt::Display for Awaited {
    /// As errors say it: `pod UID did not meet the condition`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition(uid) => write!(f, "pod {uid} did not meet the condition"),
            Self::Newer(uid, _) => write!(f, "pod {uid} was not observed again"),
            Self::Sync(_) => f.write_str("no relist completed"),
        }
    }
}

impl Awaited {
    fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Condition(uid) | Self::Newer(uid, _) => Some(uid),
            Self::Sync(_) => None,
        }
    }

    /// The relist that the caller waits for; none if it waits for no particular one.
    fn token(&self) -> Option<Token> {
        match self {
            Self::Condition(_) => None,
            Self::Newer(_, token) | Self::Sync(token) => Some(*token),
        }
    }
}

/// What was there instead, for a wait about a pod.
fn seen(awaited: &Awaited, last: Option<&PodEntry>) -> String {
    match awaited {
        Awaited::Sync(_) => String::new(),
        Awaited::Condition(_) | Awaited::Newer(..) => format!("; last seen: {}", described(last)),
    }
}

/// An entry in a few words, as in `default/web (app Running, init Exited), as of relist 17`.
fn described(entry: Option<&PodEntry>) -> String {
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

/// The callers that wait for one thing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Wait {
    /// The pod; none for a complete relist.
    pub uid: Option<PodUid>,
    /// How many callers wait for it.
    pub waiters: usize,
    /// The newest relist that any of them waits for; zero if all of them wait for a condition.
    pub token: Token,
    /// How long the first of them has waited.
    pub age: Duration,
}

/// The waiters of one pod, or of the next complete relist.
#[derive(Debug)]
pub(super) struct Waiters {
    count: usize,
    notify: Arc<Notify>,
    oldest: Instant,
    token: Token,
    /// How many of them wait for a relist, and since when the first one does.
    newer: Option<(usize, Instant)>,
}

/// Every caller that waits.
#[derive(Debug, Default)]
pub(super) struct WaitTable {
    pods: HashMap<PodUid, Waiters>,
    /// Those that wait for a complete relist.
    sync: Option<Waiters>,
}

impl WaitTable {
    /// Wakes the waiters of one pod.
    pub(super) fn wake(&self, uid: &PodUid) {
        if let Some(waiters) = self.pods.get(uid) {
            waiters.notify.notify_waiters();
        }
    }

    /// Wakes all waiters.
    pub(super) fn wake_all(&self) {
        for (_, waiters) in self.iter() {
            waiters.notify.notify_waiters();
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Option<&PodUid>, &Waiters)> {
        let pods = self.pods.iter().map(|(uid, waiters)| (Some(uid), waiters));
        pods.chain(self.sync.iter().map(|waiters| (None, waiters)))
    }

    fn enter(&mut self, uid: Option<&PodUid>, now: Instant) -> &mut Waiters {
        let new = || Waiters {
            count: 0,
            notify: Arc::default(),
            oldest: now,
            token: Token::default(),
            newer: None,
        };
        match uid {
            Some(uid) => self.pods.entry_ref(uid).or_insert_with(new),
            None => self.sync.get_or_insert_with(new),
        }
    }

    fn leave(&mut self, uid: Option<&PodUid>, newer: bool) {
        let waiters = match uid {
            Some(uid) => self.pods.get_mut(uid),
            None => self.sync.as_mut(),
        };
        let Some(waiters) = waiters else {
            return;
        };
        waiters.count -= 1;
        if newer {
            waiters.newer = waiters
                .newer
                .and_then(|(n, since)| Some((n.checked_sub(1)?, since)))
                .filter(|(n, _)| *n > 0);
        }
        if waiters.count > 0 {
            return;
        }
        match uid {
            Some(uid) => drop(self.pods.remove(uid)),
            None => self.sync = None,
        }
    }
}

impl Cache {
    /// Waits until the pod was observed at or after `token`, for up to `within`: its sandboxes and containers, and the state of each, are
    /// then those of a relist that started after the token was taken. The rest of the status may be older: see
    /// [what an entry promises](super#what-an-entry-promises).
    ///
    /// A pod the runtime does not know has an empty status after the next complete relist. A pod in quarantine is
    /// [`WaitError::Quarantined`] once its inspection was tried again, or once everything else was observed. `Duration::MAX` is no
    /// deadline. Cancel-safe.
    pub async fn newer_than(&self, uid: &PodUid, token: Token, within: Duration) -> Result<PodEntry, WaitError> {
        if let Some(answer) = self.newer(uid, token) {
            return answer;
        }
        let awaited = Awaited::Newer(uid.clone(), token);
        self.wait(awaited, within, || self.newer(uid, token)).await
    }

    /// Waits until a relist that started after `token` was taken is complete, for up to `within`: every pod that was there is then in
    /// the cache. Pods that the relist found changed may still be inspected; wait for one of them with [`Cache::newer_than`].
    /// `Duration::MAX` is no deadline. Cancel-safe.
    ///
    /// ```no_run
    /// # async fn example(pleg: pleg::Pleg) -> Result<(), pleg::WaitError> {
    /// // All pods of the node as of now.
    /// let token = pleg.request_all();
    /// pleg.cache().synced(token, std::time::Duration::from_secs(30)).await?;
    /// println!("{} pods", pleg.cache().len());
    /// # Ok(()) }
    /// ```
    pub async fn synced(&self, token: Token, within: Duration) -> Result<(), WaitError> {
        if let Some(answer) = self.complete_since(token) {
            return answer;
        }
        self.wait(Awaited::Sync(token), within, || self.complete_since(token))
            .await
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
        mut condition: impl FnMut(Option<&PodEntry>) -> bool,
        within: Duration,
    ) -> Result<Option<PodEntry>, WaitError> {
        let check = || self.satisfied(uid, &mut condition);
        self.wait(Awaited::Condition(uid.clone()), within, check).await
    }

    /// The answer to [`Cache::newer_than`], if there is one.
    pub(crate) fn newer(&self, uid: &PodUid, token: Token) -> Option<Result<PodEntry, WaitError>> {
        let ended = || self.ended(Awaited::Newer(uid.clone(), token));
        self.answer(uid, token, ended)
    }

    /// The answer to [`Cache::synced`], if there is one.
    pub(crate) fn complete_since(&self, token: Token) -> Option<Result<(), WaitError>> {
        let state = self.shared.state.read();
        if state.complete >= token {
            return Some(Ok(()));
        }
        let ended = state.ended;
        drop(state);
        ended.then(|| Err(self.ended(Awaited::Sync(token))))
    }

    /// The answer to [`Cache::wait_for`], if there is one.
    pub(crate) fn satisfied(
        &self,
        uid: &PodUid,
        condition: &mut impl FnMut(Option<&PodEntry>) -> bool,
    ) -> Option<Result<Option<PodEntry>, WaitError>> {
        let (entry, relisted, ended) = {
            let state = self.shared.state.read();
            let entry = state.pods.get(uid).map(|slot| slot.entry(state.complete));
            (entry, state.complete > Token::default(), state.ended)
        };
        // The caller's code runs without our lock.
        if (relisted || entry.is_some()) && condition(entry.as_ref()) {
            return Some(Ok(entry));
        }
        ended.then(|| Err(self.ended(Awaited::Condition(uid.clone()))))
    }

    fn last(&self, awaited: &Awaited) -> Option<Box<PodEntry>> {
        awaited.uid().and_then(|uid| self.get(uid)).map(Box::new)
    }

    fn ended(&self, awaited: Awaited) -> WaitError {
        let last = self.last(&awaited);
        WaitError::Ended { awaited, last }
    }

    async fn wait<T>(
        &self,
        awaited: Awaited,
        within: Duration,
        check: impl FnMut() -> Option<Result<T, WaitError>>,
    ) -> Result<T, WaitError> {
        let woken = self.woken_until(awaited.uid(), awaited.token(), check);
        if let Ok(answer) = timeout(within, woken).await {
            return answer;
        }
        let last = self.last(&awaited);
        Err(WaitError::Deadline { awaited, within, last })
    }

    /// Checks now and whenever the pod may have changed. `token`: the caller waits for a relist, so the generator hurries.
    pub(crate) async fn woken_until<T>(
        &self,
        uid: Option<&PodUid>,
        token: Option<Token>,
        mut check: impl FnMut() -> Option<T>,
    ) -> T {
        let waiting = Waiting::enter(self, uid, token);
        loop {
            let notified = waiting.notify.notified();
            tokio::pin!(notified);
            // Enrol before the check: a commit in between wakes us.
            notified.as_mut().enable();
            if let Some(answer) = check() {
                return answer;
            }
            notified.await;
        }
    }

    /// Since when the first caller has been waiting for a relist. Waits for a condition may be long, and the usual relists serve them.
    pub(crate) fn oldest_wait(&self) -> Option<Instant> {
        let waiters = self.shared.waiters.lock();
        let newer = waiters.iter().filter_map(|(_, w)| w.newer);
        newer.map(|(_, since)| since).min()
    }

    /// Lists the waits in progress.
    pub fn waits(&self) -> Vec<Wait> {
        let waiters = self.shared.waiters.lock();
        let wait = |(uid, w): (Option<&PodUid>, &Waiters)| Wait {
            uid: uid.cloned(),
            waiters: w.count,
            token: w.token,
            age: w.oldest.elapsed(),
        };
        waiters.iter().map(wait).collect()
    }
}

/// One call that waits; leaves the table of waiters when dropped.
struct Waiting<'a> {
    cache: &'a Cache,
    uid: Option<&'a PodUid>,
    newer: bool,
    notify: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn enter(cache: &'a Cache, uid: Option<&'a PodUid>, token: Option<Token>) -> Self {
        let now = Instant::now();
        let mut waiters = cache.shared.waiters.lock();
        let entry = waiters.enter(uid, now);
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
        self.cache.shared.waiters.lock().leave(self.uid, self.newer);
    }
}
