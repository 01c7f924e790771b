//! What is known of the files of a manifest directory, from one scan to the next. No I/O and no clock: callers scan and pass in the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::scan::{Fingerprint, SETTLE, ScannedFile};
use super::static_pods::{self, ConfigSource};
use super::{DesiredPod, Origin, RefusedPod, Snapshot, SourceProblem, all_known};
use crate::manifest::{NodeName, Pod};

/// How long a file has to be missing before it counts as removed.
const REMOVED_AFTER: Duration = Duration::from_millis(100);

/// The problem of a directory among the manifests.
pub(super) const SUBDIRECTORY: &str = "is a directory: subdirectories are not read";

/// The files of a directory.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    node: NodeName,
    known: BTreeMap<OsString, KnownFile>,
    /// What is wrong with the directory itself.
    problem: Option<String>,
    /// The directory was listed at least once.
    listed: bool,
    /// Grows with each change of what a snapshot says.
    changes: u64,
}

#[derive(Debug, Default)]
struct KnownFile {
    /// Of the content that was read last, valid or not.
    fingerprint: Option<Fingerprint>,
    /// The last valid pods.
    pods: Vec<Arc<Pod>>,
    /// Refused pods of the content that was read last.
    refused: Vec<RefusedPod>,
    problem: Option<String>,
    /// All its pods are known: everything in it was valid once, or at least all names are.
    whole: bool,
    /// It was not read in this run: what is known comes from the store, maybe from before the last edit. It replaces no pod.
    unread: bool,
    /// Since when it is missing.
    missing: Option<Instant>,
}

impl Files {
    pub(super) fn new(directory: PathBuf, node: NodeName) -> Self {
        Self {
            directory,
            node,
            known: BTreeMap::new(),
            problem: None,
            listed: false,
            changes: 0,
        }
    }

    /// A pod that an earlier run of `pleg node` had read. Ignored if its file is not in this directory.
    pub(super) fn restore(&mut self, desired: &DesiredPod) {
        let path = PathBuf::from(desired.origin.to_string());
        if let (Some(directory), Some(name)) = (path.parent(), path.file_name())
            && directory == self.directory
        {
            let known = self.known.entry(name.to_owned()).or_default();
            known.pods.push(Arc::clone(&desired.pod));
            // All its pods that ever ran are in the store.
            (known.whole, known.unread) = (true, true);
        }
    }

    /// Grows with each change of what a snapshot says.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn fingerprints(&self) -> BTreeMap<OsString, Fingerprint> {
        let of = |(name, known): (&OsString, &KnownFile)| Some((name.clone(), known.fingerprint.clone()?));
        self.known.iter().filter_map(of).collect()
    }

    fn origin(&self, name: &OsStr) -> Origin {
        self.directory.join(name).display().to_string().into()
    }

    /// The directory cannot be listed.
    pub(super) fn set_problem(&mut self, what: String) {
        if self.problem.as_ref() != Some(&what) {
            warn!(directory = %self.directory.display(), "manifest directory {what}; its pods keep running");
            self.problem = Some(what);
            self.changes += 1;
        }
    }

    /// Applies the result of a scan. Returns when to scan again, if that is soon.
    pub(super) fn apply_scan(&mut self, found: BTreeMap<OsString, ScannedFile>, now: Instant) -> Option<Duration> {
        if !std::mem::replace(&mut self.listed, true) {
            self.changes += 1;
            // Files that were removed while we were not running are not desired even for a moment.
            self.known.retain(|name, _| found.contains_key(name));
        }
        if self.problem.take().is_some() {
            self.changes += 1;
            info!(directory = %self.directory.display(), "manifest directory can be listed again");
        }
        let missing = self.remove_missing(&found, now);
        let mut unsettled = None;
        for (name, found) in found {
            if found == ScannedFile::Unsettled {
                unsettled = Some(SETTLE);
            }
            self.apply_file(name, found);
        }
        missing.into_iter().chain(unsettled).min()
    }

    /// Removes files that have been missing for long enough. Returns when to scan again for those that have not.
    fn remove_missing(&mut self, found: &BTreeMap<OsString, ScannedFile>, now: Instant) -> Option<Duration> {
        let mut rescan: Option<Duration> = None;
        let (directory, changes) = (&self.directory, &mut self.changes);
        self.known.retain(|name, known| {
            if found.contains_key(name) {
                *changes += u64::from(known.missing.take().is_some());
                return true;
            }
            *changes += u64::from(known.missing.is_none());
            let missing = now.duration_since(*known.missing.get_or_insert(now));
            if missing < REMOVED_AFTER {
                let pause = REMOVED_AFTER.saturating_sub(missing);
                rescan = Some(rescan.map_or(pause, |other| other.min(pause)));
                return true;
            }
            info!(file = %directory.join(name).display(), pods = known.pods.len(), "manifest removed");
            *changes += 1;
            false
        });
        rescan
    }

    fn apply_file(&mut self, name: OsString, found: ScannedFile) {
        let (file, origin) = (self.directory.join(&name), self.origin(&name));
        let known = self.known.entry(name).or_insert_with(|| {
            self.changes += 1;
            KnownFile::default()
        });
        let Some((problem, fingerprint)) = known.apply(found, &self.node, &origin) else {
            return;
        };
        (known.fingerprint, known.unread) = (fingerprint, false);
        self.changes += 1;
        let fixed = known.problem.is_some() && problem.is_none();
        if let Some(problem) = &problem {
            warn!(file = %file.display(), "{problem}");
        } else {
            info!(file = %file.display(), pods = known.pods.len(), fixed, "manifest read");
        }
        known.problem = problem;
    }

    pub(super) fn snapshot(&self, source: &Origin) -> Snapshot {
        let files = self.known.iter().filter_map(|(name, known)| {
            Some(SourceProblem {
                origin: self.origin(name),
                what: known.problem.clone()?,
            })
        });
        let own = self.problem.iter().map(|what| SourceProblem {
            origin: source.clone(),
            what: format!("{what}; existing pods are kept"),
        });
        let present = self.known.values().filter(|known| known.missing.is_none());
        Snapshot {
            source: source.clone(),
            pods: self.desired_pods(),
            problems: own.chain(files).collect(),
            refused: present.flat_map(|known| &known.refused).cloned().collect(),
            complete: self.listed && self.known.values().all(|known| known.whole && !known.unread),
        }
    }

    fn desired_pods(&self) -> Vec<DesiredPod> {
        // If a missing file and another one have the same pod, the file was renamed.
        let present = self.known.values().filter(|known| known.missing.is_none());
        let present: BTreeSet<Arc<str>> = present
            .flat_map(|known| known.pods.iter().map(|pod| pod.id.full_name()))
            .collect();
        let mut pods = Vec::new();
        let is_read = |known: &KnownFile| !(known.unread && self.listed);
        for (name, known) in self.known.iter().filter(|(_, known)| is_read(known)) {
            let origin = self.origin(name);
            let stays = |pod: &&Arc<Pod>| known.missing.is_none() || !present.contains(&pod.id.full_name());
            pods.extend(known.pods.iter().filter(stays).map(|pod| DesiredPod {
                origin: origin.clone(),
                pod: Arc::clone(pod),
            }));
        }
        pods
    }
}

impl KnownFile {
    /// Applies what a scan found. Returns the problem of the file, if it has one, and its fingerprint; none if nothing changed.
    fn apply(
        &mut self,
        found: ScannedFile,
        node: &NodeName,
        origin: &Origin,
    ) -> Option<(Option<String>, Option<Fingerprint>)> {
        match found {
            ScannedFile::Same | ScannedFile::Unsettled => None,
            ScannedFile::Text(fingerprint, text) => Some((self.read(&text, node, origin), Some(fingerprint))),
            ScannedFile::Directory if self.whole && self.pods.is_empty() && self.problem.is_some() => None,
            ScannedFile::Directory => {
                // It has no pods that could be unknown.
                (self.whole, self.pods, self.refused) = (true, Vec::new(), Vec::new());
                Some((Some(SUBDIRECTORY.to_owned()), None))
            }
            ScannedFile::Unusable(fingerprint, what) => {
                let same = fingerprint.is_none() && self.problem.as_ref().is_some_and(|old| old.starts_with(&what));
                if same {
                    return None;
                }
                self.refused.clear();
                Some((Some(what + &kept(self.pods.iter())), fingerprint))
            }
        }
    }

    /// Reads a text. Its valid pods are desired from now on; returns what is wrong with the rest.
    fn read(&mut self, text: &[u8], node: &NodeName, origin: &Origin) -> Option<String> {
        let found = static_pods::read(text, node, ConfigSource::File);
        let refused = found.as_ref().map(|found| found.refused.as_slice());
        self.refused = RefusedPod::of(refused.unwrap_or_default(), origin);
        let found = match found {
            Ok(found) => found,
            Err(error) => return Some(format!("{error}{}", kept(self.pods.iter()))),
        };
        if found.refused.is_empty() {
            (self.pods, self.whole) = (found.pods, true);
            return None;
        }
        self.whole |= all_known(&found.refused);
        let new: BTreeSet<Arc<str>> = found.pods.iter().map(|pod| pod.id.full_name()).collect();
        // It is not certain which pod a refused document is about, so all earlier pods of the file are kept.
        let mut old = std::mem::replace(&mut self.pods, found.pods);
        old.retain(|pod| !new.contains(&pod.id.full_name()));
        let refused: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
        let problem = format!("{}{}", refused.join(". "), kept(old.iter()));
        self.pods.extend(old);
        Some(problem)
    }
}

/// Reads a text without a history: its valid pods, and what is wrong with the rest.
pub(super) fn read_once(text: &[u8], node: &NodeName, origin: &Origin) -> (Vec<Arc<Pod>>, Option<String>) {
    let mut known = KnownFile::default();
    let problem = known.read(text, node, origin);
    (known.pods, problem)
}

/// The end of a problem: what it means for the known pods.
fn kept<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> String {
    let names: Vec<String> = pods.map(|pod| pod.id.to_string()).collect();
    match &names[..] {
        [] => String::new(),
        [name] => format!(". Pod {name} is kept as it was"),
        names => format!(". Pods {} are kept as they were", names.join(", ")),
    }
}
