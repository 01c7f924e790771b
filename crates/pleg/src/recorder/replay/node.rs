//! The node as a recording has it at one line, and the steps from there to the line before and the line after.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use pleg_cri::{ContainerItem, SandboxItem};

use crate::model::{ContainerRef, ContainerState, PodRef, PodUid, PodView, SandboxState};
use crate::recorder::line::{Commit, Object, ObjectKind, PodState, Seen, State};
use crate::records::snapshot::Snapshot;

/// An object as it stands at one line.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) about: Object,
    pub(super) listed: Option<State>,
    pub(super) committed: Option<State>,
    pub(super) denied: bool,
    /// Only its id is known: what was listed of it is not in the recording.
    pub(super) nameless: bool,
}

pub(super) type Key = (PodUid, ObjectKind, Arc<str>);

/// The node as it stands at one line.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) objects: BTreeMap<Key, Standing>,
    /// What is known of objects that are gone: one that went while it was inspected is committed after that.
    gone: BTreeMap<Key, Object>,
    pub(super) pods: HashMap<PodUid, PodRef>,
}

impl Node {
    pub(super) fn add(&mut self, pod: &PodState) {
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

    pub(super) fn pod(&self, uid: &PodUid) -> PodRef {
        self.pods.get(uid).cloned().unwrap_or_else(|| PodRef {
            uid: uid.clone(),
            namespace: Arc::default(),
            name: Arc::default(),
        })
    }

    /// The object, made if it is gone by now.
    pub(super) fn object(&mut self, uid: &PodUid, about: &Object, nameless: bool) -> &mut Standing {
        self.objects.entry(key(uid, about)).or_insert_with_key(|key| {
            let known = if nameless { self.gone.remove(key) } else { None };
            Standing {
                nameless: nameless && known.is_none(),
                about: known.unwrap_or_else(|| about.clone()),
                listed: None,
                committed: None,
                denied: false,
            }
        })
    }

    pub(super) fn drop_if_unknown(&mut self, key: &Key) {
        let nothing = |object: &Standing| object.listed.is_none() && object.committed.is_none();
        if self.objects.get(key).is_some_and(nothing)
            && let Some(object) = self.objects.remove(key).filter(|object| !object.nameless)
        {
            self.gone.insert(key.clone(), object.about);
        }
    }

    pub(super) fn see(&mut self, seen: &Seen) {
        self.pods.insert(seen.pod.uid.clone(), seen.pod.clone());
        for change in &seen.objects {
            let object = self.object(&seen.pod.uid, &change.about, false);
            (object.listed, object.denied) = (change.after, false);
            self.drop_if_unknown(&key(&seen.pod.uid, &change.about));
        }
    }

    pub(super) fn unsee(&mut self, seen: &Seen) -> Result<(), String> {
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

    pub(super) fn uncommit(&mut self, commit: &Commit) -> Result<(), String> {
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

    pub(super) fn of_pod(&self, uid: &PodUid) -> impl Iterator<Item = &Standing> {
        let first = (uid.clone(), ObjectKind::Container, Arc::from(""));
        let rest = self.objects.range(first..).map(|((pod, ..), object)| (pod, object));
        rest.take_while(move |(pod, _)| *pod == uid).map(|(_, object)| object)
    }

    /// Adds an object to a list, in `state`.
    pub(super) fn list(pod: &PodRef, about: &Object, state: State, into: &mut Snapshot) {
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
    pub(super) fn snapshot(&self, state: impl Fn(&Standing) -> Option<State>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for ((uid, ..), object) in &self.objects {
            if let Some(state) = state(object) {
                Self::list(&self.pod(uid), &object.about, state, &mut snapshot);
            }
        }
        snapshot
    }

    /// What is committed of a pod by the recording's own word.
    pub(super) fn committed(&self, uid: &PodUid) -> PodView {
        let mut view = PodView::default();
        for object in self.of_pod(uid) {
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

pub(super) fn key(uid: &PodUid, about: &Object) -> Key {
    (uid.clone(), about.object, Arc::clone(&about.id))
}

/// What is known of an object by its id and one of its states.
pub(super) fn nameless(id: &Arc<str>, state: Option<State>) -> Object {
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
    let words = |state: Option<State>| state.map_or("gone".to_owned(), |state| state.to_string());
    format!("{id} is {}, then it is {}", words(recorded), words(found))
}
