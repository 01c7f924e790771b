//! When to relist: the next full relist, the pauses between lists, and the full relist that is still open.
//!
//! A full relist ends when every pod it found changed is committed or in quarantine. Until then it is *open*, and the next one is not due.

use std::time::Duration;

use hashbrown::HashSet;
use tokio::time::Instant;

use super::Config;
use crate::records::PodKey;

/// Lists that events ask for take at most one part in so many of the time, however slow they are: a storm must not keep the runtime
/// listing. What they wait for comes with the next full relist in any case.
const SHARE: u32 = 4;

/// Decides when lists may be sent. Knows nothing of what is in them.
#[derive(Debug)]
pub(super) struct RelistSchedule {
    period: Duration,
    settle_grace: Duration,
    threshold: Duration,
    /// When the next full relist is due, unless it is requested earlier.
    next_full: Instant,
    /// Nothing is listed before this: the last relist failed.
    not_before: Instant,
    /// No list on account of events before this.
    hinted_not_before: Instant,
    /// No list on account of callers' requests before this.
    requested_not_before: Instant,
    /// When the last full relist started.
    last_start: Option<Instant>,
    /// What the last full relist took, and the last lists of single pods.
    full_took: Duration,
    pods_took: Duration,
    open: Option<OpenRelist>,
    /// No relist has been complete yet.
    first: bool,
}

/// A full relist whose lists are in, waiting for the inspections it caused.
#[derive(Debug)]
pub(super) struct OpenRelist {
    pub(super) started: Instant,
    /// It was due, not requested.
    pub(super) due: bool,
    pub(super) bytes: usize,
    /// When one of the inspections last ended.
    progress: Instant,
    waiting: HashSet<PodKey>,
}

impl OpenRelist {
    pub(super) fn new(started: Instant, due: bool, bytes: usize, waiting: HashSet<PodKey>) -> Self {
        Self {
            started,
            due,
            bytes,
            progress: Instant::now(),
            waiting,
        }
    }
}

impl RelistSchedule {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            period: config.period,
            settle_grace: config.settle_grace,
            threshold: config.threshold,
            next_full: now,
            not_before: now,
            hinted_not_before: now,
            requested_not_before: now,
            last_start: None,
            full_took: Duration::ZERO,
            pods_took: Duration::ZERO,
            open: None,
            first: true,
        }
    }

    /// True until a relist is complete.
    pub(super) fn is_first(&self) -> bool {
        self.first
    }

    /// When the next full relist is due; none while one is open. `grown`: by how much the period is longer than the base period.
    /// `waiter`: when a `newer_than` waiter would be served in generic mode. It advances the relist, but never to less than one base
    /// period after the last.
    pub(super) fn full_at(&self, grown: Duration, waiter: Option<Instant>) -> Option<Instant> {
        if self.open.is_some() {
            return None;
        }
        let at = match (waiter, self.next_full.checked_sub(grown)) {
            (Some(waiter), Some(generic)) => generic.max(waiter).min(self.next_full),
            _ => self.next_full,
        };
        Some(at.max(self.not_before))
    }

    /// When lists that events ask for may be sent.
    pub(super) fn hinted_at(&self) -> Instant {
        self.hinted_not_before.max(self.not_before)
    }

    /// When lists that callers ask for may be sent.
    pub(super) fn requested_at(&self) -> Instant {
        self.requested_not_before.max(self.not_before)
    }

    /// One list of everything costs the runtime less than a list for each of so many pods.
    pub(super) fn full_is_cheaper(&self, pods: usize) -> bool {
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        pods > 1 && self.pods_took.saturating_mul(pods) > self.full_took
    }

    /// A full relist starts. Returns how long ago the last one did.
    pub(super) fn full_started(&mut self, now: Instant) -> Option<Duration> {
        self.last_start.replace(now).map(|last| now - last)
    }

    /// Lists have answered, or failed: the next ones that events ask for wait their share. `requested`: callers asked for them, and
    /// they were not due.
    pub(super) fn lists_ended(&mut self, took: Duration, full: bool, requested: bool) {
        let now = Instant::now();
        self.hinted_not_before = now + took * (SHARE - 1);
        if full {
            self.full_took = took;
        } else {
            self.pods_took = took;
        }
        if full && requested {
            // A request is served at once, and requests without end leave the runtime as much time as they take from it.
            self.requested_not_before = now + took;
        }
    }

    /// A relist failed: nothing is listed for a period.
    pub(super) fn failed(&mut self, now: Instant, full: bool) {
        self.not_before = now + self.period;
        if full {
            self.next_full = self.not_before;
        }
    }

    /// A full relist is complete, but for the inspections it caused.
    pub(super) fn open(&mut self, relist: OpenRelist) {
        self.first = false;
        self.open = Some(relist);
    }

    /// An inspection of the pod ended, or turned out not to be needed.
    pub(super) fn inspection_settled(&mut self, key: PodKey) {
        if let Some(open) = &mut self.open
            && open.waiting.remove(&key)
        {
            open.progress = Instant::now();
        }
    }

    /// When the open relist ends regardless of its inspections: no progress for the grace, or a third of the threshold has passed.
    pub(super) fn late_at(&self) -> Option<Instant> {
        let open = self.open.as_ref()?;
        Some((open.progress + self.settle_grace).min(open.started + self.threshold / 3))
    }

    /// True if the open relist waits for no inspection.
    pub(super) fn is_settled(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.waiting.is_empty())
    }

    /// Ends the open relist.
    pub(super) fn close(&mut self) -> Option<OpenRelist> {
        self.open.take()
    }

    /// The next full relist is due then.
    pub(super) fn set_next_full(&mut self, at: Instant) {
        self.next_full = at;
    }

    /// The next full relist is due then, or earlier.
    pub(super) fn advance_next_full(&mut self, at: Instant) {
        self.next_full = self.next_full.min(at);
    }
}
