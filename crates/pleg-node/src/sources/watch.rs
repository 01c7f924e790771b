//! inotify on a directory. Its events are only hints: the receiver scans the directory.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most names that are kept between two scans. Files beyond that are read once they have settled.
const MAX_NAMES: usize = 4096;

/// What the kernel reported.
#[derive(Debug, Default)]
pub(super) struct WatchEvents {
    /// Files that were written and closed, or moved here: their writers are done.
    pub(super) closed: BTreeSet<OsString>,
    /// The directory itself was removed or moved: nothing more will be reported.
    pub(super) lost: bool,
}

/// A watch on a directory.
#[derive(Debug)]
pub(super) struct Watch {
    events: AsyncFd<OwnedFd>,
}

impl Watch {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // Not MODIFY: a file that is being written is not read until it is closed.
        let what = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&fd, directory, what)?;
        // It is deprecated because a type may close or change its descriptor; an OwnedFd does neither.
        #[expect(deprecated, reason = "its successor is unsafe, and this crate has no unsafe code")]
        let events = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { events })
    }

    /// Waits for events, and returns all of them. Cancel-safe: an event is either returned or still in the queue.
    pub(super) async fn next_events(&self) -> io::Result<WatchEvents> {
        loop {
            let mut ready = self.events.readable().await?;
            match ready.try_io(|fd| drain(fd.get_ref())) {
                Ok(events) => return events,
                Err(_would_block) => {}
            }
        }
    }
}

/// Everything that can be read now; an error of kind `WouldBlock` if that is nothing.
fn drain(fd: &OwnedFd) -> io::Result<WatchEvents> {
    let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let (mut events, mut any) = (WatchEvents::default(), false);
    loop {
        match reader.next() {
            Ok(event) => {
                any = true;
                let flags = event.events();
                events.lost |= flags.intersects(
                    ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
                );
                if let (Some(name), true) = (
                    event.file_name(),
                    flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO) && events.closed.len() < MAX_NAMES,
                ) {
                    events.closed.insert(OsStr::from_bytes(name.to_bytes()).to_owned());
                }
            }
            Err(rustix::io::Errno::AGAIN) if any => return Ok(events),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_file_and_a_moved_one_are_heard() {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::new(dir.path()).unwrap();
        std::fs::write(dir.path().join("a.yaml"), "x").unwrap();
        let events = watch.next_events().await.unwrap();
        assert_eq!(events.closed, BTreeSet::from(["a.yaml".into()]));
        std::fs::rename(dir.path().join("a.yaml"), dir.path().join("b.yaml")).unwrap();
        let events = watch.next_events().await.unwrap();
        assert!(events.closed.contains(OsStr::new("b.yaml")) && !events.lost);
        // A file that stays open is not reported as closed.
        let open = std::fs::File::create(dir.path().join("c.yaml")).unwrap();
        let events = watch.next_events().await.unwrap();
        assert!(events.closed.is_empty());
        drop(open);
        assert!(watch.next_events().await.unwrap().closed.contains(OsStr::new("c.yaml")));
        std::fs::remove_dir_all(dir.path()).unwrap();
        while !watch.next_events().await.unwrap().lost {}
    }

    #[tokio::test]
    async fn what_is_no_directory_cannot_be_watched() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Watch::new(&dir.path().join("none")).is_err());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(Watch::new(&dir.path().join("file")).is_err());
    }
}
