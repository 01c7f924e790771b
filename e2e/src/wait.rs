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
const LOOK: Duration = Duration::from_millis(5);

/// Looks until `look` says `Ok`; its `Err` is how things stand while they are not yet as wanted. `what` completes "waited for".
pub async fn until<T, E: std::fmt::Display>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stands = None;
    loop {
        ticks.tick().await;
        // One look that hangs is not the end of the wait's own deadline.
        match timeout_at(deadline, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(now)) => stands = Some(now),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            let stands = stands.map_or_else(|| "no look ended".to_owned(), |stands| stands.to_string());
            bail!("waited {patience:?} for {what}: {stands}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_level_that_comes_is_returned() {
        let mut looks = 0;
        let found = until("three looks", PATIENCE, async || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err("not yet") }
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
        assert!(hangs.await.unwrap_err().to_string().ends_with("no look ended"));
    }
}
