//! Why a pod's containers died: `entries → Explanation`.
//!
//! In: a pod, a window, and entries in the order of their ids: all of the pod, also older ones (which say how long a life was), those about the node (troubles without a pod, health, starts
//! and ends of the daemon), and the deaths of other pods around the last death. Out: one [`Explanation`], whose JSON is that of
//! `pleg why -o json`. Pods of the same name are one pod here: a static pod or one of a `StatefulSet` comes back with another UID.

mod evidence;
mod judge;
#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "small whole numbers")]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerId, Cursor, EventType, PodRef, PodUid};
use serde::{Deserialize, Serialize};

use super::lives::{Ending, Life, Lives};
use super::rounded;
use super::troubles::{TroubleSpan, Troubles};
use crate::entry::{Entry, FieldChange, What};

/// How long before a death something may have led to it.
pub const LONGEST_BEFORE: Duration = Duration::from_mins(10);

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub since: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// The oldest entry of the history; none if it is empty.
    pub held_since: Option<Timestamp>,
    /// The entries come from a daemon that runs, so what has not ended goes on.
    pub running: bool,
}

/// Why a pod's containers died. Its JSON is that of `pleg why -o json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The pod; the newest of its name.
    pub pod: PodRef,
    /// The UIDs of all pods of that name, the newest last.
    pub uids: Vec<PodUid>,
    /// The beginning of the window.
    pub since: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// The oldest entry of the history, if it is younger than `since`: what happened before it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since: Option<Timestamp>,
    /// The answer, as a name.
    pub verdict: Verdict,
    /// The answer, in a sentence.
    pub summary: String,
    /// What it usually means.
    pub means: String,
    /// Commands to type next.
    pub next: Vec<String>,
    /// Containers that started again.
    pub restarts: u64,
    /// Containers that died.
    pub deaths: u64,
    /// When the last trace of the pod was gone, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
    /// By name.
    pub containers: Vec<ContainerSummary>,
    /// The death that is explained: the last failure, or if there is none the last death.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_death: Option<Death>,
    /// What of the pod could not be seen, and when: quarantines, hung shims.
    pub troubles: Vec<TroubleSpan>,
}

/// The answer to why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing died, and nothing is wrong.
    Quiet,
    /// Nothing died; something of the pod cannot be seen.
    Stuck,
    /// It had no more memory.
    OomKilled,
    /// The node stopped it, because its liveness or startup probe failed.
    ProbeFailed,
    /// The node stopped it, to have its resources.
    Evicted,
    /// The node stopped it, as announced.
    Stopped,
    /// Its process could not be started.
    CannotStart,
    /// The runtime was down or restarted.
    NodeTrouble,
    /// Its sandbox went first.
    SandboxLost,
    /// Somebody killed it.
    Killed,
    /// It crashed by a signal of its own making.
    Crashed,
    /// It exited with another code than 0.
    Failed,
    /// It exited with 0.
    Completed,
    /// It died and the runtime does not say how.
    Unknown,
}

/// One container name of the pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContainerSummary {
    /// Its name.
    pub name: String,
    /// How often it started again.
    pub restarts: u64,
    /// How often it died.
    pub deaths: u64,
    /// By reason and exit code, the most frequent first.
    pub exits: Vec<ExitCount>,
    /// How long it lived before it died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetimes: Option<Lifetimes>,
    /// It runs now.
    pub running: bool,
    /// Since when, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Timestamp>,
}

/// Deaths that ended the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCount {
    /// The runtime's word, such as `OOMKilled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exit code, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How many.
    pub count: u64,
}

/// How long lives were, of those whose start and end are known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lifetimes {
    /// How many.
    pub count: u64,
    /// The shortest.
    pub shortest_seconds: f64,
    /// Half of them are not longer.
    pub median_seconds: f64,
    /// The longest.
    pub longest_seconds: f64,
}

/// The death that is explained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Death {
    /// When, by the runtime's clock where that is known.
    pub time: Timestamp,
    /// It happened while no daemon ran: `time` is when it was found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found_later: bool,
    /// The container's name.
    pub container: String,
    /// The runtime's id of it.
    pub container_id: ContainerId,
    /// Which attempt it was.
    pub attempt: u32,
    /// Its exit code, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that the code stands for, such as `SIGKILL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The runtime's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it had lived, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lived_seconds: Option<f64>,
    /// The event.
    pub event: Cursor,
    /// What came before it, the oldest first.
    pub before: Vec<Evidence>,
}

/// Something that may have led to a death.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Evidence {
    /// When.
    pub time: Timestamp,
    /// How long before the death; 0 for what came with it or a moment later.
    pub seconds_before: f64,
    /// What, as a name.
    pub kind: EvidenceKind,
    /// What, in words.
    pub text: String,
    /// The event, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Cursor>,
    /// The entry's place in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
}

/// What came before a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EvidenceKind {
    /// A liveness or startup probe failed.
    ProbeFailed,
    /// The pod was evicted or preempted.
    Evicted,
    /// The node announced that it stops the container.
    StopAnnounced,
    /// The runtime was down, stuck or slow, or something else of the whole node was wrong.
    NodeTrouble,
    /// The node's health changed for the worse.
    NodeHealth,
    /// The pod's sandbox was no longer ready, or gone.
    SandboxLost,
    /// Something of the pod could not be seen: a quarantine, a hung shim.
    PodTrouble,
    /// Another container of the pod died.
    SiblingDied,
    /// Containers of other pods died at the same time.
    OthersDied,
    /// What else the node did or saw.
    NodeEvent,
    /// The pod's status changed: limits, image, addresses.
    StatusChanged,
    /// The daemon restarted, or events are missing: something may not have been seen.
    Unseen,
}

/// Explains a pod. `entries` are in the order of their ids, and bounded by the caller.
pub fn explain(pod: &PodRef, window: Window, entries: &[Entry]) -> Explanation {
    let is_ours = |other: &PodRef| other.uid == pod.uid || (other.namespace == pod.namespace && other.name == pod.name);
    let (mut lives, mut troubles) = (Lives::default(), Troubles::default());
    let (mut uids, mut removed_at): (Vec<PodUid>, _) = (Vec::new(), None);
    for entry in entries {
        troubles.add(entry);
        let Some(of) = entry.pod().filter(|of| is_ours(of)) else {
            continue;
        };
        if !uids.contains(&of.uid) && uids.len() < MOST_UIDS {
            uids.push(of.uid.clone());
            removed_at = None;
        }
        if let Some(event) = entry.event() {
            lives.add(entry.id, event);
            if event.kind == EventType::PodRemoved {
                lives.pod_removed(&of.uid);
                removed_at = Some(event.time);
            }
        }
    }
    let troubles = troubles.finish(window.until, window.running);
    let name = pod.to_string();
    let own_troubles: Vec<TroubleSpan> = troubles
        .iter()
        .filter(|span| span.pod.as_deref() == Some(name.as_str()) && span.to.is_none_or(|to| to >= window.since))
        .cloned()
        .collect();
    let in_window = |death: &&Ending| (window.since..=window.until).contains(&death.time);
    let deaths = || {
        let lives = lives.all().iter();
        lives.filter_map(|life| Some((life, life.death.as_ref().filter(in_window)?)))
    };
    let last = |failure: bool| {
        deaths()
            .filter(|(_, death)| !failure || death.is_failure())
            .max_by_key(|(_, death)| death.id)
    };
    let explained = last(true).or_else(|| last(false));
    let last_death = explained.map(|(life, death)| Death {
        before: evidence::before(pod, life, death, entries, &troubles),
        ..described(life, death)
    });
    let containers = containers(lives.all(), window);
    let answer = judge::judge(&judge::Facts {
        pod,
        death: last_death.as_ref(),
        stopped: explained.is_some_and(|(life, _)| life.stopped),
        deaths: deaths().count() as u64,
        containers: &containers,
        troubles: &own_troubles,
        removed: removed_at.is_some(),
    });
    Explanation {
        pod: pod.clone(),
        uids,
        since: window.since,
        until: window.until,
        held_since: window.held_since.filter(|held| *held > window.since),
        verdict: answer.verdict,
        summary: answer.summary,
        means: answer.means,
        next: answer.next,
        restarts: containers.iter().map(|container| container.restarts).sum(),
        deaths: containers.iter().map(|container| container.deaths).sum(),
        removed_at,
        containers,
        last_death,
        troubles: own_troubles,
    }
}

/// UIDs that are listed of one name.
const MOST_UIDS: usize = 100;

fn described(life: &Life, death: &Ending) -> Death {
    Death {
        time: death.time,
        found_later: death.found_later,
        container: life.container.name.as_ref().to_owned(),
        container_id: life.container.id.clone(),
        attempt: life.container.attempt,
        exit_code: death.exit_code,
        signal: death.exit_code.and_then(judge::signal).map(str::to_owned),
        reason: death.reason.clone(),
        lived_seconds: life.lasted().map(|lived| rounded(lived.as_secs_f64())),
        event: death.event,
        before: Vec::new(),
    }
}

/// What is older than the window is known, but not counted.
fn containers(lives: &[Life], window: Window) -> Vec<ContainerSummary> {
    let counts = |time: Timestamp| (window.since..=window.until).contains(&time);
    let mut by_name: BTreeMap<&str, Vec<&Life>> = BTreeMap::new();
    for life in lives {
        by_name.entry(&life.container.name).or_default().push(life);
    }
    let summary = |(name, lives): (&str, Vec<&Life>)| {
        let died = || {
            let lives = lives.iter().copied();
            lives.filter_map(|life| Some((life, life.death.as_ref().filter(|death| counts(death.time))?)))
        };
        let restarts = lives
            .iter()
            .filter(|life| life.is_restart && life.started.is_some_and(counts));
        let running = lives.iter().rev().find(|life| life.is_running());
        ContainerSummary {
            name: name.to_owned(),
            restarts: restarts.count() as u64,
            deaths: died().count() as u64,
            exits: exits(died().map(|(_, death)| death)),
            lifetimes: lifetimes(died().filter_map(|(life, _)| life.lasted()).collect()),
            running: running.is_some(),
            running_since: running.and_then(|life| life.started),
        }
    };
    let seen = by_name.into_iter().map(summary);
    // A container that is long gone is not worth a line.
    seen.filter(|container| container.running || container.deaths > 0 || container.restarts > 0)
        .collect()
}

/// Deaths by reason and code, the most frequent first.
fn exits<'a>(endings: impl Iterator<Item = &'a Ending>) -> Vec<ExitCount> {
    let mut counts: BTreeMap<(Option<&str>, Option<i32>), u64> = BTreeMap::new();
    for ending in endings {
        *counts.entry((ending.reason.as_deref(), ending.exit_code)).or_default() += 1;
    }
    let mut exits: Vec<ExitCount> = counts
        .into_iter()
        .map(|((reason, exit_code), count)| ExitCount {
            reason: reason.map(str::to_owned),
            exit_code,
            count,
        })
        .collect();
    exits.sort_by_key(|exit| std::cmp::Reverse(exit.count));
    exits
}

fn lifetimes(mut lives: Vec<Duration>) -> Option<Lifetimes> {
    lives.sort_unstable();
    let at = |place: usize| lives.get(place).map(|life| rounded(life.as_secs_f64()));
    Some(Lifetimes {
        count: lives.len() as u64,
        shortest_seconds: at(0)?,
        median_seconds: at((lives.len() - 1) / 2)?,
        longest_seconds: at(lives.len() - 1)?,
    })
}

/// The note of an entry about a pod's status, in words; none if it only tells what a pod or container was when it was first seen. The
/// runtime's message about an end is news even so.
fn status_change(what: &What) -> Option<String> {
    let What::PodStatusChanged(changed) = what else {
        return None;
    };
    let is_news = |change: &&FieldChange| change.from.is_some() || change.field == "message";
    let one = |change: &FieldChange| {
        let of = change
            .container
            .as_ref()
            .map(|name| format!("{name} "))
            .unwrap_or_default();
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        format!("{of}{}: {} → {}", change.field, value(&change.from), value(&change.to))
    };
    let news: Vec<String> = changed.changes.iter().filter(is_news).map(one).collect();
    (!news.is_empty()).then(|| news.join("; "))
}
