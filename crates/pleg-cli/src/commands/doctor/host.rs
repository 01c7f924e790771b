//! What this machine shows without the runtime: its socket, and the processes of shims.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use pleg::shim::Shim;
use tokio::time::timeout;

use super::facts::Socket;

/// Maximum number of shims that are searched for.
const MOST_SHIMS: usize = 20;
/// Deadline of the search: the kernel takes a lock of a process to show its arguments, and a hung process may hold it.
const PROC_ANSWERS: Duration = Duration::from_secs(2);

/// Examines the socket; `None` if it does not exist or cannot be read.
pub(super) fn socket(path: &Path) -> Option<Socket> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.file_type().is_socket() {
        return None;
    }
    // Connecting needs write permission, and search permission on every parent directory.
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

/// The shims of these sandboxes, if they are on this machine, visible, and found within the deadline.
pub(super) async fn shims(mut sandboxes: Vec<String>, within: Duration) -> HashMap<String, Shim> {
    sandboxes.truncate(MOST_SHIMS);
    if sandboxes.is_empty() {
        return HashMap::new();
    }
    let search = tokio::task::spawn_blocking(move || {
        let found = sandboxes.into_iter().filter_map(|id| Some((Shim::of(&id)?, id)));
        found.map(|(shim, id)| (id, shim)).collect()
    });
    // The report does not wait for a search that hangs.
    match timeout(PROC_ANSWERS.min(within), search).await {
        Ok(Ok(shims)) => shims,
        _ => HashMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
