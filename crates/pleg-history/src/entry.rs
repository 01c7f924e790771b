//! What is stored: one [`Entry`] for each thing that happened. Its JSON is one line of `/api/v1/history`.
//!
//! An entry is either an event, exactly as the feed published it, or a [`Note`] about the daemon or a pod that is no event. Both have
//! `id`, `time`, `instance` and `type` on the wire, so a reader that looks at `type` needs no second field:
//!
//! ```json
//! {"id":1795000000000017,"seq":412,"instance":"5f0c2a9be1d34c77","time":"2026-11-18T03:00:07Z","type":"ContainerDied","pod":{},"exit_code":137}
//! {"id":1795000000000018,"instance":"5f0c2a9be1d34c77","time":"2026-11-18T03:00:07Z","type":"HealthChanged","level":"Degraded","headline":"","causes":[]}
//! ```

use std::sync::Arc;

use jiff::Timestamp;
use pleg::health::Cause;
use pleg::{Cursor, Event, EventType, InstanceId, Level, PodRef};
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// One thing that happened, with its place in the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place. Greater than that of every earlier entry, also after a restart of the daemon or with a new file. Within a file the
    /// next entry has the next number. Less than 2^53, so that JavaScript reads it exactly.
    pub id: u64,
    /// What happened.
    #[serde(flatten)]
    pub record: Record,
}

/// An event, or something that is no event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Record {
    /// A lifecycle event, as the feed published it. Troubles of a container or sandbox, which are quarantines, are events:
    /// `TroubleStarted` and `TroubleEnded` with a pod.
    Event(Arc<Event>),
    /// Anything else.
    Note(Arc<Note>),
}

/// Something that is no event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// When it was noticed, by the wall clock.
    pub time: Timestamp,
    /// The generator that ran then.
    pub instance: InstanceId,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of notes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum What {
    /// The daemon started. Whatever happened between the end of the instance before it and this is not known, except for what the
    /// initial events say.
    DaemonStarted(DaemonStarted),
    /// The daemon was asked to stop, and has stored everything that it published.
    DaemonStopped {
        /// The number of the last event that it published; 0 if there was none, ever.
        last_seq: u64,
    },
    /// The level of the generator's health changed, or while it is not healthy its causes did.
    HealthChanged(HealthChanged),
    /// Something in the status of a pod changed that no event tells.
    PodStatusChanged(PodStatusChanged),
    /// Published events that are not in the history: numbers `from` to `to` of this instance.
    Gap(MissedEvents),
    /// How long relists took, and how old changes were when they were published.
    Sample(Sample),
    /// What `pleg node` did or saw, in the words of a kubelet: failed probes, kills, evictions. Beside a kubelet there are none: it does
    /// not tell.
    NodeEvent(NodeEvent),
}

/// See [`What::DaemonStarted`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStarted {
    /// The daemon's version.
    pub version: String,
    /// The number of its first event: one more than the last one of the instance before it, as far as that was stored.
    pub first_seq: u64,
    /// The instance before it; none in a new file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
}

/// The instance that ran before another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// Its last event in the history.
    pub last: Cursor,
    /// It ended with [`What::DaemonStopped`]: the history has all of it. Else it was killed or crashed, and events of its last second
    /// may be missing.
    pub clean: bool,
}

/// See [`What::HealthChanged`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HealthChanged {
    /// The level since then.
    pub level: Level,
    /// The level before; none at the start of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Level>,
    /// In a few words; in the kubelet's where they are its own.
    pub headline: String,
    /// Why, with pod, container, call and the next command to type; empty when healthy. At most 20.
    pub causes: Vec<HealthCause>,
    /// Causes beyond those.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_causes: u64,
}

/// What is kept of a [`Cause`]. Texts that follow from the trouble (what it means) are not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCause {
    /// The name of the trouble, such as `hung-shim`.
    pub trouble: String,
    /// What is seen, in one sentence.
    pub text: String,
    /// What to type next.
    pub next: String,
    /// The pod, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// For how long by then.
    pub age_seconds: u64,
    /// Attempts by then.
    pub attempts: u32,
}

/// See [`What::PodStatusChanged`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodStatusChanged {
    /// Which pod.
    pub pod: PodRef,
    /// What changed. Never empty.
    pub changes: Vec<FieldChange>,
}

/// One changed field of a pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Of which container, by name; none for a field of the pod itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Which field: `ips`, `labels`, `runtime_handler`; of a container `image`, `image_ref`, `attempt`, `message`, `cpu_quota`,
    /// `cpu_shares`, `memory_limit_in_bytes`, …: the names of the API's JSON.
    pub field: String,
    /// Its value before; none if it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its value since; none if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// See [`What::NodeEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// About which pod; none for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// About which container of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Something may be wrong.
    pub warning: bool,
    /// In a word: `Unhealthy`, `Killing`, `Evicted`, …
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

/// See [`What::Gap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedEvents {
    /// The first missing event of the instance.
    pub from: u64,
    /// The last missing one; less than `from` where it is not known which, if any, are missing: the instance crashed.
    pub to: u64,
    /// Why they are missing.
    pub reason: MissedReason,
}

/// Why published events are not in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MissedReason {
    /// The file could not be written for so long that the feed no longer held them.
    NotWritten,
    /// The daemon was killed or crashed; at most the events of its last second.
    Crashed,
}

/// See [`What::Sample`]. Samples are written together with other entries, so that a node at rest writes nothing: at most one a minute,
/// and one may cover hours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What it covers: from then to the time of the note.
    pub from: Timestamp,
    /// How long full relists took.
    pub relists: Histogram,
    /// Relists that failed.
    pub failed_relists: u64,
    /// How old changes were when they were published, where the runtime has timestamps; without initial events.
    pub lag: Histogram,
}

/// The type of an entry: what `type` is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EntryType {
    /// An event of this type.
    Event(EventType),
    /// See [`What`].
    DaemonStarted,
    /// See [`What`].
    DaemonStopped,
    /// See [`What`].
    HealthChanged,
    /// See [`What`].
    PodStatusChanged,
    /// See [`What`].
    Gap,
    /// See [`What`].
    Sample,
    /// See [`What`].
    NodeEvent,
}

impl EntryType {
    /// The types of notes.
    pub const NOTES: [Self; 7] = [
        Self::DaemonStarted,
        Self::DaemonStopped,
        Self::HealthChanged,
        Self::PodStatusChanged,
        Self::Gap,
        Self::Sample,
        Self::NodeEvent,
    ];

    /// Every type.
    pub fn all() -> impl Iterator<Item = Self> {
        EventType::ALL.into_iter().map(Self::Event).chain(Self::NOTES)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Event(kind) => kind.name(),
            Self::DaemonStarted => "DaemonStarted",
            Self::DaemonStopped => "DaemonStopped",
            Self::HealthChanged => "HealthChanged",
            Self::PodStatusChanged => "PodStatusChanged",
            Self::Gap => "Gap",
            Self::Sample => "Sample",
            Self::NodeEvent => "NodeEvent",
        }
    }

    /// Reads a name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        let note = Self::NOTES
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name));
        note.or_else(|| EventType::parse(name).map(Self::Event))
    }
}

impl std::fmt::Display for EntryType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Entry {
    /// When it happened, by the wall clock. Never decides order: a clock may go back.
    pub fn time(&self) -> Timestamp {
        match &self.record {
            Record::Event(event) => event.time,
            Record::Note(note) => note.time,
        }
    }

    /// The generator that ran then.
    pub fn instance(&self) -> InstanceId {
        match &self.record {
            Record::Event(event) => event.instance,
            Record::Note(note) => note.instance,
        }
    }

    /// Its type.
    pub fn kind(&self) -> EntryType {
        self.record.kind()
    }

    /// The pod it is about, if it is about one.
    pub fn pod(&self) -> Option<&PodRef> {
        self.record.pod()
    }

    /// The event, if it is one.
    pub fn event(&self) -> Option<&Arc<Event>> {
        match &self.record {
            Record::Event(event) => Some(event),
            Record::Note(_) => None,
        }
    }

    /// The note, if it is one.
    pub fn note(&self) -> Option<&What> {
        match &self.record {
            Record::Event(_) => None,
            Record::Note(note) => Some(&note.what),
        }
    }
}

impl Record {
    /// Its type.
    pub fn kind(&self) -> EntryType {
        match self {
            Self::Event(event) => EntryType::Event(event.kind),
            Self::Note(note) => match note.what {
                What::DaemonStarted(_) => EntryType::DaemonStarted,
                What::DaemonStopped { .. } => EntryType::DaemonStopped,
                What::HealthChanged(_) => EntryType::HealthChanged,
                What::PodStatusChanged(_) => EntryType::PodStatusChanged,
                What::Gap(_) => EntryType::Gap,
                What::Sample(_) => EntryType::Sample,
                What::NodeEvent(_) => EntryType::NodeEvent,
            },
        }
    }

    /// The pod it is about, if it is about one.
    pub fn pod(&self) -> Option<&PodRef> {
        match self {
            Self::Event(event) => event.pod.as_ref(),
            Self::Note(note) => match &note.what {
                What::PodStatusChanged(changed) => Some(&changed.pod),
                What::NodeEvent(event) => event.pod.as_ref(),
                _ => None,
            },
        }
    }
}

impl From<&Cause> for HealthCause {
    fn from(cause: &Cause) -> Self {
        Self {
            trouble: cause.trouble.name().to_owned(),
            text: cause.text.clone(),
            next: cause.next.clone(),
            pod: cause.who.pod.as_deref().map(str::to_owned),
            container: cause.who.container.as_deref().map(str::to_owned),
            age_seconds: cause.age_seconds,
            attempts: cause.attempts,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
