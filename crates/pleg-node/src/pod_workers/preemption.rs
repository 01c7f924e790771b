//! Which pods make room for a critical one that would not fit on the node otherwise, as in the kubelet.
//!
//! The choice is pure. The worker of the critical pod makes it, and hands the pods over to the node loop, which ends them; it does not wait
//! for that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::PodUid;
use tokio::sync::Notify;

use super::allocatable::{Allocatable, Requested, Requests, fits};
use crate::eviction::ranking::{CRITICAL, priority};
use crate::manifest::Pod;
use crate::status::{QosClass, qos_class};

/// How much a pod is worth: the lowest is preempted first. None for pods that are never preempted: critical and static ones.
pub(super) fn worth(pod: &Pod) -> Option<Worth> {
    let priority = priority(pod);
    let class = match qos_class(pod) {
        QosClass::BestEffort => 0,
        QosClass::Burstable => 1,
        QosClass::Guaranteed => 2,
    };
    (priority < CRITICAL && !pod.is_static()).then_some((priority, class))
}

/// Priority, then the class of service.
pub(super) type Worth = (i64, u8);

/// The pods without which `requested` fits. Empty if it fits without that, or does not fit even without all of them.
pub(super) fn victims(limits: Allocatable, all: &BTreeMap<PodUid, Requested>, requested: Requests) -> Vec<PodUid> {
    let mut left = all.clone();
    let mut candidates: Vec<(Worth, Reverse<Requests>, &PodUid)> = all
        .iter()
        .filter_map(|(uid, pod)| Some((pod.worth?, Reverse(pod.requests), uid)))
        .collect();
    // Of pods that are worth the same, the largest makes the most room.
    candidates.sort();
    let mut victims = Vec::new();
    for (_, _, uid) in candidates {
        if fits(limits, &left, requested).is_ok() {
            break;
        }
        left.remove(uid);
        victims.push(uid.clone());
    }
    if fits(limits, &left, requested).is_err() {
        return Vec::new();
    }
    // Those that were not needed after all are spared, the most valuable first.
    for uid in victims.clone().into_iter().rev() {
        let Some(pod) = all.get(&uid) else { continue };
        left.insert(uid.clone(), *pod);
        if fits(limits, &left, requested).is_ok() {
            victims.retain(|victim| *victim != uid);
        } else {
            left.remove(&uid);
        }
    }
    victims
}

/// Pods that are to end, for the node loop. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preemptions(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    // Held for a change; never across an await. No more than there are pods.
    pods: Mutex<BTreeSet<PodUid>>,
    wake: Notify,
}

impl Preemptions {
    pub(super) fn add(&self, pods: Vec<PodUid>) {
        self.0.pods.lock().extend(pods);
        self.0.wake.notify_one();
    }

    /// Waits for the next pod. Cancel-safe.
    pub(crate) async fn next(&self) -> PodUid {
        loop {
            if let Some(uid) = self.0.pods.lock().pop_first() {
                return uid;
            }
            self.0.wake.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Allocatable = Allocatable {
        milli_cpu: 1000,
        memory: 1000,
        ephemeral_storage: 1000,
        pods: 4,
    };

    /// Name, worth, CPU and memory of each pod; CPU and memory that are wanted; who makes room.
    type Case<'a> = (&'a [(&'a str, Option<Worth>, i64, i64)], (i64, i64), &'a str);

    #[test]
    fn the_least_valuable_make_room_and_no_more_than_needed() {
        let cases: [Case<'_>; 8] = [
            (&[("a", Some((0, 0)), 500, 0)], (500, 0), ""),
            (&[("a", Some((0, 0)), 600, 0)], (500, 0), "a"),
            // The lower priority, then the lower class.
            (
                &[("a", Some((9, 0)), 500, 0), ("b", Some((0, 2)), 500, 0)],
                (500, 0),
                "b",
            ),
            (
                &[("a", Some((0, 2)), 500, 0), ("b", Some((0, 1)), 500, 0)],
                (500, 0),
                "b",
            ),
            // One that is large enough, instead of several; and one that did not help is spared.
            (
                &[
                    ("a", Some((0, 1)), 100, 0),
                    ("b", Some((0, 1)), 800, 0),
                    ("c", Some((0, 1)), 100, 0),
                ],
                (500, 0),
                "b",
            ),
            (
                &[("a", Some((0, 0)), 0, 900), ("b", Some((5, 1)), 900, 0)],
                (500, 0),
                "b",
            ),
            // Critical and static pods stay, and nobody ends for nothing.
            (&[("a", None, 900, 0), ("b", Some((0, 0)), 100, 0)], (500, 0), ""),
            // A place for a pod.
            (
                &[
                    ("a", Some((3, 0)), 0, 0),
                    ("b", Some((2, 0)), 0, 0),
                    ("c", Some((1, 0)), 0, 0),
                    ("d", None, 0, 0),
                ],
                (0, 0),
                "c",
            ),
        ];
        for (pods, (cpu, memory), wanted) in cases {
            let all = pods.iter().map(|(name, worth, cpu, memory)| {
                let pod = Requested {
                    requests: [*cpu, *memory, 0],
                    worth: *worth,
                };
                (PodUid::from(*name), pod)
            });
            let all: BTreeMap<PodUid, Requested> = all.collect();
            let found: Vec<String> = victims(LIMITS, &all, [cpu, memory, 0])
                .iter()
                .map(|uid| uid.as_str().to_owned())
                .collect();
            assert_eq!(found.join(" "), wanted, "{pods:?}");
        }
    }

    #[tokio::test]
    async fn pods_are_handed_over_once() {
        let preemptions = Preemptions::default();
        preemptions.add(vec!["b".into(), "a".into()]);
        preemptions.add(vec!["a".into()]);
        assert_eq!(preemptions.next().await.as_str(), "a");
        assert_eq!(preemptions.next().await.as_str(), "b");
        let next = tokio::time::timeout(std::time::Duration::ZERO, preemptions.next());
        assert!(next.await.is_err());
    }
}
