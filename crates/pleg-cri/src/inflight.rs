//! Which call is in flight, for which pod and container, since when.
//!
//! A stall is explained by reading this table, so an entry stands from before a call is sent until after its answer is
//! read, also when the caller gives up and drops the future. Its size is bounded by the callers' concurrency.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{ErrorKind, Rpc};

/// What a call is about, in the words a person knows it by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// `namespace/name` of the pod.
    pub pod: Option<Arc<str>>,
    /// The container's name in the pod; none for the sandbox.
    pub container: Option<Arc<str>>,
    /// The runtime's id of the container or sandbox.
    pub id: Option<Arc<str>>,
}

impl Subject {
    /// A call about everything, such as a list.
    pub const NODE: Self = Self {
        pod: None,
        container: None,
        id: None,
    };

    /// A container, by all its names.
    pub fn container(pod: impl Into<Arc<str>>, name: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self {
            pod: Some(pod.into()),
            container: Some(name.into()),
            id: Some(id.into()),
        }
    }

    /// A pod's sandbox.
    pub fn sandbox(pod: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self {
            pod: Some(pod.into()),
            container: None,
            id: Some(id.into()),
        }
    }

    /// An object of which only the id is known.
    pub fn id(id: impl Into<Arc<str>>) -> Self {
        Self {
            id: Some(id.into()),
            ..Self::NODE
        }
    }

    /// ` of <subject>`, or nothing for the node.
    pub(crate) fn of(&self) -> String {
        if *self == Self::NODE {
            String::new()
        } else {
            format!(" of {self}")
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.container, &self.pod, &self.id) {
            (Some(name), Some(pod), Some(id)) => write!(f, "container {name} ({id}) in pod {pod}"),
            (Some(name), Some(pod), None) => write!(f, "container {name} in pod {pod}"),
            (Some(name), None, Some(id)) => write!(f, "container {name} ({id})"),
            (Some(name), None, None) => write!(f, "container {name}"),
            (None, Some(pod), Some(id)) => write!(f, "the sandbox ({id}) of pod {pod}"),
            (None, Some(pod), None) => write!(f, "pod {pod}"),
            (None, None, Some(id)) => write!(f, "{id}"),
            (None, None, None) => f.write_str("the node"),
        }
    }
}

/// One call in flight.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which call.
    pub rpc: Rpc,
    /// About what.
    pub subject: Subject,
    /// When it was sent.
    pub since: Instant,
    /// When we will give up on it; streams have none.
    pub deadline: Option<Duration>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// Answered.
    Ok,
    /// Failed.
    Failed(&'a ErrorKind),
    /// The caller no longer wanted the answer.
    Dropped,
}

/// Notified of every call that ends, for metrics.
pub trait Observer: Send + Sync + fmt::Debug {
    /// `rpc` ended after `elapsed`.
    fn ended(&self, rpc: Rpc, elapsed: Duration, outcome: Outcome<'_>);

    /// Whether [`Observer::call_ended`] is wanted too, for traces. Asked once.
    fn wants_calls(&self) -> bool {
        false
    }

    /// The same with all that is known of the call. Costs a copy of it.
    fn call_ended(&self, _call: &Call, _outcome: Outcome<'_>) {}
}

/// The table. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct InFlight {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    // Held for a push, a removal or a copy; never across an await.
    slots: Mutex<Vec<Option<Call>>>,
    observer: Option<Arc<dyn Observer>>,
    /// Of the observer.
    wants_calls: bool,
}

impl InFlight {
    /// A table that reports each ended call to `observer`.
    pub fn observed_by(observer: Arc<dyn Observer>) -> Self {
        Self {
            shared: Arc::new(Shared {
                slots: Mutex::default(),
                wants_calls: observer.wants_calls(),
                observer: Some(observer),
            }),
        }
    }

    /// The calls in flight, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        let mut calls: Vec<_> = self.shared.slots.lock().iter().flatten().cloned().collect();
        calls.sort_by_key(|call| call.since);
        calls
    }

    /// When the oldest of the calls in flight that `is` wants was made.
    pub fn oldest(&self, is: impl Fn(Rpc) -> bool) -> Option<Instant> {
        let slots = self.shared.slots.lock();
        let wanted = slots.iter().flatten().filter(|call| is(call.rpc));
        wanted.map(|call| call.since).min()
    }

    /// Enters a call; it stands until the guard ends.
    pub fn begin(&self, rpc: Rpc, subject: Subject, deadline: Option<Duration>) -> Flight {
        let since = Instant::now();
        let call = Call {
            rpc,
            subject,
            since,
            deadline,
        };
        let mut slots = self.shared.slots.lock();
        let slot = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if slot == slots.len() {
            slots.push(Some(call));
        } else {
            slots[slot] = Some(call);
        }
        drop(slots);
        Flight {
            shared: Arc::clone(&self.shared),
            slot,
            rpc,
            since,
            reported: false,
        }
    }
}

/// An entry of the table; dropping it removes the entry.
#[derive(Debug)]
pub struct Flight {
    shared: Arc<Shared>,
    slot: usize,
    rpc: Rpc,
    since: Instant,
    reported: bool,
}

impl Flight {
    /// Removes the entry and says how the call ended.
    pub fn end(mut self, outcome: Outcome<'_>) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: Outcome<'_>) {
        self.reported = true;
        if let Some(observer) = &self.shared.observer {
            observer.ended(self.rpc, self.since.elapsed(), outcome);
            if self.shared.wants_calls {
                let call = self.shared.slots.lock().get(self.slot).cloned().flatten();
                if let Some(call) = call {
                    observer.call_ended(&call, outcome);
                }
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.reported {
            self.report(Outcome::Dropped);
        }
        let mut slots = self.shared.slots.lock();
        if let Some(slot) = slots.get_mut(self.slot) {
            *slot = None;
        }
        // Give the room of a storm back: trailing free slots go.
        while slots.last().is_some_and(Option::is_none) {
            slots.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_stands_until_it_ends_or_is_dropped() {
        let table = InFlight::default();
        let first = table.begin(Rpc::ListContainers, Subject::NODE, None);
        tokio::time::advance(Duration::from_secs(3)).await;
        let second = table.begin(Rpc::ContainerStatus, Subject::id("c1"), None);
        assert_eq!(
            table.calls().iter().map(|c| c.rpc).collect::<Vec<_>>(),
            [Rpc::ListContainers, Rpc::ContainerStatus]
        );
        assert_eq!(table.calls()[0].since.elapsed(), Duration::from_secs(3));
        drop(first);
        assert_eq!(table.calls().len(), 1);
        second.end(Outcome::Ok);
        assert!(table.calls().is_empty());
        assert!(table.shared.slots.lock().is_empty());
    }
}
