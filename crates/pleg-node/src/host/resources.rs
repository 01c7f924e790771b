//! How much of this machine is left: filesystems, memory, processes. Read when asked; blocking.
//!
//! The readers of these figures decide about other people's pods, so tests give them figures of their own: [`HostResources`].

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{has_cgroup_v2, total_memory};
use crate::cgroups::files;

/// A filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filesystem {
    /// Its size, in bytes.
    pub capacity: u64,
    /// What is left for users who are not root, in bytes.
    pub available: u64,
    /// All its inodes; 0 if it creates them on demand.
    pub inodes: u64,
    /// Its free inodes.
    pub inodes_free: u64,
}

/// An amount, and what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// All there is.
    pub capacity: u64,
    /// What is left.
    pub available: u64,
}

/// How much of a machine is left.
pub trait HostResources: fmt::Debug + Send + Sync {
    /// The filesystem of a path.
    fn filesystem(&self, path: &Path) -> io::Result<Filesystem>;
    /// Whether two paths are on one filesystem.
    fn same_filesystem(&self, one: &Path, other: &Path) -> io::Result<bool>;
    /// Memory, in bytes. What the kernel can drop at once counts as available.
    fn memory(&self) -> io::Result<Amount>;
    /// Processes and threads.
    fn processes(&self) -> io::Result<Amount>;
}

/// This machine, as its kernel shows it.
#[derive(Debug, Clone)]
pub struct ThisMachine {
    /// Where cgroups are mounted.
    pub cgroup_mount: PathBuf,
}

impl HostResources for ThisMachine {
    fn filesystem(&self, path: &Path) -> io::Result<Filesystem> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Filesystem {
            capacity: found.f_blocks.saturating_mul(found.f_frsize),
            available: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        })
    }

    fn same_filesystem(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(rustix::fs::stat(one)?.st_dev == rustix::fs::stat(other)?.st_dev)
    }

    /// As in a kubelet: the capacity without the working set of all cgroups.
    fn memory(&self) -> io::Result<Amount> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal and MemFree");
        let capacity = total_memory(&meminfo).ok_or_else(bad)?;
        let top = Path::new("");
        let used = if has_cgroup_v2(&self.cgroup_mount) {
            // The root cgroup of version 2 has no usage of its own.
            let free = kib(&meminfo, "MemFree:").ok_or_else(bad)?;
            let used = capacity.saturating_sub(free);
            used.saturating_sub(files::inactive_file(&self.cgroup_mount, top).unwrap_or_default())
        } else {
            match files::memory(&self.cgroup_mount, top) {
                Some(used) => used,
                None => capacity.saturating_sub(kib(&meminfo, "MemAvailable:").ok_or_else(bad)?),
            }
        };
        Ok(Amount {
            capacity,
            available: capacity.saturating_sub(used),
        })
    }

    fn processes(&self) -> io::Result<Amount> {
        let number = |path: &str| -> io::Result<u64> {
            let text = fs::read_to_string(path)?;
            text.trim().parse().map_err(io::Error::other)
        };
        let capacity = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
        let running = running_processes(&fs::read_to_string("/proc/loadavg")?).unwrap_or_default();
        Ok(Amount {
            capacity,
            available: capacity.saturating_sub(running),
        })
    }
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// All processes and threads, from `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`.
fn running_processes(loadavg: &str) -> Option<u64> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something_left() {
        let machine = ThisMachine {
            cgroup_mount: "/sys/fs/cgroup".into(),
        };
        let disk = machine.filesystem(Path::new("/")).unwrap();
        assert!(disk.capacity > 0 && disk.available <= disk.capacity && disk.inodes_free <= disk.inodes);
        for amount in [machine.memory().unwrap(), machine.processes().unwrap()] {
            assert!(
                amount.available > 0 && amount.available <= amount.capacity,
                "{amount:?}"
            );
        }
        assert!(machine.same_filesystem(Path::new("/"), Path::new("/")).unwrap());
        assert!(machine.filesystem(Path::new("/no/such/place")).is_err());
        // Where cgroups are not mounted, the kernel's own estimate counts.
        let bare = ThisMachine {
            cgroup_mount: "/no/such/place".into(),
        };
        assert!(bare.memory().unwrap().available > 0);
    }

    #[test]
    fn figures_of_proc_are_read() {
        assert_eq!(running_processes("0.20 0.18 0.12 1/80 11206\n"), Some(80));
        assert_eq!(running_processes(""), None);
        let meminfo = "MemTotal:  100 kB\nMemFree:     7 kB\n";
        assert_eq!(
            (kib(meminfo, "MemFree:"), kib(meminfo, "MemAvailable:")),
            (Some(7 << 10), None)
        );
    }
}
