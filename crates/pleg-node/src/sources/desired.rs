//! The desired state: the pods of all sources merged, and what the last snapshot changed. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleg::PodUid;

use super::{DesiredPod, Origin, RefusedPod, Snapshot, SourceProblem};
use crate::manifest::Pod;

/// What changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A pod that was not desired before.
    Add(DesiredPod),
    /// Another pod of the same name: the old one terminates, then this one starts.
    Replace {
        /// The pod that terminates first.
        old: PodUid,
        /// The pod that starts then.
        new: DesiredPod,
    },
    /// The same pod with other content: labels, images, its deletion.
    Update(DesiredPod),
    /// This pod is no longer desired.
    Remove(Arc<Pod>),
    /// The same pod, from another origin: no action is needed.
    Reconcile(DesiredPod),
}

impl Change {
    /// What changed from `before` to `now`, which have the same name.
    fn between(before: Option<&DesiredPod>, now: &DesiredPod) -> Option<Self> {
        match before {
            None => Some(Self::Add(now.clone())),
            Some(before) if before.pod.id.uid != now.pod.id.uid => Some(Self::Replace {
                old: before.pod.id.uid.clone(),
                new: now.clone(),
            }),
            Some(before) if !Arc::ptr_eq(&before.pod, &now.pod) && before.pod != now.pod => {
                Some(Self::Update(now.clone()))
            }
            Some(before) if before.origin != now.origin => Some(Self::Reconcile(now.clone())),
            Some(_) => None,
        }
    }
}

/// What a snapshot changed.
#[derive(Debug, Default, PartialEq)]
pub struct Merged {
    /// In the order of pod names.
    pub changes: Vec<Change>,
    /// Problems of the merge itself that are new. The sources log their own.
    pub new_conflicts: Vec<SourceProblem>,
}

/// What all sources together desire: for each name one pod.
#[derive(Debug, Default)]
pub struct DesiredState {
    /// The last snapshot of each source; none before its first.
    sources: BTreeMap<Origin, Option<Snapshot>>,
    /// By `namespace/name`: the pod that has the name.
    pods: BTreeMap<Arc<str>, DesiredPod>,
    conflicts: Vec<SourceProblem>,
}

impl DesiredState {
    /// Nothing is desired yet; these sources will send snapshots.
    pub fn new(sources: impl IntoIterator<Item = Origin>) -> Self {
        Self {
            sources: sources.into_iter().map(|source| (source, None)).collect(),
            ..Self::default()
        }
    }

    /// Merges a snapshot. Of several pods with one name, the one that has the name keeps it, else the one that `runs`, else the first by
    /// origin; so two files never take a pod from each other again and again. Until all sources have sent a snapshot, the one that runs
    /// has the name.
    pub fn apply(&mut self, snapshot: Snapshot, runs: impl Fn(&PodUid) -> bool) -> Merged {
        let settled = self.all_reported();
        self.sources.insert(snapshot.source.clone(), Some(snapshot));

        let mut by_name: BTreeMap<Arc<str>, Vec<&DesiredPod>> = BTreeMap::new();
        for desired in self.sources.values().flatten().flat_map(|source| &source.pods) {
            by_name.entry(desired.pod.id.full_name()).or_default().push(desired);
        }
        let mut merged = Merged::default();
        let (mut pods, mut conflicts) = (BTreeMap::new(), Vec::new());
        for (name, candidates) in by_name {
            let before = self.pods.get(&name);
            let rank = |candidate: &&&DesiredPod| {
                let has_name = before.is_some_and(|before| before.origin == candidate.origin);
                let same = before.is_some_and(|before| before.pod.id.uid == candidate.pod.id.uid);
                let runs = runs(&candidate.pod.id.uid);
                // The first source to send a snapshot has no advantage over those that are still missing.
                (!settled && !runs, !has_name, !same, !runs, candidate.origin.clone())
            };
            let Some(chosen) = candidates.iter().min_by_key(rank).copied() else {
                continue;
            };
            conflicts.extend(conflicts_of(&name, chosen, &candidates));
            merged.changes.extend(Change::between(before, chosen));
            pods.insert(name, chosen.clone());
        }
        let removed = self.pods.iter().filter(|(name, _)| !pods.contains_key(*name));
        let removed = removed.map(|(_, removed)| Change::Remove(Arc::clone(&removed.pod)));
        merged.changes.extend(removed);
        conflicts.sort();
        let is_new = |conflict: &&SourceProblem| !self.conflicts.contains(conflict);
        merged.new_conflicts = conflicts.iter().filter(is_new).cloned().collect();
        (self.pods, self.conflicts) = (pods, conflicts);
        merged
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = &DesiredPod> {
        self.pods.values()
    }

    /// All problems that an operator has to fix.
    pub fn problems(&self) -> Vec<SourceProblem> {
        let sources = self.sources.values().flatten();
        let mut all: Vec<SourceProblem> = sources.flat_map(|source| source.problems.iter().cloned()).collect();
        all.extend(self.conflicts.iter().cloned());
        all
    }

    /// Refused pods, except those with the name of a pod that is not refused.
    pub fn refused(&self) -> Vec<RefusedPod> {
        let sources = self.sources.values().flatten();
        let all = sources.flat_map(|source| &source.refused);
        let free = |refused: &&RefusedPod| !self.pods.contains_key(&refused.id.full_name());
        all.filter(free).cloned().collect()
    }

    /// All sources have sent a snapshot, if only that they cannot be read.
    pub fn all_reported(&self) -> bool {
        self.sources.values().all(Option::is_some)
    }

    /// All sources know all their pods: a pod that is not desired now is orphaned.
    pub fn is_complete(&self) -> bool {
        self.sources
            .values()
            .all(|source| source.as_ref().is_some_and(|source| source.complete))
    }
}

/// The problems of pods that another pod of their name keeps from running.
fn conflicts_of(name: &str, chosen: &DesiredPod, candidates: &[&DesiredPod]) -> Vec<SourceProblem> {
    let others = candidates.iter().filter(|other| other.origin != chosen.origin);
    let conflict = |other: &&DesiredPod| SourceProblem {
        origin: other.origin.clone(),
        what: format!(
            "pod {name} is refused: {} already defines a pod of this name. Rename or remove one of them",
            chosen.origin
        ),
    };
    others.map(conflict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::NodeName;
    use crate::sources::static_pods::{ConfigSource, read};

    fn pod(name: &str, image: &str) -> Arc<Pod> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: '{image}'}}]}}}}"
        );
        let mut found = read(text.as_bytes(), &NodeName::new("n").unwrap(), ConfigSource::File).unwrap();
        found.pods.remove(0)
    }

    fn snapshot(source: &str, pods: &[(&str, &str, &str)]) -> Snapshot {
        let desired = |(origin, name, image): &(&str, &str, &str)| DesiredPod {
            origin: (*origin).into(),
            pod: pod(name, image),
        };
        Snapshot {
            source: source.into(),
            pods: pods.iter().map(desired).collect(),
            problems: Vec::new(),
            refused: Vec::new(),
            complete: true,
        }
    }

    /// `+web:1`, `~web:1>2`, `-web:2`, `=web:2`.
    fn words(merged: &Merged) -> Vec<String> {
        let text = |pod: &Pod| {
            format!(
                "{}:{}",
                pod.id.name.trim_end_matches("-n"),
                pod.spec.containers[0].image
            )
        };
        let word = |change: &Change| match change {
            Change::Add(desired) => format!("+{}", text(&desired.pod)),
            Change::Replace { new, .. } => format!("~{}", text(&new.pod)),
            Change::Update(desired) => format!("^{}", text(&desired.pod)),
            Change::Remove(pod) => format!("-{}", text(pod)),
            Change::Reconcile(desired) => format!("={}", text(&desired.pod)),
        };
        merged.changes.iter().map(word).collect()
    }

    #[test]
    fn a_history() {
        let mut desired = DesiredState::new(["dir".into()]);
        assert!(!desired.is_complete());
        let mut step = |pods: &[(&str, &str, &str)]| words(&desired.apply(snapshot("dir", pods), |_| false));
        assert_eq!(step(&[("a", "web", "1"), ("b", "db", "1")]), ["+db:1", "+web:1"]);
        assert_eq!(step(&[("a", "web", "1"), ("b", "db", "1")]), [""; 0]);
        assert_eq!(step(&[("a", "web", "2"), ("b", "db", "1")]), ["~web:2"]);
        // Renaming a file does not change its pod.
        assert_eq!(step(&[("z", "web", "2"), ("b", "db", "1")]), ["=web:2"]);
        assert_eq!(step(&[("z", "web", "2")]), ["-db:1"]);
        assert_eq!(step(&[]), ["-web:2"]);
        assert!(desired.is_complete());
    }

    #[test]
    fn an_update_names_the_pod_to_terminate() {
        let mut desired = DesiredState::default();
        desired.apply(snapshot("dir", &[("a", "web", "1")]), |_| false);
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2")]), |_| false);
        let old = pod("web", "1").id.uid.clone();
        assert_eq!(
            merged.changes,
            [Change::Replace {
                old,
                new: DesiredPod {
                    origin: "a".into(),
                    pod: pod("web", "2")
                }
            }]
        );
    }

    /// Two files with one pod make a kubelet flap: the good pod was down for 34 of 40 s, without an error.
    #[test]
    fn the_first_pod_of_a_name_keeps_it() {
        let mut desired = DesiredState::default();
        desired.apply(snapshot("dir", &[("b", "web", "1")]), |_| false);
        let both = [("a", "web", "2"), ("b", "web", "1")];
        let merged = desired.apply(snapshot("dir", &both), |_| false);
        assert_eq!(words(&merged), [""; 0]);
        assert_eq!(
            merged.new_conflicts[0].to_string(),
            "a: pod default/web-n is refused: b already defines a pod of this name. Rename or remove one of them"
        );
        // It is reported as new only once.
        let merged = desired.apply(snapshot("dir", &both), |_| false);
        assert_eq!(merged, Merged::default());
        assert_eq!(desired.problems().len(), 1);
        // An edit of the pod that has the name is an update. The other one takes over when the name is free.
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2"), ("b", "web", "3")]), |_| false);
        assert_eq!(words(&merged), ["~web:3"]);
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2")]), |_| false);
        assert_eq!(
            (words(&merged), desired.problems().len()),
            (vec!["~web:2".to_owned()], 0)
        );
    }

    #[test]
    fn refused_pods_are_shown_unless_the_name_is_taken() {
        let mut desired = DesiredState::default();
        let refused = |name: &str| RefusedPod {
            id: pod(name, "1").id.clone(),
            problem: SourceProblem {
                origin: "a".into(),
                what: "no".to_owned(),
            },
        };
        let snapshot = Snapshot {
            refused: vec![refused("web"), refused("db")],
            ..snapshot("dir", &[("a", "web", "1")])
        };
        desired.apply(snapshot, |_| false);
        assert_eq!(desired.refused(), [refused("db")]);
    }

    #[test]
    fn at_the_start_the_running_one_has_the_name() {
        let running = pod("web", "2").id.uid.clone();
        let both = [("a", "web", "1"), ("b", "web", "2")];
        let mut desired = DesiredState::default();
        let merged = desired.apply(snapshot("dir", &both), |uid| *uid == running);
        assert_eq!(words(&merged), ["+web:2"]);
        let mut desired = DesiredState::default();
        assert_eq!(words(&desired.apply(snapshot("dir", &both), |_| false)), ["+web:1"]);
    }

    #[test]
    fn sources_do_not_touch_each_others_pods() {
        let mut desired = DesiredState::new(["dir".into(), "url".into()]);
        desired.apply(snapshot("dir", &[("a", "web", "1")]), |_| false);
        assert!(!desired.is_complete(), "the other source has sent nothing");
        let merged = desired.apply(snapshot("url", &[("u", "web", "9"), ("u", "job", "1")]), |_| false);
        assert_eq!(
            (words(&merged), merged.new_conflicts.len()),
            (vec!["+job:1".to_owned()], 1)
        );
        let half = Snapshot {
            complete: false,
            ..snapshot("dir", &[])
        };
        assert_eq!(words(&desired.apply(half, |_| false)), ["~web:9"]);
        assert!(!desired.is_complete());
    }
}
