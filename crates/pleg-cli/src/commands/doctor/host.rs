//! What this machine tells without asking the runtime: its socket, and the processes of shims.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use super::facts::{Shim, Socket};

/// Processes that are looked at. A machine has no more by default.
const MOST_PROCESSES: usize = 1 << 16;
/// The kernel waits for a lock of a process before it shows its arguments, and a hung one may hold that.
const PROC_ANSWERS: Duration = Duration::from_secs(2);

/// Looks at the socket; none if there is none, or if we may not.
pub(super) fn socket(path: &Path) -> Option<Socket> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.file_type().is_socket() {
        return None;
    }
    // To connect is to write, and every directory on the way has to let us pass.
    let open = meta.mode() & 0o002 != 0;
    let reachable = || {
        let mut parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        parents.all(|parent| std::fs::metadata(parent).is_ok_and(|meta| meta.mode() & 0o001 != 0))
    };
    Some(Socket {
        path: path.display().to_string(),
        uid: meta.uid(),
        gid: meta.gid(),
        mode: format!("{:04o}", meta.mode() & 0o7777),
        world_accessible: open && reachable(),
    })
}

/// The shims of these sandboxes, as far as they are on this machine and to be seen.
pub(super) async fn shims(sandboxes: Vec<String>) -> Vec<Shim> {
    if sandboxes.is_empty() {
        return Vec::new();
    }
    let search = tokio::task::spawn_blocking(move || find(Path::new("/proc"), &sandboxes));
    // A search that hangs is left to itself; the report does not wait for it.
    match timeout(PROC_ANSWERS, search).await {
        Ok(Ok(shims)) => shims,
        _ => Vec::new(),
    }
}

fn find(proc: &Path, sandboxes: &[String]) -> Vec<Shim> {
    let Ok(entries) = std::fs::read_dir(proc) else {
        return Vec::new();
    };
    let mut shims = Vec::new();
    for entry in entries.flatten().take(MOST_PROCESSES) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The name first: unlike the arguments it is always shown at once.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((name, state)) = name_and_state(&stat) else {
            continue;
        };
        if !name.starts_with("containerd-shim") {
            continue;
        }
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(sandbox) = sandboxes.iter().find(|id| has_id(&arguments, id)) {
            shims.push(Shim {
                sandbox: sandbox.clone(),
                pid,
                state,
            });
        }
    }
    shims.sort_by_key(|shim| shim.pid);
    shims
}

/// Out of `1234 (containerd-shim) S 1 …`; the name may hold anything, so the last bracket counts.
fn name_and_state(stat: &str) -> Option<(&str, char)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name, tail.trim_start().chars().next()?))
}

/// Whether `-id ID` is among the arguments.
fn has_id(cmdline: &[u8], id: &str) -> bool {
    let mut arguments = cmdline.split(|byte| *byte == 0);
    while let Some(argument) = arguments.next() {
        if argument == b"-id" {
            return arguments.next() == Some(id.as_bytes());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_shim_is_found_by_its_arguments() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, stat, cmdline) in [
            (
                "17",
                "17 (containerd-shim) T 1 17",
                "containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0s1\0",
            ),
            (
                "18",
                "18 (containerd-shim) S 1 18",
                "containerd-shim-runc-v2\0-id\0s2\0",
            ),
            // A program that only talks about it.
            ("19", "19 (grep) S 1 19", "grep\0-id\0s1\0"),
            ("20", "20 (a) b) (c) D 1 20", ""),
            ("self", "", ""),
        ] {
            let dir = proc.path().join(pid);
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("stat"), stat).unwrap();
            std::fs::write(dir.join("cmdline"), cmdline).unwrap();
        }
        let found = find(proc.path(), &["s1".to_owned(), "s9".to_owned()]);
        let shim = Shim {
            sandbox: "s1".to_owned(),
            pid: 17,
            state: 'T',
        };
        assert_eq!(found, [shim]);
        assert_eq!(name_and_state("20 (a) b) (c) D 1"), Some(("a) b) (c", 'D')));
        assert_eq!(name_and_state("nonsense"), None);
    }

    #[test]
    fn who_may_open_the_socket_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        assert!(socket(&path).is_none());
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for (mode, dir_mode, open) in [(0o660, 0o755, false), (0o666, 0o755, true), (0o666, 0o700, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(dir_mode)).unwrap();
            let found = socket(&path).unwrap();
            assert_eq!((found.mode, found.world_accessible), (format!("{mode:04o}"), open));
        }
        assert!(socket(dir.path()).is_none(), "a directory is no socket");
    }
}
