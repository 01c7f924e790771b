//! The process between the runtime and a pod's containers, as `/proc` shows it. Only where the runtime is on the same machine.

use std::path::Path;

use serde::Serialize;

/// More processes than this are not searched.
const MOST: usize = 100_000;

/// A shim's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shim {
    /// Its process.
    pub pid: u32,
    /// Its state, as `ps` writes it: `S` sleeps, `T` is stopped, `D` waits in the kernel, `Z` is dead.
    pub state: char,
}

impl Shim {
    /// The shim of a sandbox. Reads all of `/proc`: some milliseconds, so not for a task that others wait for.
    pub fn of(sandbox: &str) -> Option<Self> {
        Self::of_each(&[sandbox]).pop().map(|(_, shim)| shim)
    }

    /// The shims of sandboxes, each with the sandbox's place; those that are found.
    pub fn of_each(sandboxes: &[&str]) -> Vec<(usize, Self)> {
        find(Path::new("/proc"), sandboxes)
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

fn find(proc: &Path, sandboxes: &[&str]) -> Vec<(usize, Shim)> {
    let Ok(processes) = std::fs::read_dir(proc) else {
        return Vec::new();
    };
    let mut shims = Vec::new();
    for entry in processes.flatten().take(MOST) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The name first: unlike the arguments it is shown at once whatever the process waits for.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, state)) = name_and_state(&stat) else {
            continue;
        };
        if !name.starts_with("containerd-shim") {
            continue;
        }
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(place) = sandboxes.iter().position(|id| has_id(&arguments, id)) {
            shims.push((place, Shim { pid, state }));
        }
    }
    shims.sort_by_key(|(_, shim)| shim.pid);
    shims
}

/// Out of `1234 (containerd-shim) S 1 …`; the name may hold anything, so the last bracket counts.
fn name_and_state(stat: &str) -> Option<(&str, char)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name, tail.trim_start().chars().next()?))
}

/// Whether `-id ID` is among the arguments.
fn has_id(arguments: &[u8], id: &str) -> bool {
    let mut arguments = arguments.split(|byte| *byte == 0);
    arguments.any(|argument| argument == b"-id") && arguments.next() == Some(id.as_bytes())
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
        process(proc.path(), 7, &["/usr/bin/crictl", "-id", "abc"], "7 (crictl) S 1");
        let arguments = ["/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "abc"];
        process(proc.path(), 8, &arguments, "8 (containerd-shim) T 1");
        process(proc.path(), 9, &arguments[..4], "9 (containerd-shim) S 1");
        process(proc.path(), 10, &arguments, "nonsense");
        let stopped = Shim { pid: 8, state: 'T' };
        assert_eq!(find(proc.path(), &["x", "abc"]), [(1, stopped)]);
        assert_eq!(stopped.word(), "stopped");
        assert_eq!(find(proc.path(), &["abcd"]), []);
        assert_eq!(find(&proc.path().join("none"), &["abc"]), []);
    }
}
