//! How many inspections may be in flight at once.
//!
//! The kubelet inspects one pod after the other; that is slow, but it is also its back-pressure. Ours follows the runtime's own
//! latency: the limit rises while answers stay as quick as they were, and falls when they take much longer. A call that is *late*
//! gives its place to others, so that a few hung containers cannot use up the limit; how many may do so is bounded too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// Bounds of the limit, and when a call is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterConfig {
    /// Never fewer at once.
    pub least: usize,
    /// To begin with.
    pub start: usize,
    /// Never more at once.
    pub most: usize,
    /// A call that takes longer gives its place to others.
    pub late: Duration,
    /// How many late calls may have given up their place.
    pub most_late: usize,
}

impl Default for LimiterConfig {
    fn default() -> Self {
        Self {
            least: 8,
            start: 64,
            most: 128,
            late: Duration::from_secs(1),
            most_late: 64,
        }
    }
}

/// Slower than this many times the usual: too many at once.
const SLOW: f64 = 3.0;
/// Seconds that a busy node adds to any call by itself.
const NOISE: f64 = 5e-3;

#[derive(Debug)]
struct Adaptation {
    limit: usize,
    /// Permits to take back as they come in.
    debt: usize,
    /// What a call usually takes, in seconds; none before the first window.
    usual: Option<f64>,
    /// Calls and seconds in this window.
    calls: usize,
    seconds: f64,
}

/// The limit. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Limiter {
    config: LimiterConfig,
    places: Arc<Semaphore>,
    late: Arc<Semaphore>,
    adaptation: Arc<Mutex<Adaptation>>,
}

impl Limiter {
    pub(crate) fn new(config: LimiterConfig) -> Self {
        let least = config.least.max(1);
        let most = config.most.max(least);
        let config = LimiterConfig {
            least,
            most,
            start: config.start.clamp(least, most),
            ..config
        };
        let limit = config.start;
        let adaptation = Adaptation {
            limit,
            debt: 0,
            usual: None,
            calls: 0,
            seconds: 0.0,
        };
        Self {
            config,
            places: Arc::new(Semaphore::new(limit)),
            late: Arc::new(Semaphore::new(config.most_late)),
            adaptation: Arc::new(Mutex::new(adaptation)),
        }
    }

    /// The limit in force.
    pub(crate) fn limit(&self) -> usize {
        self.adaptation.lock().limit
    }

    /// Runs a call when there is a place for it.
    pub(crate) async fn run<T>(&self, call: impl Future<Output = T>) -> T {
        let place = self.place().await;
        let started = Instant::now();
        tokio::pin!(call);
        if let Ok(answer) = timeout(self.config.late, &mut call).await {
            self.learn(started.elapsed());
            self.give_back(place);
            return answer;
        }
        self.learn(self.config.late);
        // A hung call says nothing about the runtime's load; but if they are many, it is the runtime.
        if let Ok(_late) = Arc::clone(&self.late).try_acquire_owned() {
            self.give_back(place);
            return call.await;
        }
        let answer = call.await;
        self.give_back(place);
        answer
    }

    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    fn give_back(&self, place: Option<OwnedSemaphorePermit>) {
        let mut adaptation = self.adaptation.lock();
        if let Some(place) = place
            && adaptation.debt > 0
        {
            adaptation.debt -= 1;
            place.forget();
        }
    }

    fn learn(&self, latency: Duration) {
        let mut a = self.adaptation.lock();
        a.calls += 1;
        a.seconds += latency.as_secs_f64();
        if a.calls < a.limit.max(8) {
            return;
        }
        let mean = a.seconds / a.calls as f64;
        let usual = a.usual.unwrap_or(mean);
        let before = a.limit;
        if mean > usual * SLOW + NOISE {
            a.limit = (before * 3 / 4).max(self.config.least);
        } else if self.places.available_permits() == 0 {
            // Every place is taken, so more could be used.
            a.limit = (before + (before / 8).max(1)).min(self.config.most);
        }
        // Down at once, up slowly: a runtime that became slower for good is the new usual after some windows.
        a.usual = Some(if mean < usual {
            mean
        } else {
            usual + (mean - usual) * 0.05
        });
        (a.calls, a.seconds) = (0, 0.0);
        if a.limit > before {
            let (more, debt) = (a.limit - before, a.debt);
            a.debt = debt.saturating_sub(more);
            self.places.add_permits(more.saturating_sub(debt));
        } else {
            let fewer = before - a.limit;
            a.debt += fewer - self.places.forget_permits(fewer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    /// Runs `n` calls whose latency depends on how many are in flight; returns the most that were.
    async fn load(limiter: &Limiter, n: usize, latency: impl Fn(usize) -> Duration) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (now, most, latency) = (&now, &most, &latency);
        join_all((0..n).map(|_| {
            limiter.run(async move {
                let running = now.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(running, Ordering::Relaxed);
                tokio::time::sleep(latency(running)).await;
                now.fetch_sub(1, Ordering::Relaxed);
            })
        }))
        .await;
        most.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn rises_while_latency_stays_flat() {
        let limiter = Limiter::new(LimiterConfig::default());
        let most = load(&limiter, 2000, |_| Duration::from_millis(5)).await;
        assert_eq!(limiter.limit(), 128);
        assert!(most <= 128);
    }

    #[tokio::test(start_paused = true)]
    async fn falls_when_latency_grows_and_recovers() {
        let limiter = Limiter::new(LimiterConfig::default());
        load(&limiter, 500, |_| Duration::from_millis(5)).await;
        let most = load(&limiter, 500, |_| Duration::from_millis(50)).await;
        assert!(limiter.limit() < 64, "{}", limiter.limit());
        assert!(most <= 128);
        load(&limiter, 5000, |_| Duration::from_millis(5)).await;
        assert_eq!(limiter.limit(), 128);
    }

    #[tokio::test(start_paused = true)]
    async fn late_calls_give_up_their_place_within_bounds() {
        let config = LimiterConfig {
            least: 2,
            start: 2,
            most: 2,
            most_late: 3,
            ..LimiterConfig::default()
        };
        let limiter = Limiter::new(config);
        let hung = join_all((0..3).map(|_| limiter.run(std::future::pending::<()>())));
        let quick = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            limiter.run(async { Instant::now() }).await
        };
        let started = Instant::now();
        tokio::select! {
            _ = hung => unreachable!(),
            done = quick => assert!(done - started < Duration::from_secs(6)),
        }
        // With every late place taken the limit holds: nobody overtakes.
        let many = join_all((0..5).map(|_| limiter.run(std::future::pending::<()>())));
        let blocked = async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            timeout(Duration::from_mins(1), limiter.run(async {})).await
        };
        tokio::select! {
            _ = many => unreachable!(),
            outcome = blocked => assert!(outcome.is_err()),
        }
    }
}
