//! Stopped pods are listed again soon: they will be removed, and no runtime promises an event for that.
//!
//! CRI-O reports the stops of a pod's containers and of its sandbox, and nothing when the sandbox is then removed together with its
//! containers. Pure: the caller brings the time, and knows what has stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::Instant;

use crate::model::PodUid;

/// The delays, one after the other. After the last one the pod is left to the next full relist.
const DELAYS: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// Pods that wait. When more stop at once, the others are left to the next full relist.
const LIMIT: usize = 256;

/// Pods that may have stopped, and when to list each.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    due: BTreeSet<(Instant, PodUid)>,
    /// The same pods, each with its time and its place in [`DELAYS`].
    pods: HashMap<PodUid, (Instant, usize)>,
}

impl Stopped {
    /// Something of this pod ended. Starts with the first delay, whatever was planned for the pod before.
    pub(crate) fn ended(&mut self, uid: &PodUid, now: Instant) {
        if let Some((at, _)) = self.pods.remove(uid) {
            self.due.remove(&(at, uid.clone()));
        }
        self.put(uid.clone(), 0, now);
    }

    fn put(&mut self, uid: PodUid, place: usize, now: Instant) {
        if let Some(delay) = DELAYS.get(place)
            && self.pods.len() < LIMIT
        {
            self.due.insert((now + *delay, uid.clone()));
            self.pods.insert(uid, (now + *delay, place));
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the pods that are due and have stopped, and plans the next list of each. A pod that has not stopped, or is gone, is
    /// dropped.
    pub(crate) fn due(&mut self, now: Instant, mut has_stopped: impl FnMut(&PodUid) -> bool) -> Vec<PodUid> {
        let mut stopped = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some((_, uid)) = self.due.pop_first() else { break };
            let place = self.pods.remove(&uid).map_or(0, |(_, place)| place);
            if has_stopped(&uid) {
                self.put(uid.clone(), place + 1, now);
                stopped.push(uid);
            }
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the pod is listed, in milliseconds, if it is seen to have stopped until `gone`.
    fn lists(stopped: &mut Stopped, start: Instant, gone: u64) -> Vec<u64> {
        let mut lists = Vec::new();
        while let Some(at) = stopped.next() {
            let ms = u64::try_from((at - start).as_millis()).unwrap();
            if !stopped.due(at, |_| ms < gone).is_empty() {
                lists.push(ms);
            }
        }
        lists
    }

    #[test]
    fn a_stopped_pod_is_listed_five_times_at_most() {
        let start = Instant::now();
        let uid = PodUid::from("a");
        for (gone, expected) in [
            (u64::MAX, &[500, 1500, 3500, 7500, 15_500][..]),
            (3000, &[500, 1500]),
            (0, &[]),
        ] {
            let mut stopped = Stopped::default();
            stopped.ended(&uid, start);
            assert_eq!(lists(&mut stopped, start, gone), expected);
            assert!(stopped.due.is_empty() && stopped.pods.is_empty());
        }
    }

    #[test]
    fn what_ends_later_starts_anew() {
        let start = Instant::now();
        let mut stopped = Stopped::default();
        stopped.ended(&"a".into(), start);
        assert_eq!(stopped.due(start + DELAYS[0], |_| true).len(), 1);
        stopped.ended(&"a".into(), start + DELAYS[0]);
        assert_eq!(stopped.next(), Some(start + 2 * DELAYS[0]));
    }

    #[test]
    fn a_drained_node_leaves_no_more_than_fits() {
        let now = Instant::now();
        let mut stopped = Stopped::default();
        for n in 0..3 * LIMIT {
            stopped.ended(&PodUid::from(format!("{n}").as_str()), now);
        }
        assert_eq!((stopped.due.len(), stopped.pods.len()), (LIMIT, LIMIT));
        assert_eq!(stopped.due(now + DELAYS[0], |_| true).len(), LIMIT);
        assert_eq!((stopped.due.len(), stopped.pods.len()), (LIMIT, LIMIT));
    }
}
