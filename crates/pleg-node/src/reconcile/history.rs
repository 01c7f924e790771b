//! The history of a pod beyond what the runtime shows: exits of containers that were removed since, numbers of starts, back-off.
//!
//! All of it survives a restart of `pleg node`, so serialised names do not change. None of it says what runs *now*: the cache does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pleg::{ContainerId, ContainerState, ContainerStatus, PodStatus, SandboxId};
use serde::{Deserialize, Serialize};

use super::backoff::{BackOff, StartFailure};
use super::resize::SetResources;

/// Exits that are kept of a container: that of the last attempt, and the one before.
const KEPT_EXITS: usize = 2;
/// The reason of a resize that failed.
const RESIZE_FAILED: &str = "ResizeError";
/// Characters that are kept of a text from the runtime.
const MAX_TEXT: usize = 512;

/// The history of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodHistory {
    /// When this node accepted the pod.
    pub started_at: Option<Timestamp>,
    /// By container name.
    pub containers: BTreeMap<String, ContainerHistory>,
    /// Set if the last sandbox could not be created.
    pub sandbox_failure: Option<StartFailure>,
    /// Set once the pod has failed as a whole: none of its containers is started again.
    pub failed: Option<PodFailure>,
    /// Since when the containers of a finished or failed pod are being stopped: they share one grace period.
    #[serde(default)]
    pub finishing_since: Option<Timestamp>,
    /// Set if the pod was evicted: the grace period of its containers, instead of the manifest's.
    #[serde(default)]
    pub eviction_grace: Option<Duration>,
    /// It failed because this node did not accept it: nothing of it was ever started.
    #[serde(default)]
    pub rejected: bool,
}

/// The history of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerHistory {
    /// The number of its newest attempt; none before the first.
    pub attempt: Option<u32>,
    /// The exits of its last attempts, newest first.
    #[serde(rename = "endings")]
    pub exits: Vec<Exit>,
    /// The delay before its next restart.
    pub back_off: Option<BackOff>,
    /// Set if its last start failed.
    pub failure: Option<StartFailure>,
    /// The last attempt that was killed to be replaced by the next one, whatever its exit code was.
    #[serde(default)]
    pub replaced: Option<u32>,
    /// The last attempt that was created, and its sandbox. The runtime has timestamps of both, but its clock may be set in between.
    #[serde(default)]
    pub made_in: Option<(u32, Box<str>)>,
    /// The last attempt whose post-start hook failed: it has to be killed, and is never ready.
    #[serde(default)]
    pub failed_hook: Option<u32>,
    /// The id of the last container whose pre-stop hook has run: it is not run again.
    #[serde(default)]
    pub pre_stopped: Option<Box<str>>,
    /// What the probes of the last running container have said.
    #[serde(default)]
    pub probed: Option<ProbeMemory>,
    /// The last attempt that was started, and its image in the pod.
    #[serde(default)]
    pub image: Option<(u32, Box<str>)>,
    /// The last attempt that was started or resized, and the CPU and memory that it has.
    #[serde(default)]
    pub resources: Option<(u32, SetResources)>,
    /// Set if its last resize failed.
    #[serde(default)]
    pub resize_failure: Option<StartFailure>,
    /// The last attempt that was killed because its image or its resources changed: it is replaced whatever the restart policy says.
    #[serde(default)]
    pub updated: Option<u32>,
}

/// What the probes of a container have said, for the next run of `pleg node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeMemory {
    /// The container.
    pub id: Box<str>,
    /// Its startup probe has succeeded.
    pub started: bool,
    /// Its last readiness probe succeeded.
    pub ready: bool,
}

/// How an attempt of a container exited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// The number of the attempt.
    pub attempt: u32,
    /// Its id in the runtime.
    pub id: Box<str>,
    /// 0 is success.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, …
    pub reason: Box<str>,
    /// The runtime's message.
    pub message: Box<str>,
    /// When its process started, if it did.
    pub started_at: Option<Timestamp>,
    /// When it exited, by the runtime's clock.
    pub finished_at: Option<Timestamp>,
    /// When it exited, by our clock: this starts the back-off. None in state files of releases that did not write it.
    #[serde(default)]
    pub noted_at: Option<Timestamp>,
    /// What the container left about its exit; none as long as that has not been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_message: Option<Box<str>>,
}

/// The runtime's timestamp of a newly observed exit is trusted if it is at most this far from ours. If the clock of a machine is set while
/// we run (no battery, first contact with a time server), the two clocks differ by years.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_mins(1);

/// Exit code, reason and message of an attempt that the runtime has lost, as in the kubelet.
const LOST: (i32, &str, &str) = (
    137,
    "ContainerStatusUnknown",
    "The container could not be located; it existed before",
);

impl Exit {
    /// The exit of a container that the runtime shows as exited.
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
            reason: shorten(reason).into(),
            message: shorten(&container.message).into(),
            started_at: container.started_at,
            finished_at: container.finished_at,
            noted_at: container.finished_at.filter(agrees).or(Some(now)),
            termination_message: None,
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
            termination_message: None,
        }
    }

    /// When it exited, by our clock.
    pub fn exited_at(&self, now: Timestamp) -> Timestamp {
        self.noted_at.or(self.finished_at).unwrap_or(now)
    }

    /// Its id in the runtime.
    pub fn container_id(&self) -> ContainerId {
        (&*self.id).into()
    }
}

/// The beginning of a text, short enough to be stored.
pub(super) fn shorten(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).map_or(text, |(at, _)| &text[..at])
}

/// Why a pod failed as a whole, or was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFailure {
    /// In a word: `DeadlineExceeded`.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

impl PodHistory {
    /// Records what a fresh status shows. Returns whether anything was new.
    pub fn observe(&mut self, status: &PodStatus, now: Timestamp) -> bool {
        let before = self.clone();
        for container in &status.containers {
            let history = self.containers.entry(container.name.to_string()).or_default();
            if history.attempt.is_none_or(|attempt| attempt < container.attempt) {
                history.attempt = Some(container.attempt);
            }
            if container.state == ContainerState::Exited {
                history.record_exit(Exit::of(container, now));
            }
        }
        for (name, history) in &mut self.containers {
            let Some(attempt) = history.attempt else { continue };
            let is = |container: &&ContainerStatus| *container.name == **name && container.attempt == attempt;
            if !status.containers.iter().any(|container| is(&container)) && !history.has_exited(attempt) {
                history.record_exit(Exit::lost(attempt, now));
            }
        }
        *self != before
    }

    /// The history of a container.
    pub fn container(&self, name: &str) -> Option<&ContainerHistory> {
        self.containers.get(name)
    }

    /// The history of a container, to record something in it.
    pub(crate) fn container_mut(&mut self, name: &str) -> &mut ContainerHistory {
        self.containers.entry(name.to_owned()).or_default()
    }
}

impl ContainerHistory {
    /// Records an exit. A later observation of the same attempt replaces the earlier one.
    fn record_exit(&mut self, exit: Exit) {
        match self.exits.iter_mut().find(|other| other.attempt == exit.attempt) {
            // The back-off counts from the first observation.
            Some(other) => {
                *other = Exit {
                    noted_at: other.noted_at.or(exit.noted_at),
                    termination_message: exit.termination_message.clone().or(other.termination_message.take()),
                    ..exit
                }
            }
            None => self.exits.push(exit),
        }
        self.exits.sort_by_key(|exit| std::cmp::Reverse(exit.attempt));
        self.exits.truncate(KEPT_EXITS);
    }

    /// When an attempt exited, by our clock.
    pub(crate) fn noted_at(&self, attempt: u32) -> Option<Timestamp> {
        self.exits.iter().find(|exit| exit.attempt == attempt)?.noted_at
    }

    /// What an attempt left about its exit, if that has been read.
    pub(crate) fn termination_message(&self, attempt: u32) -> Option<&str> {
        let exit = self.exits.iter().find(|exit| exit.attempt == attempt)?;
        exit.termination_message.as_deref()
    }

    /// Whether the termination message of an exited attempt is yet to be read. Those of attempts that are forgotten are not.
    pub(crate) fn wants_termination_message(&self, attempt: u32) -> bool {
        let is_forgotten = self.exits.len() >= KEPT_EXITS && self.exits.iter().all(|exit| exit.attempt > attempt);
        !is_forgotten && self.termination_message(attempt).is_none()
    }

    /// Records what an exited container left about its exit.
    pub(crate) fn record_termination_message(&mut self, container: &ContainerStatus, message: &str, now: Timestamp) {
        self.record_exit(Exit {
            termination_message: Some(message.into()),
            ..Exit::of(container, now)
        });
    }

    fn has_exited(&self, attempt: u32) -> bool {
        self.exits.iter().any(|exit| exit.attempt == attempt)
    }

    /// The exit of the newest attempt, if it has exited.
    pub fn last_exit(&self) -> Option<&Exit> {
        self.exits.first().filter(|exit| Some(exit.attempt) == self.attempt)
    }

    /// An attempt is about to be killed so that the next one replaces it.
    pub fn record_replacement(&mut self, attempt: u32) {
        self.replaced = self.replaced.max(Some(attempt));
    }

    /// The post-start hook of an attempt failed: the attempt is to be killed and replaced.
    pub fn record_failed_hook(&mut self, attempt: u32) {
        self.failed_hook = self.failed_hook.max(Some(attempt));
        self.record_replacement(attempt);
    }

    /// The pre-stop hook of a container has run.
    pub fn record_pre_stop(&mut self, id: &ContainerId) {
        self.pre_stopped = Some(id.as_str().into());
    }

    /// Whether the post-start hook of this attempt failed.
    pub(crate) fn hook_failed(&self, attempt: u32) -> bool {
        self.failed_hook == Some(attempt)
    }

    /// What the probes of this container have said in an earlier run.
    pub(crate) fn probed(&self, id: &ContainerId) -> Option<&ProbeMemory> {
        self.probed.as_ref().filter(|probed| *probed.id == *id.as_str())
    }

    /// An attempt is about to be created or started in this sandbox.
    pub fn record_sandbox(&mut self, attempt: u32, sandbox: &SandboxId) {
        self.made_in = Some((attempt, sandbox.as_str().into()));
    }

    /// An attempt is about to be started with this image.
    pub fn record_image(&mut self, attempt: u32, image: &str) {
        self.image = Some((attempt, image.into()));
    }

    /// Whether this attempt was started with another image than this one.
    pub(crate) fn has_other_image(&self, attempt: u32, image: &str) -> bool {
        let known = self.image.as_ref().filter(|(known, _)| *known == attempt);
        known.is_some_and(|(_, known)| **known != *image)
    }

    /// An attempt is about to be started with these resources, or has them now.
    pub fn record_resources(&mut self, attempt: u32, resources: SetResources) {
        self.resources = Some((attempt, resources));
        self.resize_failure = None;
    }

    /// The resize of a running container failed.
    pub fn record_resize_failure(&mut self, message: &str, now: Timestamp) {
        let failure = StartFailure::after(self.resize_failure.as_ref(), RESIZE_FAILED, message, now);
        self.resize_failure = Some(failure);
    }

    /// The CPU and memory that this attempt has, if that is known.
    pub(crate) fn set_resources(&self, attempt: u32) -> Option<SetResources> {
        let (_, resources) = self.resources.filter(|(known, _)| *known == attempt)?;
        Some(resources)
    }

    /// Whether its newest attempt was killed because it changed in the pod, and the next one is not there yet.
    pub(crate) fn awaits_update(&self) -> bool {
        self.updated.is_some() && self.updated == self.attempt
    }

    /// The next attempt is about to be started: the back-off grows if there was one before.
    pub fn record_start(&mut self, now: Timestamp) {
        if let Some(exit) = self.last_exit() {
            let exited = exit.exited_at(now);
            self.back_off = Some(BackOff::next(self.back_off.as_ref(), exited, now));
        }
    }

    /// The runtime has created this attempt: if it disappears before it is ever observed, it counts as lost.
    pub fn record_created(&mut self, attempt: u32) {
        self.attempt = self.attempt.max(Some(attempt));
    }

    /// The start succeeded.
    pub fn record_started(&mut self) {
        self.failure = None;
    }

    /// The start failed.
    pub fn record_failure(&mut self, reason: &str, message: &str, now: Timestamp) {
        self.failure = Some(StartFailure::after(self.failure.as_ref(), reason, message, now));
    }
}
