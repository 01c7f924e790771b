//! Takes in what the lists said: records, gauges, verification of the event stream, and an inspection for each pod with news.

use hashbrown::HashSet;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Generator;
use super::inspections::InspectTrigger;
use super::listing::{Relist, SingleList};
use super::schedule::OpenRelist;
use crate::health::Load;
use crate::model::PodUid;
use crate::model::event::Source;
use crate::publish::cache::Token;
use crate::recorder::line::{self, Turn};
use crate::records::snapshot::Snapshot;
use crate::records::{Coverage, PodKey};
use crate::runtime::Runtime;

/// How large the answers were, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    both: usize,
    larger: usize,
}

impl Size {
    pub(super) fn of(sandboxes: usize, containers: usize) -> Self {
        Self {
            both: sandboxes + containers,
            larger: sandboxes.max(containers),
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Takes in one of the two lists, while the other one does not answer. The list of sandboxes establishes which sandboxes there
    /// are, the list of containers which containers; neither says anything about the other, and together they are no complete relist.
    pub(super) fn take_in_single_list(&mut self, list: SingleList, started: Instant) {
        let mut snapshot = Snapshot::default();
        let coverage = match list {
            SingleList::Sandboxes(list) => {
                snapshot.sandboxes = list;
                self.lists.sandboxes_listed(started);
                Coverage::Sandboxes
            }
            SingleList::Containers(list) => {
                snapshot.containers = list;
                Coverage::Containers
            }
        };
        let (touched, _) = self.records.observe(&mut snapshot, coverage);
        let recorded = (line::Scope::Pods, Source::Relist);
        self.recorder
            .relisted(&mut self.records, &touched, recorded, started.elapsed(), 0);
        self.census.note(!touched.is_empty());
        let token = self.publisher.complete();
        for &key in &touched {
            self.schedule_inspection(key, token, Source::Relist, InspectTrigger::News);
        }
        self.records.recycle(touched);
    }

    /// Takes in the lists of one pod.
    pub(super) fn take_in_pod(
        &mut self,
        uid: &PodUid,
        snapshot: &mut Snapshot,
        token: Token,
        (source, why): (Source, InspectTrigger),
        started: Instant,
    ) {
        // A pod that we do not know, or no longer since the lists were sent, has nothing that could be absent.
        // What of it has no label is not in these lists, so they vouch for nothing.
        let known = self.records.key(uid);
        let coverage = known.map_or(Coverage::News, Coverage::Pod);
        let token = known.map_or_else(|| self.publisher.complete(), |_| token);
        let (touched, _) = self.records.observe(snapshot, coverage);
        let recorded = (line::Scope::Pods, source);
        self.recorder
            .relisted(&mut self.records, &touched, recorded, started.elapsed(), 0);
        self.census.note(!touched.is_empty());
        let key = self.records.key(uid);
        if let Some(key) = key {
            self.quarantine.listed_again(key, started);
        }
        for &pod in touched
            .iter()
            .filter(|&&pod| why == InspectTrigger::News || Some(pod) != key)
        {
            self.schedule_inspection(pod, token, source, InspectTrigger::News);
        }
        self.records.recycle(touched);
        if why == InspectTrigger::Asked {
            if let Some(key) = self.records.key(uid) {
                self.schedule_inspection(key, token, source, why);
            }
            if self.publisher.cache.reader().get(uid).is_none() {
                self.confirm_absence(source);
            }
        }
    }

    /// Takes in a full relist: one that is complete, even if its lists were taken in one after the other.
    pub(super) fn take_in_full(&mut self, snapshot: &mut Snapshot, coverage: Coverage, relist: &Relist, size: Size) {
        let touched = self.observe_full(snapshot, coverage, relist, size);
        self.inspect_touched(&touched, relist);
        let waiting: HashSet<_> = touched
            .iter()
            .copied()
            .filter(|key| self.inspections.has(*key))
            .collect();
        self.records.recycle(touched);
        if self.records.is_unsettled() {
            // It vouches for nothing; one whose lists are answered together follows at once.
            self.requests.all(Source::Relist);
        } else {
            // Only now: every pod with news is held.
            self.publisher.cache.complete_relist(relist.token);
        }
        self.schedule
            .open(OpenRelist::new(relist.started, relist.due, size.both, waiting));
        self.runtime_answers();
        self.check_recovery();
        self.end_relist_if_settled();
    }

    /// Brings the records up to date. Returns the pods with news.
    fn observe_full(
        &mut self,
        snapshot: &mut Snapshot,
        coverage: Coverage,
        relist: &Relist,
        size: Size,
    ) -> Vec<PodKey> {
        if coverage != Coverage::Containers {
            self.lists.sandboxes_listed(relist.started);
        }
        let (touched, odd) = self.records.observe(snapshot, coverage);
        let why = (line::Scope::Full, relist.requested.all.unwrap_or(Source::Relist));
        self.recorder
            .relisted(&mut self.records, &touched, why, relist.started.elapsed(), size.both);
        let odd_changed = self.health.odd(odd);
        self.metrics.odd(&odd);
        if self.schedule.is_first() || self.census.is_outdated() || !touched.is_empty() || odd_changed {
            self.census.count(&self.records, &self.metrics);
        }
        self.verify(&touched, &relist.hinted);
        self.health.load(Load {
            list: size.larger,
            dead: self.census.dead(),
            objects: self.records.objects(),
            call: self.prober.latency(),
        });
        touched
    }

    /// Schedules inspections of the pods with news, and of those that callers asked for.
    fn inspect_touched(&mut self, touched: &[PodKey], relist: &Relist) {
        let Relist {
            token,
            requested,
            hinted,
            ..
        } = relist;
        for &key in touched {
            let Some(pod) = self.records.pod(key) else { continue };
            let requested_by = requested.pods.get(&pod.uid).copied();
            let event = || hinted.has(&pod.uid).then_some(self.stream.hint_source());
            let source = requested_by.or(requested.all).or_else(event).unwrap_or(Source::Relist);
            self.schedule_inspection(key, *token, source, InspectTrigger::News);
        }
        for (uid, &source) in &requested.pods {
            if let Some(key) = self.records.key(uid) {
                self.schedule_inspection(key, *token, source, InspectTrigger::Asked);
            }
        }
    }

    /// A relist is complete: if relists had failed before, the runtime is back.
    fn runtime_answers(&mut self) {
        let Some((lasted, attempts)) = self.health.relist_complete() else {
            return;
        };
        self.recorder.transition(Turn::RuntimeBack, None, None, Some(lasted));
        let relists = if attempts == 1 { "relist" } else { "relists" };
        tracing::info!(
            "the runtime answers again after {} ({attempts} {relists} failed)",
            seconds(lasted)
        );
        self.stream.runtime_back();
        self.find_unwatched_again();
        self.quarantine.retry_all();
    }
}
