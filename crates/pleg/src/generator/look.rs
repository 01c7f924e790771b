//! Plans a look, lists, and takes in what the lists said.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, try_join_all};
use hashbrown::HashSet;
use pleg_cri::error::seconds;
use pleg_cri::{Error, ErrorKind, ListFilter};
use tokio::time::Instant;

use super::Generator;
use super::evented::Wanted;
use super::work::Why;
use crate::cache::Token;
use crate::event::Source;
use crate::health::Load;
use crate::hints::Dirty;
use crate::model::{ContainerState, PodUid};
use crate::recorder::line::{self, Turn};
use crate::records::{Coverage, PodKey};
use crate::runtime::Runtime;
use crate::snapshot::Snapshot;

/// Up to this many pods are looked at one by one. A runtime goes through all its containers for a filtered list too, so beyond a
/// few a full look is the cheaper one.
const MOST_PODS: usize = 4;

/// What a look covers.
#[derive(Debug)]
enum Scope {
    Full,
    Pods(Vec<PodUid>),
}

/// A look that came back.
#[derive(Debug)]
pub(super) struct Listed {
    scope: Scope,
    token: Token,
    asked: Dirty,
    stirred: Wanted,
    /// A full look was due.
    due: bool,
    started: Instant,
    /// The runtime was away and has not said yet what it is now.
    lost: bool,
    /// One snapshot for everything, or one for each pod; and how large the answers were.
    outcome: Result<(Vec<Snapshot>, Size), Failed>,
}

/// How large the answers were, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    both: usize,
    larger: usize,
}

/// Why there is no snapshot.
#[derive(Debug)]
struct Failed {
    error: Error,
    /// The other of the two lists was answered.
    alone: bool,
}

/// A full look whose lists are in, waiting for the inspections it caused.
#[derive(Debug)]
pub(super) struct Settling {
    started: Instant,
    due: bool,
    bytes: usize,
    moved: Instant,
    waiting: HashSet<PodKey>,
}

impl Settling {
    /// When nobody waits any longer: nothing has moved for `grace`, or so much moves that the look would outlast its threshold.
    pub(super) fn late_at(&self, grace: Duration, threshold: Duration) -> Instant {
        (self.moved + grace).min(self.started + threshold / 3)
    }
}

impl<R: Runtime> Generator<R> {
    /// The look that is due now, if any.
    pub(super) fn plan(&mut self) -> Option<BoxFuture<'static, Listed>> {
        let now = Instant::now();
        if now < self.not_before {
            return None;
        }
        let due = self.settling.is_none() && now >= self.full_at();
        let stirred = self.stirred_at().is_some_and(|at| now >= at);
        let requested = self.asked_at().is_some_and(|at| now >= at);
        if !due && !stirred && !requested {
            return None;
        }
        let cache = &self.cache;
        let (asked, token) = self.hints.take(|| cache.start_look());
        // Whatever the reason for a look, it is news about what events were about.
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
        self.records.begin_look();
        if full {
            self.end_settling();
            self.full_look_begins();
            if let Some(last) = self.last_start.replace(now) {
                self.metrics.look_interval(now - last);
            }
        }
        let runtime = Arc::clone(&self.runtime);
        let renew = std::mem::take(&mut self.lost);
        let mut spare = std::mem::take(&mut self.spare);
        if full {
            self.records.prepare(&mut spare);
        }
        let look = async move {
            // Settles the API version and features of what may be another runtime. If it cannot say yet it is asked again.
            let lost = renew && runtime.version().await.is_err();
            let (scope, outcome) = if full {
                let listed = list(&*runtime, &ListFilter::All, spare).await;
                (Scope::Full, listed.map(|(snapshot, bytes)| (vec![snapshot], bytes)))
            } else {
                let mut pods: Vec<_> = asked.pods.keys().cloned().collect();
                pods.extend(
                    stirred
                        .pods
                        .keys()
                        .filter(|uid| !asked.pods.contains_key(*uid))
                        .cloned(),
                );
                let lists = pods.iter().map(|uid| {
                    let filter = ListFilter::PodUid(uid.as_str().to_owned());
                    let runtime = &*runtime;
                    async move { list(runtime, &filter, Snapshot::default()).await }
                });
                let listed = try_join_all(lists).await;
                (
                    Scope::Pods(pods),
                    listed.map(|lists| {
                        (
                            lists.into_iter().map(|(snapshot, _)| snapshot).collect(),
                            Size::default(),
                        )
                    }),
                )
            };
            Listed {
                scope,
                token,
                asked,
                stirred,
                due,
                started: now,
                lost,
                outcome,
            }
        };
        Some(look.boxed())
    }

    /// Takes in a look.
    pub(super) fn listed(&mut self, listed: Listed) {
        self.lost |= listed.lost;
        self.listing_since = None;
        match &listed.outcome {
            Ok(_) => self.end_by_id(true),
            Err(failed) if failed.error.kind.is_unreachable() => self.end_by_id(false),
            // The next list will hang as this one did.
            Err(_) => {}
        }
        self.evented.listed(
            listed.started.elapsed(),
            matches!(listed.scope, Scope::Full),
            !listed.due && !listed.asked.is_empty(),
        );
        let Listed {
            scope,
            token,
            asked,
            stirred,
            due,
            started,
            outcome,
            ..
        } = listed;
        let (mut snapshots, size) = match outcome {
            Ok(lists) => lists,
            Err(failed) => {
                self.hints.put_back(asked);
                self.evented.wanted.put_back(stirred);
                return self.look_failed(&scope, started, failed);
            }
        };
        match scope {
            Scope::Full => {
                let Some(mut snapshot) = snapshots.pop() else { return };
                self.take_in_full(&mut snapshot, token, (&asked, &stirred), (started, due), size);
                self.spare = snapshot;
            }
            Scope::Pods(pods) => {
                for (uid, mut snapshot) in pods.iter().zip(snapshots) {
                    let asked = asked.pods.get(uid).map(|&source| (source, Why::Asked));
                    let why = asked.unwrap_or((Source::Evented, Why::News));
                    self.take_in_pod(uid, &mut snapshot, token, why, started);
                    // Without its label, or under another pod's: somewhere it is, or it is gone again.
                    let missing = |id: &Arc<str>| self.records.pod_of(id).is_none();
                    if stirred.pods.get(uid).is_some_and(|ids| ids.iter().any(missing)) {
                        self.evented.wanted.all = true;
                    }
                }
            }
        }
    }

    /// Takes in the lists of one pod.
    fn take_in_pod(
        &mut self,
        uid: &PodUid,
        snapshot: &mut Snapshot,
        token: Token,
        (source, why): (Source, Why),
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
            .look(&mut self.records, &touched, recorded, started.elapsed(), 0);
        self.uncounted |= !touched.is_empty();
        let key = self.records.key(uid);
        for &pod in touched.iter().filter(|&&pod| why == Why::News || Some(pod) != key) {
            self.evaluate(pod, token, source, Why::News);
        }
        self.records.recycle(touched);
        if why == Why::Asked {
            if let Some(key) = self.records.key(uid) {
                self.evaluate(key, token, source, why);
            }
            if self.cache.reader().get(uid).is_none() {
                self.confirm_absence(source);
            }
        }
    }

    fn take_in_full(
        &mut self,
        snapshot: &mut Snapshot,
        token: Token,
        (asked, stirred): (&Dirty, &Wanted),
        (started, due): (Instant, bool),
        size: Size,
    ) {
        let (touched, odd) = self.records.observe(snapshot, Coverage::Full);
        let why = (line::Scope::Full, asked.all.unwrap_or(Source::Relist));
        self.recorder
            .look(&mut self.records, &touched, why, started.elapsed(), size.both);
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
            self.evaluate(key, token, source, Why::News);
        }
        for (uid, &source) in &asked.pods {
            if let Some(key) = self.records.key(uid) {
                self.evaluate(key, token, source, Why::Asked);
            }
        }
        let waiting: HashSet<_> = touched.iter().copied().filter(|key| self.has_open_work(*key)).collect();
        self.records.recycle(touched);

        // Only now: every pod with news is held.
        self.cache.complete_look(token);
        self.first = false;
        if let Some((lasted, attempts)) = self.health.look_complete() {
            self.recorder.transition(Turn::RuntimeBack, None, None, Some(lasted));
            let looks = if attempts == 1 { "look" } else { "looks" };
            tracing::info!(
                "the runtime answers again after {} ({attempts} {looks} failed)",
                seconds(lasted)
            );
            self.evented.runtime_back();
            self.retry_all();
        }
        self.check_recovery();
        self.settling = Some(Settling {
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

    fn look_failed(&mut self, scope: &Scope, started: Instant, failed: Failed) {
        let Failed { error, alone } = failed;
        self.reset_period("a look failed");
        let now = Instant::now();
        self.not_before = now + self.config.period;
        let full = matches!(scope, Scope::Full);
        let text = error.to_string();
        let recorded = if full { line::Scope::Full } else { line::Scope::Pods };
        self.recorder.look_failed(recorded, now - started, &text);
        // Who does not know our calls is another one than we think.
        if error.kind.is_unreachable() || error.kind == ErrorKind::Unimplemented {
            self.lost = true;
            self.restarted = self.cache.reader().token();
        }
        if full {
            self.next_full = self.not_before;
            self.metrics.look_failed(now - started, error.kind.label());
            let advice = self.health.advice_on(&error, alone);
            if self.health.look_failed(error, alone, started) {
                self.recorder.transition(Turn::RuntimeLost, None, Some(&text), None);
                tracing::warn!(
                    "cannot look at the runtime: {text}; trying again every {}. {advice}",
                    seconds(self.config.period)
                );
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

    /// Nobody waits for those that do not move, and not forever for those that do.
    pub(super) fn settle_if_late(&mut self) {
        if self
            .settling
            .as_ref()
            .is_some_and(|settling| Instant::now() >= settling.late_at(self.config.grace, self.config.threshold))
        {
            self.end_settling();
        }
    }

    fn end_settling(&mut self) {
        if let Some(settling) = self.settling.take() {
            let now = Instant::now();
            self.metrics
                .look_done(now - settling.started, settling.bytes, jiff::Timestamp::now());
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

/// Both lists at the same time. Each has its own deadline, and the failure of one does not keep the other from answering: which of
/// them does is what tells a locked container from a runtime that is stuck.
async fn list<R: Runtime>(
    runtime: &R,
    filter: &ListFilter,
    mut snapshot: Snapshot,
) -> Result<(Snapshot, Size), Failed> {
    let Snapshot { sandboxes, containers } = &mut snapshot;
    let lists = join(
        runtime.list_sandboxes(filter, sandboxes),
        runtime.list_containers(filter, containers),
    );
    match lists.await {
        (Ok(a), Ok(b)) => Ok((
            snapshot,
            Size {
                both: a.bytes + b.bytes,
                larger: a.bytes.max(b.bytes),
            },
        )),
        (Err(error), other) => Err(Failed {
            error,
            alone: other.is_ok(),
        }),
        (Ok(_), Err(error)) => Err(Failed { error, alone: true }),
    }
}
