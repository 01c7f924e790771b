//! The end of the generator, as health reports it: nothing is relisted any more, however fresh the last relist is.

use std::time::Duration;

use tokio::time::Instant;

use super::Health;
use super::cause::{Cause, Seen, Stage, Who};
use super::state::HealthState;
use crate::health::diagnosis::Trouble;

/// Held by the generator as long as it lives. Whatever ends it, a panic, an abort or its shutdown, drops this.
#[derive(Debug)]
pub(crate) struct Alive(Health);

impl Drop for Alive {
    fn drop(&mut self) {
        let ended = Ended {
            at: Instant::now(),
            panicked: std::thread::panicking(),
        };
        self.0.shared.lock().ended = Some(ended);
        if ended.panicked {
            tracing::error!("{}", self.0.report().message);
        }
    }
}

impl Health {
    pub(crate) fn alive(&self) -> Alive {
        Alive(self.clone())
    }
}

/// How and when the generator ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    at: Instant,
    panicked: bool,
}

impl Ended {
    pub(super) fn headline(self) -> String {
        let how = if self.panicked { "panicked" } else { "ended" };
        format!("PLEG is not healthy: the generator has {how}")
    }

    /// The one cause there is. Calls that were in flight and pods in quarantine do not matter any more.
    pub(super) fn cause(self, state: &HealthState, now: Instant, endpoint: Option<&str>) -> Cause {
        let age = |since: Instant| now.saturating_duration_since(since);
        let seen = Seen {
            stage: Stage::Generator,
            trouble: Trouble::GeneratorEnded,
            rpc: "".into(),
            who: Who::default(),
            age: age(self.at),
        };
        let whole = |age: Duration| pleg_cri::duration::seconds(Duration::from_secs(age.as_secs()));
        let last = match state.last_complete {
            Some(last) => format!("the last relist was {} ago", whole(age(last))),
            None => "there was no complete relist".to_owned(),
        };
        let text = format!("{last}; pod statuses and events are no longer updated");
        seen.say(text, endpoint)
    }
}
