//! The conditions that this node owns: memory, disk and process ids from the eviction manager, Ready from the generator's health. Pure.
//!
//! Their texts have no ages and no figures that change by themselves, so that a trouble is one patch and not one every ten seconds.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pleg_node::PressureCondition;
use pleg_node::events::{Event, EventType};

/// The type of the condition that decides whether pods are scheduled.
pub const READY: &str = "Ready";
/// Longest message of a condition.
const MAX_MESSAGE: usize = 1024;
/// What a kubelet says before its eviction manager has looked, and what holds where no threshold is set.
const NO_PRESSURE: [(&str, &str, &str); 3] = [
    (
        "MemoryPressure",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    (
        "DiskPressure",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    (
        "PIDPressure",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
];

/// A condition as it should be, without times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `Ready`, `MemoryPressure` and so on.
    pub kind: String,
    /// `True` or `False`.
    pub status: bool,
    /// The kubelet's reason.
    pub reason: String,
    /// In words.
    pub message: String,
}

impl Condition {
    /// As the API writes it.
    pub fn status_text(&self) -> &'static str {
        if self.status { "True" } else { "False" }
    }

    /// Whether the API server has it so. Times are no difference.
    pub fn is_posted(&self, posted: &[NodeCondition]) -> bool {
        posted.iter().any(|posted| {
            posted.type_ == self.kind
                && posted.status == self.status_text()
                && posted.reason.as_deref() == Some(&self.reason)
                && posted.message.as_deref() == Some(&self.message)
        })
    }

    /// Whether the API server has it with this status.
    pub fn has_status(&self, posted: &[NodeCondition]) -> bool {
        let is = |posted: &NodeCondition| posted.type_ == self.kind && posted.status == self.status_text();
        posted.iter().any(is)
    }

    /// The event about a change to this, as a kubelet has it; of a node that is not ready with the cause.
    pub fn event(&self, node: &str) -> Event {
        let reason = match (self.kind.as_str(), self.status) {
            (READY, true) => "NodeReady",
            (READY, false) => "NodeNotReady",
            ("MemoryPressure", true) => "NodeHasInsufficientMemory",
            ("MemoryPressure", false) => "NodeHasSufficientMemory",
            ("DiskPressure", true) => "NodeHasDiskPressure",
            ("DiskPressure", false) => "NodeHasNoDiskPressure",
            (_, true) => "NodeHasInsufficientPID",
            (_, false) => "NodeHasSufficientPID",
        };
        let mut message = format!("Node {node} status is now: {reason}");
        if reason == "NodeNotReady" {
            message = format!("{message}: {}", self.message);
        }
        Event::node(EventType::Normal, reason, &message)
    }

    /// With times, following on what the API server has: the transition moves only with the status.
    pub fn at(&self, now: Timestamp, posted: &[NodeCondition]) -> NodeCondition {
        let same = posted
            .iter()
            .find(|posted| posted.type_ == self.kind && posted.status == self.status_text());
        let now = Time(whole_second(now));
        NodeCondition {
            type_: self.kind.clone(),
            status: self.status_text().to_owned(),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            last_transition_time: Some(
                same.and_then(|same| same.last_transition_time.clone())
                    .unwrap_or_else(|| now.clone()),
            ),
            last_heartbeat_time: Some(now),
        }
    }
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// The conditions about resources.
pub fn pressure(conditions: &[PressureCondition]) -> Vec<Condition> {
    let of = |(kind, reason, message): (&str, &str, &str)| {
        let known = conditions.iter().find(|condition| condition.kind == kind);
        Condition {
            kind: kind.to_owned(),
            status: known.is_some_and(|known| known.status),
            reason: known.map_or(reason, |known| known.reason).to_owned(),
            message: known.map_or(message, |known| known.message).to_owned(),
        }
    };
    NO_PRESSURE.map(of).into()
}

/// The Ready condition: why not, or that all is well.
pub fn ready(not_ready_because: &[String]) -> Condition {
    let message = match not_ready_because {
        [] => "pleg is posting ready status".to_owned(),
        reasons => shortened(&reasons.join("; ")),
    };
    let status = not_ready_because.is_empty();
    Condition {
        kind: READY.to_owned(),
        status,
        reason: if status { "KubeletReady" } else { "KubeletNotReady" }.to_owned(),
        message,
    }
}

fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let mut short: String = message.chars().take(MAX_MESSAGE / 4 * 3).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn a_transition_moves_with_the_status_only() {
        let good = ready(&[]);
        assert!(!good.is_posted(&[]));
        let first = good.at(at(0), &[]);
        assert_eq!(first.last_transition_time, Some(Time(at(0))));
        let posted = [first];
        assert!(good.is_posted(&posted));
        let later = good.at(at(10), &posted);
        assert_eq!(
            (later.last_transition_time, later.last_heartbeat_time),
            (Some(Time(at(0))), Some(Time(at(10))))
        );
        let bad = ready(&["container runtime is down".to_owned()]);
        assert!(!bad.is_posted(&posted));
        let turned = bad.at(at(20), &posted);
        assert_eq!(
            (turned.status.as_str(), turned.last_transition_time.clone()),
            ("False", Some(Time(at(20))))
        );
        // Another message is another text of the same state.
        let worse = ready(&["container runtime is down".to_owned(), "network".to_owned()]);
        assert!(!worse.is_posted(&[turned.clone()]));
        assert_eq!(worse.at(at(30), &[turned]).last_transition_time, Some(Time(at(20))));
        // What the controller writes about a node that was silent is a change too.
        let unknown = NodeCondition {
            status: "Unknown".to_owned(),
            ..later_unknown()
        };
        assert_eq!(good.at(at(40), &[unknown]).last_transition_time, Some(Time(at(40))));
    }

    fn later_unknown() -> NodeCondition {
        ready(&[]).at(at(35), &[])
    }

    #[test]
    fn pressure_is_none_until_it_is_known() {
        let conditions = pressure(&[]);
        let kinds: Vec<_> = conditions.iter().map(|condition| condition.kind.as_str()).collect();
        assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure"]);
        assert!(conditions.iter().all(|condition| !condition.status));
    }

    #[test]
    fn a_message_is_short() {
        let long = ready(&["ä".repeat(5000)]);
        assert!(long.message.chars().count() < MAX_MESSAGE && long.message.ends_with('…'));
        let two = ready(&["one".to_owned(), "two".to_owned()]);
        assert_eq!(
            (two.message.as_str(), two.reason.as_str()),
            ("one; two", "KubeletNotReady")
        );
    }
}
