//! The condition of a node beside a kubelet: what it says, when it is sent, and what is read back from it. Pure.
//!
//! Its type is ours alone, and a patch touches no other: conditions are merged by type. True is a problem, as in the conditions of
//! node-problem-detector. A text has times, but no ages: it changes only with its cause.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pleg_node::events::{Event, EventType};
use serde_json::{Value, json};

use super::finding::reason;
use super::tracker::{Episode, RECOVERED, lasted};

/// The type of the condition, on nodes and on pods.
pub const STUCK: &str = crate::status::STUCK;
/// The reason while nothing is stuck.
pub const NOTHING_STUCK: &str = "NothingIsStuck";
/// Most troubles that a message names.
const MOST_NAMED: usize = 5;
/// Bytes of a message.
const MAX_MESSAGE: usize = 1024;
/// Most pods that are read back from a message.
const MOST_READ: usize = MOST_NAMED;

/// What the condition of the node should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Something is stuck.
    pub(super) stuck: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Wanted {
    /// For what is stuck, the worst first, and so many more that are not listed.
    pub(super) fn of(stuck: &[&Episode], untracked: usize) -> Self {
        let Some(worst) = stuck.first() else {
            return Self {
                stuck: false,
                reason: NOTHING_STUCK.to_owned(),
                message: "the runtime answers for every pod and container".to_owned(),
            };
        };
        let mut message = String::new();
        let mut named = 0;
        for episode in stuck.iter().take(MOST_NAMED) {
            let next = format!("{} (since {})", episode.text, episode.since);
            // Room for what is said about the rest.
            if named > 0 && message.len() + next.len() > MAX_MESSAGE - 40 {
                break;
            }
            // Writing to a string cannot fail.
            let _ = write!(message, "{}{next}", if named > 0 { "; " } else { "" });
            named += 1;
        }
        let more = stuck.len() - named + untracked;
        if more > 0 {
            let _ = write!(message, "; and {more} more");
        }
        Self {
            stuck: true,
            reason: reason(worst.trouble),
            message,
        }
    }

    /// What an earlier process of ours has posted.
    pub(super) fn of_posted(posted: &NodeCondition) -> Self {
        Self {
            stuck: posted.status == "True",
            reason: posted.reason.clone().unwrap_or_default(),
            message: posted.message.clone().unwrap_or_default(),
        }
    }

    fn status(&self) -> &'static str {
        if self.stuck { "True" } else { "False" }
    }

    /// With times, following on what is posted: the transition moves only with the status.
    pub(super) fn at(&self, now: Timestamp, posted: Option<&NodeCondition>) -> NodeCondition {
        let now = Time(whole_second(now));
        let same = posted.filter(|posted| posted.status == self.status());
        let transition = same.and_then(|same| same.last_transition_time.clone());
        NodeCondition {
            type_: STUCK.to_owned(),
            status: self.status().to_owned(),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            last_transition_time: Some(transition.unwrap_or_else(|| now.clone())),
            last_heartbeat_time: Some(now),
        }
    }

    /// The event of the node about a change to this. `since`: when it was first reported as stuck.
    pub(super) fn event(&self, since: Timestamp, now: Timestamp) -> Event {
        if self.stuck {
            return Event::node(EventType::Warning, self.reason.clone(), &self.message);
        }
        let message = format!("nothing is stuck any more, after {}", lasted(since, now));
        Event::node(EventType::Normal, RECOVERED, &message)
    }
}

pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Our condition of a node.
pub(super) fn of_node(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == STUCK)
}

/// The patch of a status that sets our condition, and nothing else.
pub(super) fn patch(condition: &impl serde::Serialize) -> Value {
    json!({ "status": { "conditions": [condition] } })
}

/// The patch of a status that removes our condition, and nothing else.
pub(super) fn removal() -> Value {
    json!({ "status": { "conditions": [{ "type": STUCK, "$patch": "delete" }] } })
}

/// Namespaces and names of the pods that a message of ours names. It may have been written by anybody.
pub(super) fn pods_in(message: &str) -> Vec<(String, String)> {
    let mut pods = Vec::new();
    for after in message.split("pod ").skip(1) {
        let end = after.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || "-./".contains(c)));
        let words = after[..end.unwrap_or(after.len())].trim_end_matches(['.', '-']);
        let Some((namespace, name)) = words.split_once('/') else {
            continue;
        };
        let pod = (namespace.to_owned(), name.to_owned());
        if !namespace.is_empty() && !name.is_empty() && !name.contains('/') && !pods.contains(&pod) {
            pods.push(pod);
        }
        if pods.len() == MOST_READ {
            break;
        }
    }
    pods
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pleg::{PodRef, Trouble};
    use tokio::time::Instant;

    use super::super::finding::Finding;
    use super::super::tracker::Tracker;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn wanted(count: usize, words: &str) -> Wanted {
        let finding = |n: usize| {
            let name = format!("web-{n}");
            Finding {
                trouble: if n == 0 {
                    Trouble::HungShim
                } else {
                    Trouble::StuckInspection
                },
                text: format!("ContainerStatus of container app in pod shop/{name} is {words}"),
                pod: Some(PodRef {
                    uid: name.as_str().into(),
                    namespace: "shop".into(),
                    name: name.as_str().into(),
                }),
                age: Duration::from_secs(10),
            }
        };
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        tracker.observe((0..count).map(finding).collect(), at(10), now);
        Wanted::of(&tracker.stuck(now), tracker.untracked())
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_names_the_worst_first_and_is_short() {
        let fine = wanted(0, "");
        assert_eq!((fine.stuck, fine.reason.as_str()), (false, NOTHING_STUCK));
        let one = wanted(1, "not answered");
        assert_eq!(one.reason, "HungShim");
        assert_eq!(
            one.message,
            "ContainerStatus of container app in pod shop/web-0 is not answered (since 2027-01-15T08:00:00Z)"
        );
        let many = wanted(500, "not answered");
        assert!(many.message.starts_with(&one.message), "{}", many.message);
        assert!(many.message.ends_with("; and 495 more"), "{}", many.message);
        for words in ["long ".repeat(70), "ü".repeat(200)] {
            let long = wanted(500, &words);
            assert!(long.message.len() <= MAX_MESSAGE, "{}", long.message.len());
            assert!(long.message.contains("; and 49"), "{}", long.message);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_transition_moves_with_the_status_only() {
        let (fine, one) = (wanted(0, ""), wanted(1, "stuck"));
        let first = one.at(at(20), None);
        assert_eq!(first.last_transition_time, Some(Time(at(20))));
        let worse = wanted(2, "stuck").at(at(30), Some(&first));
        assert_eq!(
            (worse.last_transition_time.clone(), worse.last_heartbeat_time.clone()),
            (Some(Time(at(20))), Some(Time(at(30))))
        );
        assert_eq!(Wanted::of_posted(&worse), wanted(2, "stuck"));
        let over = fine.at(at(40), Some(&worse));
        assert_eq!(
            (over.status.as_str(), over.last_transition_time),
            ("False", Some(Time(at(40))))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_the_node_have_how_long_it_took() {
        let began = wanted(1, "stuck").event(at(0), at(0));
        assert_eq!((began.kind, began.reason.as_ref()), (EventType::Warning, "HungShim"));
        let ended = wanted(0, "").event(at(0), at(75));
        assert_eq!((ended.kind, ended.reason.as_ref()), (EventType::Normal, RECOVERED));
        assert_eq!(ended.message, "nothing is stuck any more, after 1m15s");
    }

    #[test]
    fn a_patch_touches_our_condition_only() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": STUCK, "status": "False"}, {"type": "X", "status": "True"}
            ]},
        }))
        .unwrap();
        let ours = of_node(&node).unwrap();
        assert_eq!(ours.status, "False");
        assert_eq!(
            patch(ours),
            json!({"status": {"conditions": [{"type": "pleg.io/Stuck", "status": "False"}]}})
        );
        assert_eq!(
            removal(),
            json!({"status": {"conditions": [{"type": "pleg.io/Stuck", "$patch": "delete"}]}})
        );
        assert_eq!(of_node(&Node::default()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_read_back_from_a_message() {
        let pods = |message: &str| -> Vec<String> {
            let pods = pods_in(message).into_iter();
            pods.map(|(namespace, name)| format!("{namespace}/{name}")).collect()
        };
        assert_eq!(
            pods(&wanted(3, "stuck").message),
            ["shop/web-0", "shop/web-1", "shop/web-2"]
        );
        assert_eq!(
            pods("the shim of pod a/b-1.c hangs: x; the shim of pod a/b-1.c. Again"),
            ["a/b-1.c"]
        );
        for (hostile, expected) in [
            ("", 0),
            ("pod ", 0),
            ("pod /", 0),
            ("pod a/", 0),
            ("pod a/b/c", 0),
            ("pod ../..", 0),
            ("pod Ü/ü", 0),
            ("pod a/ü", 0),
        ] {
            assert_eq!(pods_in(hostile).len(), expected, "{hostile}");
        }
        let flood = (0..9999).map(|n| format!("pod a/b{n} ")).collect::<Vec<_>>().concat();
        assert_eq!(pods_in(&flood).len(), MOST_READ);
    }
}
