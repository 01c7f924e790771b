//! The process between the runtime and a pod's containers, as `/proc` shows it. Only where the runtime is on the same machine.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::witness::process::Stat;

/// More processes than this are not searched.
const MOST: usize = 100_000;

/// A shim's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shim {
    /// Its process.
    pub pid: u32,
    /// Its state, as `ps` writes it: `S` sleeps, `T` is stopped, `D` waits in the kernel, `Z` is dead.
    pub state: char,
}

impl Shim {
    /// The shim of a sandbox: the process named `…shim…` with the sandbox's id among its arguments. Reads all of `/proc`: some
    /// milliseconds, so not for a task that others wait for.
    pub fn of(sandbox: &str) -> Option<Self> {
        Self::find(Path::new("/proc"), sandbox)
    }

    /// The process with this number, whatever it is: for a container's parent, which is its shim or its monitor.
    pub fn at(pid: u32) -> Option<Self> {
        Self::read(Path::new("/proc"), pid)
    }

    /// The parent of a process, for as long as the process is not reaped.
    pub fn parent_of(pid: u32) -> Option<Self> {
        let stat = Stat::read(Path::new("/proc"), pid).ok()?;
        Self::at(stat.parent)
    }

    fn read(proc: &Path, pid: u32) -> Option<Self> {
        let Stat { state, .. } = Stat::read(proc, pid).ok()?;
        Some(Self { pid, state })
    }

    fn find(proc: &Path, sandbox: &str) -> Option<Self> {
        if sandbox.is_empty() {
            return None;
        }
        let processes = std::fs::read_dir(proc).ok()?.flatten().take(MOST);
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .find_map(|pid: u32| {
                // The name first: to show the arguments the kernel waits for a lock that a process in trouble may hold.
                let Stat { name, state, .. } = Stat::read(proc, pid).ok()?;
                if !name.contains("shim") {
                    return None;
                }
                let arguments = std::fs::read(proc.join(pid.to_string()).join("cmdline")).ok()?;
                // In front of it stands `-id`, with containerd; conmon has its own flag.
                let mut arguments = arguments.split(|&byte| byte == 0).skip(1);
                let is = arguments.any(|argument| argument == sandbox.as_bytes());
                is.then_some(Self { pid, state })
            })
    }

    /// The name of its program, which the kernel cuts to 15 bytes: `containerd-shim`, `conmon`. Whatever is no plain text is left out.
    pub(crate) fn name(self) -> Option<Arc<str>> {
        let stat = Stat::read(Path::new("/proc"), self.pid).ok()?;
        let name: String = stat.name.chars().filter(|c| !c.is_control()).collect();
        (!name.is_empty()).then(|| name.into())
    }

    /// The state in a word.
    pub fn word(self) -> &'static str {
        match self.state {
            'T' | 't' => "stopped",
            'D' => "waiting in the kernel",
            'Z' | 'X' => "dead",
            'R' => "running",
            _ => "sleeping",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(proc: &Path, pid: u32, arguments: &[&str], stat: &str) {
        let dir = proc.join(pid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cmdline"), arguments.join("\0") + "\0").unwrap();
        std::fs::write(dir.join("stat"), stat).unwrap();
    }

    #[test]
    fn a_shim_is_found_by_the_sandbox_among_its_arguments() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("self")).unwrap();
        process(
            proc.path(),
            7,
            &["/usr/bin/crictl", "inspectp", "abc"],
            "7 (crictl) S 1",
        );
        process(
            proc.path(),
            8,
            &["/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "abc"],
            "8 (cont) ainerd-shim) T 1",
        );
        let shim = Shim::find(proc.path(), "abc").unwrap();
        assert_eq!((shim.pid, shim.state, shim.word()), (8, 'T', "stopped"));
        assert_eq!(Shim::find(proc.path(), "abcd"), None);
        assert_eq!(Shim::find(proc.path(), ""), None);
        assert_eq!(Shim::read(proc.path(), 8), Some(shim));
        assert_eq!(Shim::read(proc.path(), 9), None);
        let this = Shim::at(std::process::id()).unwrap();
        assert_eq!(this.pid, std::process::id());
        assert!(
            this.name().is_some_and(|name| (1..=15).contains(&name.len())),
            "{:?}",
            this.name()
        );
    }
}
