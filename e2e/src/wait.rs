//! Waiting for a level, with a deadline and a name.
//!
//! Nothing in this crate waits for a time to pass: it waits until something is so, and when it does not become so, the error says
//! what was waited for and how things stood instead.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Long enough for a slow machine, short enough to notice a hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often the condition is checked.
const PERIOD: Duration = Duration::from_millis(5);

/// Calls `check` until it returns `Ok`; its `Err` describes the state that is not yet the expected one. `what` completes "waited for".
pub async fn until<T, E: std::fmt::Display>(
    what: &str,
    patience: Duration,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stands = None;
    loop {
        ticks.tick().await;
        // A check that hangs does not outlast the deadline.
        match timeout_at(deadline, check()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(now)) => stands = Some(now),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            let stands = stands.map_or_else(|| "no check ended".to_owned(), |stands| stands.to_string());
            bail!("waited {patience:?} for {what}: {stands}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_level_that_comes_is_returned() {
        let mut checks = 0;
        let found = until("three checks", PATIENCE, async || {
            checks += 1;
            if checks == 3 { Ok(checks) } else { Err("not yet") }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_level_that_does_not_come_is_named() {
        let never = until("the impossible", Duration::from_millis(20), async || {
            Err::<(), _>("still not")
        });
        let said = never.await.unwrap_err().to_string();
        assert_eq!(said, "waited 20ms for the impossible: still not");
        let hangs = until("an answer", Duration::from_millis(20), async || {
            std::future::pending::<Result<(), String>>().await
        });
        assert!(hangs.await.unwrap_err().to_string().ends_with("no check ended"));
    }
}
