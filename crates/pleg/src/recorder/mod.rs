//! The flight recorder: what the generator observed, decided and published in the last minutes, for later analysis.
//!
//! Kept are differences only: of what is listed, and of what is committed, each with the state before it. The node as it is now stands
//! in the records anyway, so a [`Recording`] is that and the differences, and a reader goes back from the end to the beginning.
//! Nothing is kept twice, dropping the oldest needs no work, and a relist without a change is one small entry. [`replay()`] feeds the lists
//! through the records and the diff again.
//!
//! The generator owns the recorder and writes without a lock; callers [request](crate::Pleg::recording) a recording.

mod calls;
pub mod line;
mod replay;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::inspect::Inspected;
use crate::model::event::{Event, EventType, Source, Subject};
use crate::model::{PodRef, PodUid, PodView};
use crate::records::{PodKey, Records};
pub(crate) use calls::CallTimes;
use calls::Slow;
use calls::micros;
use line::{
    Calls, Commit, FORMAT, Gone, Header, Line, ObjectCommitted, PodState, RelistFailed, RelistTaken, Scope, Seen, Sent,
    State, Transition, Turn, What,
};
pub use replay::{Difference, ReplayError, Replayed, replay};

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecorderConfig {
    /// How far back.
    pub window: Duration,
    /// How many bytes of memory at most; the oldest go first. 0: nothing is recorded.
    pub limit: usize,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            window: Duration::from_mins(10),
            limit: 4 << 20,
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    at: Instant,
    what: What,
}

/// The recorder. The generator's own.
#[derive(Debug)]
pub(crate) struct Recorder {
    config: RecorderConfig,
    calls: CallTimes,
    entries: VecDeque<Entry>,
    bytes: usize,
    dropped: u64,
    /// The limit of inspections that was last recorded.
    limit: usize,
    started: (Instant, Timestamp),
}

/// A commit as the generator knows it.
pub(crate) struct Committing<'a> {
    pub(crate) pod: &'a PodRef,
    pub(crate) before: &'a PodView,
    pub(crate) after: &'a PodView,
    /// What the runtime denied; none where nothing was asked.
    pub(crate) gone: Option<Gone>,
    /// Containers that changed and were not answered for: their record stays as it was.
    pub(crate) unanswered: Box<[Arc<str>]>,
    /// The number that the first event gets.
    pub(crate) seq: u64,
    pub(crate) events: &'a [Event],
}

impl Gone {
    /// What an inspection found gone. `denied`: it is taken for that until its listed state changes.
    pub(crate) fn of(inspected: &Inspected, denied: bool) -> Self {
        let containers = &inspected.gone_containers;
        Self {
            gone_sandboxes: Box::default(),
            gone_containers: containers.as_slice().into(),
            denied: denied && !containers.is_empty(),
        }
    }
}

impl Recorder {
    pub(crate) fn new(config: RecorderConfig, calls: CallTimes) -> Self {
        Self {
            config,
            calls,
            entries: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            limit: 0,
            started: (Instant::now(), Timestamp::now()),
        }
    }

    /// Lists came in and were taken in: what they changed about `touched`, and how long they took.
    pub(crate) fn relisted(
        &mut self,
        records: &mut Records,
        touched: &[PodKey],
        (scope, source): (Scope, Source),
        took: Duration,
        bytes: usize,
    ) {
        let mut changes = 0;
        for &key in touched {
            let objects = records.news(key);
            changes += objects.len();
            if let Some(pod) = records.pod(key)
                && !objects.is_empty()
            {
                let (pod, objects) = (pod.clone(), objects.into());
                self.push(What::Seen(Arc::new(Seen { pod, objects })));
            }
        }
        self.push(What::Relist(RelistTaken {
            scope,
            source,
            micros: micros(took),
            bytes: bytes as u64,
            changes: u32::try_from(changes).unwrap_or(u32::MAX),
        }));
    }

    pub(crate) fn relist_failed(&mut self, scope: Scope, took: Duration, error: &str) {
        self.push(What::RelistFailed(Arc::new(RelistFailed {
            scope,
            micros: micros(took),
            error: error.into(),
        })));
    }

    /// An inspection of what is listed of the pod begins.
    pub(crate) fn inspecting(&mut self, uid: &PodUid) {
        self.push(What::Inspect { uid: uid.clone() });
    }

    /// A pod is being committed.
    pub(crate) fn committed(&mut self, commit: Committing<'_>) {
        let Committing {
            pod,
            before,
            after,
            gone,
            unanswered,
            seq,
            events,
        } = commit;
        let removal = gone.is_none();
        let gone = gone.unwrap_or_default();
        let changes = changes(before, after);
        if changes.is_empty() && gone.is_empty() && events.is_empty() {
            return;
        }
        self.push(What::Commit(Arc::new(Commit {
            uid: pod.uid.clone(),
            removal,
            changes: changes.into(),
            gone,
            unanswered,
            seq,
            events: events.iter().map(sent).collect(),
        })));
    }

    pub(crate) fn transition(
        &mut self,
        to: Turn,
        pod: Option<&PodRef>,
        message: Option<&str>,
        lasted: Option<Duration>,
    ) {
        self.push(What::Transition(Arc::new(Transition {
            to,
            pod: pod.cloned(),
            message: message.map(Into::into),
            lasted_seconds: lasted.map(|lasted| lasted.as_secs_f64()),
        })));
    }

    /// So many inspection calls may be in flight now.
    pub(crate) fn inspections_limit(&mut self, limit: usize) {
        let before = std::mem::replace(&mut self.limit, limit);
        if before != limit && before != 0 {
            let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            self.push(What::Limit {
                from: narrow(before),
                to: narrow(limit),
            });
        }
    }

    fn push(&mut self, what: What) {
        if self.config.limit == 0 {
            return;
        }
        let at = Instant::now();
        self.bytes += cost(&what);
        self.entries.push_back(Entry { at, what });
        while let Some(oldest) = self.entries.front() {
            let late = at.saturating_duration_since(oldest.at) > self.config.window;
            if !late && self.bytes <= self.config.limit {
                break;
            }
            self.bytes -= cost(&oldest.what);
            self.dropped += u64::from(!late);
            self.entries.pop_front();
        }
    }

    /// What is recorded, with the node as it is now.
    pub(crate) fn recording(&self, records: &Records, seq: u64) -> Recording {
        Recording {
            dropped: self.dropped,
            bytes: self.bytes,
            config: self.config,
            started: self.started,
            taken: Instant::now(),
            seq,
            pods: records
                .keys()
                .filter_map(|key| records.state(key))
                .map(Arc::new)
                .collect(),
            entries: self.entries.iter().cloned().collect(),
            slow: self.calls.slow(),
            calls: self.calls.totals(),
        }
    }
}

/// What an entry takes. The texts of a pod and its objects are counted where they were seen, also while the records share them; what
/// else is told of the pod shares them too.
fn cost(what: &What) -> usize {
    // A text has two counts before it. The entries' own room may be twice what is used.
    let text = |text: &str| text.len() + 16;
    let pod = |pod: &PodRef| text(pod.uid.as_str()) + text(&pod.namespace) + text(&pod.name);
    let optional = |option: Option<usize>| option.unwrap_or(0);
    2 * size_of::<Entry>()
        + match what {
            What::Seen(seen) => {
                let objects = seen.objects.iter();
                let texts: usize = objects.map(|o| text(&o.about.id) + text(&o.about.name)).sum();
                16 + size_of_val(&**seen) + size_of_val(&*seen.objects) + pod(&seen.pod) + texts
            }
            What::Commit(commit) => {
                let gone = size_of_val(&*commit.gone.gone_sandboxes) + size_of_val(&*commit.gone.gone_containers);
                let kept = size_of_val(&*commit.unanswered);
                let parts = size_of_val(&*commit.changes) + gone + kept + size_of_val(&*commit.events);
                16 + size_of_val(&**commit) + parts
            }
            What::Transition(turn) => {
                let texts = optional(turn.message.as_deref().map(text)) + optional(turn.pod.as_ref().map(pod));
                16 + size_of_val(&**turn) + texts
            }
            What::RelistFailed(failed) => 16 + size_of_val(&**failed) + text(&failed.error),
            _ => 0,
        }
}

/// What a commit changes in the record.
fn changes(before: &PodView, after: &PodView) -> Vec<ObjectCommitted> {
    let mut changes = Vec::new();
    let mut change = |id: &Arc<str>, before: Option<State>, after: Option<State>| {
        if before != after {
            let id = Arc::clone(id);
            changes.push(ObjectCommitted { id, before, after });
        }
    };
    let (old, new) = (before.sandbox_states(), after.sandbox_states());
    for (id, state) in &after.sandboxes {
        let was = old.get(id.as_str()).copied().map(State::from);
        change(&id.shared(), was, Some((*state).into()));
    }
    for (id, state) in before.sandboxes.iter().filter(|(id, _)| !new.contains_key(id.as_str())) {
        change(&id.shared(), Some((*state).into()), None);
    }
    let (old, new) = (before.container_states(), after.container_states());
    for (container, state) in &after.containers {
        let was = old.get(container.id.as_str()).copied().map(State::from);
        change(&container.id.shared(), was, Some((*state).into()));
    }
    let gone = before
        .containers
        .iter()
        .filter(|(container, _)| !new.contains_key(container.id.as_str()));
    for (container, state) in gone {
        change(&container.id.shared(), Some((*state).into()), None);
    }
    changes
}

fn sent(event: &Event) -> Sent {
    sent_as(event.kind, event.subject.as_ref())
}

fn sent_as(kind: EventType, subject: Option<&Subject>) -> Sent {
    let (id, state) = match subject {
        Some(Subject::Container(container)) => (Some(container.id.shared()), None),
        Some(Subject::Sandbox { id, state }) => (Some(id.shared()), *state),
        None => (None, None),
    };
    Sent { kind, id, state }
}

/// What was recorded, as of one moment. Its texts are shared with the generator: it is cheap.
#[derive(Debug)]
pub struct Recording {
    config: RecorderConfig,
    bytes: usize,
    dropped: u64,
    started: (Instant, Timestamp),
    taken: Instant,
    seq: u64,
    pods: Vec<Arc<PodState>>,
    entries: Vec<Entry>,
    slow: Vec<Slow>,
    calls: Vec<Calls>,
}

impl Recording {
    /// The lines: a header, the pods as they are at the end, what happened, calls.
    pub fn into_lines(self) -> impl Iterator<Item = Line> + Send + 'static {
        let (first, began) = self.started;
        let time = move |at: Instant| began + at.saturating_duration_since(first);
        let now = time(self.taken);
        let header = Header {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            from: self.entries.first().map_or(now, |entry| time(entry.at)),
            window_seconds: self.config.window.as_secs(),
            limit_bytes: self.config.limit,
            bytes: self.bytes,
            dropped: self.dropped,
            seq: self.seq,
        };
        let at_the_end = move |what| Line { time: now, what };
        let pods = self.pods.into_iter().map(What::Pod).map(at_the_end);
        let entries = self.entries.into_iter().map(move |entry| Line {
            time: time(entry.at),
            what: entry.what,
        });
        let slow = self.slow.into_iter().map(move |slow| Line {
            time: time(slow.ended),
            what: What::SlowCall(Arc::new(slow.line())),
        });
        let calls = self.calls.into_iter().map(Arc::new).map(What::Calls).map(at_the_end);
        std::iter::once(at_the_end(What::Recording(Arc::new(header))))
            .chain(pods)
            .chain(entries)
            .chain(slow)
            .chain(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relist without a change is one of these, and nothing else.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 48, "{}", size_of::<Entry>());
    }
}
