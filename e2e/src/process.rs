//! Processes as `/proc` shows them, and signals to them.
//!
//! Everything is found by what the kernel says about a running process (its arguments, its cgroup), never by a remembered pid
//! file: after a crash of the thing under test that is the only record that is still true.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::PATIENCE;

/// A process, as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its arguments, the program first.
    pub args: Vec<String>,
}

impl Process {
    /// The program's name without its directory.
    pub fn program(&self) -> &str {
        let path = self.args.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// The argument after `flag`.
    pub fn value_of(&self, flag: &str) -> Option<&str> {
        let at = self.args.iter().position(|arg| arg == flag)?;
        self.args.get(at + 1).map(String::as_str)
    }
}

/// The processes that are there. One that ends while we read is left out; so is a zombie.
pub fn all() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("read /proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(args) = arguments(pid)
            && !matches!(state(pid), None | Some('Z' | 'X'))
        {
            found.push(Process { pid, args });
        }
    }
    Ok(found)
}

fn arguments(pid: i32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = bytes.split(|&byte| byte == 0).filter(|arg| !arg.is_empty());
    Some(args.map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
}

/// The state letter of `/proc/PID/stat`: `R`, `S`, `D`, `T`, `Z`. `None` when there is no such process.
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses before it and may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// There is such a process, and it is not just waiting to be reaped.
pub fn alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Whether the root of its file system is below this directory, which ends with a slash: a container of a runtime that has its files there.
pub(crate) fn rooted_below(pid: i32, below: &str) -> bool {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mut roots = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
    roots.any(|line| line.contains(below))
}

/// Whether one of the process's cgroups lies below `root`, a name at the top of the hierarchy.
pub fn in_cgroup(pid: i32, root: &str) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else {
        return false;
    };
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        Path::new(path)
            .components()
            .nth(1)
            .is_some_and(|top| top.as_os_str() == root)
    })
}

/// Sends a signal. A process that is already gone is no error: that is what most senders want.
pub fn signal(pid: i32, signal: Signal) -> Result<()> {
    let target = Pid::from_raw(pid).with_context(|| format!("{pid} is no process id"))?;
    match kill_process(target, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        done => done.with_context(|| format!("send signal {} to {pid}", signal.as_raw())),
    }
}

/// A process that was stopped, until this goes out of scope.
#[derive(Debug)]
#[must_use = "it continues as soon as this is dropped"]
pub struct Frozen {
    pid: i32,
}

impl Frozen {
    /// Stops the process where it stands (SIGSTOP): no handler, no goodbye, as a hang looks from outside.
    pub fn new(pid: i32) -> Result<Self> {
        signal(pid, Signal::STOP)?;
        let frozen = Self { pid };
        // The signal is taken at the process's next step, which may be a moment off.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while state(pid) != Some('T') {
            ensure!(alive(pid), "process {pid} is not there to be stopped");
            ensure!(tokio::time::Instant::now() < deadline, "process {pid} does not stop");
            std::thread::yield_now();
        }
        Ok(frozen)
    }

    /// Lets it run again.
    pub fn thaw(self) {}
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Nothing to do about a failure here; the home's clean-up kills what is left.
        let _ = signal(self.pid, Signal::CONT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_frozen_and_ended() {
        let mut child = Command::new("cat")
            .arg("--")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let frozen = Frozen::new(pid).unwrap();
        assert_eq!(state(pid), Some('T'));
        frozen.thaw();
        let found = all().unwrap().into_iter().find(|process| process.pid == pid).unwrap();
        assert_eq!((found.program(), found.args.len()), ("cat", 2));
        signal(pid, Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!alive(pid));
        assert!(Frozen::new(pid).is_err());
        signal(pid, Signal::KILL).unwrap();
    }
}
