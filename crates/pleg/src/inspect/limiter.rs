//! How many inspection calls may be in flight at once, and how long one may take before it stands out.
//!
//! The kubelet inspects one pod after another; that is slow, but it is also its back-pressure. This limit follows the runtime's
//! latency: the limit rises while answers stay as quick as they were, and falls when they take much longer. A call that takes far
//! longer than the runtime usually needs is taken off the limit by the generator's quarantine, which has a budget of its own: hung
//! containers do not use up the places of others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bounds of the limit, and when a call is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterConfig {
    /// Never fewer at once.
    pub least: usize,
    /// To begin with.
    pub start: usize,
    /// Never more at once.
    pub most: usize,
    /// A call that takes longer stands out, as long as it is not known what a call usually takes.
    pub late: Duration,
    /// How many calls about containers and sandboxes in quarantine may be in flight, beside the limit.
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
/// A call that takes this many times the usual latency stands out, and none does before the least patience.
const OUTLIER: f64 = 8.0;
const LEAST_PATIENCE: Duration = Duration::from_millis(250);

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
    /// When the newest of all calls that were answered had been sent.
    newest: Option<Instant>,
}

/// The limit. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Limiter {
    config: LimiterConfig,
    places: Arc<Semaphore>,
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
            newest: None,
        };
        Self {
            config,
            places: Arc::new(Semaphore::new(limit)),
            adaptation: Arc::new(Mutex::new(adaptation)),
        }
    }

    /// The limit in force.
    pub(crate) fn limit(&self) -> usize {
        self.adaptation.lock().limit
    }

    /// Waits for a place. Cancel-safe.
    pub(crate) async fn place(&self) -> Place {
        Place {
            // The semaphore is never closed.
            permit: Arc::clone(&self.places).acquire_owned().await.ok(),
            limiter: self.clone(),
        }
    }

    /// A call that was `sent` then was answered just now.
    pub(crate) fn answered(&self, sent: Instant) {
        self.alive(sent);
        // One answer that took minutes says nothing about the others' latency.
        self.learn(sent.elapsed().min(self.config.late));
    }

    /// A call of another kind that was `sent` then, such as a list, was answered: the runtime is alive.
    pub(crate) fn alive(&self, sent: Instant) {
        let newest = &mut self.adaptation.lock().newest;
        *newest = (*newest).max(Some(sent));
    }

    /// A call that was `sent` then has been overtaken: one that was sent no earlier was answered.
    pub(crate) fn overtaken(&self, sent: Instant) -> bool {
        self.adaptation.lock().newest.is_some_and(|newest| newest >= sent)
    }

    /// A call that takes longer than this stands out.
    pub(crate) fn patience(&self) -> Duration {
        match self.adaptation.lock().usual {
            Some(usual) => Duration::from_secs_f64(usual * OUTLIER).max(LEAST_PATIENCE),
            None => self.config.late,
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

/// A place among the calls in flight; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    permit: Option<OwnedSemaphorePermit>,
    limiter: Limiter,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut adaptation = self.limiter.adaptation.lock();
        if adaptation.debt > 0
            && let Some(permit) = self.permit.take()
        {
            adaptation.debt -= 1;
            permit.forget();
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
            let limiter = limiter.clone();
            async move {
                let _place = limiter.place().await;
                let sent = Instant::now();
                let running = now.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(running, Ordering::Relaxed);
                tokio::time::sleep(latency(running)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                limiter.answered(sent);
            }
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
    async fn patience_follows_the_usual_latency() {
        let limiter = Limiter::new(LimiterConfig::default());
        assert_eq!(limiter.patience(), Duration::from_secs(1), "nothing is known yet");
        load(&limiter, 500, |_| Duration::from_millis(1)).await;
        assert_eq!(limiter.patience(), LEAST_PATIENCE);
        let slow = Limiter::new(LimiterConfig::default());
        load(&slow, 500, |_| Duration::from_millis(500)).await;
        assert_eq!(slow.patience(), Duration::from_secs(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_overtaken_by_one_that_was_sent_no_earlier() {
        let limiter = Limiter::new(LimiterConfig::default());
        let hung = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!limiter.overtaken(hung));
        limiter.answered(hung - Duration::from_millis(1));
        assert!(!limiter.overtaken(hung), "that one was sent before");
        limiter.alive(Instant::now());
        assert!(limiter.overtaken(hung));
        assert!(!limiter.overtaken(Instant::now() + Duration::from_millis(1)));
    }
}
