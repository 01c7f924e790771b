//! Feeds a recording's lists through the records and the diff again: do they give the events that were sent?
//!
//! First back: from the node as it was at the end every line is undone, which gives the node as it was at the beginning. Then forth:
//! what was listed is observed, what was inspected is committed, and the changes are compared with the events of the recording.
//! A commit whose inspection began before the recording cannot be compared: what was listed then is not known.

mod node;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;

use super::line::{Commit, FORMAT, Header, Line, ObjectKind, Scope, Seen, Sent, What};
use crate::model::event::EventType;
use crate::model::{PodRef, PodUid, PodView};
use crate::records::snapshot::Snapshot;
use crate::records::{Coverage, Records};
use node::{Node, key, nameless};

/// More items than this in all lists and views together are not gone through. A node of 10,000 pods makes a tenth of it in ten minutes.
const MOST_ITEMS: usize = 200_000_000;

/// Why a recording cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The first line is no header.
    #[error("not a recording: the first line must be of kind \"recording\"")]
    NoHeader,
    /// Of another version.
    #[error("the recording has format {0}; this version reads format {FORMAT}")]
    Format(u32),
    /// A line does not fit to the lines after it.
    #[error("line {line} of the recording contradicts what follows it: {what}")]
    Contradiction {
        /// Which line, counted from 1.
        line: usize,
        /// What does not fit.
        what: String,
    },
    /// Its lists are too large to replay.
    #[error("the lists of the recording have more than {MOST_ITEMS} items in total, too many to replay")]
    TooLarge,
}

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The header of the recording.
    pub header: Arc<Header>,
    /// When the recording ends.
    pub to: Timestamp,
    /// Relists with a change, and without one.
    pub relists: u64,
    /// Events that were recorded and came again.
    pub events: u64,
    /// Events of commits whose inspection began before the recording: they were not compared.
    pub not_compared: u64,
    /// The first commit that gave other events. Nothing after it was replayed.
    pub difference: Option<Difference>,
}

/// One event too many, too few, or another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which line, counted from 1.
    pub line: usize,
    /// When it was committed.
    pub time: Timestamp,
    /// Of which pod.
    pub pod: PodRef,
    /// The number of the event.
    pub seq: u64,
    /// What was sent.
    pub recorded: Option<Sent>,
    /// What the replay gave.
    pub replayed: Option<Sent>,
}

/// Replays a recording.
pub fn replay(lines: impl IntoIterator<Item = Line>) -> Result<Replayed, ReplayError> {
    let mut lines = (1..).zip(lines);
    let (header, to) = read_header(lines.next().map(|(_, line)| line))?;
    let (node, entries) = rewind(lines)?;
    let mut forth = Forth::new(node)?;
    let mut replayed = Replayed {
        header,
        to,
        relists: 0,
        events: 0,
        not_compared: 0,
        difference: None,
    };
    let mut seen = Vec::new();
    for (number, line) in entries {
        match line.what {
            What::Seen(pod) => {
                forth.node.see(&pod);
                seen.push(pod);
            }
            What::Relist(relist) => {
                replayed.relists += 1;
                forth.relist(relist.scope, &std::mem::take(&mut seen))?;
            }
            What::Inspect { uid } => forth.inspect(uid)?,
            What::Commit(commit) => match forth.commit(&commit)? {
                Outcome::Same => replayed.events += commit.events.len() as u64,
                Outcome::Unknown => replayed.not_compared += commit.events.len() as u64,
                Outcome::Different(at, recorded, got) => {
                    replayed.difference = Some(Difference {
                        line: number,
                        time: line.time,
                        pod: forth.node.pod(&commit.uid),
                        seq: commit.seq.saturating_add(at as u64),
                        recorded,
                        replayed: got,
                    });
                    break;
                }
            },
            _ => {}
        }
    }
    Ok(replayed)
}

/// The header and its time: when the recording ends.
fn read_header(first: Option<Line>) -> Result<(Arc<Header>, Timestamp), ReplayError> {
    let Some(Line { time, what }) = first else {
        return Err(ReplayError::NoHeader);
    };
    match what {
        What::Recording(header) if header.format == FORMAT => Ok((header, time)),
        What::Recording(header) => Err(ReplayError::Format(header.format)),
        _ => Err(ReplayError::NoHeader),
    }
}

/// The node as it was when the recording began, and the lines to replay: a recording has the state at its end, so they are undone from
/// the last to the first.
fn rewind(lines: impl Iterator<Item = (usize, Line)>) -> Result<(Node, Vec<(usize, Line)>), ReplayError> {
    let mut node = Node::default();
    let mut entries = Vec::new();
    for (number, line) in lines {
        match line.what {
            What::Pod(pod) => node.add(&pod),
            What::Relist(_) | What::Seen(_) | What::Inspect { .. } | What::Commit(_) => entries.push((number, line)),
            _ => {}
        }
    }
    for (number, line) in entries.iter().rev() {
        let undone = match &line.what {
            What::Seen(seen) => node.unsee(seen),
            What::Commit(commit) => node.uncommit(commit),
            _ => Ok(()),
        };
        undone.map_err(|what| ReplayError::Contradiction { line: *number, what })?;
    }
    Ok((node, entries))
}

/// How a commit compares.
enum Outcome {
    Same,
    /// Its inspection began before the recording, or an object went away before it.
    Unknown,
    /// At which event, what was recorded, and what came.
    Different(usize, Option<Sent>, Option<Sent>),
}

/// On the way from the beginning to the end.
struct Forth {
    node: Node,
    records: Records,
    /// What was listed when an inspection began.
    views: HashMap<PodUid, PodView>,
    items: usize,
}

impl Forth {
    /// The records of the beginning, made by relists and commits as any other.
    fn new(node: Node) -> Result<Self, ReplayError> {
        let mut forth = Self {
            records: Records::default(),
            views: HashMap::new(),
            items: 0,
            node,
        };
        let mut committed = forth.node.snapshot(|object| object.committed);
        forth.observe_all(&mut committed)?;
        let pods: Vec<_> = forth.records.keys().collect();
        for key in pods {
            let view = forth.records.listed(key);
            forth.records.commit(key, &view);
        }
        let mut listed = forth.node.snapshot(|object| object.listed);
        forth.observe_all(&mut listed)?;
        let denied = |kind| {
            let denied = forth
                .node
                .objects
                .iter()
                .filter(move |((_, of, _), o)| o.denied && *of == kind);
            denied.map(|((_, _, id), _)| Arc::clone(id))
        };
        let sandboxes: Vec<_> = denied(ObjectKind::Sandbox).map(Into::into).collect();
        let containers: Vec<_> = denied(ObjectKind::Container).map(Into::into).collect();
        forth.records.not_found(&sandboxes, &containers);
        Ok(forth)
    }

    fn observe_all(&mut self, snapshot: &mut Snapshot) -> Result<(), ReplayError> {
        self.observe(snapshot, Coverage::Full)
    }

    /// Counts processed items: a malicious recording could otherwise take years.
    fn spend(&mut self, items: usize) -> Result<(), ReplayError> {
        self.items += items;
        if self.items > MOST_ITEMS {
            return Err(ReplayError::TooLarge);
        }
        Ok(())
    }

    fn observe(&mut self, snapshot: &mut Snapshot, coverage: Coverage) -> Result<(), ReplayError> {
        self.spend(snapshot.sandboxes.len() + snapshot.containers.len())?;
        let (touched, _) = self.records.observe(snapshot, coverage);
        for &key in &touched {
            let inspecting = self
                .records
                .pod(key)
                .is_some_and(|pod| self.views.contains_key(&pod.uid));
            if !self.records.is_dirty(key) && !self.records.is_removed(key) && !inspecting {
                self.records.sweep(key);
            }
        }
        self.records.recycle(touched);
        Ok(())
    }

    fn relist(&mut self, scope: Scope, seen: &[Arc<Seen>]) -> Result<(), ReplayError> {
        let known = |seen: &Arc<Seen>| self.records.key(&seen.pod.uid).is_some();
        if seen.is_empty() {
            return Ok(());
        }
        if scope == Scope::Full || !seen.iter().all(known) {
            let mut listed = self.node.snapshot(|object| object.listed);
            return self.observe_all(&mut listed);
        }
        for seen in seen {
            let mut listed = Snapshot::default();
            for object in self.node.of_pod(&seen.pod.uid) {
                if let Some(state) = object.listed {
                    Node::list(&seen.pod, &object.about, state, &mut listed);
                }
            }
            if let Some(key) = self.records.key(&seen.pod.uid) {
                self.observe(&mut listed, Coverage::Pod(key))?;
            }
        }
        Ok(())
    }

    fn inspect(&mut self, uid: PodUid) -> Result<(), ReplayError> {
        if let Some(key) = self.records.key(&uid) {
            let view = self.records.listed(key);
            self.spend(view.sandboxes.len() + view.containers.len())?;
            self.views.insert(uid, view);
        }
        Ok(())
    }

    fn commit(&mut self, commit: &Commit) -> Result<Outcome, ReplayError> {
        let mut unknown = false;
        for change in &commit.changes {
            let about = nameless(&change.id, change.before.or(change.after));
            let object = self.node.object(&commit.uid, &about, true);
            object.committed = change.after;
            unknown |= object.nameless;
        }
        if commit.removal && commit.changes.is_empty() {
            // Whether events of the pod were sent before the recording is not in it.
            let key = self.records.key(&commit.uid);
            unknown |= !key.is_some_and(|key| self.records.is_removed(key));
        }
        let view = match self.views.remove(&commit.uid) {
            // Nothing was asked, because nothing was listed any more.
            _ if commit.removal => {
                let key = self.records.key(&commit.uid);
                Some(key.map(|key| self.records.listed(key)).unwrap_or_default())
            }
            view => view.map(|mut view| {
                let sandboxes: HashSet<_> = commit.gone.gone_sandboxes.iter().collect();
                let containers: HashSet<_> = commit.gone.gone_containers.iter().collect();
                view.sandboxes.retain(|(id, _)| !sandboxes.contains(id));
                view.containers
                    .retain(|(container, _)| !containers.contains(&container.id));
                let before = self.records.key(&commit.uid).map(|key| self.records.committed(key));
                view.keep(
                    &before.unwrap_or_default(),
                    &commit.unanswered.iter().cloned().collect(),
                );
                view
            }),
        };
        if commit.gone.denied {
            let gone = &commit.gone;
            self.records.not_found(&gone.gone_sandboxes, &gone.gone_containers);
        }
        let outcome = match &view {
            Some(view) if !unknown => self.compare(commit, view),
            _ => Outcome::Unknown,
        };
        if let Some(key) = self.records.key(&commit.uid) {
            let view = match (&outcome, view) {
                (Outcome::Same, Some(view)) => view,
                _ => self.node.committed(&commit.uid),
            };
            self.spend(view.sandboxes.len() + view.containers.len())?;
            self.records.commit(key, &view);
        }
        for change in &commit.changes {
            let about = nameless(&change.id, change.before.or(change.after));
            self.node.drop_if_unknown(&key(&commit.uid, &about));
        }
        Ok(outcome)
    }

    fn compare(&self, commit: &Commit, view: &PodView) -> Outcome {
        let key = self.records.key(&commit.uid);
        // That a stop was announced is not in any list.
        let mut recorded = (0..)
            .zip(&commit.events)
            .filter(|(_, sent)| sent.kind != EventType::ContainerStopped);
        let changes = key.map(|key| self.records.changes(key, view)).unwrap_or_default();
        let mut replayed = changes.iter().map(|change| {
            let (kind, subject) = change.event();
            super::sent_as(kind, subject.as_ref())
        });
        loop {
            match (recorded.next(), replayed.next()) {
                (None, None) => return Outcome::Same,
                (Some((_, recorded)), Some(replayed)) if *recorded == replayed => {}
                (recorded, replayed) => {
                    let at = recorded.map_or(commit.events.len(), |(at, _)| at);
                    return Outcome::Different(at, recorded.map(|(_, sent)| sent.clone()), replayed);
                }
            }
        }
    }
}
