//! Finds shims that hang without anybody noticing.
//!
//! A shim that is stopped or stuck keeps no list and no status waiting: its pod just shows its last state for ever. Only a call that
//! goes through the shim tells, and the verbose `PodSandboxStatus` is the one that changes nothing. So every ready pod is asked once
//! in [`ProbeConfig::round`], a few a second at most, and those that there is a reason to suspect first. A probe that takes long while
//! the plain status of the same sandbox does not, and that does so again, is a hung shim.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use parking_lot::Mutex;
use pleg_cri::error::seconds;
use pleg_cri::{Error, Subject};
use tokio::time::{Instant, timeout};

use super::Generator;
use crate::health::HungShim;
use crate::model::{PodRef, PodUid, SandboxId};
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::shim::Shim;
use crate::trouble::Trouble;

/// How pods are probed for hung shims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeConfig {
    /// In this time every pod is probed once, as far as `least_pause` allows. Zero: none is.
    pub round: Duration,
    /// From one probe to the next, at least.
    pub least_pause: Duration,
    /// A probe that takes longer is not answered by a shim that lives.
    pub slow: Duration,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            round: Duration::from_secs(45),
            least_pause: Duration::from_millis(250),
            slow: Duration::from_secs(2),
        }
    }
}

/// Probes in flight at once: hung ones do not end the round.
const MOST_PROBES: usize = 4;
/// Suspects that wait for their probe. More than this are found in the round.
const MOST_SUSPECTS: usize = 64;
/// While events tell of changes and full looks are rare, the probes of a round come together: so many in flight at once.
const MOST_TOGETHER: usize = 32;
/// And so many in a round: a node of the usual size is through in one; on a larger one probes would be most of what rest costs.
const MOST_AT_REST: usize = 110;
/// From one probe of a shim that hangs to the next.
const AGAIN: Duration = Duration::from_secs(10);
/// The kernel waits for a lock of a process before it shows its arguments, and a hung one may hold that.
const PROC_ANSWERS: Duration = Duration::from_secs(2);
/// So many probes tell what a call takes.
const LAST: usize = 5;
/// Hung shims that are followed. More than this at once is no matter of shims.
const MOST_HUNG: usize = 256;

/// Pods that somebody has a reason to suspect. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspects {
    shared: Arc<Mutex<VecDeque<PodUid>>>,
}

impl Suspects {
    pub(crate) fn add(&self, uid: &PodUid) {
        let mut suspects = self.shared.lock();
        if suspects.len() < MOST_SUSPECTS && !suspects.contains(uid) {
            suspects.push_back(uid.clone());
        }
    }

    fn is_empty(&self) -> bool {
        self.shared.lock().is_empty()
    }

    fn take(&self) -> Option<PodUid> {
        self.shared.lock().pop_front()
    }
}

/// Where the round of probes is.
#[derive(Debug)]
pub(super) struct Prober {
    calls: FuturesUnordered<BoxFuture<'static, Probed>>,
    in_flight: Vec<PodUid>,
    last: Instant,
    /// The last one was of a shim that hangs: the next is of the round.
    after_hung: bool,
    /// When probes were last made together, and how many of those are still to be made.
    together: Instant,
    owed: usize,
    /// The pod that was probed last in the round.
    cursor: Option<PodKey>,
    pub(super) suspects: Suspects,
    /// Hung shims, and when to probe them again.
    hung: HashMap<PodUid, Instant>,
    /// What the last calls took that were made one at a time.
    took: VecDeque<Duration>,
}

impl Prober {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            calls: FuturesUnordered::new(),
            in_flight: Vec::new(),
            last: now,
            after_hung: false,
            together: now,
            owed: 0,
            cursor: None,
            suspects: Suspects::default(),
            hung: HashMap::new(),
            took: VecDeque::new(),
        }
    }

    /// Probes the pod before all others.
    pub(super) fn suspect(&self, uid: &PodUid) {
        self.suspects.add(uid);
    }

    /// What a call takes when nobody else asks, as far as probes tell; none before enough were made. The quickest of the last few:
    /// what is busy for a moment is not slow.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.took.iter().min().copied().filter(|_| self.took.len() == LAST)
    }

    fn learn(&mut self, took: Duration) {
        if self.took.len() == LAST {
            self.took.pop_front();
        }
        self.took.push_back(took);
    }

    /// The next probe that ends; never resolves where there is none.
    pub(super) async fn next(&mut self) -> Probed {
        use futures_util::StreamExt as _;
        match self.calls.next().await {
            Some(probed) => probed,
            None => std::future::pending().await,
        }
    }
}

/// A probe that ended.
#[derive(Debug)]
pub(super) struct Probed {
    pod: PodRef,
    sandbox: SandboxId,
    verdict: Verdict,
    /// What a call took that no shim held up.
    took: Option<Duration>,
}

#[derive(Debug)]
enum Verdict {
    Lives,
    Hangs {
        took: [Duration; 2],
        shim: Option<Shim>,
    },
    /// The runtime did not answer, or everything is slow: this says nothing about the shim.
    Unknown,
}

impl<R: Runtime> Generator<R> {
    /// Starts the probes that are due. Returns when to come again.
    pub(super) fn probe(&mut self) -> Option<Instant> {
        let config = self.config.probe;
        if config.round.is_zero() || self.first {
            return None;
        }
        let now = Instant::now();
        if self.evented.period.is_grown() {
            self.probe_together(now);
        }
        let due = self.next_probe();
        if now < due {
            return Some(due);
        }
        self.prober.last = now;
        if self.prober.in_flight.len() < MOST_PROBES
            && let Some(found) = self.next_to_probe(now)
        {
            self.start_probe(found);
        }
        Some(self.next_probe())
    }

    /// While nothing else wakes us, the probes of a round are made together: waking up for each costs far more than the probe.
    fn probe_together(&mut self, now: Instant) {
        let (round, pause) = (self.config.probe.round, self.probe_pause());
        if now >= self.prober.together + round.max(pause) {
            self.prober.together = now;
            let due = round.as_nanos().div_ceil(pause.as_nanos().max(1));
            let due = usize::try_from(due).unwrap_or(usize::MAX);
            // No pod twice.
            self.prober.owed = due.min(self.records.len()).min(MOST_AT_REST);
        }
        while self.prober.owed > 0 && self.prober.in_flight.len() < MOST_TOGETHER {
            self.prober.owed -= 1;
            if let Some(found) = self.next_in_round() {
                self.start_probe(found);
            }
        }
    }

    fn start_probe(&mut self, (pod, sandbox): (PodRef, SandboxId)) {
        let runtime = Arc::clone(&self.runtime);
        let slow = self.config.probe.slow;
        // Once for each shim that hangs: a search may hang with it.
        let search = !self.prober.hung.contains_key(&pod.uid);
        self.prober.in_flight.push(pod.uid.clone());
        let call = async move {
            let (verdict, took) = probe(&*runtime, &pod, &sandbox, slow, search).await;
            Probed {
                pod,
                sandbox,
                verdict,
                took,
            }
        };
        self.prober.calls.push(call.boxed());
    }

    fn probe_pause(&self) -> Duration {
        let config = self.config.probe;
        let pods = u32::try_from(self.records.len().max(1)).unwrap_or(u32::MAX);
        (config.round / pods).max(config.least_pause)
    }

    /// Suspects and shims that hang do not wait for the pause of the round.
    fn next_probe(&self) -> Instant {
        let soon = self.prober.last + self.config.probe.least_pause;
        if !self.prober.suspects.is_empty() {
            return soon;
        }
        let hung = self.prober.hung.values().min().map(|at| soon.max(*at));
        let round = if self.evented.period.is_grown() {
            self.prober.together + self.config.probe.round.max(self.probe_pause())
        } else {
            self.prober.last + self.probe_pause()
        };
        hung.map_or(round, |at| at.min(round))
    }

    /// Suspects first, then hung shims whose time has come, then the next in the round.
    fn next_to_probe(&mut self, now: Instant) -> Option<(PodRef, SandboxId)> {
        let busy = |prober: &Prober, uid: &PodUid| prober.in_flight.contains(uid);
        while let Some(uid) = self.prober.suspects.take() {
            if !busy(&self.prober, &uid)
                && let Some(found) = self.records.key(&uid).and_then(|key| self.records.ready_sandbox(key))
            {
                return Some(found);
            }
        }
        let hung = self.prober.hung.iter();
        let due = hung
            .filter(|(uid, at)| **at <= now && !busy(&self.prober, uid))
            .min_by_key(|(_, at)| **at);
        let due = due.map(|(uid, _)| uid.clone()).filter(|_| !self.prober.after_hung);
        self.prober.after_hung = due.is_some();
        if let Some(uid) = due {
            let found = self.records.key(&uid).and_then(|key| self.records.ready_sandbox(key));
            if found.is_some() {
                return found;
            }
            // Gone, or not ready any more: that is seen by everybody.
            self.shim_answers(&uid);
        }
        self.next_in_round()
    }

    fn next_in_round(&mut self) -> Option<(PodRef, SandboxId)> {
        // A runtime that does not answer has nothing to say about shims either.
        if self.health.looks_fail() {
            return None;
        }
        let (key, found) = self.records.next_ready(self.prober.cursor)?;
        self.prober.cursor = Some(key);
        let skip = self.prober.in_flight.contains(&found.0.uid) || self.prober.hung.contains_key(&found.0.uid);
        (!skip).then_some(found)
    }

    /// Takes in a probe.
    pub(super) fn probed(&mut self, probed: Probed) {
        let Probed {
            pod,
            sandbox,
            verdict,
            took,
        } = probed;
        if let Some(took) = took {
            self.prober.learn(took);
        }
        self.prober.in_flight.retain(|uid| *uid != pod.uid);
        if let Some(again) = self.prober.hung.get_mut(&pod.uid) {
            *again = Instant::now() + AGAIN;
        }
        match verdict {
            Verdict::Unknown => {}
            Verdict::Lives => self.shim_answers(&pod.uid),
            Verdict::Hangs { took, shim } => {
                let now = Instant::now();
                if self.records.key(&pod.uid).is_none() || self.prober.hung.len() >= MOST_HUNG {
                    return;
                }
                if self.prober.hung.insert(pod.uid.clone(), now + AGAIN).is_some() {
                    return;
                }
                let hung = HungShim {
                    pod: pod.clone(),
                    sandbox,
                    shim,
                    since: now,
                    took,
                };
                let text = hung.text();
                let advice = self.health.advice(Trouble::HungShim, &hung.who());
                tracing::warn!("{text}; other pods are not affected. {advice}");
                self.recorder.transition(Turn::ShimHangs, Some(&pod), Some(&text), None);
                self.health.shim_hangs(hung);
                self.metrics.hung_shims(self.prober.hung.len());
            }
        }
    }

    fn shim_answers(&mut self, uid: &PodUid) {
        if self.prober.hung.remove(uid).is_none() {
            return;
        }
        if let Some(since) = self.health.shim_answers(uid) {
            let pod = self.records.key(uid).and_then(|key| self.records.pod(key));
            let name = pod.map_or_else(|| uid.to_string().into(), PodRef::full_name);
            tracing::info!(
                "the shim of pod {name} hangs no more, after {}",
                seconds(since.elapsed())
            );
            self.recorder
                .transition(Turn::ShimAnswers, pod, None, Some(since.elapsed()));
        }
        self.metrics.hung_shims(self.prober.hung.len());
        // Whatever happened behind the shim's back shows now.
        self.hints.pod(uid, crate::event::Source::Relist);
    }
}

/// Asks through the shim, and around it if that took long; `search`: looks for the process of one that hangs.
async fn probe<R: Runtime>(
    runtime: &R,
    pod: &PodRef,
    sandbox: &SandboxId,
    slow: Duration,
    search: bool,
) -> (Verdict, Option<Duration>) {
    let subject = Subject::sandbox(pod.full_name(), sandbox.shared());
    let started = Instant::now();
    let answer: Result<(), Error> = runtime.probe_sandbox(&subject, sandbox).await;
    let through = started.elapsed();
    if answer.is_err_and(|error| !error.kind.is_deadline()) {
        return (Verdict::Unknown, None);
    }
    if through < slow {
        return (Verdict::Lives, Some(through));
    }
    let started = Instant::now();
    let plain = runtime.sandbox_status(&subject, sandbox).await;
    let around = started.elapsed();
    if plain.is_err() {
        // Gone meanwhile, or the runtime does not answer at all.
        return (Verdict::Unknown, None);
    }
    if around * 2 >= through {
        // Everything is slow.
        return (Verdict::Unknown, Some(around));
    }
    // The whole runtime may have been away until a moment ago. It is the shim if it is so still, while others are answered.
    if let Ok(again) = timeout(slow, runtime.probe_sandbox(&subject, sandbox)).await {
        let verdict = again.map_or(Verdict::Unknown, |()| Verdict::Lives);
        return (verdict, Some(around));
    }
    let mut shim = None;
    if search {
        let id = sandbox.clone();
        let found = tokio::task::spawn_blocking(move || Shim::of(id.as_str()));
        // A search that hangs is left to itself.
        shim = timeout(PROC_ANSWERS, found).await.ok().and_then(Result::ok).flatten();
    }
    let verdict = Verdict::Hangs {
        took: [through, around],
        shim,
    };
    (verdict, Some(around))
}
