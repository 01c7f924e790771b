//! A kernel in memory: it announces what a test tells it to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use pleg::witness::{Announcement, Process, WatchError, Watched, Witness};

/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FakeKernel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub struct State {
    /// Processes that are watched, by the id of their container.
    pub watched: BTreeMap<Arc<str>, u32>,
    /// How many processes have been watched so far.
    pub watches: usize,
    /// Why the next processes are not watched.
    pub refuses: Option<WatchError>,
    /// Cgroups cannot be watched.
    pub no_cgroups: bool,
    announcements: VecDeque<Announcement>,
    waker: Option<Waker>,
}

/// The process of a container, the same each time.
pub fn pid_of(id: &str) -> u32 {
    1000 + id.bytes().fold(0, |sum, byte| (sum * 31 + u32::from(byte)) % 1_000_000)
}

impl FakeKernel {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Announces something, true or not.
    pub fn announce(&self, announcement: Announcement) {
        let mut state = self.state();
        state.announcements.push_back(announcement);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// The process of the container exits, and that is announced if it is watched.
    pub fn exit(&self, id: &str, exit_code: i32) {
        let watched = self.state().watched.remove(id);
        if let Some(pid) = watched {
            self.announce(Announcement::Exited {
                id: id.into(),
                pid,
                at: Timestamp::now(),
                exit_code: Some(exit_code),
            });
        }
    }

    /// A cgroup is made for the container.
    pub fn made(&self, id: &str, pod: Option<&str>) {
        self.announce(Announcement::CgroupMade {
            id: id.into(),
            pod: pod.map(Into::into),
        });
    }

    /// The cgroup of the container is removed.
    pub fn removed(&self, id: &str) {
        self.announce(Announcement::CgroupRemoved { id: id.into() });
    }
}

impl Witness for FakeKernel {
    fn unavailable(&self) -> Option<Arc<str>> {
        None
    }

    fn watch(&mut self, id: &Arc<str>, pid: u32) -> Result<Process, WatchError> {
        let mut state = self.state();
        if let Some(error) = &state.refuses {
            return Err(error.clone());
        }
        state.watches += 1;
        state.watched.insert(Arc::clone(id), pid);
        Ok(Process { pid, parent: None })
    }

    fn lives(&self, id: &str) -> bool {
        self.state().watched.contains_key(id)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Announcement> {
        let mut state = self.state();
        if let Some(announcement) = state.announcements.pop_front() {
            return Poll::Ready(announcement);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn watched(&self) -> Watched {
        let state = self.state();
        Watched {
            processes: state.watched.len(),
            cgroups: usize::from(!state.watched.is_empty() && !state.no_cgroups),
            limited: false,
        }
    }
}
