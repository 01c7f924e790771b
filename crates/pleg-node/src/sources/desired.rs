//! The desired state: the pods of all sources, and what changed with the last snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleg::PodUid;

use super::{Complaint, DesiredPod, Origin, RefusedPod, Snapshot};
use crate::manifest::Pod;

/// What changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A pod that was not desired before.
    Add(DesiredPod),
    /// A pod of the same name with other content: the old one terminates, then this one starts.
    Update {
        /// The pod that terminates first.
        old: PodUid,
        /// The pod that starts then.
        new: DesiredPod,
    },
    /// This pod is no longer desired.
    Remove(Arc<Pod>),
    /// The same pod, from another place: no action is needed.
    Reconcile(DesiredPod),
}

/// What a snapshot changed.
#[derive(Debug, Default, PartialEq)]
pub struct Merged {
    /// In the order of pods' names.
    pub changes: Vec<Change>,
    /// Complaints that were not there before. The sources have told theirs already; these are the merge's own.
    pub new_conflicts: Vec<Complaint>,
}

#[derive(Debug)]
struct Source {
    offers: Vec<DesiredPod>,
    complaints: Vec<Complaint>,
    refused: Vec<RefusedPod>,
    complete: bool,
}

/// What all sources together want: for each name one pod.
#[derive(Debug, Default)]
pub struct Desired {
    sources: BTreeMap<Origin, Option<Source>>,
    /// By `namespace/name`: the pod that has the name.
    pods: BTreeMap<Arc<str>, DesiredPod>,
    conflicts: Vec<Complaint>,
}

impl Desired {
    /// Nothing is desired yet; these sources will speak.
    pub fn new(sources: impl IntoIterator<Item = Origin>) -> Self {
        Self {
            sources: sources.into_iter().map(|source| (source, None)).collect(),
            ..Self::default()
        }
    }

    /// Takes in what a source has. Of several pods with one name the one that has the name keeps it, else the one that `runs`, else the
    /// first by its origin; so two files never take a pod from each other again and again. Until all sources have spoken, the one that
    /// runs has the name.
    pub fn apply(&mut self, snapshot: Snapshot, runs: impl Fn(&PodUid) -> bool) -> Merged {
        let source = Source {
            offers: snapshot.offers,
            complaints: snapshot.complaints,
            refused: snapshot.refused,
            complete: snapshot.complete,
        };
        let settled = self.all_have_spoken();
        self.sources.insert(snapshot.source, Some(source));

        let mut wanted: BTreeMap<Arc<str>, Vec<&DesiredPod>> = BTreeMap::new();
        for offer in self.sources.values().flatten().flat_map(|source| &source.offers) {
            wanted.entry(offer.pod.id.full_name()).or_default().push(offer);
        }
        let mut merged = Merged::default();
        let (mut pods, mut conflicts) = (BTreeMap::new(), Vec::new());
        for (name, offers) in wanted {
            let before = self.pods.get(&name);
            let rank = |offer: &&&DesiredPod| {
                let has = before.is_some_and(|before| before.origin == offer.origin);
                let same = before.is_some_and(|before| before.pod.id.uid == offer.pod.id.uid);
                let runs = runs(&offer.pod.id.uid);
                // While not all have spoken, who spoke first has no name yet.
                (!settled && !runs, !has, !same, !runs, offer.origin.clone())
            };
            let Some(chosen) = offers.iter().min_by_key(rank).copied() else {
                continue;
            };
            for other in offers.iter().filter(|other| other.origin != chosen.origin) {
                conflicts.push(Complaint {
                    origin: other.origin.clone(),
                    what: format!(
                        "pod {name} is refused: {} already defines a pod of this name. Rename or remove one of them",
                        chosen.origin
                    ),
                });
            }
            match before {
                None => merged.changes.push(Change::Add(chosen.clone())),
                Some(before) if before.pod.id.uid != chosen.pod.id.uid => merged.changes.push(Change::Update {
                    old: before.pod.id.uid.clone(),
                    new: chosen.clone(),
                }),
                Some(before) if before.origin != chosen.origin => {
                    merged.changes.push(Change::Reconcile(chosen.clone()));
                }
                Some(_) => {}
            }
            pods.insert(name, chosen.clone());
        }
        let gone = self.pods.iter().filter(|(name, _)| !pods.contains_key(*name));
        merged
            .changes
            .extend(gone.map(|(_, offer)| Change::Remove(Arc::clone(&offer.pod))));
        conflicts.sort();
        let is_new = |conflict: &&Complaint| !self.conflicts.contains(conflict);
        merged.new_conflicts = conflicts.iter().filter(is_new).cloned().collect();
        (self.pods, self.conflicts) = (pods, conflicts);
        merged
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = &DesiredPod> {
        self.pods.values()
    }

    /// All problems that a person has to fix.
    pub fn complaints(&self) -> Vec<Complaint> {
        let sources = self.sources.values().flatten();
        let mut all: Vec<Complaint> = sources.flat_map(|source| source.complaints.iter().cloned()).collect();
        all.extend(self.conflicts.iter().cloned());
        all
    }

    /// Pods that cannot be run, unless there is one of that name that can.
    pub fn refused(&self) -> Vec<RefusedPod> {
        let sources = self.sources.values().flatten();
        let all = sources.flat_map(|source| &source.refused);
        let free = |refused: &&RefusedPod| !self.pods.contains_key(&refused.id.full_name());
        all.filter(free).cloned().collect()
    }

    /// All sources have said something, if only that they cannot be read.
    pub fn all_have_spoken(&self) -> bool {
        self.sources.values().all(Option::is_some)
    }

    /// All sources have said all they have: who is not desired now is not wanted.
    pub fn is_complete(&self) -> bool {
        self.sources
            .values()
            .all(|source| source.as_ref().is_some_and(|source| source.complete))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{NodeName, read};

    fn pod(name: &str, image: &str) -> Arc<Pod> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: '{image}'}}]}}}}"
        );
        let mut found = read(text.as_bytes(), &NodeName::new("n").unwrap()).unwrap();
        found.pods.remove(0)
    }

    fn snapshot(source: &str, offers: &[(&str, &str, &str)]) -> Snapshot {
        let offer = |(origin, name, image): &(&str, &str, &str)| DesiredPod {
            origin: (*origin).into(),
            pod: pod(name, image),
        };
        Snapshot {
            source: source.into(),
            offers: offers.iter().map(offer).collect(),
            complaints: Vec::new(),
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
            Change::Add(offer) => format!("+{}", text(&offer.pod)),
            Change::Update { new, .. } => format!("~{}", text(&new.pod)),
            Change::Remove(pod) => format!("-{}", text(pod)),
            Change::Reconcile(offer) => format!("={}", text(&offer.pod)),
        };
        merged.changes.iter().map(word).collect()
    }

    #[test]
    fn a_history() {
        let mut desired = Desired::new(["dir".into()]);
        assert!(!desired.is_complete());
        let mut step = |offers: &[(&str, &str, &str)]| words(&desired.apply(snapshot("dir", offers), |_| false));
        assert_eq!(step(&[("a", "web", "1"), ("b", "db", "1")]), ["+db:1", "+web:1"]);
        assert_eq!(step(&[("a", "web", "1"), ("b", "db", "1")]), [""; 0]);
        assert_eq!(step(&[("a", "web", "2"), ("b", "db", "1")]), ["~web:2"]);
        // A file that was renamed changes nothing about its pod.
        assert_eq!(step(&[("z", "web", "2"), ("b", "db", "1")]), ["=web:2"]);
        assert_eq!(step(&[("z", "web", "2")]), ["-db:1"]);
        assert_eq!(step(&[]), ["-web:2"]);
        assert!(desired.is_complete());
    }

    #[test]
    fn an_update_names_who_has_to_end() {
        let mut desired = Desired::default();
        desired.apply(snapshot("dir", &[("a", "web", "1")]), |_| false);
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2")]), |_| false);
        let old = pod("web", "1").id.uid.clone();
        assert_eq!(
            merged.changes,
            [Change::Update {
                old,
                new: DesiredPod {
                    origin: "a".into(),
                    pod: pod("web", "2")
                }
            }]
        );
    }

    /// Two files with one pod made a kubelet flap: the good pod was down 34 of 40 s, with no error.
    #[test]
    fn who_has_a_name_keeps_it() {
        let mut desired = Desired::default();
        desired.apply(snapshot("dir", &[("b", "web", "1")]), |_| false);
        let both = [("a", "web", "2"), ("b", "web", "1")];
        let merged = desired.apply(snapshot("dir", &both), |_| false);
        assert_eq!(words(&merged), [""; 0]);
        assert_eq!(
            merged.new_conflicts[0].to_string(),
            "a: pod default/web-n is refused: b already defines a pod of this name. Rename or remove one of them"
        );
        // Said once.
        let merged = desired.apply(snapshot("dir", &both), |_| false);
        assert_eq!(merged, Merged::default());
        assert_eq!(desired.complaints().len(), 1);
        // An edit of the one that has it is an update; the other still waits, and takes over when its time comes.
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2"), ("b", "web", "3")]), |_| false);
        assert_eq!(words(&merged), ["~web:3"]);
        let merged = desired.apply(snapshot("dir", &[("a", "web", "2")]), |_| false);
        assert_eq!(
            (words(&merged), desired.complaints().len()),
            (vec!["~web:2".to_owned()], 0)
        );
    }

    #[test]
    fn who_is_refused_is_shown_unless_the_name_is_taken() {
        let mut desired = Desired::default();
        let refused = |name: &str| RefusedPod {
            id: pod(name, "1").id.clone(),
            complaint: Complaint {
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
        let mut desired = Desired::default();
        let merged = desired.apply(snapshot("dir", &both), |uid| *uid == running);
        assert_eq!(words(&merged), ["+web:2"]);
        let mut desired = Desired::default();
        assert_eq!(words(&desired.apply(snapshot("dir", &both), |_| false)), ["+web:1"]);
    }

    #[test]
    fn sources_do_not_touch_each_others_pods() {
        let mut desired = Desired::new(["dir".into(), "url".into()]);
        desired.apply(snapshot("dir", &[("a", "web", "1")]), |_| false);
        assert!(!desired.is_complete(), "the other has not spoken");
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
