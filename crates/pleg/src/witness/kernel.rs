//! The real witness: pidfds of processes, and inotify on their cgroups.
//!
//! All descriptors are in one epoll instance, and only that one is known to tokio: a watched process costs a descriptor and an entry in
//! two maps, no matter how many there are.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hashbrown::HashMap;
use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cgroups::Cgroups;
use super::process::{Cgroup, Stat};
use super::{Announcement, Process, WatchError, Watched, Witness};

/// The token of inotify. Those of processes follow, and are never reused: a late event about a forgotten one has no meaning.
const CGROUPS: u64 = 0;

/// Shorter ids may be part of other names.
const SHORTEST_ID: usize = 12;

/// Events that are taken from the kernel at once.
const BATCH: usize = 64;

/// The kernel of this machine. Needs no rights but to see the processes: `/proc` with all of them, in the PID namespace of the runtime.
///
/// Announcements need the tokio runtime in which [`Witness::poll_next`] is called first, with I/O enabled.
#[derive(Debug)]
pub struct Kernel {
    proc: PathBuf,
    unavailable: Option<Arc<str>>,
    /// None if it is unavailable.
    epoll: Option<Arc<OwnedFd>>,
    /// The same, as tokio knows it; from the first poll on.
    events: Option<AsyncFd<Arc<OwnedFd>>>,
    /// By token.
    processes: HashMap<u64, Seen>,
    tokens: HashMap<Arc<str>, u64>,
    next_token: u64,
    cgroups: Cgroups,
    pending: VecDeque<Announcement>,
    /// A test has its own.
    open: fn(Pid) -> rustix::io::Result<OwnedFd>,
}

/// A process that is watched.
#[derive(Debug)]
struct Seen {
    id: Arc<str>,
    pid: u32,
    /// When it was started: a process with its number that was started at another time is not the same.
    started: u64,
    /// Whether the kernel shows us its exit code.
    permitted: bool,
    pidfd: OwnedFd,
}

impl Kernel {
    /// Never fails: [`Witness::unavailable`] reports what does not work.
    pub fn new() -> Self {
        Self::with_proc(Path::new("/proc"))
    }

    fn with_proc(proc: &Path) -> Self {
        let cgroups = Cgroups::new(proc);
        let (epoll, unavailable) = match prepare(proc, &cgroups) {
            Ok(epoll) => (Some(Arc::new(epoll)), None),
            Err(reason) => (None, Some(reason.into())),
        };
        Self {
            proc: proc.to_owned(),
            unavailable,
            epoll,
            events: None,
            processes: HashMap::new(),
            tokens: HashMap::new(),
            next_token: CGROUPS + 1,
            cgroups,
            pending: VecDeque::new(),
            open,
        }
    }

    fn stop(&mut self, reason: String) {
        tracing::warn!(reason, "the kernel is not a witness any more");
        self.unavailable = Some(reason.into());
        self.pending.push_back(Announcement::Overflow);
        self.events = None;
        self.epoll = None;
        self.processes.clear();
        self.tokens.clear();
    }

    /// No longer watches the process with this token.
    fn close(&mut self, token: u64) -> Option<Seen> {
        let seen = self.processes.remove(&token)?;
        if self.tokens.get(&seen.id) == Some(&token) {
            self.tokens.remove(&seen.id);
        }
        if let Some(epoll) = &self.epoll {
            // Closing alone is not enough: a child of another thread that has not yet called execve has a copy.
            let _ = epoll::delete(epoll, &seen.pidfd);
        }
        Some(seen)
    }

    fn exited(&mut self, token: u64) {
        let Some(seen) = self.close(token) else { return };
        let at = Timestamp::now();
        let stat = Stat::read(&self.proc, seen.pid).ok();
        let stat = stat.filter(|stat| stat.started == seen.started && stat.is_dead());
        // Where the kernel does not show the code, it shows 0.
        let exit_code = stat
            .and_then(|stat| stat.exit_code)
            .filter(|&code| code != 0 || seen.permitted);
        self.cgroups.exited(&seen.id, &mut self.pending);
        self.pending.push_back(Announcement::Exited {
            id: seen.id,
            pid: seen.pid,
            at,
            exit_code,
        });
    }

    /// The tokens of what is readable. Pending for ever without a tokio runtime, or when it shuts down.
    fn poll_tokens(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u64>>> {
        let events = match (&mut self.events, &self.epoll) {
            (Some(events), _) => events,
            // Not before there is something to wait for: a runtime without I/O has no use for it, and panics.
            (none, Some(epoll)) if !self.processes.is_empty() && tokio::runtime::Handle::try_current().is_ok() => {
                // It is deprecated because a type may close or change its descriptor; an OwnedFd does neither.
                #[expect(deprecated, reason = "its successor is unsafe, and this crate has no unsafe code")]
                let events = AsyncFd::with_interest(Arc::clone(epoll), Interest::READABLE)?;
                none.insert(events)
            }
            _ => return Poll::Pending,
        };
        loop {
            let Ok(mut guard) = ready!(events.poll_read_ready(cx)) else {
                return Poll::Pending;
            };
            let tokens = readable(guard.get_inner())?;
            if !tokens.is_empty() {
                return Poll::Ready(Ok(tokens));
            }
            guard.clear_ready();
        }
    }
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Witness for Kernel {
    fn unavailable(&self) -> Option<Arc<str>> {
        self.unavailable.clone()
    }

    fn watch(&mut self, id: &Arc<str>, pid: u32) -> Result<Process, WatchError> {
        let Some(epoll) = &self.epoll else {
            let reason = self.unavailable.clone();
            return Err(WatchError::Refused(reason.unwrap_or_else(|| "unavailable".into())));
        };
        if !is_id(id) {
            return Err(WatchError::Refused(
                "the id is too short, or no id of a container".into(),
            ));
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(WatchError::NotFound(pid))?;
        // One that it replaces has a descriptor already.
        let others = self.processes.len() - usize::from(self.tokens.contains_key(id));
        if others >= most_processes() {
            return Err(WatchError::Limit("half of the open files are in use (RLIMIT_NOFILE)"));
        }
        // The pidfd comes first: whatever process it is, what is read afterwards is that process's, or there is none any more.
        let pidfd = (self.open)(number).map_err(|error| why_not_open(pid, error))?;
        let stat = Stat::read(&self.proc, pid).map_err(|error| why_not_read(pid, &error))?;
        let cgroups = Cgroup::read(&self.proc, pid).map_err(|error| why_not_read(pid, &error))?;
        if !cgroups.iter().any(|cgroup| cgroup.is_of(id)) {
            // With cgroup v1 a zombie is in no cgroup.
            let gone = stat.is_dead();
            return Err(if gone {
                WatchError::NotFound(pid)
            } else {
                WatchError::Mismatch(pid)
            });
        }
        let token = self.next_token;
        let data = epoll::EventData::new_u64(token);
        epoll::add(epoll, &pidfd, data, epoll::EventFlags::IN).map_err(|error| why_not_open(pid, error))?;
        self.next_token += 1;
        if let Some(old) = self.tokens.insert(Arc::clone(id), token) {
            self.close(old);
        }
        let seen = Seen {
            id: Arc::clone(id),
            pid,
            started: stat.started,
            permitted: stat.permitted == Some(true),
            pidfd,
        };
        self.processes.insert(token, seen);
        self.cgroups.learn(id, &cgroups);
        let parent = Some(stat.parent).filter(|&parent| parent != 0);
        Ok(Process { pid, parent })
    }

    fn lives(&self, id: &str) -> bool {
        let seen = self.tokens.get(id).and_then(|token| self.processes.get(token));
        seen.is_some_and(|seen| {
            let mut polled = [PollFd::new(&seen.pidfd, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Readable: it has exited. Without an answer it counts as dead, which names no container.
            matches!(poll(&mut polled, Some(&now)), Ok(0))
        })
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Announcement> {
        loop {
            if let Some(announcement) = self.pending.pop_front() {
                return Poll::Ready(announcement);
            }
            match ready!(self.poll_tokens(cx)) {
                Ok(tokens) => {
                    for token in tokens {
                        match token {
                            CGROUPS => self.cgroups.take_events(&mut self.pending),
                            token => self.exited(token),
                        }
                    }
                }
                Err(error) => self.stop(format!("epoll does not work: {error}")),
            }
        }
    }

    fn watched(&self) -> Watched {
        Watched {
            processes: self.processes.len(),
            cgroups: self.cgroups.len(),
            limited: self.cgroups.is_full(),
        }
    }
}

/// The epoll instance, after everything that a witness needs was tried; or what does not work.
fn prepare(proc: &Path, cgroups: &Cgroups) -> Result<OwnedFd, String> {
    open(getpid()).map_err(|error| match error {
        Errno::NOSYS => "the kernel is older than 5.3: it has no pidfd_open".to_owned(),
        Errno::PERM | Errno::ACCESS => format!("pidfd_open is not permitted: {error}"),
        _ => format!("pidfd_open does not work: {error}"),
    })?;
    // The first process is one of another user, usually. Its files are hidden where those of containers are.
    for pid in ["self", "1"] {
        let path = proc.join(pid).join("cgroup");
        super::process::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if pid == "1" => {
                format!("processes of other users are hidden: {}: {error}", path.display())
            }
            _ => format!("{} cannot be read: {error}", path.display()),
        })?;
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| format!("no epoll instance: {error}"))?;
    if let Some(events) = cgroups.events() {
        let data = epoll::EventData::new_u64(CGROUPS);
        epoll::add(&epoll, events, data, epoll::EventFlags::IN)
            .map_err(|error| format!("epoll does not take inotify: {error}"))?;
    }
    Ok(epoll)
}

fn open(pid: Pid) -> rustix::io::Result<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty())
}

/// What is readable now, at most a batch.
fn readable(epoll: &OwnedFd) -> io::Result<Vec<u64>> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut buffer = [const { MaybeUninit::uninit() }; BATCH];
    loop {
        match epoll::wait(epoll, &mut buffer, Some(&now)) {
            Ok((events, _)) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Half of the files that may be open. The limit may be raised while we run.
fn most_processes() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).unwrap_or(usize::MAX)
}

/// Whether it can be looked for in names: an empty or short id is in any of them.
fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.len() >= SHORTEST_ID && text.bytes().all(fits)
}

fn why_not_open(pid: u32, error: Errno) -> WatchError {
    match error {
        // INVAL: it is a thread, and no process.
        Errno::SRCH | Errno::NOENT | Errno::INVAL => WatchError::NotFound(pid),
        Errno::MFILE | Errno::NFILE => WatchError::Limit("no more files can be opened"),
        Errno::NOSPC => WatchError::Limit("no more files can be watched (fs.epoll.max_user_watches)"),
        _ => WatchError::Refused(format!("pidfd of process {pid}: {error}").into()),
    }
}

fn why_not_read(pid: u32, error: &io::Error) -> WatchError {
    let gone = error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH);
    if gone {
        return WatchError::NotFound(pid);
    }
    WatchError::Refused(format!("/proc of process {pid}: {error}").into())
}

#[cfg(test)]
mod tests;
