//! The history of a pod beyond what the runtime shows: exits of containers that were removed since, numbers of starts, and back-off. All of
//! it survives a restart of `pleg node`; none of it decides what runs *now*, the cache does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pleg::{ContainerId, ContainerState, ContainerStatus, PodStatus, SandboxId};
use serde::{Deserialize, Serialize};

/// The first wait between two starts of a container.
pub const FIRST_BACK_OFF: Duration = Duration::from_secs(10);
/// The longest.
pub const LONGEST_BACK_OFF: Duration = Duration::from_mins(5);
/// A container that ran for this long since its last start begins anew.
pub const BACK_OFF_RESET: Duration = Duration::from_mins(10);
/// Endings that are kept of a container: that of the last attempt, and the one before.
const KEPT_ENDINGS: usize = 2;
/// A text of the runtime's is kept for a restart of ours; its beginning is enough.
const LONGEST_TEXT: usize = 512;

/// The history of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodHistory {
    /// When this node accepted the pod.
    pub started_at: Option<Timestamp>,
    /// By name.
    pub containers: BTreeMap<String, ContainerMemory>,
    /// The last sandbox could not be created.
    pub sandbox_failure: Option<Failure>,
    /// The pod has failed as a whole: nothing of it is started again.
    pub failed: Option<PodFailure>,
}

/// The history of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerMemory {
    /// The number of its newest attempt; none before the first.
    pub attempt: Option<u32>,
    /// How its last attempts ended, newest first.
    pub endings: Vec<Ending>,
    /// How long it waits before it is started again.
    pub back_off: Option<BackOff>,
    /// The last start of it failed.
    pub failure: Option<Failure>,
    /// The attempt that was killed last so that the next one takes its place, whatever its exit code says.
    #[serde(default)]
    pub replaced: Option<u32>,
    /// The attempt that was made last, and in which sandbox. The runtime tells when both were made, but by a clock that may be set in
    /// between.
    #[serde(default)]
    pub made_in: Option<(u32, Box<str>)>,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// Which attempt.
    pub attempt: u32,
    /// Its id in the runtime.
    pub id: Box<str>,
    /// 0 is success.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, …
    pub reason: Box<str>,
    /// The runtime's sentence about it.
    pub message: Box<str>,
    /// When its process began, if it did.
    pub started_at: Option<Timestamp>,
    /// When it ended, by the runtime's clock.
    pub finished_at: Option<Timestamp>,
    /// The same by ours, which decides how long the next start waits; none from a release that did not note it.
    #[serde(default)]
    pub noted_at: Option<Timestamp>,
}

/// The runtime's time of an ending that was just found is taken for right if it is no further from ours than this. A machine whose
/// clock is set while we run (one without a battery, at its first contact with a time server) has two clocks that differ by years.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_mins(1);

/// What an attempt ended with that the runtime knows no more about, as the kubelet says it.
const LOST: (i32, &str, &str) = (
    137,
    "ContainerStatusUnknown",
    "The container could not be located; it existed before",
);

impl Ending {
    /// How a container that has exited ended.
    pub fn of(container: &ContainerStatus, now: Timestamp) -> Self {
        let agrees = |at: &Timestamp| *at <= now && now.duration_since(*at) <= CLOCKS_AGREE;
        let exit_code = container.exit_code.unwrap_or(LOST.0);
        let reason = match &*container.reason {
            "" if exit_code == 0 => "Completed",
            "" => "Error",
            reason => reason,
        };
        Self {
            attempt: container.attempt,
            id: container.id.as_str().into(),
            exit_code,
            reason: cut(reason).into(),
            message: cut(&container.message).into(),
            started_at: container.started_at,
            finished_at: container.finished_at,
            noted_at: container.finished_at.filter(agrees).or(Some(now)),
        }
    }

    fn lost(attempt: u32, now: Timestamp) -> Self {
        Self {
            attempt,
            id: Box::default(),
            exit_code: LOST.0,
            reason: LOST.1.into(),
            message: LOST.2.into(),
            started_at: None,
            finished_at: Some(now),
            noted_at: Some(now),
        }
    }

    /// When it ended, by our clock.
    pub fn ended_at(&self, now: Timestamp) -> Timestamp {
        self.noted_at.or(self.finished_at).unwrap_or(now)
    }

    /// Its id in the runtime.
    pub fn container_id(&self) -> ContainerId {
        (&*self.id).into()
    }
}

fn cut(text: &str) -> &str {
    text.char_indices()
        .nth(LONGEST_TEXT)
        .map_or(text, |(at, _)| &text[..at])
}

/// Why a pod failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFailure {
    /// In a word: `DeadlineExceeded`.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

/// Something that was tried and failed, and is tried again later and later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In a word, as the kubelet says it: `ErrImagePull`, `CreateContainerError`, …
    pub reason: String,
    /// In a sentence.
    pub message: String,
    /// How often in a row.
    pub count: u32,
    /// The last time.
    pub at: Timestamp,
}

impl Failure {
    /// When it is tried again. Images as patiently as the kubelet; what the runtime refused for a moment may work in the next.
    pub fn until(&self, now: Timestamp) -> Timestamp {
        if self.at > now {
            // The clock was set back while we were away.
            return now;
        }
        let (first, longest) = match self.reason.as_str() {
            "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" => {
                (FIRST_BACK_OFF, LONGEST_BACK_OFF)
            }
            _ => (Duration::from_secs(1), Duration::from_mins(1)),
        };
        let doubled = first.saturating_mul(1 << self.count.saturating_sub(1).min(16));
        later(self.at, doubled.min(longest))
    }
}

/// The crash loop's back-off: 10 s, 20 s, … 5 min.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackOff {
    /// How long the next start waits, from the end of the attempt before it.
    pub delay: Duration,
    /// When the last start was.
    pub since: Timestamp,
}

impl BackOff {
    /// Until when a container waits whose last attempt ended then. The first restart waits for nothing.
    pub fn until(this: Option<&Self>, ended: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let this = this.filter(|this| !this.is_over(ended))?;
        let until = later(ended, this.delay);
        // An end in the future: the clock was set back while we were away, and nobody is to wait for it to catch up.
        (until > now && ended <= now).then_some(until)
    }

    /// The back-off of a container that is started now, and whose last attempt ended then.
    pub fn next(this: Option<&Self>, ended: Timestamp, now: Timestamp) -> Self {
        let delay = match this.filter(|this| !this.is_over(ended)) {
            Some(this) => this.delay.saturating_mul(2).min(LONGEST_BACK_OFF),
            None => FIRST_BACK_OFF,
        };
        Self { delay, since: now }
    }

    /// It ran for so long that what was before does not count.
    fn is_over(&self, ended: Timestamp) -> bool {
        ended.duration_since(self.since) > SignedDuration::try_from(BACK_OFF_RESET).unwrap_or(SignedDuration::MAX)
    }
}

/// A moment after another; the end of time if there is none.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

impl PodHistory {
    /// Takes in what the runtime shows; the status has to be fresh. Returns whether something was learnt.
    pub fn learn(&mut self, status: &PodStatus, now: Timestamp) -> bool {
        let before = self.clone();
        for container in &status.containers {
            let memory = self.containers.entry(container.name.to_string()).or_default();
            if memory.attempt.is_none_or(|attempt| attempt < container.attempt) {
                memory.attempt = Some(container.attempt);
            }
            if container.state == ContainerState::Exited {
                memory.ended(Ending::of(container, now));
            }
        }
        for (name, memory) in &mut self.containers {
            let Some(attempt) = memory.attempt else { continue };
            let is = |container: &&ContainerStatus| *container.name == **name && container.attempt == attempt;
            if !status.containers.iter().any(|container| is(&container)) && !memory.has_ended(attempt) {
                memory.ended(Ending::lost(attempt, now));
            }
        }
        *self != before
    }

    /// The history of a container.
    pub fn container(&self, name: &str) -> Option<&ContainerMemory> {
        self.containers.get(name)
    }
}

impl ContainerMemory {
    /// How an attempt ended; a later word about the same attempt replaces an earlier one.
    fn ended(&mut self, ending: Ending) {
        match self.endings.iter_mut().find(|other| other.attempt == ending.attempt) {
            // When it was first noted is when it ended.
            Some(other) => {
                *other = Ending {
                    noted_at: other.noted_at.or(ending.noted_at),
                    ..ending
                }
            }
            None => self.endings.push(ending),
        }
        self.endings.sort_by_key(|ending| std::cmp::Reverse(ending.attempt));
        self.endings.truncate(KEPT_ENDINGS);
    }

    /// When an attempt ended, by our clock.
    pub(crate) fn noted_at(&self, attempt: u32) -> Option<Timestamp> {
        self.endings.iter().find(|ending| ending.attempt == attempt)?.noted_at
    }

    fn has_ended(&self, attempt: u32) -> bool {
        self.endings.iter().any(|ending| ending.attempt == attempt)
    }

    /// How the newest attempt ended, if it has.
    pub fn last_ending(&self) -> Option<&Ending> {
        self.endings
            .first()
            .filter(|ending| Some(ending.attempt) == self.attempt)
    }

    /// Notes that an attempt is about to be killed so that the next one takes its place.
    pub fn replacing(&mut self, attempt: u32) {
        self.replaced = self.replaced.max(Some(attempt));
    }

    /// Notes in which sandbox an attempt is about to be made or started.
    pub fn making(&mut self, attempt: u32, sandbox: &SandboxId) {
        self.made_in = Some((attempt, sandbox.as_str().into()));
    }

    /// Notes that it is about to be started again.
    pub fn starting(&mut self, now: Timestamp) {
        if let Some(ending) = self.last_ending() {
            let ended = ending.ended_at(now);
            self.back_off = Some(BackOff::next(self.back_off.as_ref(), ended, now));
        }
    }

    /// Notes that the runtime has made this attempt: should it vanish before it is ever seen, it counts as lost.
    pub fn created(&mut self, attempt: u32) {
        self.attempt = self.attempt.max(Some(attempt));
    }

    /// Notes that it was started.
    pub fn started(&mut self) {
        self.failure = None;
    }

    /// Notes that it could not be started.
    pub fn failed(&mut self, reason: &str, message: &str, now: Timestamp) {
        self.failure = Some(Failure::after(self.failure.as_ref(), reason, message, now));
    }
}

impl Failure {
    /// One more failure in a row; of another kind, the first of a new row.
    pub fn after(before: Option<&Self>, reason: &str, message: &str, now: Timestamp) -> Self {
        let row = before.filter(|before| before.reason == reason);
        Self {
            reason: reason.to_owned(),
            message: cut(message).to_owned(),
            count: row.map_or(1, |before| before.count.saturating_add(1)),
            at: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    /// Crashes right after each start: when is it started, and how long did that wait?
    #[test]
    fn a_crash_loop_waits_longer_and_longer() {
        let (mut back_off, mut now, mut waits) = (None, at(0), Vec::new());
        for _ in 0..8 {
            let ended = now;
            let start = BackOff::until(back_off.as_ref(), ended, now).unwrap_or(now);
            waits.push(start.duration_since(ended).as_secs());
            back_off = Some(BackOff::next(back_off.as_ref(), ended, start));
            now = start;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        // It ran for ten minutes and a bit: begins anew. Not with less.
        let back_off = back_off.unwrap();
        let (short, long) = (
            later(back_off.since, BACK_OFF_RESET),
            later(back_off.since, BACK_OFF_RESET + Duration::from_secs(1)),
        );
        assert_eq!(
            BackOff::until(Some(&back_off), short, short),
            Some(later(short, LONGEST_BACK_OFF))
        );
        assert_eq!(BackOff::until(Some(&back_off), long, long), None);
        assert_eq!(BackOff::next(Some(&back_off), long, long).delay, FIRST_BACK_OFF);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nobody_wait_for_it() {
        let back_off = BackOff {
            delay: FIRST_BACK_OFF,
            since: at(0),
        };
        // We were away, and by the clock it ends in an hour.
        assert_eq!(BackOff::until(Some(&back_off), at(300), at(-3300)), None);
        let mut memory = ContainerMemory::default();
        memory.failed("ErrImagePull", "no", at(300));
        let until = memory.failure.as_ref().unwrap().until(at(-3300));
        assert_eq!(until, at(-3300));
    }

    /// A machine without a battery begins in 1970; then somebody tells it the time, and the runtime dates in another century than we.
    #[test]
    fn two_clocks_make_no_hot_loop_and_no_endless_wait() {
        use crate::testing::Case;
        for runtime_ahead in [-3600, 0, 3600] {
            let mut case = Case::new("containers: [{name: app, image: i}]").sandbox(true, 0);
            let mut starts = Vec::new();
            for _ in 0..4 {
                // It ends a second after it was started, and is seen at once.
                case.now += 1;
                case = case.clone().exited("app", case.now + runtime_ahead, 3).learnt();
                while case.decide().actions.iter().all(|action| action.container().is_none()) {
                    case.now += 1;
                    assert!(case.now < 5000, "it waits for ever");
                }
                starts.push(case.now);
                let now = crate::testing::at(case.now);
                case.memory.containers.get_mut("app").unwrap().starting(now);
            }
            let waits: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(waits, [11, 21, 41], "{runtime_ahead}");
        }
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let mut memory = ContainerMemory::default();
        let mut waits = |reason: &str| {
            let mut waits = Vec::new();
            for _ in 0..8 {
                memory.failed(reason, "no", at(0));
                let failure = memory.failure.as_ref().unwrap();
                waits.push(failure.until(at(0)).duration_since(at(0)).as_secs());
            }
            waits
        };
        assert_eq!(waits("ErrImagePull"), [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(waits("CreateContainerError"), [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
