//! The directory of one runtime, and how everything that belongs to it is found and ended, whatever happened.
//!
//! A runtime leaves a lot behind when it is killed: shims or conmons, containers, overlay and shm mounts, pinned namespaces, cgroups,
//! sockets elsewhere in `/run`. None of it needs the runtime's help to be found: shims and conmons carry the directory in their
//! arguments, containers are in a cgroup named after it, mounts lie below it. So there is one way to clean up, for the end of a test, for a panic, for Ctrl-C and
//! for what a killed run left behind; it asks nobody and can be repeated.
//!
//! Whose a directory is, is settled by a lock on a file beside it: the kernel lets go of it when the owner ends, however it ends.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use sha2::{Digest, Sha256};

use crate::process;

/// How long killed processes may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The name of the runtime's socket in its home.
pub(crate) const SOCKET: &str = "runtime.sock";
/// The name of the script in its home by which CRI-O calls runc.
pub(crate) const OCI_RUNTIME: &str = "oci-runtime";
/// Where shims listen.
const SHIM_SOCKETS: &str = "/run/containerd/s";

/// The homes of this process, for a clean-up that cannot wait for destructors.
static LIVE: Mutex<Live> = Mutex::new(Live {
    dirs: Vec::new(),
    ending: false,
});

struct Live {
    dirs: Vec<PathBuf>,
    /// No new homes: the process is about to exit.
    ending: bool,
}

/// The directory of one runtime. Dropping it ends and removes all that belongs to it.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    /// Held until the end: says that the directory is in use.
    _owner: File,
}

impl Home {
    /// A fresh directory, after what earlier runs left behind was swept away.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = base();
        fs::create_dir_all(&base).with_context(|| format!("create {}", base.display()))?;
        // A scenario that fails now would only be noise.
        while LIVE.lock().ending {
            std::thread::park();
        }
        // Between making an owner file and locking it a home would look abandoned.
        let turn = File::create(base.join("turn")).context("open the lock of all test homes")?;
        turn.lock().context("lock the test homes")?;
        sweep(&base)?;
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = base.join(name);
        let owner = File::create(owner(&dir)).context("create the owner file")?;
        owner.lock().context("lock the owner file")?;
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let home = Self { dir, _owner: owner };
        let mut live = LIVE.lock();
        if live.ending {
            // Not before the lock is free again: the home's end takes it.
            drop(live);
            bail!("interrupted");
        }
        live.dirs.push(home.dir.clone());
        drop(live);
        Ok(home)
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of the cgroup below which all its pods are.
    pub fn cgroup(&self) -> String {
        cgroup(&self.dir)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        LIVE.lock().dirs.retain(|dir| *dir != self.dir);
        if let Err(error) = tear_down(&self.dir) {
            complain(&format!("clean-up of {}: {error:#}", self.dir.display()));
        }
    }
}

/// Ends and removes everything of this process's homes, for use before a sudden exit. There are no new ones after it.
pub fn tear_down_all() {
    let mut live = LIVE.lock();
    live.ending = true;
    let dirs = std::mem::take(&mut live.dirs);
    // Destructors of other threads wait for it.
    drop(live);
    for dir in dirs {
        if let Err(error) = tear_down(&dir) {
            complain(&format!("clean-up of {}: {error:#}", dir.display()));
        }
    }
}

/// Where the homes are. Short, because sockets lie in them and their paths may have 107 bytes.
fn base() -> PathBuf {
    std::env::temp_dir().join("pleg-e2e")
}

/// The file whose lock says that a home is in use. It comes before the directory and goes after it.
fn owner(dir: &Path) -> PathBuf {
    dir.with_extension("owner")
}

fn cgroup(dir: &Path) -> String {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    format!("pleg-e2e-{name}")
}

/// Clears away homes whose owner is gone.
fn sweep(base: &Path) -> Result<()> {
    for entry in fs::read_dir(base).context("list the test homes")? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "owner") {
            continue;
        }
        let dir = path.with_extension("");
        match File::open(&path).map(|file| file.try_lock()) {
            Ok(Ok(())) => {
                if dir.exists() {
                    complain(&format!("sweeping up what an earlier run left in {}", dir.display()));
                }
                tear_down(&dir)?;
            }
            Ok(Err(TryLockError::WouldBlock)) => {}
            Ok(Err(TryLockError::Error(error))) => return Err(error).context("try an owner's lock"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("open an owner file"),
        }
    }
    Ok(())
}

/// Processes, then sockets, then mounts, then cgroups, then files: each step frees the next.
fn tear_down(dir: &Path) -> Result<()> {
    let group = cgroup(dir);
    thaw(&group);
    end_processes(dir, &group)?;
    remove_shim_sockets(dir);
    unmount_below(dir)?;
    remove_cgroups(&group);
    gone(fs::remove_dir_all(dir)).with_context(|| format!("remove {}", dir.display()))?;
    gone(fs::remove_file(owner(dir))).context("remove the owner file")
}

/// What is already gone need not be removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Kills until none is left: a shim that dies may just have started one more.
fn end_processes(dir: &Path, group: &str) -> Result<()> {
    let below = format!("{}/", dir.display());
    let ours = |process: &process::Process| {
        let runtime = [
            "containerd",
            "crio",
            "conmon",
            "runc",
            "ctr",
            "skopeo",
            "pinns",
            "pleg",
            "etcd",
            "kube",
        ]
        .iter()
        .any(|name| process.program().starts_with(name));
        let mentions = process.args.iter().any(|arg| arg.contains(&below));
        let script = process
            .args
            .get(1)
            .is_some_and(|script| *script == format!("{below}{OCI_RUNTIME}"));
        // A kubelet gives its pods cgroups of their own.
        let contained = process::in_cgroup(process.pid, group) || process::rooted_below(process.pid, &below);
        (runtime && mentions) || script || contained
    };
    let give_up = tokio::time::Instant::now() + GONE_WITHIN;
    loop {
        let left: Vec<_> = process::all()?.into_iter().filter(ours).collect();
        if left.is_empty() {
            return Ok(());
        }
        for process in &left {
            process::signal(process.pid, Signal::KILL)?;
        }
        if tokio::time::Instant::now() > give_up {
            bail!("processes that do not die: {left:?}");
        }
        std::thread::yield_now();
    }
}

/// Shims listen under `/run/containerd/s`, whatever the state directory, on a socket named after the digest of containerd's own
/// socket, the namespace and the sandbox. A shim that is killed leaves it there.
fn remove_shim_sockets(dir: &Path) {
    for sandbox in children(&dir.join("root/io.containerd.grpc.v1.cri/sandboxes")) {
        let id = sandbox.file_name().unwrap_or_default();
        let place = dir.join(SOCKET).join("k8s.io").join(id);
        let name = format!("{:x}", Sha256::digest(place.as_os_str().as_bytes()));
        let _ = fs::remove_file(Path::new(SHIM_SOCKETS).join(name));
    }
}

/// Unmounts what is mounted below, the latest first.
fn unmount_below(dir: &Path) -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    below.reverse();
    for point in below {
        match unmount(&point, UnmountFlags::DETACH) {
            // Gone with the one it was stacked on.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("unmount {}", point.display())),
        }
    }
    Ok(())
}

/// The group in each hierarchy: one for version 2, one per controller for version 1.
fn groups(group: &str) -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_dir(top)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let candidates = std::iter::once(top.to_owned()).chain(controllers);
    candidates
        .map(|parent| parent.join(group))
        .filter(|path| path.is_dir())
        .collect()
}

/// A frozen process does not die: thaw whatever a scenario froze.
fn thaw(group: &str) {
    fn walk(dir: &Path) {
        for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
            let path = dir.join(file);
            if path.exists() {
                let _ = fs::write(path, value);
            }
        }
        children(dir).for_each(|child| walk(&child));
    }
    for dir in groups(group) {
        walk(&dir);
    }
}

/// Innermost first. A group that is still busy is left; it is empty, and only a name.
fn remove_cgroups(group: &str) {
    fn walk(dir: &Path) {
        children(dir).for_each(|child| walk(&child));
        let _ = fs::remove_dir(dir);
    }
    for dir in groups(group) {
        walk(&dir);
    }
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

/// A clean-up cannot return an error, and silence would hide it.
fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "pleg-e2e: {what}");
}
