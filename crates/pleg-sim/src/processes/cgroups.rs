//! The cgroups of processes: `pleg-sim-PID-N/podUID/ID`, in the first hierarchy where they can be made.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Pid;

use super::ProcessError;

/// What the top directories' names begin with.
const PREFIX: &str = "pleg-sim-";
/// Directories that others left are removed, at most so many.
const MOST_STALE: usize = 1000;
/// A cgroup whose process has just ended may be busy for a moment.
const RETRIES: u32 = 1000;

/// Several simulators may be in one process.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The part of the hierarchy that is mounted.
    root: String,
    point: PathBuf,
    /// Empty for cgroup2.
    controllers: String,
}

/// The directories of one simulator.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    top: PathBuf,
}

impl Tree {
    /// Finds a place in which cgroups can be made and this process can be moved.
    pub(super) fn make(process: Pid) -> Result<Self, ProcessError> {
        let mut tried = Vec::new();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no cgroups are mounted");
        for base in bases() {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let top = base.join(format!("{PREFIX}{}-{count}", std::process::id()));
            let made = fs::create_dir(&top).and_then(|()| move_to(&top, process));
            match made {
                Ok(()) => {
                    remove_stale(&base);
                    return Ok(Self { top });
                }
                Err(error) => {
                    let _ = fs::remove_dir(&top);
                    last = error;
                    tried.push(base.display().to_string());
                }
            }
        }
        Err(ProcessError::NoCgroups {
            tried: tried.join(", "),
            error: last,
        })
    }

    /// Makes the cgroup of a container or sandbox, and that of its pod.
    pub(super) fn add(&self, pod: &str, id: &str) -> Result<(), ProcessError> {
        let path = self.path(pod, Some(id));
        fs::create_dir_all(&path).map_err(|error| ProcessError::Cgroup { path, error })
    }

    /// Moves a process into the cgroup of its container.
    pub(super) fn enter(&self, pod: &str, id: &str, process: Pid) -> Result<(), ProcessError> {
        let path = self.path(pod, Some(id));
        move_to(&path, process).map_err(|error| ProcessError::Cgroup { path, error })
    }

    /// Removes a cgroup, unless something is in it.
    pub(super) fn remove(&self, pod: &str, id: Option<&str>) {
        let _ = fs::remove_dir(self.path(pod, id));
    }

    /// Removes everything. Nothing may be alive in it.
    pub(super) fn remove_all(self) {
        for _ in 0..RETRIES {
            match remove_tree(&self.top) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => std::thread::yield_now(),
            }
        }
        tracing::warn!(path = %self.top.display(), "the cgroups of simulated containers cannot be removed");
    }

    fn path(&self, pod: &str, id: Option<&str>) -> PathBuf {
        // A UID of a client may be anything.
        let plain = |text: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            text.len() <= 64 && text.bytes().all(fits)
        };
        let pod = if plain(pod) {
            format!("pod{pod}")
        } else {
            let mut odd = "odd".to_owned();
            for byte in pod.bytes().take(100) {
                let _ = write!(odd, "{byte:02x}");
            }
            odd
        };
        let path = self.top.join(pod);
        id.map_or(path.clone(), |id| path.join(id))
    }
}

fn move_to(cgroup: &Path, process: Pid) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), process.as_raw_nonzero().to_string())
}

/// Cgroups have files that cannot be removed, and go with their directory.
fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Removes what simulators left that were killed. A directory with a process in it stays.
fn remove_stale(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten().take(MOST_STALE) {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if let Some(pid) = pid
            && pid.bytes().all(|byte| byte.is_ascii_digit())
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = remove_tree(&entry.path());
        }
    }
}

/// Where cgroups may be made, the best first: our own cgroup of each hierarchy, then what is mounted of it.
fn bases() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    mounts.sort_by_key(Mount::rank);
    let mut bases = Vec::new();
    for mount in mounts {
        bases.extend(mount.own(&own).filter(|base| *base != mount.point));
        bases.push(mount.point);
    }
    bases
}

impl Mount {
    /// A line of `/proc/self/mountinfo`, if it is of cgroups.
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?.to_owned(), PathBuf::from(mount.next()?));
        let mut kind = kind.split(' ');
        let controllers = match kind.next()? {
            "cgroup2" => "",
            "cgroup" => kind.nth(1)?,
            _ => return None,
        };
        let controllers = controllers.to_owned();
        Some(Self {
            root,
            point,
            controllers,
        })
    }

    /// cgroup2, then pids: a limit of memory may come with the others.
    fn rank(&self) -> u8 {
        match &*self.controllers {
            "" => 0,
            list if list.split(',').any(|name| name == "pids") => 1,
            _ => 2,
        }
    }

    /// Our own cgroup in it, from the lines of `/proc/self/cgroup`.
    fn own(&self, lines: &str) -> Option<PathBuf> {
        let line = lines.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let mut named = controllers.split(',');
            let is = if self.controllers.is_empty() {
                controllers.is_empty()
            } else {
                named.any(|name| self.controllers.split(',').any(|other| other == name))
            };
            is.then_some(path)
        })?;
        let below = Path::new(line).strip_prefix(&self.root).ok()?;
        let plain = below
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        plain.then(|| self.point.join(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_cgroup_comes_before_what_is_mounted() {
        let own = "9:pids:/user/x\n3:cpu,cpuacct:/\n0::/../outside\n";
        for (line, rank, expected) in [
            ("41 31 0:38 / /cg rw - cgroup cgroup rw,pids", 1, Some("/cg/user/x")),
            ("41 31 0:38 /user /cg rw - cgroup cgroup rw,pids", 1, Some("/cg/x")),
            ("41 31 0:38 /other /cg rw - cgroup cgroup rw,pids", 1, None),
            ("41 31 0:38 / /cg rw - cgroup cgroup rw,cpu,cpuacct", 2, Some("/cg/")),
            ("41 31 0:38 / /cg rw - cgroup cgroup rw,memory", 2, None),
            ("41 31 0:38 / /cg rw - cgroup2 cgroup2 rw", 0, None),
        ] {
            let mount = Mount::parse(line).unwrap();
            assert_eq!(mount.rank(), rank, "{line}");
            assert_eq!(mount.own(own), expected.map(PathBuf::from), "{line}");
        }
        for line in ["", "a - b", "31 23 0:28 / / rw - tmpfs tmpfs rw"] {
            assert_eq!(Mount::parse(line), None, "{line}");
        }
    }

    #[test]
    fn whatever_a_client_calls_its_pod_stays_inside() {
        let tree = Tree { top: "/cg".into() };
        assert_eq!(tree.path("7c1e-1", Some("ab")), Path::new("/cg/pod7c1e-1/ab"));
        for pod in ["a/b", "..", "", "\u{e9}", &"x".repeat(500)] {
            let path = tree.path(pod, None);
            assert_eq!(path.parent(), Some(Path::new("/cg")), "{pod}");
            assert!(path.as_os_str().len() < 255, "{pod}");
        }
    }
}
