//! Ensures that only one `pleg node` of a name runs on a runtime.
//!
//! A node removes pods with its label that its manifests do not define, so two nodes of one name would remove each other's pods. The lock
//! is a locked file: the kernel releases it however the process ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use pleg_cri::Endpoint;
use pleg_node::manifest::NodeName;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::args::default_socket;

/// A process that was just killed may hold its lock for a moment: a restart waits this long for it.
const TAKEOVER: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The lock of a running node. Its file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct NodeLock {
    path: PathBuf,
    // Locked while it is open.
    _file: File,
}

impl NodeLock {
    /// Takes the lock of the node `name` on the runtime at `endpoint`.
    pub(super) async fn take(endpoint: &Endpoint, name: &NodeName, state_file: &Path) -> anyhow::Result<Self> {
        let path = directory(state_file).join(file_name(endpoint, name));
        let until = Instant::now() + TAKEOVER;
        loop {
            match Self::try_take(&path).with_context(|| format!("cannot lock {}", path.display()))? {
                Ok(lock) => return Ok(lock),
                Err(_) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                Err(holder) => anyhow::bail!(
                    "another pleg node ({holder}) already runs node {name} on {endpoint}; two would remove each other's pods. \
                     Stop it, or choose another --node-name"
                ),
            }
        }
    }

    /// The lock, or its holder.
    fn try_take(path: &Path) -> std::io::Result<Result<Self, String>> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let mut pid = String::new();
                    file.take(32).read_to_string(&mut pid)?;
                    let pid: Option<u32> = pid.trim().parse().ok();
                    return Ok(Err(pid.map_or("pid unknown".to_owned(), |pid| format!("pid {pid}"))));
                }
                locked => locked?,
            }
            // The previous holder may have removed the file after we opened it; then our lock protects nothing.
            let same =
                std::fs::metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
            if !same {
                continue;
            }
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())?;
            return Ok(Ok(Self {
                path: path.to_owned(),
                _file: file,
            }));
        }
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // Still locked, so no other process uses the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The directory of locks: the same for every node of a user, whatever its flags are.
fn directory(state_file: &Path) -> PathBuf {
    let socket = default_socket();
    let runtime = socket.as_deref().and_then(Path::parent);
    runtime.or(state_file.parent()).unwrap_or(Path::new("/")).to_owned()
}

/// A name of fixed length for any runtime and node.
fn file_name(endpoint: &Endpoint, name: &NodeName) -> String {
    // Two paths may lead to one socket, as /var/run and /run do.
    let path = std::fs::canonicalize(endpoint.path()).unwrap_or_else(|_| endpoint.path().to_owned());
    let mut bytes = path.into_os_string().into_encoded_bytes();
    bytes.push(0);
    bytes.extend_from_slice(name.as_str().as_bytes());
    // FNV-1a: the same in every build, which the standard library's hash does not promise.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("node-{hash:016x}.lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/n.lock");
        let first = NodeLock::try_take(&path).unwrap().unwrap();
        let holder = NodeLock::try_take(&path).unwrap().unwrap_err();
        assert_eq!(holder, format!("pid {}", std::process::id()));
        drop(first);
        assert!(!path.exists());
        // A file that was left behind is not a lock.
        std::fs::write(&path, "4711\n").unwrap();
        assert!(NodeLock::try_take(&path).unwrap().is_ok());
    }

    #[test]
    fn a_lock_is_of_a_runtime_and_a_name() {
        let (a, b) = (Endpoint::unix("/run/a.sock"), Endpoint::unix("/run/b.sock"));
        let (n1, n2) = (NodeName::new("n1").unwrap(), NodeName::new("n2").unwrap());
        let names = [(&a, &n1), (&a, &n2), (&b, &n1)].map(|(endpoint, name)| file_name(endpoint, name));
        assert_eq!(file_name(&a, &n1), names[0]);
        assert!(names[0] != names[1] && names[0] != names[2], "{names:?}");
    }
}
