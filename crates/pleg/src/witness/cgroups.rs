//! inotify on the directories of cgroups: starts, removals and OOM kills of containers.
//!
//! Nothing is known beforehand about where a runtime puts its containers. A container that is known shows it: the directory its cgroup is
//! in, and the two above that, are watched with what is created in them. In the kubelet's layout these are a pod, its `QoS` class and
//! `kubepods`, so that the next pod is seen from its first directory on.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashMap;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::Announcement;
use super::names::{Owner, pod_uid};
use super::places::Places;
use super::process::{Cgroup, read};

/// The most watches, whatever the kernel allows: each keeps about a kilobyte of the kernel's memory.
const MOST_WATCHES: usize = 32_768;
/// Half of what old kernels allow, for where the limit cannot be read.
const DEFAULT_WATCHES: usize = 4096;
/// Directories above a container's that are watched.
const LEVELS: usize = 3;
/// Names in one directory that are looked at.
const MOST_ENTRIES: usize = 65_536;
/// Directories that are added between two sweeps.
const SWEEP_EVERY: usize = 256;
/// Announcements that wait. Beyond that the generator has to look at everything anyway.
const MOST_PENDING: usize = 16_384;

/// A directory in which cgroups are made and removed.
#[derive(Debug)]
struct Dir {
    path: Arc<Path>,
    /// How many levels of directories below it are watched too.
    below: usize,
}

/// `memory.events` of a container.
#[derive(Debug)]
struct Memory {
    id: Arc<str>,
    path: PathBuf,
    /// Its count of OOM kills when it was read last.
    kills: u64,
}

/// An event of inotify.
#[derive(Debug)]
struct Raw {
    watch: i32,
    flags: ReadFlags,
    name: Option<OsString>,
}

/// Whether what a directory has already is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was just created, and may have been filled before it was watched.
    New,
    /// It was there before the container that led to it: what is in it is no news.
    Old,
}

/// The directories that are watched.
#[derive(Debug)]
pub(super) struct Cgroups {
    proc: PathBuf,
    /// None where inotify does not work.
    inotify: Option<OwnedFd>,
    places: Places,
    limit: usize,
    /// Directories that were added, or would have been, since the last sweep.
    added: usize,
    dirs: HashMap<i32, Dir>,
    /// The watch of each directory in `dirs`.
    watches: HashMap<Arc<Path>, i32>,
    memory: HashMap<i32, Memory>,
    /// The watch of each container in `memory`.
    memory_of: HashMap<Arc<str>, i32>,
}

impl Cgroups {
    /// Never fails: where inotify does not work, nothing is watched.
    pub(super) fn new(proc: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .inspect_err(|error| tracing::info!(%error, "cgroups are not watched: no inotify instance"))
            .ok();
        let allowed = read(&proc.join("sys/fs/inotify/max_user_watches")).ok();
        let allowed = allowed.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse::<usize>().ok());
        Self {
            proc: proc.to_owned(),
            inotify,
            places: Places::default(),
            limit: allowed.map_or(DEFAULT_WATCHES, |allowed| allowed / 2).min(MOST_WATCHES),
            added: 0,
            dirs: HashMap::new(),
            watches: HashMap::new(),
            memory: HashMap::new(),
            memory_of: HashMap::new(),
        }
    }

    /// What becomes readable when there are events.
    pub(super) fn events(&self) -> Option<&OwnedFd> {
        self.inotify.as_ref()
    }

    /// How many directories are watched.
    pub(super) fn len(&self) -> usize {
        self.dirs.len()
    }

    /// Watches the surroundings of a container's cgroup.
    pub(super) fn learn(&mut self, id: &Arc<str>, cgroups: &[Cgroup]) {
        if self.inotify.is_none() {
            return;
        }
        self.forget(id);
        let Some(place) = self.places.find(&self.proc, cgroups, id) else {
            return;
        };
        let parents = place.dir.ancestors().skip(1).take(LEVELS);
        // Never the root: all services of the machine are below it.
        let parents: Vec<&Path> = parents.take_while(|dir| *dir != place.root).collect();
        if self.added >= SWEEP_EVERY {
            self.sweep();
        }
        if let Some(&watch) = parents.last().and_then(|dir| self.watches.get(*dir)) {
            self.verify(watch, true);
        }
        for (level, dir) in parents.into_iter().rev().enumerate() {
            self.cover(dir.into(), LEVELS - 1 - level, Found::Old, &mut VecDeque::new());
        }
        if place.unified {
            self.watch_memory(id, place.dir.join("memory.events"));
        }
    }

    /// The container's OOM kills do not matter any more.
    pub(super) fn forget(&mut self, id: &str) {
        let Some(watch) = self.memory_of.remove(id) else {
            return;
        };
        if self.memory.get(&watch).is_some_and(|memory| &*memory.id == id) {
            self.memory.remove(&watch);
            // Not left to the kernel: it keeps the watch of a file whose cgroup was removed.
            self.unwatch(watch);
        }
    }

    /// The container's process has exited. Looks a last time for OOM kills: the kernel counts one before it kills.
    pub(super) fn exited(&mut self, id: &str, out: &mut VecDeque<Announcement>) {
        if let Some(&watch) = self.memory_of.get(id) {
            self.look_at_memory(watch, out);
        }
        self.forget(id);
    }

    /// Takes a part of the events that wait. The rest makes the descriptor readable again.
    pub(super) fn take_events(&mut self, out: &mut VecDeque<Announcement>) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(Raw {
                    watch: event.wd(),
                    flags: event.events(),
                    name: event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                }),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => {
                    tracing::warn!(%error, "cgroups are not watched any more: inotify cannot be read");
                    self.stop();
                    out.push_back(Announcement::Overflow);
                    return;
                }
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        for event in events {
            self.step(event, out);
        }
    }

    fn step(&mut self, event: Raw, out: &mut VecDeque<Announcement>) {
        let flags = event.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            out.push_back(Announcement::Overflow);
            return self.renew();
        }
        if flags.contains(ReadFlags::IGNORED) {
            return self.lost(event.watch);
        }
        if self.memory.contains_key(&event.watch) {
            return self.look_at_memory(event.watch, out);
        }
        let (Some(dir), Some(name)) = (self.dirs.get(&event.watch), event.name) else {
            return;
        };
        if !flags.contains(ReadFlags::ISDIR) {
            return;
        }
        let made = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        match Owner::of(&name) {
            Owner::Container(id) if made => announce_made(id, &dir.path, out),
            Owner::Container(id) => {
                self.exited(id, out);
                push(out, Announcement::CgroupRemoved { id: id.into() });
            }
            Owner::Monitor => {}
            Owner::Other if made && dir.below > 0 => {
                let (path, below) = (dir.path.join(&name), dir.below - 1);
                self.cover(path, below, Found::New, out);
            }
            Owner::Other if made => {}
            Owner::Other => {
                let path = dir.path.join(&name);
                self.uncover(&path, flags.contains(ReadFlags::MOVED_FROM));
            }
        }
    }

    /// Watches a directory and as many levels below it.
    fn cover(&mut self, path: PathBuf, below: usize, found: Found, out: &mut VecDeque<Announcement>) {
        let mut work = vec![(path, below)];
        while let Some((path, below)) = work.pop() {
            let known = self.watches.get(path.as_path());
            if let Some(dir) = known.and_then(|watch| self.dirs.get_mut(watch)) {
                if dir.below >= below && found == Found::Old {
                    continue;
                }
                dir.below = dir.below.max(below);
            } else if !self.watch_dir(&path, below) {
                continue;
            }
            // After the watch stands, so that nothing is created in between.
            let Ok(entries) = path.read_dir() else { continue };
            for entry in entries.take(MOST_ENTRIES).flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match Owner::of(&entry.file_name()) {
                    Owner::Container(id) if found == Found::New => announce_made(id, &path, out),
                    Owner::Other if below > 0 => work.push((entry.path(), below - 1)),
                    _ => {}
                }
            }
        }
    }

    fn watch_dir(&mut self, path: &Path, below: usize) -> bool {
        self.added += 1;
        let Some(watch) = self.add_watch(path, changes()) else {
            return false;
        };
        let path: Arc<Path> = path.into();
        // A directory that was moved keeps its watch: the old path goes.
        if let Some(old) = self.dirs.insert(
            watch,
            Dir {
                path: path.clone(),
                below,
            },
        ) {
            self.watches.remove(&old.path);
        }
        if let Some(old) = self.watches.insert(path, watch).filter(|&old| old != watch) {
            self.dirs.remove(&old);
        }
        true
    }

    fn watch_memory(&mut self, id: &Arc<str>, path: PathBuf) {
        let Some(watch) = self.add_watch(&path, WatchFlags::MODIFY) else {
            return;
        };
        // After the watch stands, so that no kill comes in between.
        let kills = oom_kills(&path).unwrap_or_default();
        let id = Arc::clone(id);
        self.memory_of.insert(Arc::clone(&id), watch);
        self.memory.insert(watch, Memory { id, path, kills });
    }

    fn look_at_memory(&mut self, watch: i32, out: &mut VecDeque<Announcement>) {
        let Some(memory) = self.memory.get_mut(&watch) else {
            return;
        };
        let Some(kills) = oom_kills(&memory.path) else { return };
        if kills > memory.kills {
            let id = Arc::clone(&memory.id);
            push(out, Announcement::OomKilled { id });
        }
        memory.kills = kills;
    }

    /// None beyond the limit, or if there is no such file any more.
    fn add_watch(&self, path: &Path, what: WatchFlags) -> Option<i32> {
        if self.is_full() {
            return None;
        }
        inotify::add_watch(self.inotify.as_ref()?, path, what).ok()
    }

    /// No more can be watched.
    pub(super) fn is_full(&self) -> bool {
        self.dirs.len() + self.memory.len() >= self.limit
    }

    fn unwatch(&self, watch: i32) {
        if let Some(inotify) = &self.inotify {
            // It fails if the kernel has removed the watch already.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// The kernel has removed the watch.
    fn lost(&mut self, watch: i32) {
        if let Some(dir) = self.dirs.remove(&watch)
            && self.watches.get(&dir.path) == Some(&watch)
        {
            self.watches.remove(&dir.path);
        }
        if let Some(memory) = self.memory.remove(&watch)
            && self.memory_of.get(&memory.id) == Some(&watch)
        {
            self.memory_of.remove(&memory.id);
        }
    }

    /// The directory is not there any more; nor are those below it, unless their own events say so.
    fn uncover(&mut self, path: &Path, below: bool) {
        let gone: Vec<i32> = if below {
            let below = self.watches.iter().filter(|(other, _)| other.starts_with(path));
            below.map(|(_, &watch)| watch).collect()
        } else {
            self.watches.get(path).copied().into_iter().collect()
        };
        for watch in gone {
            self.lost(watch);
            self.unwatch(watch);
        }
    }

    /// Events were lost, and those of removed directories may be among them.
    fn renew(&mut self) {
        let watches: Vec<i32> = self.dirs.keys().copied().collect();
        for watch in watches {
            // Those below it have their own turn.
            self.verify(watch, false);
        }
    }

    /// Looks after the directories above which nothing is watched. Unlike in other file systems, the removal of a cgroup is reported only
    /// by the watch of the directory above it, and its own watch stays.
    pub(super) fn sweep(&mut self) {
        self.added = 0;
        let is_topmost = |path: &Path| path.parent().is_none_or(|parent| !self.watches.contains_key(parent));
        let topmost = self.watches.iter().filter(|(path, _)| is_topmost(path));
        let topmost: Vec<i32> = topmost.map(|(_, &watch)| watch).collect();
        for watch in topmost {
            self.verify(watch, true);
        }
    }

    /// Drops the watch if its directory is gone, and those below it, whose removal only this watch reports. A directory that took its
    /// place is watched instead.
    fn verify(&mut self, watch: i32, below: bool) {
        let (Some(dir), Some(inotify)) = (self.dirs.get(&watch), &self.inotify) else {
            return;
        };
        // The kernel has one watch for a directory, and names it when it is added again.
        let now = inotify::add_watch(inotify, &*dir.path, changes()).ok();
        if now == Some(watch) {
            return;
        }
        let (path, levels) = (dir.path.to_path_buf(), dir.below);
        self.uncover(&path, below);
        if let Some(now) = now {
            self.unwatch(now);
            self.cover(path, levels, Found::Old, &mut VecDeque::new());
        }
    }

    fn stop(&mut self) {
        self.inotify = None;
        self.dirs.clear();
        self.watches.clear();
        self.memory.clear();
        self.memory_of.clear();
    }
}

/// Changes of a directory.
fn changes() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR
        | WatchFlags::DONT_FOLLOW
}

fn announce_made(id: &str, parent: &Path, out: &mut VecDeque<Announcement>) {
    let pod = parent.file_name().and_then(pod_uid);
    push(out, Announcement::CgroupMade { id: id.into(), pod });
}

/// Beyond the limit one announcement stands for all that are left out.
fn push(out: &mut VecDeque<Announcement>, announcement: Announcement) {
    if out.len() < MOST_PENDING {
        out.push_back(announcement);
    } else if out.back() != Some(&Announcement::Overflow) {
        out.push_back(Announcement::Overflow);
    }
}

/// The count of OOM kills in `memory.events`.
fn oom_kills(path: &Path) -> Option<u64> {
    let text = read(path).ok()?;
    let text = std::str::from_utf8(&text).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == "oom_kill")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests;
