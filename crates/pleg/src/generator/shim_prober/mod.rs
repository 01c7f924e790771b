//! Finds shims and containers that hang without any other sign.
//!
//! A shim that is stopped or stuck keeps no list and no status waiting: its pod just shows its last state for ever. Only a call that
//! goes through the shim tells, and the verbose `PodSandboxStatus` is the one that changes nothing. A container whose status hangs is
//! noticed no sooner than it changes. So every ready pod is asked once in [`ProbeConfig::round`], through its shim and for one of its
//! containers, another one in each round; a few pods a second at most, and those that there is a reason to suspect first. How the
//! answers are judged is in `ask`.
//!
//! Now and then a probe is made while nothing else of ours is in flight: what its calls take is what the runtime takes for a call, and
//! what a kubelet, which asks one by one, would wait for. Under our own load every call takes longer (`isolated`).

mod ask;
mod isolated;
mod stuck;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use parking_lot::Mutex;
use pleg_cri::Rpc;
use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::Generator;
use crate::health::HungShim;
use crate::health::diagnosis::Trouble;
use crate::model::{ContainerRef, PodRef, PodUid, SandboxId};
use crate::recorder::line::Turn;
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::runtime::shim::Shim;
use ask::{Answers, ContainerVerdict, How, ShimVerdict, Target, ask};
use isolated::Isolated;
use stuck::Stuck;

/// How pods are probed for hung shims and for containers that do not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeConfig {
    /// In this time every pod is probed once, as far as `least_pause` allows. Zero: none is.
    pub round: Duration,
    /// From one probe to the next, at least.
    pub least_pause: Duration,
    /// A call that takes longer is suspicious: others are asked to compare with, and then the same again.
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
/// Most pods in the queue. More than this are found in the round.
const MOST_QUEUED: usize = 64;
/// Most probes in flight while relists are rare: the probes of a round are then sent together.
const MOST_TOGETHER: usize = 32;
/// Most probes per round while relists are rare; larger nodes need several rounds. More would dominate the cost of an idle node.
const MOST_AT_REST: usize = 110;
/// From one probe of a shim that hangs to the next.
const AGAIN: Duration = Duration::from_secs(10);
/// Containers that a slow one is compared with.
const MOST_WITNESSES: u32 = 3;
/// Most hung shims that are tracked. If more hang at once, shims are not the cause.
const MOST_HUNG: usize = 256;

/// Pods to probe before all others, because the generator or a caller suspects them. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeQueue {
    pods: Arc<Mutex<VecDeque<PodUid>>>,
}

impl ProbeQueue {
    pub(crate) fn add(&self, uid: &PodUid) {
        let mut pods = self.pods.lock();
        if pods.len() < MOST_QUEUED && !pods.contains(uid) {
            pods.push_back(uid.clone());
        }
    }

    fn is_empty(&self) -> bool {
        self.pods.lock().is_empty()
    }

    fn take(&self) -> Option<PodUid> {
        self.pods.lock().pop_front()
    }
}

/// Where the round of probes is.
#[derive(Debug)]
pub(super) struct ShimProber {
    calls: FuturesUnordered<BoxFuture<'static, Probed>>,
    in_flight: Vec<PodUid>,
    last: Instant,
    /// The last one was of a shim or container that hangs: the next is of the round.
    after_hung: bool,
    /// When probes were last made together, and how many of those are still to be made.
    together: Instant,
    owed: usize,
    /// The pod that was probed last in the round, and how many rounds were made before: it says whose turn it is within a pod.
    cursor: Option<PodKey>,
    rounds: usize,
    pub(super) queue: ProbeQueue,
    /// Hung shims, and when to probe them again.
    hung: HashMap<PodUid, Instant>,
    stuck: Stuck,
    isolated: Isolated,
}

impl ShimProber {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            calls: FuturesUnordered::new(),
            in_flight: Vec::new(),
            last: now,
            after_hung: false,
            together: now,
            owed: 0,
            cursor: None,
            rounds: 0,
            queue: ProbeQueue::default(),
            hung: HashMap::new(),
            stuck: Stuck::default(),
            isolated: Isolated::new(now),
        }
    }

    /// Probes the pod before all others.
    pub(super) fn probe_soon(&self, uid: &PodUid) {
        self.queue.add(uid);
    }

    /// What a status call takes when nothing else of ours is in flight; none before that is known.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.isolated.latency()
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
    target: Target,
    answers: Answers,
}

/// What to probe: a pod's sandbox, and this container instead of the one whose turn it is.
#[derive(Debug)]
struct Chosen {
    pod: PodRef,
    sandbox: SandboxId,
    container: Option<ContainerRef>,
}

impl From<(PodRef, SandboxId)> for Chosen {
    fn from((pod, sandbox): (PodRef, SandboxId)) -> Self {
        Self {
            pod,
            sandbox,
            container: None,
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Starts the probes that are due. Returns when to come again.
    pub(super) fn probe(&mut self) -> Option<Instant> {
        let config = self.config.probe;
        if config.round.is_zero() || self.schedule.is_first() {
            return None;
        }
        let now = Instant::now();
        let others = self.lists.is_in_flight() || self.inspections.any_runs();
        let probes = self.prober.in_flight.len();
        if let Some(until) = self.prober.isolated.holds(now, probes, others, config) {
            return Some(until);
        }
        if self.stream.period.is_grown() {
            self.probe_together(now, others);
        }
        let due = self.next_probe();
        if now < due {
            return Some(due);
        }
        self.prober.last = now;
        if self.prober.in_flight.len() < MOST_PROBES
            && let Some(chosen) = self.next_to_probe(now)
        {
            self.start_probe(chosen, others);
        }
        Some(self.next_probe())
    }

    /// While nothing else wakes us, the probes of a round are made together: waking up for each costs far more than the probe.
    fn probe_together(&mut self, now: Instant, others: bool) {
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
            if let Some(chosen) = self.next_in_round() {
                self.start_probe(chosen, others);
                if self.prober.isolated.is_under_way() {
                    // The others follow when it has ended.
                    return;
                }
            }
        }
    }

    /// `others`: calls that are no probes are in flight.
    fn start_probe(&mut self, chosen: Chosen, others: bool) {
        let alone = !others && self.prober.in_flight.is_empty();
        let how = How {
            slow: self.config.probe.slow,
            // Once for each shim that hangs: a search may hang with it.
            search: !self.prober.hung.contains_key(&chosen.pod.uid),
            alone: alone.then(|| self.prober.isolated.begin(self.config.probe)).flatten(),
        };
        let target = self.target(chosen);
        self.prober.in_flight.push(target.pod.uid.clone());
        let runtime = Arc::clone(&self.runtime);
        let call = async move {
            let answers = ask(&*runtime, &target, how).await;
            Probed { target, answers }
        };
        self.prober.calls.push(call.boxed());
    }

    fn probe_pause(&self) -> Duration {
        let config = self.config.probe;
        let pods = u32::try_from(self.records.len().max(1)).unwrap_or(u32::MAX);
        (config.round / pods).max(config.least_pause)
    }

    /// Queued pods and hung shims do not wait for the pause of the round.
    fn next_probe(&self) -> Instant {
        let soon = self.prober.last + self.config.probe.least_pause;
        if !self.prober.queue.is_empty() {
            return soon;
        }
        let hung = self.prober.hung.values().min().copied();
        let hung = [hung, self.prober.stuck.next()].into_iter().flatten().min();
        let hung = hung.map(|at| soon.max(at));
        let round = if self.stream.period.is_grown() {
            self.prober.together + self.config.probe.round.max(self.probe_pause())
        } else {
            self.prober.last + self.probe_pause()
        };
        hung.map_or(round, |at| at.min(round))
    }

    /// Queued pods first, then hung shims and stuck containers whose time has come, then the next in the round.
    fn next_to_probe(&mut self, now: Instant) -> Option<Chosen> {
        let busy = |prober: &ShimProber, uid: &PodUid| prober.in_flight.contains(uid);
        while let Some(uid) = self.prober.queue.take() {
            if !busy(&self.prober, &uid)
                && let Some(found) = self.records.key(&uid).and_then(|key| self.records.ready_sandbox(key))
            {
                return Some(found.into());
            }
        }
        let hung = self.prober.hung.iter();
        let due = hung
            .filter(|(uid, at)| **at <= now && !busy(&self.prober, uid))
            .min_by_key(|(_, at)| **at);
        let due = due.map(|(uid, _)| uid.clone()).filter(|_| !self.prober.after_hung);
        let rounds_turn = std::mem::replace(&mut self.prober.after_hung, due.is_some());
        if let Some(uid) = due {
            let found = self.records.key(&uid).and_then(|key| self.records.ready_sandbox(key));
            if found.is_some() {
                return found.map(Chosen::from);
            }
            // Gone, or not ready any more: that is seen by everybody.
            self.shim_answers(&uid);
        }
        if !rounds_turn && let Some(chosen) = self.next_stuck(now) {
            self.prober.after_hung = true;
            return Some(chosen);
        }
        self.next_in_round()
    }

    fn next_in_round(&mut self) -> Option<Chosen> {
        // While the runtime does not answer, a probe shows nothing about shims.
        if self.health.relists_fail() {
            return None;
        }
        let (key, found) = self.records.next_ready(self.prober.cursor)?;
        if self.prober.cursor.replace(key).is_some_and(|last| key <= last) {
            self.prober.rounds = self.prober.rounds.wrapping_add(1);
        }
        let skip = self.prober.in_flight.contains(&found.0.uid) || self.prober.hung.contains_key(&found.0.uid);
        (!skip).then(|| found.into())
    }

    /// Takes in a probe.
    pub(super) fn probed(&mut self, probed: Probed) {
        let Probed { target, answers } = probed;
        self.prober.isolated.ended(self.prober.in_flight.len(), answers.took);
        self.prober.in_flight.retain(|uid| *uid != target.pod.uid);
        if let Some(again) = self.prober.hung.get_mut(&target.pod.uid) {
            *again = Instant::now() + AGAIN;
        }
        let container = match answers.shim {
            // That is why its container does not answer.
            ShimVerdict::Hangs { .. } => ContainerVerdict::Unknown,
            _ => answers.container,
        };
        self.container_probed(&target, container);
        match answers.shim {
            ShimVerdict::Unknown => {}
            ShimVerdict::Lives => self.shim_answers(&target.pod.uid),
            ShimVerdict::Hangs { took, shim } => {
                let Target { pod, sandbox, .. } = target;
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
                tracing::warn!(
                    pod = %pod,
                    call = %Rpc::PodSandboxStatus,
                    took = %seconds(took[0]),
                    process = shim.map(|shim| shim.pid),
                    state = shim.map(Shim::word),
                    "shim hangs; other pods are not affected"
                );
                tracing::debug!("{advice}");
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
            tracing::info!(pod = &*name, lasted = %seconds(since.elapsed()), "shim answers again");
            self.recorder
                .transition(Turn::ShimAnswers, pod, None, Some(since.elapsed()));
        }
        self.metrics.hung_shims(self.prober.hung.len());
        // Changes that the hung shim hid show now.
        self.requests.pod(uid, crate::model::event::Source::Relist);
    }
}
