//! What the runtime's events make the generator do, and how far they are trusted.
//!
//! An event is about an object. One that is in the records is asked for by its id, together with its pod: one round trip, whatever
//! the size of the node (a filtered list goes through all containers in the runtime, and the answer still has to be inspected). What
//! is not in the records, or is said to be gone, is looked for with lists: of its pod, where that is told, else of everything.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use pleg_cri::error::seconds;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Config, Generator};
use crate::event::Source;
use crate::evented::ahead::{Ahead, Claim};
use crate::evented::misses::{Misses, Suspicion};
use crate::evented::period::Period;
use crate::evented::{EventedConfig, Link, Mode, ModeReport, Reached, Stream, StreamState};
use crate::health::Who;
use crate::model::PodUid;
use crate::recorder::line::{State, Turn};
use crate::records::PodKey;
use crate::runtime::Runtime;
use crate::trouble::Trouble;

/// Up to this many pods at once are asked for by id. Beyond, one list tells which of them changed at all.
const MOST_BY_ID: usize = 32;
/// Lists that events ask for take at most one part in so many of the time: a storm must not keep the runtime listing.
const SHARE: u32 = 4;
/// The longest that such a list is put off.
const MOST_PAUSE: Duration = Duration::from_millis(500);
/// A stream that is back within this time is not worth a word; nor is one whose runtime is gone, which is told anyway.
const UNTOLD: Duration = Duration::from_secs(5);
/// How often the gauges follow what events bring.
const COUNT: Duration = Duration::from_secs(1);

/// What the generator knows of the runtime's events.
#[derive(Debug)]
pub(super) struct Evented {
    link: Link,
    /// The turn of the link that was last followed.
    turn: u64,
    config: EventedConfig,
    pub(super) period: Period,
    pub(super) misses: Misses,
    pub(super) ahead: Ahead,
    missed: u64,
    /// Events come; none since their subscription were lost before this full look.
    up: bool,
    /// A full look began after the subscription, so whatever the next ones find should have been told.
    verified: bool,
    /// The same, once the look in flight is complete.
    verifying: bool,
    reason: Arc<str>,
    /// Since when the stream is down, and whether that was told.
    down: Option<(Instant, bool)>,
    /// What lists are wanted for.
    pub(super) wanted: Wanted,
    /// No list on account of events before this.
    pub(super) not_before: Instant,
}

/// What events want lists for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) all: bool,
    /// Pods, with the ids that should be found in them.
    pub(super) pods: HashMap<PodUid, HashSet<Arc<str>>>,
}

impl Wanted {
    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.pods.is_empty()
    }

    /// Takes back what a failed look has not served.
    pub(super) fn put_back(&mut self, other: Self) {
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

impl Evented {
    pub(super) fn new(config: &Config) -> Self {
        let state = match config.evented.mode {
            Mode::Generic => StreamState::Off {
                reason: "as configured".into(),
            },
            Mode::Evented | Mode::Auto => StreamState::Asking,
        };
        Self {
            link: Link::new(state),
            turn: 0,
            config: config.evented,
            period: Period::new(config.period, config.evented.most_period, config.threshold),
            misses: Misses::default(),
            ahead: Ahead::default(),
            missed: 0,
            up: false,
            verified: false,
            verifying: false,
            reason: Arc::default(),
            down: None,
            wanted: Wanted::default(),
            not_before: Instant::now(),
        }
    }

    /// The runtime was away and answers again.
    pub(super) fn runtime_back(&self) {
        self.link.runtime_back();
    }

    /// A list that took so long has come: the next one that events ask for waits its share.
    pub(super) fn listed(&mut self, took: Duration) {
        self.not_before = Instant::now() + (took * (SHARE - 1)).min(MOST_PAUSE);
    }

    /// When it is to be told that the stream is down.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        self.down.filter(|(_, told)| !told).map(|(since, _)| since + UNTOLD)
    }

    fn report(&self) -> ModeReport {
        ModeReport {
            mode: if self.up { Mode::Evented } else { Mode::Generic },
            configured: self.config.mode,
            reason: Arc::clone(&self.reason),
            full_look_period_seconds: self.period.now().as_secs_f64(),
            missed_changes: self.missed,
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// Starts the task that reads the stream; it ends when what is returned is dropped.
    pub(super) fn start_stream(&self) -> Option<AbortOnDropHandle<()>> {
        let mode = self.config.evented.mode;
        (mode != Mode::Generic).then(|| {
            let stream = Stream {
                runtime: Arc::clone(&self.runtime),
                mode,
                alone: self.config.evented.alone,
                hints: self.hints.clone(),
                link: self.evented.link.clone(),
                metrics: self.metrics.clone(),
            };
            AbortOnDropHandle::new(tokio::spawn(stream.run()))
        })
    }

    /// When the next full look is due: after the pause, or when somebody has waited for one as long as he would in generic mode.
    /// Who waits for a pod that does not answer waits on: so it is never sooner after the last one than in that mode either.
    pub(super) fn full_at(&self) -> Instant {
        let period = &self.evented.period;
        let oldest = period.is_grown().then(|| self.cache.reader().oldest_wait()).flatten();
        let generic = self.next_full.checked_sub(period.now().saturating_sub(period.least()));
        match (oldest, generic) {
            (Some(since), Some(generic)) => generic.max(since + period.least()).min(self.next_full),
            _ => self.next_full,
        }
    }

    /// When lists that events ask for may be sent.
    pub(super) fn stirred_at(&self) -> Option<Instant> {
        (!self.evented.wanted.is_empty()).then(|| self.evented.not_before.max(self.not_before))
    }

    /// When the gauges are to follow what looks at single pods brought.
    pub(super) fn count_at(&self) -> Option<Instant> {
        self.uncounted.then(|| self.counted + COUNT)
    }

    /// Whatever the stream has to say: whether it is up, what it was about, and what it failed to tell.
    pub(super) fn follow_stream(&mut self) {
        let turns = self.evented.link.turns();
        if std::mem::replace(&mut self.evented.turn, turns) != turns {
            self.stream_turned();
        }
        self.tell_down();
        self.sort_hints();
        self.look_into_claims();
        self.judge_misses();
        if self.count_at().is_some_and(|at| Instant::now() >= at) {
            self.count();
        }
    }

    fn stream_turned(&mut self) {
        let was_up = self.evented.up;
        let state = self.evented.link.state();
        let trouble = match &state {
            StreamState::Down { error, since } => Some((Arc::clone(error), *since)),
            _ => None,
        };
        self.evented.reason = match &state {
            StreamState::Asking => "asking for the event stream".into(),
            StreamState::Off { reason } => Arc::clone(reason),
            StreamState::Up { runtime, .. } => format!("the event stream of {runtime} is up").into(),
            StreamState::Down { error, .. } => format!("the event stream is down: {error}").into(),
        };
        self.evented.up = matches!(state, StreamState::Up { .. });
        (self.evented.verified, self.evented.verifying) = (false, false);
        self.evented.misses.forgive();
        let reason = Arc::clone(&self.evented.reason);
        match &state {
            StreamState::Up { runtime, splits } => {
                if let Some((since, true)) = self.evented.down.take() {
                    tracing::info!("the runtime's events come again, after {}", seconds(since.elapsed()));
                } else {
                    tracing::debug!("following the events of {runtime}");
                }
                if *splits && !self.evented.config.alone {
                    tracing::warn!(
                        "{runtime} hands each event to one subscriber only: a kubelet that reads them too misses those \
                         that come here, and we miss those that go there. --mode generic takes none"
                    );
                }
                self.recorder.transition(Turn::Evented, None, Some(&reason), None);
                // Subscribed, so look: what happened before is found, what happens from now on is told.
                self.hints.all(Source::Relist);
            }
            StreamState::Off { reason } => {
                self.evented.down = None;
                // Who has chosen it knows.
                if self.config.evented.mode != Mode::Generic {
                    tracing::info!("looking every {}: {reason}", seconds(self.config.period));
                }
                self.recorder.transition(Turn::Generic, None, Some(reason), None);
            }
            StreamState::Down { since, .. } => {
                self.evented.down.get_or_insert((*since, false));
                if was_up {
                    self.recorder.transition(Turn::Generic, None, Some(&reason), None);
                    // What happened meanwhile has no event.
                    self.hints.all(Source::Relist);
                }
            }
            StreamState::Asking => {}
        }
        self.health.stream_down(trouble);
        self.reset_period("the stream changed");
        self.tell_mode();
    }

    fn tell_down(&mut self) {
        if self.evented.tell_at().is_none_or(|at| Instant::now() < at) || self.health.looks_fail() {
            return;
        }
        let Some((_, told)) = &mut self.evented.down else {
            return;
        };
        *told = true;
        let advice = self.health.advice(Trouble::StreamDown, &Who::default());
        tracing::warn!(
            "{}; looking every {} meanwhile. {advice}",
            self.evented.reason,
            seconds(self.config.period)
        );
    }

    /// Looks at what the events were about, or notes that lists are wanted for it.
    fn sort_hints(&mut self) {
        let stirred = self.hints.take_stirred();
        if stirred.is_empty() {
            return;
        }
        let now = Instant::now();
        let evented = &mut self.evented;
        if stirred.all {
            evented.wanted.all = true;
            evented.misses.hinted_all(now);
        }
        let mut by_id: HashMap<PodKey, Vec<Arc<str>>> = HashMap::new();
        for (id, stir) in stirred.objects {
            let known = self.records.pod_of(&id);
            let uid = known.and_then(|key| self.records.pod(key)).map(|pod| pod.uid.clone());
            // The records know better: a container does not change its pod.
            let (uid, deleted) = (uid.or(stir.pod), stir.reached == Some(Reached::Gone));
            if let (Some(reached), Some(uid)) = (stir.reached, &uid) {
                let (id, pod) = (Arc::clone(&id), uid.clone());
                evented.ahead.claimed(Claim { id, pod, reached }, now);
            }
            // What was never seen and is gone again is nobody's news; unless it is being listed, or was just told to be there, as
            // by runtimes that say so of what has only stopped.
            let news = stir.seen || self.listing.is_some();
            match (known, uid) {
                (Some(key), Some(uid)) => {
                    evented.misses.hinted(&uid, now);
                    if deleted {
                        evented.wanted.pods.entry(uid).or_default();
                    } else {
                        by_id.entry(key).or_default().push(id);
                    }
                }
                (_, Some(uid)) => {
                    evented.misses.hinted(&uid, now);
                    if news {
                        let ids = evented.wanted.pods.entry(uid).or_default();
                        // It need not be there.
                        ids.extend(Some(id).filter(|_| !deleted));
                    }
                }
                (_, None) => {
                    evented.misses.hinted_all(now);
                    evented.wanted.all |= news;
                }
            }
        }
        for uid in stirred.pods {
            evented.misses.hinted(&uid, now);
            evented.wanted.pods.entry(uid).or_default();
        }
        evented.wanted.bound();
        self.look_at_once(by_id);
    }

    /// Looks again at what events have claimed and what is still not so.
    fn look_into_claims(&mut self) {
        let now = Instant::now();
        if self.evented.ahead.next().is_none_or(|at| now < at) {
            return;
        }
        let records = &self.records;
        let open = self
            .evented
            .ahead
            .due(now, |claim| records.has_reached(&claim.id, claim.reached));
        let mut by_id: HashMap<PodKey, Vec<Arc<str>>> = HashMap::new();
        for claim in open {
            // By id it is seen neither that something is gone nor that a sandbox has become ready.
            let listed = claim.reached == Reached::Gone || self.records.is_sandbox(&claim.id);
            match self.records.pod_of(&claim.id) {
                Some(key) if !listed => by_id.entry(key).or_default().push(claim.id),
                Some(_) => _ = self.evented.wanted.pods.entry(claim.pod).or_default(),
                None => {}
            }
        }
        self.evented.wanted.bound();
        self.look_at_once(by_id);
    }

    /// Asks for these objects by their ids; or lists everything, if they are many.
    fn look_at_once(&mut self, by_id: HashMap<PodKey, Vec<Arc<str>>>) {
        if by_id.is_empty() {
            return;
        }
        if self.first || by_id.len() > MOST_BY_ID {
            self.evented.wanted.all = true;
            return;
        }
        let complete = self.cache.reader().complete();
        for (key, ids) in by_id {
            // A container that nobody has listed yet may be missing, so this vouches for nothing beyond the last complete look.
            self.ask_by_ids(key, ids, complete);
        }
    }

    /// A full look found news about these pods, and `told` of them events asked for. Should the stream have told the others?
    pub(super) fn verify(&mut self, touched: &[PodKey], told: &Wanted) {
        let now = Instant::now();
        self.evented.misses.forget_old(now);
        if !self.evented.up || !self.evented.verified || told.all {
            return;
        }
        for &key in touched {
            let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
                continue;
            };
            if self.is_told(key, told) || self.is_stirred(key) || self.evented.misses.is_hinted(&uid, now) {
                continue;
            }
            let mut suspicion = Suspicion::new(now);
            for (id, before, after) in self.records.uncommitted(key) {
                match (before, after) {
                    // A sandbox is listed before it is ready where its network takes its time.
                    (None, Some(State::NotReady)) => {}
                    (None | Some(State::Created), Some(State::Exited)) => suspicion.unstarted.push(id.into()),
                    _ => suspicion.other = true,
                }
            }
            self.evented.misses.suspect(&uid, suspicion);
        }
    }

    /// Events asked for a look at this pod.
    pub(super) fn is_told(&self, key: PodKey, told: &Wanted) -> bool {
        self.records
            .pod(key)
            .is_some_and(|pod| told.pods.contains_key(&pod.uid))
    }

    /// Counts what the stream had its time to tell, and did not.
    fn judge_misses(&mut self) {
        let now = Instant::now();
        if self.evented.misses.next().is_none_or(|at| now < at) {
            return;
        }
        let cache = self.cache.reader();
        let mut missed: Vec<PodUid> = Vec::new();
        for (uid, suspicion) in self.evented.misses.certain(now) {
            let failed_start = |id| {
                let entry = cache.get(&uid)?;
                let status = entry.status.by_id().get(id).copied()?.clone();
                Some(status.exit_code == Some(128) && &*status.reason == "StartError")
            };
            let explained = suspicion.unstarted.iter().all(|id| failed_start(id).unwrap_or(false));
            if suspicion.other || !explained {
                missed.push(uid);
            }
        }
        let Some(first) = missed.first() else { return };
        let pod = self.records.key(first).and_then(|key| self.records.pod(key));
        let name = pod.map_or_else(|| first.to_string(), ToString::to_string);
        let text = match missed.len() {
            1 => format!("a full look found a change of pod {name} that no event told"),
            n => format!("a full look found changes of {n} pods that no event told, {name} among them"),
        };
        self.recorder.transition(Turn::Missed, pod, Some(&text), None);
        tracing::warn!("{text}; looking every {} again", seconds(self.config.period));
        self.evented.missed += missed.len() as u64;
        self.metrics.missed_changes(missed.len() as u64);
        self.reset_period("a change was missed");
        self.tell_mode();
    }

    /// A full look begins.
    pub(super) fn full_look_begins(&mut self) {
        self.evented.verifying = self.evented.up;
    }

    /// A full look is complete; it was `due`, not asked for. Returns the pause before the next.
    pub(super) fn pause(&mut self, due: bool) -> Duration {
        let proven = self.evented.verified && self.evented.misses.is_clear();
        self.evented.verified = self.evented.up && self.evented.verifying;
        if self.evented.up && proven && due && self.evented.period.grow() {
            self.period_changed("the stream proves itself");
        }
        self.evented.period.now()
    }

    /// Full looks come as often as in generic mode again.
    pub(super) fn reset_period(&mut self, why: &str) {
        if self.evented.period.reset() {
            self.next_full = self.next_full.min(Instant::now() + self.evented.period.now());
            self.period_changed(why);
        }
    }

    fn period_changed(&mut self, why: &str) {
        let text = format!("a full look every {}: {why}", seconds(self.evented.period.now()));
        tracing::debug!("{text}");
        self.recorder.transition(Turn::Period, None, Some(&text), None);
        self.tell_mode();
    }

    fn tell_mode(&self) {
        let report = self.evented.report();
        self.metrics.mode(&report);
        self.health.mode(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lists_are_wanted_for_is_bounded() {
        let mut wanted = Wanted::default();
        for n in 0..10_000 {
            let pods = HashMap::from([(PodUid::from(format!("{n}").as_str()), HashSet::new())]);
            wanted.put_back(Wanted { all: false, pods });
        }
        assert!(wanted.all && wanted.pods.len() < 4097);
        let ids = (0..10_000).map(|n| format!("{n}").as_str().into()).collect();
        let mut wanted = Wanted::default();
        wanted.put_back(Wanted {
            all: false,
            pods: HashMap::from([(PodUid::from("a"), ids)]),
        });
        assert!(wanted.all && wanted.pods.is_empty());
    }
}
