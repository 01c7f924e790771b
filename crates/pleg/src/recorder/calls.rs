//! How long calls took: totals of each kind, and the last slow ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg_cri::{Outcome, Rpc};
use tokio::time::Instant;

use super::line::{Calls, SlowCall};

/// A call that takes longer is worth a line.
const SLOW: Duration = Duration::from_secs(1);
/// Lines about slow calls.
const MOST: usize = 256;

/// What calls took. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallTimes {
    // Held for a few additions or a copy.
    shared: Arc<Mutex<Times>>,
}

#[derive(Debug, Default)]
struct Times {
    /// In the order of [`Rpc::ALL`].
    totals: Vec<Total>,
    slow: VecDeque<Slow>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    calls: u64,
    failed: u64,
    all: Duration,
    longest: Duration,
}

/// A call that took long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slow {
    pub(super) ended: Instant,
    rpc: Rpc,
    took: Duration,
    outcome: &'static str,
}

impl Slow {
    pub(super) fn line(&self) -> SlowCall {
        SlowCall {
            rpc: self.rpc.name().into(),
            micros: micros(self.took),
            outcome: self.outcome.into(),
        }
    }
}

impl CallTimes {
    /// Takes in a call that ended.
    pub(crate) fn ended(&self, rpc: Rpc, took: Duration, outcome: Outcome<'_>) {
        let times = &mut *self.shared.lock();
        times.totals.resize(Rpc::ALL.len(), Total::default());
        let total = &mut times.totals[rpc as usize];
        total.calls += 1;
        total.failed += u64::from(matches!(outcome, Outcome::Failed(_)));
        total.all += took;
        total.longest = total.longest.max(took);
        if took >= SLOW {
            times.slow.truncate(MOST - 1);
            times.slow.push_front(Slow {
                ended: Instant::now(),
                rpc,
                took,
                outcome: match outcome {
                    Outcome::Ok => "ok",
                    Outcome::Failed(kind) => kind.label(),
                    Outcome::Dropped => "dropped",
                },
            });
        }
    }

    /// The slow calls, oldest first.
    pub(super) fn slow(&self) -> Vec<Slow> {
        self.shared.lock().slow.iter().rev().copied().collect()
    }

    /// The totals of the kinds that were called.
    pub(super) fn totals(&self) -> Vec<Calls> {
        let times = self.shared.lock();
        let kinds = Rpc::ALL.iter().zip(&times.totals);
        kinds
            .filter(|(_, total)| total.calls > 0)
            .map(|(rpc, total)| Calls {
                rpc: rpc.name().into(),
                calls: total.calls,
                failed: total.failed,
                micros: micros(total.all),
                longest_micros: micros(total.longest),
            })
            .collect()
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pleg_cri::ErrorKind;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_calls_are_kept_within_bounds() {
        let times = CallTimes::default();
        for n in 0..1000_u64 {
            times.ended(Rpc::ListContainers, Duration::from_millis(n % 2), Outcome::Ok);
            let late = ErrorKind::Deadline(Duration::from_secs(10));
            times.ended(Rpc::ContainerStatus, Duration::from_secs(1 + n), Outcome::Failed(&late));
        }
        let slow = times.slow();
        assert_eq!(slow.len(), MOST);
        let last = slow[MOST - 1].line();
        assert_eq!(
            (&*last.rpc, last.micros, &*last.outcome),
            ("ContainerStatus", 1_000_000_000, "deadline")
        );
        let totals = times.totals();
        assert_eq!(totals.len(), 2);
        let statuses = totals.iter().find(|calls| &*calls.rpc == "ContainerStatus").unwrap();
        assert_eq!(
            (statuses.calls, statuses.failed, statuses.longest_micros),
            (1000, 1000, 1_000_000_000)
        );
    }
}
