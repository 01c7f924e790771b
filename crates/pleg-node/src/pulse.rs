//! Whether the runtime is there at all, asked while nobody else asks.
//!
//! With events the generator looks at everything once a minute only; a runtime that freezes right after a look would be taken for a
//! quiet one until the next. So a call that costs nothing is made whenever nothing was seen for a moment, and one that is not answered
//! makes the generator look: what it finds then is told as its health.

use std::time::Duration;

use pleg::Pleg;
use pleg_cri::{Client, v1};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Who has not been seen for this long is asked.
const QUIET: Duration = Duration::from_secs(2);
/// Who does not answer for this long is looked at.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Pulse {
    client: Client,
    pleg: Pleg,
    asking: JoinSet<bool>,
    since: Instant,
    /// When the runtime was last known to answer.
    answered: Option<Instant>,
    looked: bool,
}

impl Pulse {
    pub(crate) fn new(client: Client, pleg: Pleg) -> Self {
        Self {
            client,
            pleg,
            asking: JoinSet::new(),
            since: Instant::now(),
            answered: None,
            looked: false,
        }
    }

    /// To be called once a second. `last_look` is how long the last complete look is ago. Returns how long nothing was heard.
    pub(crate) fn beat(&mut self, last_look: Option<Duration>) -> Option<Duration> {
        while let Some(answer) = self.asking.try_join_next() {
            if matches!(answer, Ok(true)) {
                self.answered = Some(Instant::now());
            }
        }
        let answered = self.answered.map(|at| at.elapsed());
        let quiet = answered.into_iter().chain(last_look).min();
        if !self.asking.is_empty() {
            if self.since.elapsed() >= PATIENCE && !std::mem::replace(&mut self.looked, true) {
                self.pleg.request_all();
            }
        } else if quiet.is_none_or(|quiet| quiet >= QUIET) {
            (self.since, self.looked) = (Instant::now(), false);
            let client = self.client.clone();
            self.asking.spawn(async move {
                let version = client.api().to_string();
                client.call(v1::VersionRequest { version }).await.is_ok()
            });
        }
        quiet
    }
}
