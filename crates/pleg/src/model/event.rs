//! Lifecycle events, as subscribers, the HTTP API and the command line see them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::health::diagnosis::Trouble;
use crate::model::cursor::{Cursor, InstanceId};
use crate::model::{ContainerId, ContainerRef, PodRef, SandboxId, SandboxState};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EventType {
    /// A container was made and has not started.
    ContainerCreated,
    /// A container runs.
    ContainerStarted,
    /// A death that was announced with [`crate::Pleg::will_stop`]; comes right before its `ContainerDied`.
    ContainerStopped,
    /// The kernel shows that a container's first process has exited; the runtime does not say so yet. Its `ContainerDied` follows.
    ProcessExited,
    /// A container's process ended.
    ContainerDied,
    /// The runtime no longer knows a container.
    ContainerRemoved,
    /// A container is in a state that the runtime itself does not know.
    ContainerChanged,
    /// A sandbox came, went, or changed its state.
    PodSandboxChanged,
    /// The last trace of a pod is gone.
    PodRemoved,
    /// Sync this pod: something about it may have changed.
    PodSync,
    /// Relists complete again within the threshold, or nothing is degraded any more.
    PlegHealthy,
    /// No relist was complete within the threshold.
    PlegNotHealthy,
    /// Something is not seen, while relists complete.
    PlegDegraded,
    /// Something is wrong: with a container or sandbox, with the lists or with the event stream.
    TroubleStarted,
    /// It is over.
    TroubleEnded,
}

impl EventType {
    /// Every type.
    pub const ALL: [Self; 15] = [
        Self::ContainerCreated,
        Self::ContainerStarted,
        Self::ContainerStopped,
        Self::ProcessExited,
        Self::ContainerDied,
        Self::ContainerRemoved,
        Self::ContainerChanged,
        Self::PodSandboxChanged,
        Self::PodRemoved,
        Self::PodSync,
        Self::PlegHealthy,
        Self::PlegNotHealthy,
        Self::PlegDegraded,
        Self::TroubleStarted,
        Self::TroubleEnded,
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ContainerCreated => "ContainerCreated",
            Self::ContainerStarted => "ContainerStarted",
            Self::ContainerStopped => "ContainerStopped",
            Self::ProcessExited => "ProcessExited",
            Self::ContainerDied => "ContainerDied",
            Self::ContainerRemoved => "ContainerRemoved",
            Self::ContainerChanged => "ContainerChanged",
            Self::PodSandboxChanged => "PodSandboxChanged",
            Self::PodRemoved => "PodRemoved",
            Self::PodSync => "PodSync",
            Self::PlegHealthy => "PlegHealthy",
            Self::PlegNotHealthy => "PlegNotHealthy",
            Self::PlegDegraded => "PlegDegraded",
            Self::TroubleStarted => "TroubleStarted",
            Self::TroubleEnded => "TroubleEnded",
        }
    }

    /// It is about the level of the generator's health.
    pub fn is_health(self) -> bool {
        matches!(self, Self::PlegHealthy | Self::PlegNotHealthy | Self::PlegDegraded)
    }

    /// It is about what keeps the generator from seeing something, not about what happened to a pod.
    pub fn is_trouble(self) -> bool {
        matches!(self, Self::TroubleStarted | Self::TroubleEnded)
    }

    /// Reads a name, in any case; `ContainerRunning` is `ContainerStarted`.
    pub fn parse(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("ContainerRunning") {
            return Some(Self::ContainerStarted);
        }
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

impl std::fmt::Display for EventType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What triggered the relist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Source {
    /// The periodic relist of all pods.
    Relist,
    /// An event of the runtime.
    Evented,
    /// An announcement of the kernel.
    Kernel,
    /// The request of a caller.
    OnDemand,
}

impl Source {
    /// A caller said where to look.
    pub(crate) fn is_hint(self) -> bool {
        matches!(self, Self::Evented | Self::Kernel)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relist => "relist",
            Self::Evented => "evented",
            Self::Kernel => "kernel",
            Self::OnDemand => "on-demand",
        }
    }
}

/// What an event is about, within its pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Subject {
    /// A container.
    Container(ContainerRef),
    /// A sandbox.
    Sandbox {
        /// The runtime's id.
        id: SandboxId,
        /// The state it is in now; none when it is gone.
        #[serde(skip_serializing_if = "Option::is_none")]
        state: Option<SandboxState>,
    },
}

impl Subject {
    /// The container's id, if it is one.
    pub fn container_id(&self) -> Option<&ContainerId> {
        match self {
            Self::Container(container) => Some(&container.id),
            Self::Sandbox { .. } => None,
        }
    }
}

/// One thing that happened. Its JSON is that of the HTTP API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its place in the order of its generator: 1, 2, 3, … without gaps, or with a [history](crate::FeedHistory) from a later number on. A `PodSync` that was made for one reader has the number of
    /// an event that this reader has read or missed, or 0.
    pub seq: u64,
    /// The generator that numbered it.
    pub instance: InstanceId,
    /// When it was committed, by the wall clock; of `ProcessExited`, when the kernel showed it. Never decides order.
    pub time: Timestamp,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// To which pod; none for the health of the generator itself, and for a trouble that is no single pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// To which container or sandbox of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// The process that has exited; only of `ProcessExited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The exit code of a death, where the runtime reported it; of `ProcessExited`, where the kernel showed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The runtime's word for a death (`Completed`, `Error`, `OOMKilled`, …), why the generator is not healthy, or what is seen of a
    /// trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    /// Found by the first relist: it had happened before the generator started, however long ago. For readers that build state from
    /// events; a reader that acts on news starts with [`Start::AfterFirstRelist`](crate::Start::AfterFirstRelist), or skips these.
    pub initial: bool,
    /// What triggered the relist.
    pub source: Source,
    /// From the runtime's own timestamp of the change to our commit, where it has one. In seconds on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_seconds")]
    pub lag: Option<Duration>,
    /// What usually lies behind a trouble that started or ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// How long a trouble lasted that ended. In seconds on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_seconds")]
    pub lasted: Option<Duration>,
}

impl Event {
    /// An event about the generator itself, as of now; the feed gives it its number and instance.
    pub(crate) fn of_generator(kind: EventType) -> Self {
        Self {
            seq: 0,
            instance: InstanceId::default(),
            time: Timestamp::now(),
            kind,
            pod: None,
            subject: None,
            pid: None,
            exit_code: None,
            reason: None,
            initial: false,
            source: Source::Relist,
            lag: None,
            trouble: None,
            lasted: None,
        }
    }

    /// Where a reader continues that has read everything up to this event.
    pub fn cursor(&self) -> Cursor {
        self.instance.at(self.seq)
    }
}

/// Events that a reader does not get.
///
/// It is no place to continue from: what it announces has not been read yet. A reader that stops after a gap continues from the last
/// event before it, and gets the gap again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub struct Gap {
    /// The first missed event of `instance`.
    pub from: u64,
    /// The last missed one; less than `from` where none of `instance` is missed.
    pub to: u64,
    /// The generator that numbered them: the one that runs, or one before it whose events a history does not have.
    pub instance: InstanceId,
    /// Why they are missed.
    pub reason: GapReason,
    /// The cursor of another instance that the reader came with: all that instance published after it is missed too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
}

/// Why a reader does not get events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GapReason {
    /// The feed no longer held them when the reader came for them.
    Overflow,
    /// The reader's cursor is not one of the running generator: it was issued by an earlier instance.
    Restarted,
}

/// A time span as a number of seconds.
mod in_seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        // Micros are finer than any runtime's clock, and short to read.
        span.map(|span| span.as_micros() as f64 / 1e6).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        let span = seconds.map(|seconds| Duration::try_from_secs_f64((seconds * 1e6).round() / 1e6));
        span.transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in EventType::ALL {
            assert_eq!(EventType::parse(kind.name()), Some(kind));
        }
        assert_eq!(EventType::parse("containerdied"), Some(EventType::ContainerDied));
        assert_eq!(EventType::parse("ContainerRunning"), Some(EventType::ContainerStarted));
        assert_eq!(EventType::parse("Nope"), None);
    }

    /// Readers from before there were instances look for `type`, `from` and `to`.
    #[test]
    fn gaps_on_the_wire() {
        let gap = Gap {
            from: 3,
            to: 9,
            instance: InstanceId::new(10),
            reason: GapReason::Overflow,
            after: None,
        };
        assert_eq!(
            serde_json::to_string(&gap).unwrap(),
            r#"{"type":"Gap","from":3,"to":9,"instance":"000000000000000a","reason":"overflow"}"#
        );
        let restarted = Gap {
            from: 1,
            to: 0,
            reason: GapReason::Restarted,
            after: Some(InstanceId::new(11).at(15)),
            ..gap
        };
        assert_eq!(
            serde_json::to_string(&restarted).unwrap(),
            r#"{"type":"Gap","from":1,"to":0,"instance":"000000000000000a","reason":"restarted","after":"000000000000000b-15"}"#
        );
    }
}
