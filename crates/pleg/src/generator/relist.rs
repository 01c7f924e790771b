//! Plans a relist, lists, and takes in what the lists said.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join, try_join_all};
use hashbrown::HashSet;
use pleg_cri::error::seconds;
use pleg_cri::{Error, ErrorKind, ListFilter, ListSummary, Rpc};
use tokio::time::Instant;

use super::Generator;
use super::event_stream::ListRequests;
use super::inspections::InspectTrigger;
use crate::generator::requests::Dirty;
use crate::health::Load;
use crate::model::event::Source;
use crate::model::{ContainerState, PodUid};
use crate::publish::cache::Token;
use crate::recorder::line::{self, Turn};
use crate::records::snapshot::{ContainerList, SandboxList, Snapshot};
use crate::records::{Coverage, PodKey};
use crate::runtime::Runtime;

/// Up to this many pods are listed one by one. A runtime walks all its containers for a filtered list too, so beyond a few a full
/// relist is cheaper.
const MOST_PODS: usize = 4;

/// What a relist covers.
#[derive(Debug)]
enum Scope {
    Full,
    Pods(Vec<PodUid>),
}

/// A relist whose lists are in flight.
#[derive(Debug)]
pub(super) struct Listing {
    scope: Scope,
    token: Token,
    asked: Dirty,
    stirred: ListRequests,
    /// A full relist was due.
    due: bool,
    pub(super) started: Instant,
    /// The runtime was away and has not said yet what it is now.
    lost: bool,
    pub(super) sandboxes: Part<SandboxList>,
    pub(super) containers: Part<ContainerList>,
    /// The lists of single pods.
    pods: Option<Result<Vec<Snapshot>, Failed>>,
    calls: Calls,
}

/// The calls of a relist: its lists, and the question what the runtime is.
struct Calls([Option<BoxFuture<'static, Arrived>>; 3]);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.0.iter().flatten().count();
        f.debug_tuple("Calls").field(&open).finish()
    }
}

/// Name and version of the runtime after an outage; true: not known yet.
type Renewed = Shared<BoxFuture<'static, bool>>;

/// One of the two lists of a full relist.
#[derive(Debug)]
pub(super) enum Part<L> {
    /// In flight.
    Open,
    /// Answered, with so many bytes.
    Answered(L, usize),
    /// Answered and taken in, before the other one was.
    TakenIn,
    /// Failed.
    Failed(Error),
}

impl<L> Part<L> {
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    fn of(list: L, answer: Result<ListSummary, Error>) -> Self {
        match answer {
            Ok(summary) => Self::Answered(list, summary.bytes),
            Err(error) => Self::Failed(error),
        }
    }
}

/// A list that ended.
#[derive(Debug)]
pub(super) enum Arrived {
    Sandboxes(SandboxList, Result<ListSummary, Error>),
    Containers(ContainerList, Result<ListSummary, Error>),
    Pods(Result<Vec<Snapshot>, Failed>),
    /// The runtime said what it is now, or it did not.
    Version {
        lost: bool,
    },
}

/// Which of the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Sandboxes,
    Containers,
}

/// How large the answers were, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    both: usize,
    larger: usize,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub(super) struct Failed {
    error: Error,
    /// The other of the two lists was answered.
    alone: bool,
}

impl Listing {
    /// The next list that ends; never resolves once all have.
    async fn next(&mut self) -> Arrived {
        poll_fn(|context| {
            for slot in &mut self.calls.0 {
                if let Some(call) = slot
                    && let Poll::Ready(arrived) = call.poll_unpin(context)
                {
                    *slot = None;
                    return Poll::Ready(arrived);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Takes in a list that ended. Returns whether it was the last one.
    fn arrived(&mut self, arrived: Arrived) -> bool {
        match arrived {
            Arrived::Sandboxes(list, answer) => self.sandboxes = Part::of(list, answer),
            Arrived::Containers(list, answer) => self.containers = Part::of(list, answer),
            Arrived::Pods(answer) => self.pods = Some(answer),
            Arrived::Version { lost } => self.lost = lost,
        }
        match self.scope {
            Scope::Full => !self.sandboxes.is_open() && !self.containers.is_open(),
            Scope::Pods(_) => self.pods.is_some(),
        }
    }

    /// The list that is worth sending while this look hangs: the one that has answered, or could.
    pub(super) fn answers_otherwise(&self) -> Option<Answers> {
        match (&self.scope, &self.sandboxes, &self.containers) {
            (Scope::Pods(_), ..) | (_, Part::TakenIn, _) => Some(Answers::Sandboxes),
            (.., Part::TakenIn) => Some(Answers::Containers),
            _ => None,
        }
    }

    /// The call that is waited for.
    pub(super) fn waits_for(&self) -> Rpc {
        match self.scope {
            Scope::Full if !self.containers.is_open() => Rpc::ListPodSandbox,
            _ => Rpc::ListContainers,
        }
    }
}

/// Durations of recent lists. They determine when a list counts as hung.
#[derive(Debug, Default)]
pub(super) struct ListTimes {
    last: VecDeque<Duration>,
}

impl ListTimes {
    /// So many are remembered.
    const LAST: usize = 4;
    /// A list that takes so many times as long as the slowest of those hangs.
    const OUTLIER: u32 = 3;

    /// A list has answered. One that was waited for beyond the `patience` counts for no more than twice that: it may have hung.
    fn learn(&mut self, took: Duration, patience: Duration) {
        let took = took.min(patience * 2);
        if self.last.len() == Self::LAST {
            self.last.pop_front();
        }
        self.last.push_back(took);
    }

    /// How long a list is waited for: never less than `least`, so that one that becomes slow at once is not taken for a hang for
    /// good, and never beyond what the threshold leaves time for.
    pub(super) fn patience(&self, least: Duration, threshold: Duration) -> Duration {
        let slowest = self.last.iter().max().copied().unwrap_or_default();
        (slowest * Self::OUTLIER).min(threshold / 3).max(least)
    }
}

/// A full relist whose lists are in, waiting for the inspections it caused.
#[derive(Debug)]
pub(super) struct OpenRelist {
    started: Instant,
    due: bool,
    bytes: usize,
    moved: Instant,
    waiting: HashSet<PodKey>,
}

impl OpenRelist {
    /// When the relist ends regardless of open inspections: no progress for `grace`, or a third of the threshold has passed.
    pub(super) fn late_at(&self, grace: Duration, threshold: Duration) -> Instant {
        (self.moved + grace).min(self.started + threshold / 3)
    }
}

impl<R: Runtime> Generator<R> {
    /// Sends the lists of the relist that is due now, if one is and none is in flight.
    pub(super) fn plan(&mut self) {
        let now = Instant::now();
        if self.listing.is_some() || now < self.not_before {
            return;
        }
        let due = self.settling.is_none() && now >= self.full_at();
        let stirred = self.stirred_at().is_some_and(|at| now >= at);
        let requested = self.asked_at().is_some_and(|at| now >= at);
        if !due && !stirred && !requested {
            return;
        }
        let cache = &self.cache;
        let (asked, token) = self.hints.take(|| cache.start_relist());
        // Whatever the reason for a relist, it is news about what events were about.
        let stirred = std::mem::take(&mut self.evented.wanted);
        let labelled = |uid: &PodUid| self.records.key(uid).map(|key| self.records.is_labelled(key));
        let full = due
            || asked.all.is_some()
            || stirred.all
            || asked.pods.len() + stirred.pods.len() > MOST_PODS
            || self.evented.full_is_cheaper(stirred.pods.len())
            || !asked.pods.keys().all(|uid| labelled(uid).unwrap_or(false))
            // What is not known yet is found by its label, or it will be missing afterwards.
            || !stirred.pods.keys().all(|uid| labelled(uid).unwrap_or(true));
        self.records.begin_relist();
        if full {
            self.end_settling();
            self.full_relist_begins();
            if let Some(last) = self.last_start.replace(now) {
                self.metrics.relist_interval(now - last);
            }
        }
        let mut spare = std::mem::take(&mut self.spare);
        if full {
            self.records.prepare(&mut spare);
        }
        let scope = if full {
            Scope::Full
        } else {
            let stirred = stirred.pods.keys().filter(|uid| !asked.pods.contains_key(*uid));
            Scope::Pods(asked.pods.keys().chain(stirred).cloned().collect())
        };
        let renew = std::mem::take(&mut self.lost);
        self.listing = Some(Listing {
            calls: send_lists(&self.runtime, &scope, renew, spare),
            scope,
            token,
            asked,
            stirred,
            due,
            started: now,
            lost: renew,
            sandboxes: Part::Open,
            containers: Part::Open,
            pods: None,
        });
    }

    /// Takes in a list that ended.
    pub(super) fn list_arrived(&mut self, arrived: Arrived) {
        let Some(listing) = &mut self.listing else { return };
        let answered = match &arrived {
            Arrived::Sandboxes(_, answer) | Arrived::Containers(_, answer) => answer.is_ok(),
            Arrived::Pods(answer) => answer.is_ok(),
            Arrived::Version { .. } => false,
        };
        let (started, full) = (listing.started, matches!(listing.scope, Scope::Full));
        let last = listing.arrived(arrived);
        if answered {
            self.limiter.alive(started);
            if full {
                self.list_times.learn(started.elapsed(), self.list_patience());
                self.health.list_patience(self.list_patience());
            }
        }
        if last && let Some(listing) = self.listing.take() {
            self.listed(listing);
        }
        self.give_up_overtaken();
    }

    /// A list that has not answered for this long hangs.
    pub(super) fn list_patience(&self) -> Duration {
        self.list_times
            .patience(self.config.list_patience, self.config.threshold)
    }

    /// Takes in a relist.
    fn listed(&mut self, listing: Listing) {
        self.lost |= listing.lost;
        self.evented.listed(
            listing.started.elapsed(),
            matches!(listing.scope, Scope::Full),
            !listing.due && !listing.asked.is_empty(),
        );
        match &listing.scope {
            Scope::Full => self.listed_all(listing),
            Scope::Pods(_) => self.listed_pods(listing),
        }
    }

    fn listed_all(&mut self, listing: Listing) {
        let Listing {
            token,
            asked,
            stirred,
            due,
            started,
            sandboxes,
            containers,
            ..
        } = listing;
        let why = (&asked, &stirred);
        let mut snapshot = Snapshot::default();
        let (error, other) = match (sandboxes, containers) {
            (Part::Answered(sandboxes, a), Part::Answered(containers, b)) => {
                snapshot = Snapshot { sandboxes, containers };
                let size = Size {
                    both: a + b,
                    larger: a.max(b),
                };
                self.end_by_id(true);
                self.take_in_full(&mut snapshot, Coverage::Full, token, why, (started, due), size);
                self.spare = snapshot;
                return;
            }
            (Part::TakenIn, Part::Answered(list, bytes)) => {
                snapshot.containers = list;
                let size = Size {
                    both: bytes,
                    larger: bytes,
                };
                self.end_by_id(true);
                self.take_in_full(&mut snapshot, Coverage::Containers, token, why, (started, due), size);
                self.spare = snapshot;
                return;
            }
            (Part::Answered(list, bytes), Part::TakenIn) => {
                snapshot.sandboxes = list;
                let size = Size {
                    both: bytes,
                    larger: bytes,
                };
                self.end_by_id(true);
                self.take_in_full(&mut snapshot, Coverage::Sandboxes, token, why, (started, due), size);
                self.spare = snapshot;
                return;
            }
            (Part::Failed(error), containers) => {
                let other = !matches!(containers, Part::Failed(_));
                if let Part::Answered(list, _) = containers {
                    self.take_in_alone(Alone::Containers(list), started);
                }
                (error, other)
            }
            (sandboxes, Part::Failed(error)) => {
                if let Part::Answered(list, _) = sandboxes {
                    self.take_in_alone(Alone::Sandboxes(list), started);
                }
                (error, true)
            }
            // A relist ends when no list is open, and a list is taken in alone only while the other one is.
            _ => return,
        };
        if error.kind.is_unreachable() {
            self.end_by_id(false);
        }
        self.hints.put_back(asked);
        self.evented.wanted.put_back(stirred);
        self.relist_failed(&Scope::Full, started, Failed { error, alone: other });
    }

    fn listed_pods(&mut self, listing: Listing) {
        let Listing {
            scope: Scope::Pods(pods),
            token,
            asked,
            stirred,
            started,
            pods: Some(outcome),
            ..
        } = listing
        else {
            return;
        };
        let snapshots = match outcome {
            Ok(snapshots) => snapshots,
            Err(failed) => {
                if failed.error.kind.is_unreachable() {
                    self.end_by_id(false);
                }
                self.hints.put_back(asked);
                self.evented.wanted.put_back(stirred);
                return self.relist_failed(&Scope::Pods(pods), started, failed);
            }
        };
        if self.stuck_list.is_hanging() {
            // The two lists of a pod were answered at moments that are far apart: together they cannot establish that it is gone.
            self.end_by_id(true);
            self.hints.put_back(asked);
            return self.evented.wanted.put_back(stirred);
        }
        for (uid, mut snapshot) in pods.iter().zip(snapshots) {
            let asked = asked.pods.get(uid).map(|&source| (source, InspectTrigger::Asked));
            let why = asked.unwrap_or((Source::Evented, InspectTrigger::News));
            self.take_in_pod(uid, &mut snapshot, token, why, started);
            // Without its label, or under another pod's: somewhere it is, or it is gone again.
            let missing = |id: &Arc<str>| self.records.pod_of(id).is_none();
            if stirred.pods.get(uid).is_some_and(|ids| ids.iter().any(missing)) {
                self.evented.wanted.all = true;
            }
        }
    }

    /// Takes in one of the two lists, while the other one does not answer. The list of sandboxes establishes which sandboxes there
    /// are, the list of containers which containers; neither says anything about the other, and together they are no complete relist.
    pub(super) fn take_in_alone(&mut self, list: Alone, started: Instant) {
        let mut snapshot = Snapshot::default();
        let coverage = match list {
            Alone::Sandboxes(list) => {
                snapshot.sandboxes = list;
                self.sandboxes_listed = self.sandboxes_listed.max(Some(started));
                Coverage::Sandboxes
            }
            Alone::Containers(list) => {
                snapshot.containers = list;
                Coverage::Containers
            }
        };
        let (touched, _) = self.records.observe(&mut snapshot, coverage);
        let recorded = (line::Scope::Pods, Source::Relist);
        self.recorder
            .relisted(&mut self.records, &touched, recorded, started.elapsed(), 0);
        self.uncounted |= !touched.is_empty();
        let token = self.cache.reader().complete();
        for &key in &touched {
            self.schedule_inspection(key, token, Source::Relist, InspectTrigger::News);
        }
        self.records.recycle(touched);
    }

    /// Takes in the lists of one pod.
    fn take_in_pod(
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
        let token = known.map_or_else(|| self.cache.reader().complete(), |_| token);
        let (touched, _) = self.records.observe(snapshot, coverage);
        let recorded = (line::Scope::Pods, source);
        self.recorder
            .relisted(&mut self.records, &touched, recorded, started.elapsed(), 0);
        self.uncounted |= !touched.is_empty();
        let key = self.records.key(uid);
        if let Some(key) = key {
            self.listed_again(key, started);
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
            if self.cache.reader().get(uid).is_none() {
                self.confirm_absence(source);
            }
        }
    }

    fn take_in_full(
        &mut self,
        snapshot: &mut Snapshot,
        coverage: Coverage,
        token: Token,
        (asked, stirred): (&Dirty, &ListRequests),
        (started, due): (Instant, bool),
        size: Size,
    ) {
        if coverage != Coverage::Containers {
            self.sandboxes_listed = self.sandboxes_listed.max(Some(started));
        }
        let (touched, odd) = self.records.observe(snapshot, coverage);
        let why = (line::Scope::Full, asked.all.unwrap_or(Source::Relist));
        self.recorder
            .relisted(&mut self.records, &touched, why, started.elapsed(), size.both);
        let odd_changed = self.health.odd(odd);
        self.metrics.odd(&odd);
        if self.first || self.uncounted || !touched.is_empty() || odd_changed {
            self.count();
        }
        self.verify(&touched, stirred);
        self.health.load(Load {
            list: size.larger,
            dead: self.dead,
            objects: self.records.objects(),
            call: self.prober.latency(),
        });
        for &key in &touched {
            let asked_by = self.records.pod(key).and_then(|pod| asked.pods.get(&pod.uid).copied());
            let event = || (stirred.all || self.is_told(key, stirred)).then_some(Source::Evented);
            let source = asked_by.or(asked.all).or_else(event).unwrap_or(Source::Relist);
            self.schedule_inspection(key, token, source, InspectTrigger::News);
        }
        for (uid, &source) in &asked.pods {
            if let Some(key) = self.records.key(uid) {
                self.schedule_inspection(key, token, source, InspectTrigger::Asked);
            }
        }
        let waiting: HashSet<_> = touched.iter().copied().filter(|key| self.has_open_work(*key)).collect();
        self.records.recycle(touched);

        // Only now: every pod with news is held.
        self.cache.complete_relist(token);
        self.first = false;
        if let Some((lasted, attempts)) = self.health.relist_complete() {
            self.recorder.transition(Turn::RuntimeBack, None, None, Some(lasted));
            let looks = if attempts == 1 { "relist" } else { "relists" };
            tracing::info!(
                "the runtime answers again after {} ({attempts} {looks} failed)",
                seconds(lasted)
            );
            self.evented.runtime_back();
            self.retry_all();
        }
        self.check_recovery();
        self.settling = Some(OpenRelist {
            started,
            due,
            bytes: size.both,
            moved: Instant::now(),
            waiting,
        });
        if self
            .settling
            .as_ref()
            .is_some_and(|settling| settling.waiting.is_empty())
        {
            self.end_settling();
        }
    }

    fn relist_failed(&mut self, scope: &Scope, started: Instant, failed: Failed) {
        let Failed { error, alone } = failed;
        self.reset_period("a relist failed");
        let now = Instant::now();
        self.not_before = now + self.config.period;
        let full = matches!(scope, Scope::Full);
        let text = error.to_string();
        let recorded = if full { line::Scope::Full } else { line::Scope::Pods };
        self.recorder.relist_failed(recorded, now - started, &text);
        // A runtime that does not implement our calls is not the one we know.
        if error.kind.is_unreachable() || error.kind == ErrorKind::Unimplemented {
            self.lost = true;
            self.restarted = self.cache.reader().token();
        }
        if full {
            self.next_full = self.not_before;
            self.metrics.relist_failed(now - started, error.kind.label());
            let advice = self.health.advice_on(&error, alone);
            if self.health.relist_failed(error, alone, started) {
                self.recorder.transition(Turn::RuntimeLost, None, Some(&text), None);
                tracing::warn!(
                    retry_every = %seconds(self.config.period),
                    "relist failed: {text}"
                );
                tracing::debug!("{advice}");
            }
        }
    }

    /// An inspection of a pod ended, or turned out not to be needed.
    pub(super) fn moved(&mut self, key: PodKey) {
        if let Some(settling) = &mut self.settling
            && settling.waiting.remove(&key)
        {
            settling.moved = Instant::now();
            if settling.waiting.is_empty() {
                self.end_settling();
            }
        }
    }

    /// Ends the relist if its remaining inspections make no progress, or take too long.
    pub(super) fn settle_if_late(&mut self) {
        if self
            .settling
            .as_ref()
            .is_some_and(|settling| Instant::now() >= settling.late_at(self.config.settle_grace, self.config.threshold))
        {
            self.end_settling();
        }
    }

    fn end_settling(&mut self) {
        if let Some(settling) = self.settling.take() {
            let now = Instant::now();
            self.metrics
                .relist_done(now - settling.started, settling.bytes, jiff::Timestamp::now());
            self.next_full = now + self.pause(settling.due);
        }
    }

    /// Brings the gauges up to date with the records.
    pub(super) fn count(&mut self) {
        let (states, pods) = self.records.census();
        self.metrics.census(states, pods);
        (self.uncounted, self.counted) = (false, Instant::now());
        self.dead = states[ContainerState::Exited as usize];
    }
}

/// One of the two lists.
#[derive(Debug)]
pub(super) enum Alone {
    Sandboxes(SandboxList),
    Containers(ContainerList),
}

/// Sends the lists of a relist, all at the same time. Each has its own deadline, and the failure of one does not keep the other from
/// answering: which of them does is what tells a locked container from a runtime that is stuck. `renew`: the runtime is asked first
/// what it is, because it may be another one.
fn send_lists<R: Runtime>(runtime: &Arc<R>, scope: &Scope, renew: bool, spare: Snapshot) -> Calls {
    let renewed = renew.then(|| {
        let runtime = Arc::clone(runtime);
        // If it cannot say yet it is asked again.
        async move { runtime.version().await.is_err() }.boxed().shared()
    });
    let version = renewed
        .clone()
        .map(|renewed| async { Arrived::Version { lost: renewed.await } }.boxed());
    match scope {
        Scope::Full => {
            let Snapshot { sandboxes, containers } = spare;
            let sandboxes = list_sandboxes(Arc::clone(runtime), renewed.clone(), sandboxes);
            let containers = list_containers(Arc::clone(runtime), renewed, containers);
            Calls([version, Some(sandboxes.boxed()), Some(containers.boxed())])
        }
        Scope::Pods(pods) => {
            let (runtime, pods) = (Arc::clone(runtime), pods.clone());
            let lists = async move {
                if let Some(renewed) = renewed {
                    renewed.await;
                }
                let list = |uid: &PodUid| {
                    let filter = ListFilter::PodUid(uid.as_str().to_owned());
                    let runtime = &*runtime;
                    async move { list_pod(runtime, &filter).await }
                };
                Arrived::Pods(try_join_all(pods.iter().map(list)).await)
            };
            Calls([version, Some(lists.boxed()), None])
        }
    }
}

/// All sandboxes.
pub(super) async fn list_sandboxes<R: Runtime>(
    runtime: Arc<R>,
    renewed: Option<Renewed>,
    mut list: SandboxList,
) -> Arrived {
    if let Some(renewed) = renewed {
        renewed.await;
    }
    let answer = runtime.list_sandboxes(&ListFilter::All, &mut list).await;
    Arrived::Sandboxes(list, answer)
}

/// All containers.
pub(super) async fn list_containers<R: Runtime>(
    runtime: Arc<R>,
    renewed: Option<Renewed>,
    mut list: ContainerList,
) -> Arrived {
    if let Some(renewed) = renewed {
        renewed.await;
    }
    let answer = runtime.list_containers(&ListFilter::All, &mut list).await;
    Arrived::Containers(list, answer)
}

/// What there is of one pod.
async fn list_pod<R: Runtime>(runtime: &R, filter: &ListFilter) -> Result<Snapshot, Failed> {
    let mut snapshot = Snapshot::default();
    let Snapshot { sandboxes, containers } = &mut snapshot;
    let lists = join(
        runtime.list_sandboxes(filter, sandboxes),
        runtime.list_containers(filter, containers),
    );
    match lists.await {
        (Ok(_), Ok(_)) => Ok(snapshot),
        (Err(error), other) => Err(Failed {
            error,
            alone: other.is_ok(),
        }),
        (Ok(_), Err(error)) => Err(Failed { error, alone: true }),
    }
}

/// The next list that ends; never resolves where none is in flight.
pub(super) async fn next_list(listing: &mut Option<Listing>) -> Arrived {
    match listing {
        Some(listing) => listing.next().await,
        None => std::future::pending().await,
    }
}
