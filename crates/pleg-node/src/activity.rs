//! How busy the runtime is with what somebody waits for: pods that start, containers and sandboxes that stop.
//!
//! What nobody waits for yields to it: the removal of sandboxes whose pods are gone already, and events. Both need the same processors as the
//! pods themselves, on a small machine, and the API server's as well.

use std::sync::Arc;

use tokio::sync::watch;

/// So many actions at once are a burst: many pods start or stop together.
const BURST: usize = 4;

/// What the runtime does just now. Clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<watch::Sender<usize>>);

/// Something that somebody waits for; over when it is dropped.
#[derive(Debug)]
pub struct Acting(Activity);

impl Default for Activity {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Activity {
    /// Something begins that somebody waits for.
    #[must_use = "it is over when this is dropped"]
    pub fn begin(&self) -> Acting {
        self.0.send_modify(|count| *count += 1);
        Acting(self.clone())
    }

    /// Many pods start or stop at once.
    pub fn is_burst(&self) -> bool {
        *self.0.borrow() >= BURST
    }

    /// Waits until no burst is under way. Cancel-safe.
    pub async fn burst_over(&self) {
        // It cannot be closed: we have the sender.
        let _ = self.0.subscribe().wait_for(|count| *count < BURST).await;
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_is_under_way_is_counted_until_it_is_dropped() {
        let activity = Activity::default();
        assert!(activity.burst_over().now_or_never().is_some() && !activity.is_burst());
        let mut acting: Vec<Acting> = (0..BURST).map(|_| activity.clone().begin()).collect();
        assert!(activity.is_burst() && activity.burst_over().now_or_never().is_none());
        acting.pop();
        assert!(!activity.is_burst() && activity.burst_over().now_or_never().is_some());
        acting.clear();
        assert!(!activity.is_burst());
    }
}
