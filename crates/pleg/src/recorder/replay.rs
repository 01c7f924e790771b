//! Feeds a recording's lists through the records and the diff again: do they give the events that were sent?
//!
//! First back: from the node as it was at the end every line is undone, which gives the node as it was at the beginning. Then forth:
//! what was listed is observed, what was inspected is committed, and the changes are compared with the events of the recording.
//! A commit whose inspection began before the recording cannot be compared: what was listed then is not known.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use pleg_cri::{ContainerItem, SandboxItem};

use super::line::{Commit, FORMAT, Header, Line, Object, ObjectKind, PodState, Scope, Seen, Sent, State, What};
use crate::diff::diff;
use crate::event::EventType;
use crate::model::{ContainerRef, ContainerState, PodRef, PodUid, PodView, SandboxState};
use crate::records::{Coverage, Records};
use crate::snapshot::Snapshot;

/// More items than this in all lists together are not gone through. A node of 10,000 pods makes a tenth of it in ten minutes.
const MOST_ITEMS: usize = 200_000_000;

/// Why a recording cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The first line is no header.
    #[error("this is no recording: the first line has to be of the kind \"recording\"")]
    NoHeader,
    /// Of another version.
    #[error("the recording has format {0}, this version reads {FORMAT}")]
    Format(u32),
    /// A line does not fit to the lines after it.
    #[error("line {line} of the recording contradicts what follows it: {what}")]
    Contradiction {
        /// Which line, counted from 1.
        line: usize,
        /// What does not fit.
        what: String,
    },
    /// [`MOST_ITEMS`].
    #[error("the lists of the recording have more than {MOST_ITEMS} items in all: too many to replay")]
    TooLarge,
}

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The header of the recording.
    pub header: Header,
    /// When the recording ends.
    pub to: Timestamp,
    /// Looks with a change, and without one.
    pub looks: u64,
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
    let (header, to) = match lines.next() {
        Some((_, Line { time, what })) => match what {
            What::Recording(header) if header.format == FORMAT => (header, time),
            What::Recording(header) => return Err(ReplayError::Format(header.format)),
            _ => return Err(ReplayError::NoHeader),
        },
        None => return Err(ReplayError::NoHeader),
    };
    let mut node = Node::default();
    let mut entries = Vec::new();
    for (number, line) in lines {
        match line.what {
            What::Pod(pod) => node.add(&pod),
            What::Look(_) | What::Seen(_) | What::Inspect { .. } | What::Commit(_) => entries.push((number, line)),
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

    let mut forth = Forth::new(node)?;
    let mut replayed = Replayed {
        header,
        to,
        looks: 0,
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
            What::Look(look) => {
                replayed.looks += 1;
                forth.look(look.scope, &std::mem::take(&mut seen))?;
            }
            What::Inspect { uid } => forth.inspect(uid),
            What::Commit(commit) => match forth.commit(&commit) {
                Outcome::Same => replayed.events += commit.events.len() as u64,
                Outcome::Unknown => replayed.not_compared += commit.events.len() as u64,
                Outcome::Different(at, recorded, got) => {
                    replayed.difference = Some(Difference {
                        line: number,
                        time: line.time,
                        pod: forth.node.pod(&commit.uid),
                        seq: commit.seq + at as u64,
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

/// An object as it stands at one line.
#[derive(Debug, Clone)]
struct Standing {
    about: Object,
    listed: Option<State>,
    committed: Option<State>,
    denied: bool,
    /// Only its id is known: what was listed of it is not in the recording.
    nameless: bool,
}

type Key = (PodUid, ObjectKind, Arc<str>);

/// The node as it stands at one line.
#[derive(Debug, Default)]
struct Node {
    objects: BTreeMap<Key, Standing>,
    pods: HashMap<PodUid, PodRef>,
}

impl Node {
    fn add(&mut self, pod: &PodState) {
        self.pods.insert(pod.pod.uid.clone(), pod.pod.clone());
        for object in &pod.objects {
            let key = key(&pod.pod.uid, &object.about);
            let standing = Standing {
                about: object.about.clone(),
                listed: object.listed,
                committed: object.committed,
                denied: object.denied,
                nameless: false,
            };
            self.objects.insert(key, standing);
        }
    }

    fn pod(&self, uid: &PodUid) -> PodRef {
        self.pods.get(uid).cloned().unwrap_or_else(|| PodRef {
            uid: uid.clone(),
            namespace: Arc::default(),
            name: Arc::default(),
        })
    }

    /// The object, made if it is gone by now.
    fn object(&mut self, uid: &PodUid, about: &Object, nameless: bool) -> &mut Standing {
        self.objects.entry(key(uid, about)).or_insert_with(|| Standing {
            about: about.clone(),
            listed: None,
            committed: None,
            denied: false,
            nameless,
        })
    }

    fn drop_if_unknown(&mut self, key: &Key) {
        let nothing = |object: &Standing| object.listed.is_none() && object.committed.is_none();
        if self.objects.get(key).is_some_and(nothing) {
            self.objects.remove(key);
        }
    }

    fn see(&mut self, seen: &Seen) {
        self.pods.insert(seen.pod.uid.clone(), seen.pod.clone());
        for change in &seen.objects {
            let object = self.object(&seen.pod.uid, &change.about, false);
            (object.listed, object.denied) = (change.after, false);
            self.drop_if_unknown(&key(&seen.pod.uid, &change.about));
        }
    }

    fn unsee(&mut self, seen: &Seen) -> Result<(), String> {
        let uid = &seen.pod.uid;
        self.pods.entry(uid.clone()).or_insert_with(|| seen.pod.clone());
        for change in &seen.objects {
            let object = self.object(uid, &change.about, false);
            if object.listed != change.after {
                return Err(contradiction(&change.about.id, change.after, object.listed));
            }
            if object.nameless {
                (object.about, object.nameless) = (change.about.clone(), false);
            }
            (object.listed, object.denied) = (change.before, change.denied);
            self.drop_if_unknown(&key(uid, &change.about));
        }
        Ok(())
    }

    fn uncommit(&mut self, commit: &Commit) -> Result<(), String> {
        for change in &commit.changes {
            let about = nameless(&change.id, change.before.or(change.after));
            let object = self.object(&commit.uid, &about, true);
            if object.committed != change.after {
                return Err(contradiction(&change.id, change.after, object.committed));
            }
            object.committed = change.before;
            self.drop_if_unknown(&key(&commit.uid, &about));
        }
        let sandboxes = commit
            .gone
            .gone_sandboxes
            .iter()
            .map(|id| (ObjectKind::Sandbox, id.shared()));
        let containers = commit
            .gone
            .gone_containers
            .iter()
            .map(|id| (ObjectKind::Container, id.shared()));
        for (kind, id) in sandboxes.chain(containers).filter(|_| commit.gone.denied) {
            if let Some(object) = self.objects.get_mut(&(commit.uid.clone(), kind, id)) {
                object.denied = false;
            }
        }
        Ok(())
    }

    fn of_pod(&self, uid: &PodUid) -> impl Iterator<Item = &Standing> {
        let first = (uid.clone(), ObjectKind::Container, Arc::from(""));
        let rest = self.objects.range(first..).map(|((pod, ..), object)| (pod, object));
        rest.take_while(move |(pod, _)| *pod == uid).map(|(_, object)| object)
    }

    /// Adds an object to a list, in `state`.
    fn list(pod: &PodRef, about: &Object, state: State, into: &mut Snapshot) {
        let uid = pod.uid.as_str().as_bytes();
        let (namespace, name) = (pod.namespace.as_bytes(), pod.name.as_bytes());
        match about.object {
            ObjectKind::Sandbox => into.sandboxes.push(&SandboxItem {
                id: about.id.as_bytes(),
                has_metadata: true,
                uid,
                namespace,
                name,
                attempt: about.attempt,
                state: i32::from(state != State::Ready),
                created_at: about.created_at,
                pod_uid_label: uid,
            }),
            ObjectKind::Container => into.containers.push(&ContainerItem {
                id: about.id.as_bytes(),
                pod_sandbox_id: b"",
                name: about.name.as_bytes(),
                attempt: about.attempt,
                state: match state {
                    State::Created => 0,
                    State::Running => 1,
                    State::Exited => 2,
                    _ => 3,
                },
                created_at: about.created_at,
                pod_uid_label: uid,
                pod_name_label: name,
                pod_namespace_label: namespace,
            }),
        }
    }

    /// Everything, in the state that `state` tells.
    fn snapshot(&self, state: impl Fn(&Standing) -> Option<State>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for ((uid, ..), object) in &self.objects {
            if let Some(state) = state(object) {
                Self::list(&self.pod(uid), &object.about, state, &mut snapshot);
            }
        }
        snapshot
    }
}

fn key(uid: &PodUid, about: &Object) -> Key {
    (uid.clone(), about.object, Arc::clone(&about.id))
}

/// What is known of an object by its id and one of its states.
fn nameless(id: &Arc<str>, state: Option<State>) -> Object {
    let sandbox = matches!(state, Some(State::Ready | State::NotReady));
    Object {
        object: if sandbox {
            ObjectKind::Sandbox
        } else {
            ObjectKind::Container
        },
        id: Arc::clone(id),
        name: Arc::default(),
        attempt: 0,
        created_at: 0,
    }
}

fn contradiction(id: &str, recorded: Option<State>, found: Option<State>) -> String {
    let words = |state: Option<State>| state.map_or("gone".to_owned(), |state| format!("{state:?}"));
    format!("{id} is {}, then it is {}", words(recorded), words(found))
}

/// How a commit compares.
enum Outcome {
    Same,
    /// Its inspection began before the recording.
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
    /// The records of the beginning, made by looks and commits as any other.
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
        self.items += snapshot.sandboxes.len() + snapshot.containers.len();
        if self.items > MOST_ITEMS {
            return Err(ReplayError::TooLarge);
        }
        self.observe(snapshot, Coverage::Full);
        Ok(())
    }

    fn observe(&mut self, snapshot: &mut Snapshot, coverage: Coverage) {
        let (touched, _) = self.records.observe(snapshot, coverage);
        for &key in &touched {
            let inspecting = self
                .records
                .pod(key)
                .is_some_and(|pod| self.views.contains_key(&pod.uid));
            if !self.records.is_dirty(key) && !inspecting {
                self.records.sweep(key);
            }
        }
        self.records.recycle(touched);
    }

    fn look(&mut self, scope: Scope, seen: &[Arc<Seen>]) -> Result<(), ReplayError> {
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
                self.observe(&mut listed, Coverage::Pod(key));
            }
        }
        Ok(())
    }

    fn inspect(&mut self, uid: PodUid) {
        if let Some(key) = self.records.key(&uid) {
            self.views.insert(uid, self.records.listed(key));
        }
    }

    fn commit(&mut self, commit: &Commit) -> Outcome {
        let nameless = commit.changes.iter().any(|change| {
            let about = nameless(&change.id, change.before.or(change.after));
            let object = self.node.objects.get(&key(&commit.uid, &about));
            object.is_none_or(|object| object.nameless)
        });
        for change in &commit.changes {
            let about = self::nameless(&change.id, change.before.or(change.after));
            self.node.object(&commit.uid, &about, true).committed = change.after;
        }
        let view = match self.views.remove(&commit.uid) {
            _ if commit.removal => Some(PodView::default()),
            view => view.map(|mut view| {
                let sandboxes: HashSet<_> = commit.gone.gone_sandboxes.iter().collect();
                let containers: HashSet<_> = commit.gone.gone_containers.iter().collect();
                view.sandboxes.retain(|(id, _)| !sandboxes.contains(id));
                view.containers
                    .retain(|(container, _)| !containers.contains(&container.id));
                view
            }),
        };
        let outcome = match &view {
            Some(view) if !nameless => self.compare(commit, view),
            _ => Outcome::Unknown,
        };
        if let Some(key) = self.records.key(&commit.uid) {
            if commit.gone.denied {
                let gone = &commit.gone;
                self.records.not_found(&gone.gone_sandboxes, &gone.gone_containers);
            }
            let view = match (&outcome, view) {
                (Outcome::Same, Some(view)) => view,
                _ => self.committed(&commit.uid),
            };
            self.records.commit(key, &view);
        }
        for change in &commit.changes {
            let about = self::nameless(&change.id, change.before.or(change.after));
            self.node.drop_if_unknown(&key(&commit.uid, &about));
        }
        outcome
    }

    fn compare(&self, commit: &Commit, view: &PodView) -> Outcome {
        let key = self.records.key(&commit.uid);
        let before = key.map(|key| self.records.committed(key)).unwrap_or_default();
        let replayed: Vec<_> = diff(&before, view).iter().map(|change| change.event()).collect();
        // That a stop was announced is not in any list.
        let mut recorded = (0..)
            .zip(&commit.events)
            .filter(|(_, sent)| sent.kind != EventType::ContainerStopped);
        let mut replayed = replayed
            .into_iter()
            .map(|(kind, subject)| super::sent_as(kind, subject.as_ref()));
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

    /// What is committed of a pod by the recording's own word.
    fn committed(&self, uid: &PodUid) -> PodView {
        let mut view = PodView::default();
        for object in self.node.of_pod(uid) {
            let Some(state) = object.committed else { continue };
            match object.about.object {
                ObjectKind::Sandbox => {
                    let state = if state == State::Ready {
                        SandboxState::Ready
                    } else {
                        SandboxState::NotReady
                    };
                    view.sandboxes.push((Arc::clone(&object.about.id).into(), state));
                }
                ObjectKind::Container => {
                    let container = ContainerRef {
                        id: Arc::clone(&object.about.id).into(),
                        name: Arc::clone(&object.about.name),
                        attempt: object.about.attempt,
                    };
                    let state = match state {
                        State::Created => ContainerState::Created,
                        State::Running => ContainerState::Running,
                        State::Exited => ContainerState::Exited,
                        _ => ContainerState::Unknown,
                    };
                    view.containers.push((container, state));
                }
            }
        }
        view
    }
}
