//! What events make the generator do: what they were about, what they claim, and what they do not report.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::super::Generator;
use crate::evented::Reached;
use crate::evented::unconfirmed::Claim;
use crate::model::event::Source;
use crate::model::{ContainerState, PodUid, SandboxState};
use crate::records::{PodKey, Records};
use crate::runtime::Runtime;

/// Up to this many pods at once are asked for by id. Beyond that, one full relist finds out which of them changed.
const MOST_BY_ID: usize = 32;

/// Pods that events hint at and that have to be listed.
#[derive(Debug, Default)]
pub(in crate::generator) struct HintedPods {
    pub(in crate::generator) all: bool,
    /// Pods, with the ids that should be found in them.
    pub(in crate::generator) pods: HashMap<PodUid, HashSet<Arc<str>>>,
}

impl HintedPods {
    pub(in crate::generator) fn is_empty(&self) -> bool {
        !self.all && self.pods.is_empty()
    }

    /// The pod is to be listed, or everything if it is not known; the id should be found in it.
    pub(in crate::generator) fn want(&mut self, pod: Option<PodUid>, id: Option<Arc<str>>) {
        match pod {
            Some(uid) => self.pods.entry(uid).or_default().extend(id),
            None => self.all = true,
        }
        self.bound();
    }

    /// Events hint at this pod, or at any.
    pub(in crate::generator) fn has(&self, uid: &PodUid) -> bool {
        self.all || self.pods.contains_key(uid)
    }

    /// Takes back what a failed relist has not served.
    pub(in crate::generator) fn put_back(&mut self, other: Self) {
        self.all |= other.all;
        for (uid, ids) in other.pods {
            self.pods.entry(uid).or_default().extend(ids);
        }
        self.bound();
    }

    /// More pods than this are everything.
    fn bound(&mut self) {
        const LIMIT: usize = 4096;
        if self.pods.len() > LIMIT || self.pods.values().map(HashSet::len).sum::<usize>() > LIMIT {
            *self = Self {
                all: true,
                pods: HashMap::new(),
            };
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Inspects what the events were about, or notes that lists are wanted for it.
    pub(super) fn take_in_hints(&mut self) {
        let hints = self.requests.take_event_hints();
        if hints.is_empty() {
            return;
        }
        let now = Instant::now();
        let stream = &mut self.stream;
        stream.trust.reported();
        if hints.all {
            stream.hinted.all = true;
            stream.misses.hinted_all(now);
        }
        let mut by_id: HashMap<PodKey, Vec<Arc<str>>> = HashMap::new();
        for (id, hint) in hints.objects {
            let known = self.records.pod_of(&id);
            let uid = known.and_then(|key| self.records.pod(key)).map(|pod| pod.uid.clone());
            // The records know better: a container does not change its pod.
            let (uid, deleted) = (uid.or(hint.pod), hint.reached == Some(Reached::Gone));
            if let (Some(reached), Some(uid)) = (hint.reached, &uid) {
                let (id, pod) = (Arc::clone(&id), uid.clone());
                stream.unconfirmed.claimed(Claim { id, pod, reached }, now);
            }
            // An object that was never listed and is gone again is no news; unless a list is in flight, or another event reported it, as
            // runtimes do that report the deletion of what has only stopped.
            let news = hint.seen || self.lists.is_in_flight();
            match (known, uid) {
                (Some(key), Some(uid)) => {
                    stream.misses.hinted(&uid, now);
                    if hint.reached != Some(Reached::Running) {
                        stream.stopped.ended(&uid, now);
                    }
                    if deleted {
                        stream.hinted.pods.entry(uid).or_default();
                    } else {
                        by_id.entry(key).or_default().push(id);
                    }
                }
                (_, Some(uid)) => {
                    stream.misses.hinted(&uid, now);
                    if news {
                        let ids = stream.hinted.pods.entry(uid).or_default();
                        // It need not be there.
                        ids.extend(Some(id).filter(|_| !deleted));
                    }
                }
                (_, None) => {
                    stream.misses.hinted_all(now);
                    stream.hinted.all |= news;
                }
            }
        }
        for uid in hints.pods {
            stream.misses.hinted(&uid, now);
            stream.hinted.pods.entry(uid).or_default();
        }
        stream.hinted.bound();
        self.inspect_or_list(by_id, Source::Evented);
    }

    /// Checks again what events have claimed and what is still not so.
    pub(super) fn check_claims(&mut self) {
        let now = Instant::now();
        if self.stream.unconfirmed.next().is_none_or(|at| now < at) {
            return;
        }
        let records = &self.records;
        let open = self
            .stream
            .unconfirmed
            .due(now, |claim| records.has_reached(&claim.id, claim.reached));
        let mut by_id: HashMap<PodKey, Vec<Arc<str>>> = HashMap::new();
        for claim in open {
            // By id it is seen neither that something is gone nor that a sandbox has become ready.
            let listed = claim.reached == Reached::Gone || self.records.is_sandbox(&claim.id);
            match self.records.pod_of(&claim.id) {
                Some(key) if !listed => by_id.entry(key).or_default().push(claim.id),
                Some(_) => _ = self.stream.hinted.pods.entry(claim.pod).or_default(),
                None => {}
            }
        }
        self.stream.hinted.bound();
        self.inspect_or_list(by_id, Source::Evented);
    }

    /// Lists pods again that have stopped, and without events also those that have exited containers: the kernel does not show when one
    /// of them is removed, and neither does a question by its id. While full relists are frequent those do it.
    pub(super) fn list_stopped_pods(&mut self) {
        let now = Instant::now();
        if self.stream.stopped.next().is_none_or(|at| now < at) {
            return;
        }
        let (records, events) = (&self.records, self.stream.connected);
        let has_stopped = |uid: &PodUid| has_stopped(records, uid) || !events && has_exited(records, uid);
        let stopped = self.stream.stopped.due(now, has_stopped);
        if self.stream.standing.is_announced() && self.stream.period.is_rare() {
            for uid in stopped {
                self.stream.hinted.pods.entry(uid).or_default();
            }
            self.stream.hinted.bound();
        }
    }

    /// Asks for these objects by their ids; or lists everything, if they are many.
    pub(in crate::generator) fn inspect_or_list(&mut self, by_id: HashMap<PodKey, Vec<Arc<str>>>, source: Source) {
        if by_id.is_empty() {
            return;
        }
        if self.schedule.is_first() {
            self.stream.hinted.all = true;
            return;
        }
        if by_id.len() > MOST_BY_ID {
            // So many pods are one full relist, and it still knows which of them events were about.
            let uids = by_id.keys().filter_map(|&key| self.records.pod(key));
            let pods = uids.map(|pod| (pod.uid.clone(), HashSet::new())).collect();
            self.stream.hinted.put_back(HintedPods { all: false, pods });
            return;
        }
        let complete = self.publisher.complete();
        for (key, ids) in by_id {
            // A container may exist that no list has shown yet, so this vouches for nothing beyond the last complete relist.
            self.inspect_objects(key, ids, complete, source);
        }
    }
}

/// The pod is known and none of its sandboxes is ready.
fn has_stopped(records: &Records, uid: &PodUid) -> bool {
    records.key(uid).is_some_and(|key| {
        let view = records.listed(key);
        let ready = |(_, state): &(_, SandboxState)| *state == SandboxState::Ready;
        !view.is_empty() && !view.sandboxes.iter().any(ready)
    })
}

/// A container of the pod has exited and is not removed.
fn has_exited(records: &Records, uid: &PodUid) -> bool {
    records.key(uid).is_some_and(|key| {
        let exited = |(_, state): &(_, ContainerState)| *state == ContainerState::Exited;
        records.listed(key).containers.iter().any(exited)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_are_wanted_for_is_bounded() {
        let mut wanted = HintedPods::default();
        for n in 0..10_000 {
            let pods = HashMap::from([(PodUid::from(format!("{n}").as_str()), HashSet::new())]);
            wanted.put_back(HintedPods { all: false, pods });
        }
        assert!(wanted.all && wanted.pods.len() < 4097);
        let ids = (0..10_000).map(|n| format!("{n}").as_str().into()).collect();
        let mut wanted = HintedPods::default();
        wanted.put_back(HintedPods {
            all: false,
            pods: HashMap::from([(PodUid::from("a"), ids)]),
        });
        assert!(wanted.all && wanted.pods.is_empty());
    }
}
