//! The latency of a status call while no other call of ours is in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::ProbeConfig;

/// So many calls tell what one takes; as many are timed in a round.
const SAMPLES: u32 = 5;

/// Times a probe now and then, and sees to it that its calls are alone: no list, no inspection and no other probe from the beginning of
/// a call to its end. Lists and inspections are not held up for it; a call that one of them disturbs is no sample.
#[derive(Debug)]
pub(super) struct Isolated {
    /// When the next sample is due.
    due: Instant,
    timing: Timing,
    /// What the last calls took.
    took: VecDeque<Duration>,
}

/// Whether a probe is timed.
#[derive(Debug)]
enum Timing {
    /// No probe is timed, or the one that was has been disturbed.
    Idle,
    /// The one probe in flight is, and nothing has disturbed it.
    Alone { since: Instant, alone: Arc<AtomicBool> },
}

impl Isolated {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: now,
            timing: Timing::Idle,
            took: VecDeque::new(),
        }
    }

    /// What a call takes. The quickest of the last few: a runtime that is busy for a moment is not slow.
    pub(super) fn latency(&self) -> Option<Duration> {
        let known = self.took.len() == SAMPLES as usize;
        self.took.iter().min().copied().filter(|_| known)
    }

    /// A probe is timed.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.timing, Timing::Alone { .. })
    }

    /// To be asked in every turn of the generator, once it has sent whatever it sends: so nothing is in flight without being seen here.
    /// Returns until when no other probe is to be started: while one is timed, or while those in flight end so that one can be. Both
    /// only as long as a call usually takes at most; a hung one delays no other call.
    pub(super) fn holds(&mut self, now: Instant, probes: usize, others: bool, config: ProbeConfig) -> Option<Instant> {
        let until = match &self.timing {
            Timing::Alone { alone, .. } if others => {
                alone.store(false, Ordering::Relaxed);
                self.timing = Timing::Idle;
                return None;
            }
            Timing::Alone { since, .. } => *since + config.slow,
            Timing::Idle if probes > 0 && now >= self.due => self.due + config.slow,
            Timing::Idle => return None,
        };
        if now < until {
            return Some(until);
        }
        if let Timing::Alone { alone, .. } = &self.timing {
            alone.store(false, Ordering::Relaxed);
        }
        (self.timing, self.due) = (Timing::Idle, now + config.round / SAMPLES);
        None
    }

    /// A probe starts while nothing else is in flight. If it is to be timed, returns what says for how long that stays so.
    pub(super) fn begin(&mut self, config: ProbeConfig) -> Option<Arc<AtomicBool>> {
        let now = Instant::now();
        if now < self.due {
            return None;
        }
        self.due = now + config.round / SAMPLES;
        let alone = Arc::new(AtomicBool::new(true));
        self.timing = Timing::Alone {
            since: now,
            alone: Arc::clone(&alone),
        };
        Some(alone)
    }

    /// A probe ended, of so many in flight. `took`: what its calls took that were timed.
    pub(super) fn ended(&mut self, in_flight: usize, took: Option<Duration>) {
        if let Some(took) = took {
            if self.took.len() == SAMPLES as usize {
                self.took.pop_front();
            }
            self.took.push_back(took);
        }
        if in_flight <= 1 {
            self.timing = Timing::Idle;
        }
    }
}
