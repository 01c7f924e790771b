//! Which troubles there are, and what the cluster was told about them. Pure: callers pass the time.
//!
//! Findings of one pod are one episode, and so are those about the runtime as a whole: a shim that hangs may show in several calls and for
//! several containers, and is one trouble. An episode is reported once it has lasted [`HOLD`], and is over once nothing was found for
//! [`CLEAR`], so that a runtime that restarts makes no noise. What is told follows from the state: of a trouble that came and went while
//! the API server was away, nothing is.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{PodRef, PodUid, Trouble};
use pleg_cri::duration::seconds;
use pleg_node::events::{Event, EventType};
use tokio::time::Instant;

use super::finding::{Finding, reason, since};

/// A trouble is reported once it has lasted this long.
const HOLD: Duration = Duration::from_secs(5);
/// It is over once nothing was found for this long.
const CLEAR: Duration = Duration::from_secs(5);
/// Most episodes at once. With more stuck pods than this, the node is the trouble; they are counted.
const MOST: usize = 64;
/// Most troubles of one pod that its episode describes.
const MOST_DESCRIBED: usize = 2;
/// Between the findings of one episode. A finding has semicolons of its own.
const SEPARATOR: &str = "; and ";
/// The reason of events about the end of a trouble.
pub(super) const RECOVERED: &str = "Recovered";

/// What an episode is about: a pod, or the runtime as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Runtime,
    Pod(PodUid),
}

/// One trouble, from its begin to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Episode {
    pub(super) pod: Option<PodRef>,
    /// The worst of what is found now.
    pub(super) trouble: Trouble,
    pub(super) text: String,
    pub(super) since: Timestamp,
    last_seen: Instant,
    /// It has lasted long enough to be reported.
    is_ripe: bool,
    /// The cluster was told that it began.
    told: bool,
    /// It was reported by an earlier process of ours, and has not been found by this one yet.
    pub(super) restored: bool,
}

impl Episode {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_seen) >= CLEAR
    }

    /// The event about its begin; none if it is about no pod.
    fn began(&self) -> Option<Event> {
        let message = format!("{}. {}", self.text, self.trouble.meaning());
        let pod = self.pod.as_ref()?;
        Some(Event::pod(pod, EventType::Warning, reason(self.trouble), &message))
    }

    /// The event about its end.
    fn ended(&self, now: Timestamp) -> Option<Event> {
        let message = format!("no longer stuck, after {}: {}", lasted(self.since, now), self.text);
        Some(Event::pod(self.pod.as_ref()?, EventType::Normal, RECOVERED, &message))
    }
}

/// One finding of each trouble, the worst first: a hung shim hides which container has exited, and the exit that was missed names it.
/// Of several findings of one trouble, the one that `reported` names stays: words that change by themselves are patches without news.
fn described(group: &[Finding], reported: &str) -> String {
    let by_trouble = group.chunk_by(|a, b| a.trouble == b.trouble);
    let named = by_trouble.filter_map(|same| {
        let is_reported = |finding: &&Finding| reported.split(SEPARATOR).any(|text| text == finding.text);
        same.iter().find(is_reported).or(same.first())
    });
    let texts: Vec<&str> = named.take(MOST_DESCRIBED).map(|finding| &*finding.text).collect();
    texts.join(SEPARATOR)
}

/// From then to now, in whole seconds.
pub(super) fn lasted(since: Timestamp, now: Timestamp) -> String {
    let lasted = u64::try_from(now.as_second().saturating_sub(since.as_second())).unwrap_or_default();
    seconds(Duration::from_secs(lasted))
}

/// All episodes.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    episodes: BTreeMap<Key, Episode>,
    /// Troubles beyond [`MOST`].
    untracked: usize,
}

impl Tracker {
    /// Takes in what is stuck now.
    pub(super) fn observe(&mut self, found: Vec<Finding>, at: Timestamp, now: Instant) {
        let mut groups: BTreeMap<Key, Vec<Finding>> = BTreeMap::new();
        for finding in found {
            let key = finding
                .pod
                .as_ref()
                .map_or(Key::Runtime, |pod| Key::Pod(pod.uid.clone()));
            groups.entry(key).or_default().push(finding);
        }
        self.episodes.retain(|_, episode| episode.told || !episode.is_over(now));
        self.untracked = 0;
        for (key, group) in groups {
            if self.episodes.len() >= MOST && !self.episodes.contains_key(&key) {
                self.untracked += 1;
                continue;
            }
            self.update(key, group, at, now);
        }
    }

    fn update(&mut self, key: Key, mut group: Vec<Finding>, at: Timestamp, now: Instant) {
        let oldest = group.iter().map(|finding| finding.age).max().unwrap_or_default();
        group.sort_by(|a, b| (a.trouble, &a.text).cmp(&(b.trouble, &b.text)));
        let Some(worst) = group.first() else { return };
        let episode = self.episodes.entry(key).or_insert_with(|| Episode {
            pod: worst.pod.clone(),
            trouble: worst.trouble,
            text: String::new(),
            since: since(at, oldest),
            last_seen: now,
            is_ripe: false,
            told: false,
            restored: false,
        });
        episode.text = described(&group, &episode.text);
        episode.trouble = worst.trouble;
        episode.restored = false;
        episode.last_seen = now;
        episode.is_ripe |= oldest >= HOLD || at.as_second() - episode.since.as_second() >= HOLD.as_secs().cast_signed();
    }

    /// An earlier process of ours reported this pod, which was stuck since then. Unless it is found stuck before, it is over at `until`.
    pub(super) fn restore(&mut self, pod: PodRef, since: Timestamp, until: Instant) {
        if self.episodes.len() >= MOST {
            return;
        }
        let key = Key::Pod(pod.uid.clone());
        if let Some(found) = self.episodes.get_mut(&key) {
            (found.told, found.since) = (true, since.min(found.since));
            return;
        }
        let restored = Episode {
            pod: Some(pod),
            // The last one: whatever is found is worse.
            trouble: Trouble::OpenSocket,
            text: "as reported before a restart of pleg".to_owned(),
            since,
            last_seen: until,
            is_ripe: true,
            told: true,
            restored: true,
        };
        self.episodes.insert(key, restored);
    }

    /// What is to be reported as stuck, the worst first.
    pub(super) fn stuck(&self, now: Instant) -> Vec<&Episode> {
        let is_stuck = |episode: &&Episode| episode.is_ripe && !episode.restored && !episode.is_over(now);
        let mut stuck: Vec<&Episode> = self.episodes.values().filter(is_stuck).collect();
        stuck.sort_by_key(|episode| (episode.trouble, episode.since));
        stuck
    }

    /// Pods that are to be reported as stuck, and those that are known to have been reported so.
    pub(super) fn pods(&self, now: Instant) -> impl Iterator<Item = (&PodRef, &Episode)> {
        let open = self
            .episodes
            .values()
            .filter(move |episode| episode.is_ripe && !episode.is_over(now));
        open.filter_map(|episode| Some((episode.pod.as_ref()?, episode)))
    }

    /// Stuck pods that are only counted.
    pub(super) fn untracked(&self) -> usize {
        self.untracked
    }

    /// What the cluster has not been told about single pods. It is told now.
    pub(super) fn tell(&mut self, at: Timestamp, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        self.episodes.retain(|_, episode| {
            if episode.is_over(now) {
                events.extend(episode.told.then(|| episode.ended(at)).flatten());
                return false;
            }
            if episode.is_ripe && !std::mem::replace(&mut episode.told, true) {
                events.extend(episode.began());
            }
            true
        });
        events
    }
}

#[cfg(test)]
mod tests;
