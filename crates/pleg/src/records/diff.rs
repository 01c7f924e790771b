//! What happened between two views of a pod. Pure: no clock, no I/O.
//!
//! | container: old → new | changes |
//! |---|---|
//! | same | none |
//! | any → Created | `Created` |
//! | any → Running | `Started` |
//! | any → Exited | `Died` |
//! | any → Unknown | `Changed` |
//! | Exited → absent | `Removed` |
//! | other → absent | `Died`, then `Removed` |
//!
//! A sandbox that appears, disappears or changes its state is a `SandboxChanged`; the last trace of a pod going is
//! `PodRemoved`.
//!
//! The order within a pod follows cause and effect: a sandbox comes up before its containers, containers follow in the order in
//! which they were made, and a sandbox goes down after them.

use crate::model::event::{EventType, Subject};
use crate::model::{ContainerRef, ContainerState, PodView, SandboxId, SandboxState};

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above says what each is")]
pub enum Change {
    Created(ContainerRef),
    Started(ContainerRef),
    Died(ContainerRef),
    Removed(ContainerRef),
    Changed(ContainerRef),
    /// With the state it is in now; none when it is gone.
    SandboxChanged(SandboxId, Option<SandboxState>),
    PodRemoved,
}

impl Change {
    /// The event that reports it, and its subject.
    pub fn event(&self) -> (EventType, Option<Subject>) {
        let (kind, container) = match self {
            Self::Created(container) => (EventType::ContainerCreated, container),
            Self::Started(container) => (EventType::ContainerStarted, container),
            Self::Died(container) => (EventType::ContainerDied, container),
            Self::Removed(container) => (EventType::ContainerRemoved, container),
            Self::Changed(container) => (EventType::ContainerChanged, container),
            Self::SandboxChanged(id, state) => {
                let (id, state) = (id.clone(), *state);
                return (EventType::PodSandboxChanged, Some(Subject::Sandbox { id, state }));
            }
            Self::PodRemoved => return (EventType::PodRemoved, None),
        };
        (kind, Some(Subject::Container(container.clone())))
    }
}

/// The changes that lead from `old` to `new`.
pub fn diff(old: &PodView, new: &PodView) -> Vec<Change> {
    let mut changes = Vec::new();
    let (old_sandboxes, new_sandboxes) = (old.sandbox_states(), new.sandbox_states());
    let (old_containers, new_containers) = (old.container_states(), new.container_states());

    // Sandboxes that come up, oldest first: views hold them newest first.
    for (id, state) in new.sandboxes.iter().rev() {
        let before = old_sandboxes.get(id.as_str()).copied();
        if before != Some(*state) && (*state == SandboxState::Ready || before.is_none()) {
            changes.push(Change::SandboxChanged(id.clone(), Some(*state)));
        }
    }

    // What is gone was made before what is new.
    for (container, state) in &old.containers {
        if !new_containers.contains_key(container.id.as_str()) {
            if *state != ContainerState::Exited {
                changes.push(Change::Died(container.clone()));
            }
            changes.push(Change::Removed(container.clone()));
        }
    }
    for (container, state) in &new.containers {
        if old_containers.get(container.id.as_str()) != Some(state) {
            let container = container.clone();
            changes.push(match state {
                ContainerState::Created => Change::Created(container),
                ContainerState::Running => Change::Started(container),
                ContainerState::Exited => Change::Died(container),
                ContainerState::Unknown => Change::Changed(container),
            });
        }
    }

    // Sandboxes that go down or away.
    for (id, before) in old.sandboxes.iter().rev() {
        let after = new_sandboxes.get(id.as_str()).copied();
        if after.is_none() || (after == Some(SandboxState::NotReady) && *before == SandboxState::Ready) {
            changes.push(Change::SandboxChanged(id.clone(), after));
        }
    }
    if new.is_empty() && !old.is_empty() {
        changes.push(Change::PodRemoved);
    }
    changes
}

#[cfg(test)]
mod tests {
    use ContainerState::{Created, Exited, Running, Unknown};

    use super::*;

    fn container(id: &str) -> ContainerRef {
        ContainerRef {
            id: id.into(),
            name: id.into(),
            attempt: 0,
        }
    }

    fn pod(sandboxes: &[(&str, SandboxState)], containers: &[(&str, ContainerState)]) -> PodView {
        PodView {
            sandboxes: sandboxes.iter().map(|(id, state)| ((*id).into(), *state)).collect(),
            containers: containers.iter().map(|(id, state)| (container(id), *state)).collect(),
        }
    }

    #[test]
    fn the_table() {
        let c = || container("c");
        let states = [None, Some(Created), Some(Running), Some(Exited), Some(Unknown)];
        for old in states {
            for new in states {
                let expected = match (old, new) {
                    (a, b) if a == b => vec![],
                    (_, Some(Created)) => vec![Change::Created(c())],
                    (_, Some(Running)) => vec![Change::Started(c())],
                    (_, Some(Exited)) => vec![Change::Died(c())],
                    (_, Some(Unknown)) => vec![Change::Changed(c())],
                    (Some(Exited), None) => vec![Change::Removed(c())],
                    (_, None) => vec![Change::Died(c()), Change::Removed(c())],
                };
                let view = |state: Option<ContainerState>| {
                    pod(
                        &[("s", SandboxState::Ready)],
                        &state.map(|s| ("c", s)).into_iter().collect::<Vec<_>>(),
                    )
                };
                assert_eq!(diff(&view(old), &view(new)), expected, "{old:?} -> {new:?}");
            }
        }
    }

    /// kubernetes/kubernetes#64507: 33,212 dead containers. With one look-up after the other this would take minutes.
    #[test]
    fn a_pod_with_tens_of_thousands_of_dead_containers() {
        let ids: Vec<_> = (0..33_212).map(|n| n.to_string()).collect();
        let dead = pod(&[], &ids.iter().map(|id| (id.as_str(), Exited)).collect::<Vec<_>>());
        assert_eq!(diff(&PodView::default(), &dead).len(), 33_212);
        assert!(diff(&dead, &dead).is_empty());
        assert_eq!(diff(&dead, &PodView::default()).len(), 33_213);
    }

    #[test]
    fn sandboxes() {
        use SandboxState::{NotReady, Ready};
        let changed = |id: &str, state| Change::SandboxChanged(id.into(), state);
        let (none, ready, not_ready) = (pod(&[], &[]), pod(&[("s", Ready)], &[]), pod(&[("s", NotReady)], &[]));
        for (old, new, expected) in [
            (&none, &none, vec![]),
            (&ready, &ready, vec![]),
            (&none, &ready, vec![changed("s", Some(Ready))]),
            (&none, &not_ready, vec![changed("s", Some(NotReady))]),
            (&ready, &not_ready, vec![changed("s", Some(NotReady))]),
            (&not_ready, &ready, vec![changed("s", Some(Ready))]),
            (&ready, &none, vec![changed("s", None), Change::PodRemoved]),
            (&not_ready, &none, vec![changed("s", None), Change::PodRemoved]),
        ] {
            assert_eq!(diff(old, new), expected, "{old:?} -> {new:?}");
        }
        // A restart of the sandbox: the new one is up before the old one is reported gone.
        let restarted = pod(&[("t", Ready), ("s", NotReady)], &[]);
        assert_eq!(
            diff(&ready, &restarted),
            [changed("t", Some(Ready)), changed("s", Some(NotReady))]
        );
    }

    #[test]
    fn cause_comes_before_effect() {
        use SandboxState::{NotReady, Ready};
        let up = pod(&[("s", Ready)], &[("a", Running), ("b", Created)]);
        assert_eq!(
            diff(&PodView::default(), &up),
            [
                Change::SandboxChanged("s".into(), Some(Ready)),
                Change::Started(container("a")),
                Change::Created(container("b")),
            ]
        );
        let down = pod(&[("s", NotReady)], &[("a", Exited)]);
        assert_eq!(
            diff(&up, &down),
            [
                Change::Died(container("b")),
                Change::Removed(container("b")),
                Change::Died(container("a")),
                Change::SandboxChanged("s".into(), Some(NotReady)),
            ]
        );
        assert_eq!(
            diff(&down, &PodView::default()),
            [
                Change::Removed(container("a")),
                Change::SandboxChanged("s".into(), None),
                Change::PodRemoved
            ]
        );
    }
}
