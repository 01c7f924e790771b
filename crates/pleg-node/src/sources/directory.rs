//! The source of a directory: every manifest right in it, read when it changes.
//!
//! The kernel reports changes, so an edit is read at once. The directory is also scanned now and then, because the kernel reports nothing
//! about targets of symbolic links, or if the directory itself is a link that was changed. A file is read when its writer has closed it or
//! moved it here, or has left it alone for a while: half a manifest may well be a valid one. A file counts as removed only if it is still
//! missing a moment later: editors move a file away before they write the new one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::files::Files;
use super::scan::scan;
use super::watch::{Watch, WatchEvents};
use super::{DesiredPod, Origin, Snapshot};
use crate::manifest::NodeName;

/// How often the directory is scanned anyway.
const RESCAN: Duration = Duration::from_secs(10);
/// How often it is scanned if the kernel cannot report changes.
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

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
            files: Files::new(directory.clone(), node),
            directory,
        }
    }

    /// What an earlier run of `pleg node` had read from these files. While one of them is broken, its pods are kept; files that are gone
    /// do not matter here.
    #[must_use]
    pub fn with_known(mut self, pods: &[DesiredPod]) -> Self {
        for desired in pods {
            self.files.restore(desired);
        }
        self
    }

    /// The name of this source: its directory.
    pub fn origin(&self) -> Origin {
        self.directory.display().to_string().into()
    }

    /// Sends a snapshot at the start and after each change, until shutdown or until the receiver is dropped.
    pub async fn run(mut self, snapshots: mpsc::Sender<Snapshot>, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.send_changes(snapshots)).await;
    }

    async fn send_changes(&mut self, snapshots: mpsc::Sender<Snapshot>) {
        let source = self.origin();
        let mut watched: Option<(Watch, Option<(u64, u64)>)> = None;
        let (mut closed, mut sent) = (BTreeSet::new(), None);
        loop {
            // The watch is set up before the scan, so changes in between are reported.
            let inode = self.inode().await;
            if watched.as_ref().is_none_or(|(_, of)| *of != inode) {
                watched = Watch::new(&self.directory).ok().map(|watch| (watch, inode));
            }
            let rescan = self.scan(std::mem::take(&mut closed)).await;
            if sent != Some(self.files.changes()) {
                sent = Some(self.files.changes());
                if snapshots.send(self.files.snapshot(&source)).await.is_err() {
                    return;
                }
            }
            let pause = rescan.unwrap_or(if watched.is_some() { RESCAN } else { RESCAN_UNWATCHED });
            match next_events(watched.as_ref().map(|(watch, _)| watch), pause).await {
                Some(Ok(events)) => {
                    closed = events.closed;
                    if events.lost {
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
    }

    /// Device and inode of the directory, whatever links lead there.
    async fn inode(&self) -> Option<(u64, u64)> {
        let metadata = tokio::fs::metadata(&self.directory).await.ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    /// Scans the directory once. Returns when to scan again, if that is soon.
    async fn scan(&mut self, closed: BTreeSet<OsString>) -> Option<Duration> {
        let (directory, known) = (self.directory.clone(), self.files.fingerprints());
        let scanned = tokio::task::spawn_blocking(move || scan(&directory, &known, &closed, SystemTime::now())).await;
        match scanned.map_err(std::io::Error::from).flatten() {
            Ok(found) => self.files.apply_scan(found, Instant::now()),
            Err(error) => {
                self.files.set_problem(format!("cannot be listed: {error}"));
                None
            }
        }
    }
}

/// What the kernel reports within `pause`, if it is watched.
async fn next_events(watch: Option<&Watch>, pause: Duration) -> Option<std::io::Result<WatchEvents>> {
    if let Some(watch) = watch {
        return tokio::time::timeout(pause, watch.next_events()).await.ok();
    }
    tokio::time::sleep(pause).await;
    None
}

#[cfg(test)]
mod tests;
