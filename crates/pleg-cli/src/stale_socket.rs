//! Notices that the runtime's socket was replaced behind our back.
//!
//! A pod mounts the socket itself, and nothing else of the node. A runtime that restarts removes its socket and makes a new one, but the
//! mount still leads to the removed one, on which nobody listens any more. Only a new container gets the new socket, so the daemon ends, and
//! the kubelet starts it again. A path that is not a mount never leads to a removed file: outside of containers this finds nothing.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// Interval between two looks: one call of stat(2).
const EVERY: Duration = Duration::from_secs(2);

/// Resolves with an error once the file at `path` is a removed one.
pub(crate) async fn removed(path: &Path) -> anyhow::Error {
    loop {
        tokio::time::sleep(EVERY).await;
        if std::fs::metadata(path).is_ok_and(|meta| meta.nlink() == 0) {
            return anyhow::anyhow!(
                "the runtime has replaced its socket {}, and this container has the old one: it has to be started again, \
                 as a kubelet does",
                path.display()
            );
        }
    }
}
