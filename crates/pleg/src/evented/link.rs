//! The state shared by the task that reads the stream and the generator.

use std::sync::Arc;

use tokio::time::Instant;

use crate::sync::{AtomicU64, Mutex, Notify, Ordering};

/// Where the stream stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Being asked for; nothing is known yet.
    Asking,
    /// There is no stream, and none is expected.
    Off {
        /// Why.
        reason: Arc<str>,
    },
    /// Events come.
    Up {
        /// The runtime's name and version.
        runtime: Arc<str>,
        /// Another subscriber may lose events because of it.
        splits: bool,
    },
    /// It should be up.
    Down {
        /// Why it is not.
        error: Arc<str>,
        /// Since when.
        since: Instant,
    },
}

/// What the task tells the generator. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    shared: Arc<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    // Held for an exchange only.
    state: Mutex<StreamState>,
    turns: AtomicU64,
    runtime_back: Notify,
}

impl Link {
    pub(crate) fn new(state: StreamState) -> Self {
        Self {
            shared: Arc::new(LinkState {
                state: Mutex::new(state),
                turns: AtomicU64::new(1),
                runtime_back: Notify::new(),
            }),
        }
    }

    /// Counts the changes of the state.
    pub(crate) fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::Acquire)
    }

    /// Where the stream stands now.
    pub(crate) fn state(&self) -> StreamState {
        self.shared.state.lock().clone()
    }

    /// The runtime was away and is back: whatever it was before, it is worth asking now.
    pub(crate) fn runtime_back(&self) {
        self.shared.runtime_back.notify_one();
    }

    /// Resolves after the runtime came back. Cancel-safe.
    pub(crate) async fn back(&self) {
        self.shared.runtime_back.notified().await;
    }

    /// Says where the stream stands. Returns whether that is news; then the generator has to be woken.
    pub(crate) fn set(&self, state: StreamState) -> bool {
        let mut now = self.shared.state.lock();
        if *now == state {
            return false;
        }
        *now = state;
        self.shared.turns.fetch_add(1, Ordering::Release);
        true
    }
}
