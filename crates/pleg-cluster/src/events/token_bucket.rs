//! A rate limit with bursts. Pure: callers pass the time.

use std::time::Duration;

use tokio::time::Instant;

/// So many at once, and then one each period.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    burst: u32,
    period: Duration,
    /// What is left.
    tokens: u32,
    /// Since when the next token is being earned.
    since: Instant,
}

impl TokenBucket {
    /// A full one.
    pub(super) fn new(burst: u32, period: Duration, now: Instant) -> Self {
        Self {
            burst,
            period,
            tokens: burst,
            since: now,
        }
    }

    /// Takes one; else says how long to wait for it.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let earned = now.duration_since(self.since).as_nanos() / self.period.as_nanos().max(1);
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(earned).min(self.burst);
        if self.tokens == self.burst {
            self.since = now;
        } else {
            self.since += self.period.saturating_mul(earned);
        }
        if self.tokens == 0 {
            return Err((self.since + self.period).duration_since(now));
        }
        self.tokens -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_one_each_period() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut bucket = TokenBucket::new(3, Duration::from_secs(10), start);
        let mut takes = |seconds| bucket.take(at(seconds)).map_err(|wait| wait.as_secs());
        assert_eq!([takes(0), takes(0), takes(0)], [Ok(()); 3]);
        assert_eq!(takes(4), Err(6));
        assert_eq!([takes(10), takes(10), takes(19)], [Ok(()), Err(10), Err(1)]);
        // 25 s are two tokens and a half.
        assert_eq!(
            [takes(35), takes(35), takes(39), takes(40)],
            [Ok(()), Ok(()), Err(1), Ok(())]
        );
        // Not more than a burst, however long nothing happens.
        assert_eq!(
            [takes(9999), takes(9999), takes(9999), takes(9999)],
            [Ok(()), Ok(()), Ok(()), Err(10)]
        );
    }
}
