//! Whether the runtime is still the one that answered before.

use crate::publish::cache::Token;

/// What is known of the runtime's identity. It may come back from an outage as another one, of another version or with other containers.
#[derive(Debug, Default)]
pub(super) struct RuntimeIdentity {
    state: Identity,
    /// Statuses inspected up to this relist may be of an earlier life of the runtime.
    outage: Token,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Identity {
    /// It was not away since it said what it is.
    #[default]
    Known,
    /// It was away and has not said since what it is.
    Unknown,
}

impl RuntimeIdentity {
    /// The runtime is away. `token`: the newest relist.
    pub(super) fn lost(&mut self, token: Token) {
        self.state = Identity::Unknown;
        self.outage = token;
    }

    /// A call found the runtime unreachable. Only a relist can tell that it is away.
    pub(super) fn call_unreachable(&mut self, token: Token) {
        self.outage = token;
    }

    /// True if the runtime has to be asked what it is. The caller asks, and [reports](Self::asked) the outcome.
    pub(super) fn take_unknown(&mut self) -> bool {
        std::mem::take(&mut self.state) == Identity::Unknown
    }

    /// The runtime was asked what it is; `unidentified`: it did not say.
    pub(super) fn asked(&mut self, unidentified: bool) {
        if unidentified {
            self.state = Identity::Unknown;
        }
    }

    /// A status that was inspected by this relist is of the runtime's present life.
    pub(super) fn may_reuse(&self, inspected: Token) -> bool {
        inspected >= self.outage
    }
}
