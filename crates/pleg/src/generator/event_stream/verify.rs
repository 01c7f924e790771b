//! Verifies the event stream by full relists, and paces those by how far it is trusted.

use std::sync::Arc;
use std::time::Duration;

use pleg_cri::duration::seconds;
use tokio::time::Instant;

use super::super::Generator;
use super::HintedPods;
use crate::evented::misses::UnreportedChange;
use crate::evented::trust::{LOSSY_PERIOD, MEMORY, Trust};
use crate::health::Who;
use crate::health::diagnosis::Trouble;
use crate::model::PodUid;
use crate::model::event::Source;
use crate::recorder::line::{State, Turn};
use crate::records::PodKey;
use crate::runtime::Runtime;

/// Whether a full relist can prove that something was not announced: by the stream or, where there is none, by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing announces changes.
    Unannounced,
    /// Changes are announced. No full relist has begun since: what the next one finds may have happened before.
    Unverified,
    /// Changes are announced, and a full relist has begun since.
    Verifying,
    /// That relist is complete: whatever the next ones find should have been reported.
    Verified,
}

impl Standing {
    /// To begin with.
    pub(super) fn of(announced: bool) -> Self {
        if announced { Self::Unverified } else { Self::Unannounced }
    }

    pub(super) fn is_announced(self) -> bool {
        self != Self::Unannounced
    }

    fn relist_begins(&mut self) {
        if *self == Self::Unverified {
            *self = Self::Verifying;
        }
    }

    fn relist_completes(&mut self) {
        if *self == Self::Verifying {
            *self = Self::Verified;
        }
    }
}

impl<R: Runtime> Generator<R> {
    /// A full relist found news about these pods, and events hinted at `hinted`. Notes the others that the stream should have
    /// reported.
    pub(in crate::generator) fn verify(&mut self, touched: &[PodKey], hinted: &HintedPods) {
        let now = Instant::now();
        self.stream.misses.forget_old(now);
        if self.stream.standing != Standing::Verified || hinted.all {
            return;
        }
        for &key in touched {
            let Some(uid) = self.records.pod(key).map(|pod| pod.uid.clone()) else {
                continue;
            };
            if hinted.has(&uid)
                || self.inspections.is_hinted(key)
                || self.quarantine.is_hinted(key)
                || self.stream.misses.is_hinted(&uid, now)
            {
                continue;
            }
            let mut change = UnreportedChange::new(now);
            for (id, before, after) in self.records.uncommitted(key) {
                match (before, after) {
                    // A sandbox is listed before it is ready where its network takes its time; and no runtime promises an event for
                    // the removal of what has ended.
                    (None, Some(State::NotReady)) | (Some(State::Exited | State::NotReady), None) => {}
                    // The kernel knows nothing of a container before it starts.
                    (None, Some(State::Created)) if !self.stream.connected => {}
                    (None | Some(State::Created), Some(State::Exited)) => change.unstarted.push(id.into()),
                    _ => change.other = true,
                }
            }
            self.stream.misses.unreported(&uid, change);
        }
    }

    /// Counts changes that the stream had time to report, and did not.
    pub(super) fn judge_misses(&mut self) {
        let now = Instant::now();
        if self.stream.misses.next().is_none_or(|at| now < at) {
            return;
        }
        let cache = self.publisher.cache.reader();
        let mut missed: Vec<PodUid> = Vec::new();
        for (uid, change) in self.stream.misses.certain(now) {
            let failed_start = |id| {
                let entry = cache.get(&uid)?;
                let status = entry.status.by_id().get(id).copied()?.clone();
                Some(status.exit_code == Some(128) && &*status.reason == "StartError")
            };
            let explained = change.unstarted.iter().all(|id| failed_start(id).unwrap_or(false));
            if change.other || !explained {
                missed.push(uid);
            }
        }
        if !missed.is_empty() {
            self.count_misses(&missed, now);
        }
    }

    /// A full relist found changes of these pods that no event reported.
    fn count_misses(&mut self, missed: &[PodUid], now: Instant) {
        let Some(first) = missed.first() else { return };
        let pod = self.records.key(first).and_then(|key| self.records.pod(key));
        let name = pod.map_or_else(|| first.to_string(), ToString::to_string);
        let text = match missed.len() {
            1 => format!("a full relist found a change of pod {name} that was not announced"),
            n => format!("a full relist found changes of {n} pods, {name} among them, that were not announced"),
        };
        self.recorder.transition(Turn::Missed, pod, Some(&text), None);
        let changes = missed.len() as u64;
        let becomes_lossy = self.stream.trust.missed(changes, now);
        match self.stream.trust.lossy() {
            Some(remembered) if becomes_lossy => {
                let advice = self.health.advice(Trouble::LossyStream, &Who::default());
                tracing::warn!(
                    missed = remembered.changes,
                    relist_every = %seconds(LOSSY_PERIOD.max(self.config.period)),
                    "{} is lossy: {text}",
                    self.stream.announcer()
                );
                tracing::debug!("{advice}");
            }
            // Said once: health has the count.
            Some(_) => tracing::debug!("{text}"),
            None => tracing::warn!("{text}; relisting every {} again", seconds(self.config.period)),
        }
        self.stream.missed += changes;
        self.metrics.missed_changes(changes);
        self.reset_period("a change was missed");
        self.report_mode();
    }

    /// Forgets misses that were long ago on a stream that has reported all since.
    pub(super) fn forget_misses(&mut self) {
        if !self.stream.standing.is_announced() {
            return;
        }
        if let Some(remembered) = self.stream.trust.forget(Instant::now()) {
            let lasted = seconds(Duration::from_secs(remembered.since.elapsed().as_secs()));
            tracing::info!(
                "{} has reported every change for {}: no longer lossy, after {lasted} and {} missed changes",
                self.stream.announcer(),
                seconds(MEMORY),
                remembered.changes
            );
            self.report_mode();
        }
    }

    /// The stream of that runtime is connected. Misses of the same runtime are remembered; another one starts with none.
    pub(super) fn trust_connected(&mut self, runtime: &Arc<str>) {
        let stream = &mut self.stream;
        if stream
            .runtime
            .replace(Arc::clone(runtime))
            .is_some_and(|before| before != *runtime)
        {
            if stream.trust.lossy().is_some() {
                tracing::info!("{runtime} replaced the runtime whose event stream was lossy");
            }
            stream.trust = Trust::Full;
        }
        stream.trust.connected(Instant::now());
    }

    /// The witness announces every change from now on, or does so no longer.
    pub(in crate::generator) fn witness_changed(&mut self, complete: bool) {
        self.stream.witnessed = complete;
        // With a stream, announcements of the kernel help and are not needed.
        if self.stream.connected {
            return;
        }
        self.stream.standing = Standing::of(complete);
        self.stream.misses.forgive();
        if complete {
            self.stream.trust.connected(Instant::now());
            // What happened before has no announcement.
            self.requests.all(Source::Relist);
        } else {
            self.reset_period("the kernel does not announce every change");
        }
        self.report_mode();
    }

    /// A full relist begins.
    pub(in crate::generator) fn full_relist_begins(&mut self) {
        self.stream.standing.relist_begins();
    }

    /// A full relist is complete; it was `due`, not asked for. Returns the pause before the next.
    pub(in crate::generator) fn pause(&mut self, due: bool) -> Duration {
        let stream = &mut self.stream;
        let proven = stream.standing == Standing::Verified && stream.misses.is_clear();
        stream.standing.relist_completes();
        if proven && due && stream.period.clean(&stream.trust) {
            self.period_changed("every change was announced");
        }
        self.stream.period.now()
    }

    /// Full relists come as often as in generic mode again.
    pub(in crate::generator) fn reset_period(&mut self, why: &str) {
        if self.stream.period.reset() {
            self.schedule
                .advance_next_full(Instant::now() + self.stream.period.now());
            self.period_changed(why);
        }
    }

    fn period_changed(&mut self, why: &str) {
        let text = format!("a full relist every {}: {why}", seconds(self.stream.period.now()));
        tracing::debug!("{text}");
        self.recorder.transition(Turn::Period, None, Some(&text), None);
        self.report_mode();
    }
}
