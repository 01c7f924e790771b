//! The JSON of the API and of `-o json`, as a reader sees it.
//!
//! A daemon's answer and the state of a generator in this process are read back into these types, so that the same code prints both. The
//! types of the library are used wherever their values are fixed. This module has its own types only where a newer daemon may send names
//! that this version does not know (types of events, sources, troubles), or where an older one omits fields: they keep names as text.
//! The tests compare them with what the library writes.

mod pod;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::shim::Shim;
use pleg::{Cursor, InstanceId, ModeReport, NodeCondition, PodRef};
use pleg_cluster::report::ReportProgress;
use pleg_history::HistoryStatus;
use pleg_node::PressureCondition;
use pleg_node::sources::SourceProblem;
use serde::{Deserialize, Serialize};

pub(crate) use pod::{Pod, PodError, PodHealth, PodJson, PodRow, StalePart, StatusStale};

/// One line of an event stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Event(Box<Event>),
    Gap(Gap),
    Heartbeat(Heartbeat),
}

impl Line {
    /// Where a reader continues that has read everything up to this line; none for a gap, and for lines of an older daemon.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        match self {
            Self::Event(event) => Some(event.instance?.at(event.seq)),
            Self::Gap(_) => None,
            Self::Heartbeat(heartbeat) => Some(heartbeat.cursor),
        }
    }
}

/// The daemon lives, and there is nothing to read up to this cursor. Only for those who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    #[serde(rename = "type")]
    kind: HeartbeatType,
    /// Where a reader continues.
    pub(crate) cursor: Cursor,
}

impl Heartbeat {
    pub(crate) fn at(cursor: Cursor) -> Self {
        Self {
            kind: HeartbeatType::Heartbeat,
            cursor,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum HeartbeatType {
    Heartbeat,
}

/// A [`pleg::Gap`]: events that a reader missed, both numbers included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gap {
    #[serde(rename = "type")]
    pub(crate) kind: GapType,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// None from a daemon that is older; so are the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<InstanceId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Cursor>,
}

impl Gap {
    /// Another instance answers than the one that issued the reader's cursor.
    pub(crate) fn is_restart(&self) -> bool {
        self.reason.as_deref() == Some("restarted")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GapType {
    Gap,
}

/// A [`pleg::Event`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    /// None from a daemon that is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<InstanceId>,
    pub(crate) time: Timestamp,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<PodRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<Subject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) initial: bool,
    pub(crate) source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lag: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trouble: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lasted: Option<f64>,
}

impl From<&pleg::Event> for Event {
    fn from(event: &pleg::Event) -> Self {
        Self {
            seq: event.seq,
            instance: Some(event.instance),
            time: event.time,
            kind: event.kind.name().to_owned(),
            pod: event.pod.clone(),
            subject: event.subject.clone(),
            pid: event.pid,
            exit_code: event.exit_code,
            reason: event.reason.as_deref().map(str::to_owned),
            initial: event.initial,
            source: event.source.name().to_owned(),
            lag: event.lag.map(|lag| lag.as_secs_f64()),
            trouble: event.trouble.map(|trouble| trouble.name().to_owned()),
            lasted: event.lasted.map(|lasted| lasted.as_secs_f64()),
        }
    }
}

/// A [`pleg::Report`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) level: String,
    pub(crate) headline: String,
    pub(crate) message: String,
    pub(crate) causes: Vec<Cause>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) more_causes: usize,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) last_seen_seconds: Option<f64>,
    pub(crate) threshold_seconds: u64,
    /// None from a daemon that is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<ModeReport>,
    #[serde(rename = "looks")]
    pub(crate) relists: u64,
    pub(crate) odd_objects: std::collections::BTreeMap<String, u32>,
    /// The daemon's generator; none from a daemon that is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<InstanceId>,
    /// The node's, as a kubelet would post them; none from a daemon that is older.
    #[serde(default)]
    pub(crate) conditions: Vec<NodeCondition>,
    /// What is wrong with the manifests of a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused_manifests: Vec<SourceProblem>,
    /// How reporting to the cluster goes; none if it is off.
    #[serde(rename = "cluster_report", default, skip_serializing_if = "Option::is_none")]
    pub(crate) reporting: Option<ReportProgress>,
    /// How the history does; none if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<HistoryStatus>,
}

/// The conditions of the node, as the API writes them.
#[derive(Debug, Serialize)]
pub(crate) struct Conditions {
    conditions: Vec<AnyCondition>,
}

/// A condition of the generator, or of the resources of a node that runs pods.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyCondition {
    Ready(NodeCondition),
    Pressure(PressureCondition),
}

impl Conditions {
    /// As of now.
    pub(crate) fn of(pleg: &pleg::Pleg, board: Option<&pleg_node::PodReports>) -> Self {
        Self::new(pleg.readiness().ready(), board)
    }

    /// `Ready` first; then, of `pleg node`, what the machine is short of.
    fn new(ready: NodeCondition, board: Option<&pleg_node::PodReports>) -> Self {
        let pressure = board.map(|board| board.pressure().conditions()).unwrap_or_default();
        let ready = std::iter::once(AnyCondition::Ready(ready));
        Self {
            conditions: ready.chain(pressure.into_iter().map(AnyCondition::Pressure)).collect(),
        }
    }
}

/// A health report as the API writes it; [`Report`] reads it.
#[derive(Debug, Serialize)]
pub(crate) struct ReportJson {
    #[serde(flatten)]
    report: pleg::Report,
    instance: InstanceId,
    #[serde(flatten)]
    conditions: Conditions,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_manifests: Vec<SourceProblem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_report: Option<ReportProgress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryStatus>,
}

impl ReportJson {
    /// As of now.
    pub(crate) fn of(pleg: &pleg::Pleg, board: Option<&pleg_node::PodReports>) -> Self {
        let node = pleg.observe();
        Self {
            report: node.report,
            instance: pleg.instance(),
            conditions: Conditions::new(node.ready, board),
            refused_manifests: board.map(pleg_node::PodReports::problems).unwrap_or_default(),
            cluster_report: None,
            history: None,
        }
    }

    /// With how the history does.
    pub(crate) fn with_history(mut self, history: Option<HistoryStatus>) -> Self {
        self.history = history;
        self
    }

    /// With how reporting to the cluster goes.
    pub(crate) fn with_cluster(mut self, report: Option<ReportProgress>) -> Self {
        self.cluster_report = report;
        self
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    pub(crate) stage: String,
    pub(crate) trouble: String,
    pub(crate) text: String,
    pub(crate) means: String,
    pub(crate) next: String,
    pub(crate) rpc: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shim: Option<Shim>,
    pub(crate) age_seconds: u64,
    pub(crate) attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Warning {
    pub(crate) trouble: String,
    pub(crate) text: String,
    pub(crate) means: String,
    pub(crate) next: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pleg::{EventType, Source};

    use super::*;

    fn pod() -> PodRef {
        PodRef {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "web".into(),
        }
    }

    fn events() -> [pleg::Event; 5] {
        let bare = pleg::Event {
            seq: 7,
            instance: InstanceId::new(0xabc),
            time: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
            kind: EventType::PlegNotHealthy,
            pod: None,
            subject: None,
            pid: None,
            exit_code: None,
            reason: Some("why".into()),
            initial: false,
            source: Source::OnDemand,
            lag: None,
            trouble: None,
            lasted: None,
        };
        let container = pleg::ContainerRef {
            id: "c".into(),
            name: "app".into(),
            attempt: 3,
        };
        let died = pleg::Event {
            kind: EventType::ContainerDied,
            pod: Some(pod()),
            subject: Some(Subject::Container(container)),
            exit_code: Some(-1),
            lag: Some(Duration::from_micros(352_001)),
            initial: true,
            ..bare.clone()
        };
        let sandbox = pleg::Event {
            kind: EventType::PodSandboxChanged,
            pod: Some(pod()),
            subject: Some(Subject::Sandbox {
                id: "s".into(),
                state: Some(pleg::SandboxState::NotReady),
            }),
            reason: None,
            ..bare.clone()
        };
        let ended = pleg::Event {
            kind: EventType::TroubleEnded,
            trouble: Some(pleg::Trouble::HungShim),
            lasted: Some(Duration::from_millis(12_345)),
            reason: None,
            ..died.clone()
        };
        let exited = pleg::Event {
            kind: EventType::ProcessExited,
            pid: Some(4711),
            source: Source::Kernel,
            lag: None,
            ..died.clone()
        };
        [bare, died, sandbox, ended, exited]
    }

    #[test]
    fn events_come_back_as_they_went_out() {
        for event in events() {
            let text = serde_json::to_string(&event).unwrap();
            let Line::Event(read) = serde_json::from_str(&text).unwrap() else {
                panic!("{text}")
            };
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert_eq!(Line::Event(read).cursor(), Some(event.cursor()));
        }
    }

    #[test]
    fn gaps_come_back_as_they_went_out() {
        let gap = pleg::Gap {
            from: 3,
            to: 9,
            instance: InstanceId::new(0xabc),
            reason: pleg::GapReason::Overflow,
            after: None,
        };
        let restarted = pleg::Gap {
            reason: pleg::GapReason::Restarted,
            after: Some(InstanceId::new(0xdef).at(15)),
            ..gap
        };
        for (gap, is_restart) in [(gap, false), (restarted, true)] {
            let text = serde_json::to_string(&gap).unwrap();
            let Line::Gap(read) = serde_json::from_str(&text).unwrap() else {
                panic!("{text}")
            };
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert_eq!(read.is_restart(), is_restart);
            assert_eq!(Line::Gap(read).cursor(), None);
        }
    }

    #[test]
    fn heartbeats_come_back_as_they_went_out() {
        let cursor = InstanceId::new(0xabc).at(15);
        let text = serde_json::to_string(&Heartbeat::at(cursor)).unwrap();
        assert_eq!(text, r#"{"type":"Heartbeat","cursor":"0000000000000abc-15"}"#);
        let read: Line = serde_json::from_str(&text).unwrap();
        assert!(matches!(&read, Line::Heartbeat(_)));
        assert_eq!(read.cursor(), Some(cursor));
    }

    /// A daemon from before there were instances.
    #[test]
    fn lines_of_an_older_daemon_are_read() {
        let gap: Line = serde_json::from_str(r#"{"type":"Gap","from":3,"to":9}"#).unwrap();
        assert!(matches!(&gap, Line::Gap(gap) if !gap.is_restart()));
        let event = r#"{"seq":1,"time":"2026-11-16T00:00:00Z","type":"PlegHealthy","initial":false,"source":"relist"}"#;
        let event: Line = serde_json::from_str(event).unwrap();
        assert!(matches!(&event, Line::Event(event) if event.seq == 1));
        assert_eq!((gap.cursor(), event.cursor()), (None, None));
    }
}
