//! The source of a directory: every manifest right in it, read when it changes.
//!
//! The kernel reports changes, so an edit is read at once. The directory is also scanned now and then, because the kernel reports nothing
//! about targets of symbolic links, or if the directory itself is a link that was changed. A file is read when its writer has closed it or
//! moved it here, or has left it alone for a while: half a manifest may well be a valid one. A file that is gone is gone only if it
//! still is a moment later: editors move a file away before they write the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::scan::{Fingerprint, Found, SETTLE, scan};
use super::watch::{Heard, Watch};
use super::{Complaint, DesiredPod, Origin, Outlet, RefusedPod, Snapshot, all_known};
use crate::manifest::{self, NodeName, Pod};

/// How often the directory is scanned anyway.
const RESCAN: Duration = Duration::from_secs(10);
/// The same, if the kernel cannot report changes.
const RESCAN_UNTOLD: Duration = Duration::from_secs(1);
/// How long a file has to be gone.
const GONE: Duration = Duration::from_millis(100);

/// What is wrong with a directory among the manifests.
pub(super) const SUBDIRECTORY: &str = "is a directory: subdirectories are not read";

/// Reads a directory of manifests.
#[derive(Debug)]
pub struct DirectorySource {
    directory: PathBuf,
    files: Files,
}

impl DirectorySource {
    /// For the manifests in `directory`. Does nothing before [`DirectorySource::run`].
    pub fn new(directory: impl Into<PathBuf>, node: NodeName) -> Self {
        let directory = directory.into();
        Self {
            files: Files {
                directory: directory.clone(),
                node,
                known: BTreeMap::new(),
                trouble: None,
                listed: false,
                changes: 0,
            },
            directory,
        }
    }

    /// What an earlier run of `pleg node` had read from these files. While one of them is broken, its pods are kept; files that are gone
    /// do not matter here.
    #[must_use]
    pub fn with_known(mut self, offers: &[DesiredPod]) -> Self {
        for offer in offers {
            let path = PathBuf::from(offer.origin.to_string());
            if let (Some(directory), Some(name)) = (path.parent(), path.file_name())
                && directory == self.directory
            {
                let known = self.files.known.entry(name.to_owned()).or_default();
                known.pods.push(Arc::clone(&offer.pod));
                // All pods of it that ever ran are known.
                (known.whole, known.unread) = (true, true);
            }
        }
        self
    }

    /// How this source is called: its directory.
    pub fn origin(&self) -> Origin {
        self.directory.display().to_string().into()
    }

    /// Sends a snapshot at the start and after each change, until shutdown or until the receiver is dropped.
    pub async fn run(mut self, outlet: Outlet, shutdown: CancellationToken) {
        let source = self.origin();
        shutdown
            .run_until_cancelled(async {
                let mut watched: Option<(Watch, Option<(u64, u64)>)> = None;
                let (mut done, mut sent) = (BTreeSet::new(), None);
                loop {
                    // The watch is set up before the scan, so changes in between are reported.
                    let place = self.place().await;
                    if watched.as_ref().is_none_or(|(_, of)| *of != place) {
                        watched = Watch::new(&self.directory).ok().map(|watch| (watch, place));
                    }
                    let again = self.look(std::mem::take(&mut done)).await;
                    if sent != Some(self.files.changes) {
                        sent = Some(self.files.changes);
                        if outlet.send(self.files.snapshot(&source)).await.is_err() {
                            return;
                        }
                    }
                    let pause = again.unwrap_or(if watched.is_some() { RESCAN } else { RESCAN_UNTOLD });
                    match heard(watched.as_ref().map(|(watch, _)| watch), pause).await {
                        Some(Ok(heard)) => {
                            done = heard.done;
                            if heard.lost {
                                watched = None;
                            }
                        }
                        Some(Err(error)) => {
                            warn!(directory = %source, %error, "cannot watch the manifest directory; reading it every second instead");
                            watched = None;
                        }
                        None => {}
                    }
                }
            })
            .await;
    }

    /// Which directory it is, whatever links lead there.
    async fn place(&self) -> Option<(u64, u64)> {
        let metadata = tokio::fs::metadata(&self.directory).await.ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    /// Looks once. Returns when to look again, if that is soon.
    async fn look(&mut self, done: BTreeSet<OsString>) -> Option<Duration> {
        let (directory, known) = (self.directory.clone(), self.files.fingerprints());
        let scanned = tokio::task::spawn_blocking(move || scan(&directory, &known, &done, SystemTime::now())).await;
        match scanned {
            Ok(Ok(found)) => self.files.take(found, Instant::now()),
            Ok(Err(error)) => {
                self.files.trouble(format!("cannot be listed: {error}"));
                None
            }
            Err(error) => {
                self.files.trouble(format!("cannot be listed: {error}"));
                None
            }
        }
    }
}

/// What the kernel says within `pause`, if it tells.
async fn heard(watch: Option<&Watch>, pause: Duration) -> Option<std::io::Result<Heard>> {
    if let Some(watch) = watch {
        return tokio::time::timeout(pause, watch.heard()).await.ok();
    }
    tokio::time::sleep(pause).await;
    None
}

/// What is known of the files.
#[derive(Debug)]
struct Files {
    directory: PathBuf,
    node: NodeName,
    known: BTreeMap<OsString, Known>,
    /// What is wrong with the directory itself.
    trouble: Option<String>,
    /// It was listed at least once.
    listed: bool,
    /// Grows with each change of what a snapshot says.
    changes: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// Of what was read last, good or bad.
    fingerprint: Option<Fingerprint>,
    /// The last good pods.
    pods: Vec<Arc<Pod>>,
    /// Pods of what was read last that cannot be run.
    refused: Vec<RefusedPod>,
    complaint: Option<String>,
    /// Everything in it was good once, so all its pods are known; or at least the names of all pods in it are.
    whole: bool,
    /// All that is known of it is what an earlier one of us wrote down, maybe before the last edit. Nobody may be replaced for that.
    unread: bool,
    /// It is not there, since then.
    missing: Option<Instant>,
}

impl Files {
    fn fingerprints(&self) -> BTreeMap<OsString, Fingerprint> {
        let of = |(name, known): (&OsString, &Known)| Some((name.clone(), known.fingerprint.clone()?));
        self.known.iter().filter_map(of).collect()
    }

    fn origin(&self, name: &OsStr) -> Origin {
        self.directory.join(name).display().to_string().into()
    }

    fn trouble(&mut self, what: String) {
        if self.trouble.as_ref() != Some(&what) {
            warn!(directory = %self.directory.display(), "manifest directory {what}; its pods keep running");
            self.trouble = Some(what);
            self.changes += 1;
        }
    }

    /// Processes the result of a scan. Returns when to scan again, if that is soon.
    fn take(&mut self, found: BTreeMap<OsString, Found>, now: Instant) -> Option<Duration> {
        if !std::mem::replace(&mut self.listed, true) {
            self.changes += 1;
            // What went while we were away is not wanted even for a moment.
            self.known.retain(|name, _| found.contains_key(name));
        }
        if self.trouble.take().is_some() {
            self.changes += 1;
            info!(directory = %self.directory.display(), "manifest directory can be listed again");
        }
        let mut again = None;
        let mut soon = |pause: Duration| again = Some(again.map_or(pause, |other: Duration| other.min(pause)));
        let (directory, changes) = (&self.directory, &mut self.changes);
        self.known.retain(|name, known| {
            if found.contains_key(name) {
                *changes += u64::from(known.missing.take().is_some());
                return true;
            }
            *changes += u64::from(known.missing.is_none());
            let missing = now.duration_since(*known.missing.get_or_insert(now));
            if missing < GONE {
                soon(GONE.saturating_sub(missing));
                return true;
            }
            info!(file = %directory.join(name).display(), pods = known.pods.len(), "manifest removed");
            *changes += 1;
            false
        });
        for (name, found) in found {
            let known = self.known.entry(name.clone()).or_insert_with(|| {
                self.changes += 1;
                Known::default()
            });
            let (complaint, fingerprint) = match found {
                Found::Same => continue,
                Found::Unsettled => {
                    soon(SETTLE);
                    continue;
                }
                Found::Text(fingerprint, text) => {
                    let origin = self.directory.join(&name).display().to_string().into();
                    (known.read(&text, &self.node, &origin), Some(fingerprint))
                }
                Found::Directory if known.whole && known.pods.is_empty() && known.complaint.is_some() => continue,
                Found::Directory => {
                    // It has no pods that could be unknown.
                    (known.whole, known.pods, known.refused) = (true, Vec::new(), Vec::new());
                    (Some(SUBDIRECTORY.to_owned()), None)
                }
                Found::Unusable(fingerprint, what) => {
                    let same =
                        fingerprint.is_none() && known.complaint.as_ref().is_some_and(|old| old.starts_with(&what));
                    if same {
                        continue;
                    }
                    known.refused.clear();
                    (Some(what + &stay(known.pods.iter())), fingerprint)
                }
            };
            (known.fingerprint, known.unread) = (fingerprint, false);
            self.changes += 1;
            let mended = known.complaint.is_some() && complaint.is_none();
            let file = self.directory.join(&name);
            if let Some(complaint) = &complaint {
                warn!(file = %file.display(), "{complaint}");
            } else {
                info!(file = %file.display(), pods = known.pods.len(), mended, "manifest read");
            }
            known.complaint = complaint;
        }
        again
    }

    fn snapshot(&self, source: &Origin) -> Snapshot {
        // A file that is on its way out gives way to the one that has taken over its pod: it was renamed.
        let names = |missing: bool| {
            let files = self
                .known
                .values()
                .filter(move |known| known.missing.is_some() == missing);
            files.flat_map(|known| known.pods.iter().map(|pod| pod.id.full_name()))
        };
        let present: BTreeSet<Arc<str>> = names(false).collect();
        let mut offers = Vec::new();
        let read = |known: &Known| !(known.unread && self.listed);
        for (name, known) in self.known.iter().filter(|(_, known)| read(known)) {
            let origin = self.origin(name);
            let stays = |pod: &&Arc<Pod>| known.missing.is_none() || !present.contains(&pod.id.full_name());
            offers.extend(known.pods.iter().filter(stays).map(|pod| DesiredPod {
                origin: origin.clone(),
                pod: Arc::clone(pod),
            }));
        }
        let files = self.known.iter().filter_map(|(name, known)| {
            Some(Complaint {
                origin: self.origin(name),
                what: known.complaint.clone()?,
            })
        });
        let there = self.known.values().filter(|known| known.missing.is_none());
        let refused = there.flat_map(|known| &known.refused);
        let own = self.trouble.iter().map(|what| Complaint {
            origin: source.clone(),
            what: format!("{what}; existing pods are kept"),
        });
        Snapshot {
            source: source.clone(),
            offers,
            complaints: own.chain(files).collect(),
            refused: refused.cloned().collect(),
            complete: self.listed && self.known.values().all(|known| known.whole && !known.unread),
        }
    }
}

impl Known {
    /// Reads a text. What is good in it counts from now on; returns what is not.
    fn read(&mut self, text: &[u8], node: &NodeName, origin: &Origin) -> Option<String> {
        let found = manifest::read(text, node);
        let refused = found.as_ref().map(|found| found.refused.as_slice());
        self.refused = RefusedPod::of(refused.unwrap_or_default(), origin);
        let found = match found {
            Ok(found) => found,
            Err(unreadable) => return Some(format!("{unreadable}{}", stay(self.pods.iter()))),
        };
        if found.refused.is_empty() {
            (self.pods, self.whole) = (found.pods, true);
            return None;
        }
        self.whole |= all_known(&found.refused);
        let new: BTreeSet<Arc<str>> = found.pods.iter().map(|pod| pod.id.full_name()).collect();
        // Which pod a bad document was about cannot be told for sure, so none of the old ones goes for it.
        let mut old = std::mem::replace(&mut self.pods, found.pods);
        old.retain(|pod| !new.contains(&pod.id.full_name()));
        let refused: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
        let complaint = format!("{}{}", refused.join(". "), stay(old.iter()));
        self.pods.extend(old);
        Some(complaint)
    }
}

/// Reads a text of which nothing is known yet: its good pods, and what is wrong with the rest.
pub(super) fn read_once(text: &[u8], node: &NodeName, origin: &Origin) -> (Vec<Arc<Pod>>, Option<String>) {
    let mut known = Known::default();
    let complaint = known.read(text, node, origin);
    (known.pods, complaint)
}

/// What becomes of the pods that are known.
fn stay<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> String {
    let names: Vec<String> = pods.map(|pod| pod.id.to_string()).collect();
    match &names[..] {
        [] => String::new(),
        [name] => format!(". Pod {name} is kept as it was"),
        names => format!(". Pods {} are kept as they were", names.join(", ")),
    }
}

#[cfg(test)]
mod tests;
