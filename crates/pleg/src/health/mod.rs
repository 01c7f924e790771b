//! Is the generator healthy, and if not, what is it waiting for?
//!
//! The rule is the kubelet's: a complete relist within the threshold. Only [`Level::Unhealthy`] makes a node NotReady; a pod in
//! quarantine makes the generator [`Level::Degraded`], which hurts nobody but that pod. Every level below healthy has a cause with names.

mod cause;
mod checks;
pub mod diagnosis;
mod ended;
pub(crate) mod monitor;
pub(crate) mod node_health;
mod pods;
pub mod readiness;
mod stuck;
mod warning;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::error::seconds;
use pleg_cri::{Error, InFlight, Rpc};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::evented::ModeReport;
use crate::evented::trust::Remembered;
use crate::health::diagnosis::Trouble;
use crate::model::{ObjectRef, PodRef, PodUid, SandboxId};
use crate::publish::cache::PodError;
pub use crate::records::snapshot::Oddities;
use crate::runtime::shim::Shim;
pub(crate) use cause::of_inspection;
pub use cause::{Cause, Stage, Who};
use cause::{Seen, advice, of_list};
pub use checks::Check;
pub(crate) use ended::Alive;
use ended::Ended;
pub use pods::CausesByPod;
pub(crate) use stuck::StuckContainer;
use stuck::StuckContainers;
pub(crate) use warning::Load;
pub use warning::Warning;

/// The kubelet's threshold.
pub const THRESHOLD: Duration = Duration::from_mins(3);
/// A call in flight for longer than this is worth a word.
pub(crate) const SLOW_CALL: Duration = Duration::from_secs(5);
/// Causes beyond this many are counted, not listed.
const MOST_CAUSES: usize = 20;

/// How well the generator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// All is seen.
    Healthy,
    /// Something is not seen; the node still works.
    Degraded,
    /// No complete relist within the threshold, or the generator has ended: nothing is known any more.
    Unhealthy,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Healthy => "Healthy",
            Self::Degraded => "Degraded",
            Self::Unhealthy => "Unhealthy",
        })
    }
}

/// The health at one moment. Its JSON is that of the HTTP API.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// How well.
    pub level: Level,
    /// How well, in a few words; in the kubelet's where they are its own.
    pub headline: String,
    /// The headline and the first cause with its meaning and the next step: the text that log, event and node condition have.
    pub message: String,
    /// Why the level is not Healthy: by stage, and within a stage the longest-standing first.
    pub causes: Vec<Cause>,
    /// Causes that are not listed because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_causes: usize,
    /// What may become a trouble, though it is none to us: list sizes, dead containers, slow calls.
    pub warnings: Vec<Warning>,
    /// Seconds since the last complete relist; none before the first.
    pub last_seen_seconds: Option<f64>,
    /// The threshold, in seconds.
    pub threshold_seconds: u64,
    /// How changes are found.
    pub mode: ModeReport,
    /// Relists completed so far.
    #[serde(rename = "looks")]
    pub relists: u64,
    /// What made no sense in the last complete relist. Never a reason for not being healthy.
    pub odd_objects: Oddities,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Debug, Default)]
struct State {
    /// Counts what may be a trouble, or the end of one.
    changes: u64,
    relists: u64,
    last_complete: Option<Instant>,
    /// Relists that failed since the last complete one.
    failure: Option<ListFailure>,
    /// What does not answer, by pod and id.
    quarantine: BTreeMap<(PodUid, Arc<str>), Quarantined>,
    /// A list that takes longer than this hangs; zero before one has answered.
    list_patience: Duration,
    /// Who does not answer by id while a list hangs, and since when.
    suspects: Vec<(Who, Instant)>,
    /// While a list hangs: somebody answers by id.
    others_answer: bool,
    hung_shims: BTreeMap<PodUid, HungShim>,
    /// Containers that do not change, and whose status hangs.
    stuck: StuckContainers,
    /// What made no sense in the last complete relist.
    odd: Oddities,
    /// How much there was in it.
    load: Load,
    mode: ModeReport,
    /// The event stream should be up and is not: why, and since when.
    stream_down: Option<(Arc<str>, Instant)>,
    /// There will be no more relists.
    ended: Option<Ended>,
    /// The event stream is up and keeps missing changes.
    stream_lossy: Option<Remembered>,
}

/// What does not answer.
#[derive(Debug)]
struct Quarantined {
    pod: PodRef,
    object: ObjectRef,
    error: Arc<PodError>,
}

/// A pod whose shim does not answer, while the runtime does.
#[derive(Debug, Clone)]
pub(crate) struct HungShim {
    pub(crate) pod: PodRef,
    pub(crate) sandbox: SandboxId,
    pub(crate) shim: Option<Shim>,
    pub(crate) since: Instant,
    /// What the call took that goes through the shim, and the one that does not.
    pub(crate) took: [Duration; 2],
}

impl HungShim {
    pub(crate) fn who(&self) -> Who {
        Who {
            pod: Some(self.pod.full_name()),
            container: None,
            id: Some(self.sandbox.shared()),
            sandbox: Some(self.sandbox.shared()),
            shim: self.shim,
            about: Some((
                self.pod.clone(),
                ObjectRef::Sandbox {
                    id: self.sandbox.clone(),
                },
            )),
        }
    }

    /// What is seen, in words.
    pub(crate) fn text(&self) -> String {
        let [through, around] = self.took;
        let mut text = format!(
            "the shim of pod {} hangs: PodSandboxStatus took {} through it and {} without",
            self.pod.full_name(),
            seconds(through),
            seconds(around)
        );
        if let Some(shim) = self.shim {
            // Writing to a string cannot fail.
            let _ = write!(text, "; its process {} is {} ({})", shim.pid, shim.word(), shim.state);
        }
        text
    }
}

#[derive(Debug)]
struct ListFailure {
    since: Instant,
    attempts: u32,
    error: Error,
    /// The other list was answered.
    alone: bool,
}

/// A call of the generator itself. Others share the table: a pull or a stop may take its minutes, a stream is meant to last.
fn is_generator_rpc(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::Version
            | Rpc::ListPodSandbox
            | Rpc::StreamPodSandboxes
            | Rpc::ListContainers
            | Rpc::StreamContainers
            | Rpc::PodSandboxStatus
            | Rpc::ContainerStatus
    )
}

/// Answers for the generator's health. Clones answer the same.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Mutex<State>>,
    inflight: InFlight,
    threshold: Duration,
    /// The runtime's, for the commands to type next.
    endpoint: Option<Arc<str>>,
}

impl Health {
    pub(crate) fn new(threshold: Duration, inflight: InFlight, endpoint: Option<Arc<str>>) -> Self {
        Self {
            shared: Arc::default(),
            inflight,
            threshold,
            endpoint,
        }
    }

    /// The calls in flight now.
    pub fn inflight(&self) -> &InFlight {
        &self.inflight
    }

    /// The health now.
    pub fn report(&self) -> Report {
        let mut report = self.report_in_full();
        report.more_causes = checks::shorten(&mut report.causes, MOST_CAUSES);
        report
    }

    /// The same with every cause, however many there are: for callers that look for the causes of single pods.
    pub fn report_in_full(&self) -> Report {
        let state = self.shared.lock();
        let now = Instant::now();
        let age = |since: Instant| now.saturating_duration_since(since);
        let last_seen = state.last_complete.map(age);

        let ended = state.ended;
        let mut causes = match ended {
            Some(ended) => vec![ended.cause(&state, now, self.endpoint.as_deref())],
            None => self.causes(&state, now),
        };
        let (relists, odd_objects, load) = (state.relists, state.odd, state.load);
        let mut mode = state.mode.clone();
        drop(state);
        if ended.is_some() {
            // What the event stream was like is nobody's concern any more.
            mode.reason = "the generator has ended".into();
        }
        // Of the same age, by name: the order does not depend on ids.
        causes.sort_by(|a, b| {
            let by = |cause: &Cause| (cause.stage, std::cmp::Reverse(cause.age_seconds));
            let names = |cause: &Cause| (cause.who.pod.clone(), cause.who.container.clone());
            by(a).cmp(&by(b)).then_with(|| names(a).cmp(&names(b)))
        });

        let level = match last_seen {
            _ if ended.is_some() => Level::Unhealthy,
            None => Level::Unhealthy,
            Some(age) if age > self.threshold => Level::Unhealthy,
            Some(_) if !causes.is_empty() => Level::Degraded,
            Some(_) => Level::Healthy,
        };
        let headline = ended.map_or_else(|| self.headline(level, last_seen), Ended::headline);
        let message = message(&headline, &causes);
        Report {
            level,
            headline,
            message,
            causes,
            more_causes: 0,
            warnings: load.warnings(self.endpoint.as_deref()),
            last_seen_seconds: last_seen.map(|age| (age.as_secs_f64() * 1e3).round() / 1e3),
            threshold_seconds: self.threshold.as_secs(),
            mode,
            relists,
            odd_objects,
        }
    }

    fn headline(&self, level: Level, last_seen: Option<Duration>) -> String {
        match (level, last_seen) {
            (Level::Healthy, _) => "PLEG is healthy".to_owned(),
            (Level::Degraded, _) => "PLEG is degraded".to_owned(),
            (Level::Unhealthy, None) => "PLEG is not healthy: pleg has yet to be successful".to_owned(),
            (Level::Unhealthy, Some(age)) => format!(
                "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
                seconds(Duration::from_secs(age.as_secs())),
                seconds(self.threshold)
            ),
        }
    }

    fn causes(&self, state: &State, now: Instant) -> Vec<Cause> {
        let endpoint = self.endpoint.as_deref();
        let age = |since: Instant| now.saturating_duration_since(since);
        let calls = self.inflight.calls();
        // How long a list may take depends on what lists take on this node.
        let patience = |list: bool| {
            if list {
                SLOW_CALL.max(state.list_patience)
            } else {
                SLOW_CALL
            }
        };
        let waits = |rpcs: [Rpc; 2]| {
            calls
                .iter()
                .any(|call| rpcs.contains(&call.rpc) && age(call.since) >= patience(true))
        };
        let sandboxes_wait = waits([Rpc::ListPodSandbox, Rpc::StreamPodSandboxes]);
        // Some answer while a list does not: it is not the runtime as a whole.
        let alone = state.others_answer || !sandboxes_wait && waits([Rpc::ListContainers, Rpc::StreamContainers]);

        let mut causes = Vec::new();
        if let Some(failure) = &state.failure {
            let seen = Seen {
                stage: Stage::List,
                trouble: of_list(&failure.error, alone || failure.alone),
                rpc: failure.error.rpc.name().into(),
                who: Who::default(),
                age: age(failure.since),
            };
            causes.push(seen.failed(&failure.error.to_string().into(), failure.attempts, endpoint));
        }
        // What is still in flight has no error yet; it is told by its age.
        for call in calls {
            let (waiting, list) = (age(call.since), call.subject.id.is_none());
            if waiting < patience(list) || !is_generator_rpc(call.rpc) {
                continue;
            }
            let known = |cause: &Cause| cause.who.id == call.subject.id && cause.rpc == call.rpc.name();
            let quarantined = |error: &PodError| error.id == call.subject.id && error.rpc == call.rpc.name();
            let suspect = |who: &Who| who.id.is_some() && who.id == call.subject.id;
            if causes.iter().any(known)
                || state.quarantine.values().any(|held| quarantined(&held.error))
                || state.suspects.iter().any(|(who, _)| suspect(who))
                || state.stuck.has(call.subject.id.as_ref())
            {
                continue;
            }
            let seen = Seen {
                stage: if list { Stage::List } else { Stage::Inspect },
                trouble: match list {
                    true if alone => Trouble::LockedContainer,
                    true => Trouble::RuntimeStuck,
                    false => Trouble::StuckInspection,
                },
                rpc: call.rpc.name().into(),
                who: Who {
                    pod: call.subject.pod,
                    container: call.subject.container,
                    id: call.subject.id,
                    ..Who::default()
                },
                age: waiting,
            };
            causes.push(seen.waiting(endpoint));
        }
        self.name_suspects(state, &mut causes, now);
        for Quarantined { pod, object, error } in state.quarantine.values() {
            let hung = state.hung_shims.get(&pod.uid);
            let seen = Seen {
                stage: Stage::Inspect,
                trouble: hung.map_or(error.trouble, |_| Trouble::HungShim),
                rpc: error.rpc.clone(),
                who: Who {
                    pod: Some(pod.full_name()),
                    container: error.container.clone(),
                    id: error.id.clone(),
                    sandbox: error.sandbox.clone(),
                    shim: hung.and_then(|hung| hung.shim),
                    about: Some((pod.clone(), object.clone())),
                },
                age: age(error.since.instant()),
            };
            causes.push(seen.failed(&error.message, error.attempts, endpoint));
        }
        for hung in state.hung_shims.values() {
            let seen = Seen {
                stage: Stage::Probe,
                trouble: Trouble::HungShim,
                rpc: Rpc::PodSandboxStatus.name().into(),
                who: hung.who(),
                age: age(hung.since),
            };
            let text = format!("{} (for {})", hung.text(), seen.for_long());
            causes.push(seen.say(text, endpoint));
        }
        let told: Vec<_> = causes.iter().filter_map(|cause: &Cause| cause.who.id.clone()).collect();
        causes.extend(
            state
                .stuck
                .causes(now, endpoint, |id| told.iter().any(|told| &**told == id)),
        );
        causes.extend(self.stream_cause(state, now));
        causes
    }

    /// What is wrong with the event stream.
    fn stream_cause(&self, state: &State, now: Instant) -> Option<Cause> {
        let seen = |trouble: Trouble, since: Instant| Seen {
            stage: Stage::Stream,
            trouble,
            rpc: Rpc::GetContainerEvents.name().into(),
            who: Who::default(),
            age: now.saturating_duration_since(since),
        };
        let (seen, text) = if let Some((error, since)) = &state.stream_down {
            let seen = seen(Trouble::StreamDown, *since);
            let text = format!("no events from the runtime for {}: {error}", seen.for_long());
            (seen, text)
        } else {
            let missed = state.stream_lossy.as_ref()?;
            (seen(Trouble::LossyStream, missed.since), missed.text(now))
        };
        Some(seen.say(text, self.endpoint.as_deref()))
    }

    /// Whoever does not answer by id while a list hangs: the first is named by the list's own cause, the others by theirs.
    fn name_suspects(&self, state: &State, causes: &mut Vec<Cause>, now: Instant) {
        let endpoint = self.endpoint.as_deref();
        for (n, (who, since)) in state.suspects.iter().enumerate() {
            let hung = state
                .hung_shims
                .values()
                .find(|hung| Some(hung.pod.full_name()) == who.pod);
            let who = Who {
                shim: hung.and_then(|hung| hung.shim),
                ..who.clone()
            };
            let list = causes
                .iter_mut()
                .find(|cause| cause.trouble == Trouble::LockedContainer);
            if let Some(list) = list.filter(|_| n == 0) {
                list.name(&who, &format!("; {who} does not answer by id either"), endpoint);
                continue;
            }
            let seen = Seen {
                stage: Stage::List,
                trouble: Trouble::LockedContainer,
                rpc: if who.container.is_some() {
                    Rpc::ContainerStatus
                } else {
                    Rpc::PodSandboxStatus
                }
                .name()
                .into(),
                age: now.saturating_duration_since(*since),
                who,
            };
            causes.push(seen.waiting(endpoint));
        }
    }

    /// The moment after which the generator is unhealthy unless a relist completes.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.shared.lock().last_complete.map(|last| last + self.threshold)
    }

    /// A full relist is complete. Returns how long relists had failed before, and how often.
    pub(crate) fn relist_complete(&self) -> Option<(Duration, u32)> {
        let mut state = self.shared.lock();
        state.relists += 1;
        state.last_complete = Some(Instant::now());
        let failure = state.failure.take();
        state.changes += u64::from(failure.is_some());
        failure.map(|failure| (failure.since.elapsed(), failure.attempts))
    }

    /// A full relist that `started` then failed; `alone`: the other list was answered. Returns whether it is the first to fail.
    pub(crate) fn relist_failed(&self, error: Error, alone: bool, started: Instant) -> bool {
        let mut state = self.shared.lock();
        if let Some(failure) = &mut state.failure {
            failure.attempts += 1;
            (failure.error, failure.alone) = (error, alone);
            return false;
        }
        state.changes += 1;
        state.failure = Some(ListFailure {
            since: started,
            attempts: 1,
            error,
            alone,
        });
        true
    }

    /// How far apart full relists are now.
    pub(crate) fn full_relist_period(&self) -> Duration {
        let seconds = self.shared.lock().mode.full_look_period_seconds;
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// How changes are found now; why and since when the event stream is down, if it is; and what it missed, if it is lossy. Written
    /// together, so that no reader finds a stream that is down beside no cause for it.
    pub(crate) fn stream(&self, mode: ModeReport, down: Option<(Arc<str>, Instant)>, lossy: Option<Remembered>) {
        let mut state = self.shared.lock();
        let before = (state.stream_down.is_some(), state.stream_lossy.is_some());
        state.changes += u64::from(before != (down.is_some(), lossy.is_some()));
        (state.mode, state.stream_down, state.stream_lossy) = (mode, down, lossy);
    }

    /// How much there was in a complete relist.
    pub(crate) fn load(&self, load: Load) {
        self.shared.lock().load = load;
    }

    /// Who does not answer by id while a list hangs, and whether others do.
    pub(crate) fn suspects(&self, suspects: Vec<(Who, Instant)>, others_answer: bool) {
        let mut state = self.shared.lock();
        let ids = |suspects: &[(Who, Instant)]| suspects.iter().map(|(who, _)| who.id.clone()).collect::<Vec<_>>();
        let same = ids(&state.suspects) == ids(&suspects) && state.others_answer == others_answer;
        state.changes += u64::from(!same);
        (state.suspects, state.others_answer) = (suspects, others_answer);
    }

    pub(crate) fn shim_hangs(&self, hung: HungShim) {
        let mut state = self.shared.lock();
        state.changes += 1;
        state.hung_shims.insert(hung.pod.uid.clone(), hung);
    }

    /// The pod's shim answers, or the pod is gone. Returns since when it did not.
    pub(crate) fn shim_answers(&self, uid: &PodUid) -> Option<Instant> {
        let mut state = self.shared.lock();
        let hung = state.hung_shims.remove(uid)?;
        state.changes += 1;
        Some(hung.since)
    }

    /// What a trouble usually means and what to type next: the words that the report has, for the log.
    pub(crate) fn advice(&self, trouble: Trouble, who: &Who) -> String {
        advice(trouble, who, self.endpoint.as_deref())
    }

    /// What a failed relist usually means and what to type next.
    pub(crate) fn advice_on(&self, error: &Error, alone: bool) -> String {
        self.advice(of_list(error, alone), &Who::default())
    }

    /// The last full relist failed.
    pub(crate) fn relists_fail(&self) -> bool {
        self.shared.lock().failure.is_some()
    }

    /// Takes in what made no sense in a complete relist. Returns whether that is news.
    pub(crate) fn odd(&self, odd: Oddities) -> bool {
        std::mem::replace(&mut self.shared.lock().odd, odd) != odd
    }

    /// A container or sandbox of the pod does not answer.
    pub(crate) fn quarantine(&self, pod: &PodRef, object: &ObjectRef, error: Arc<PodError>) {
        let key = (pod.uid.clone(), Arc::clone(object.id()));
        let held = Quarantined {
            pod: pod.clone(),
            object: object.clone(),
            error,
        };
        let mut state = self.shared.lock();
        let before = state.quarantine.insert(key, held);
        state.changes += u64::from(before.is_none());
    }

    /// It answers, or is gone.
    pub(crate) fn release(&self, uid: &PodUid, id: &Arc<str>) {
        let mut state = self.shared.lock();
        let before = state.quarantine.remove(&(uid.clone(), Arc::clone(id)));
        state.changes += u64::from(before.is_some());
    }

    /// A number that is another one whenever a trouble may have begun or ended, other than by calls that are late.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.lock().changes
    }

    /// When the oldest call of the generator itself was sent.
    pub(crate) fn oldest_call(&self) -> Option<Instant> {
        self.inflight.oldest(is_generator_rpc)
    }

    /// A list that takes longer than this hangs.
    pub(crate) fn list_patience(&self, patience: Duration) {
        self.shared.lock().list_patience = patience;
    }
}

fn message(headline: &str, causes: &[Cause]) -> String {
    let mut message = headline.to_owned();
    // Writing to a string cannot fail.
    if let Some(first) = causes.first() {
        let _ = write!(message, ": {}", first.full());
    }
    if causes.len() > 1 {
        let _ = write!(message, " And {} more.", causes.len() - 1);
    }
    message
}

#[cfg(test)]
mod tests {
    use pleg_cri::Subject;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_relists_that_wait_are_a_cause() {
        let inflight = InFlight::default();
        let health = Health::new(THRESHOLD, inflight.clone(), None);
        health.relist_complete();
        let long = Some(Duration::from_mins(4));
        let _pull = inflight.begin(Rpc::PullImage, Subject::NODE, long);
        let _stop = inflight.begin(Rpc::StopContainer, Subject::id("c"), long);
        let _events = inflight.begin(Rpc::GetContainerEvents, Subject::NODE, None);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(health.report().level, Level::Healthy);

        let _list = inflight.begin(Rpc::ListContainers, Subject::NODE, long);
        tokio::time::advance(SLOW_CALL).await;
        let report = health.report();
        assert_eq!((report.level, report.causes.len()), (Level::Degraded, 1));
        assert_eq!(report.causes[0].rpc, "ListContainers");
    }
}
