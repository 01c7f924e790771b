//! A unix socket that only its owner may open, and that leaves nothing behind.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Deadline for a server at the same path to accept a connection; if it passes, the path counts as in use.
const PROBE: Duration = Duration::from_secs(1);

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else is there.
    #[error("{} exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Another process listens there.
    #[error("another process is listening on {}; stop it or choose another path", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("{}: cannot {doing}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A listening socket; its file goes with it.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    _file: SocketFile,
}

/// The file of our socket: removed when dropped, unless another process has replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode) {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Bound {
    /// Listens at `path` with mode 0600. A dead socket there is replaced, anything else is not.
    pub(crate) async fn bind(path: &Path) -> Result<Self, BindError> {
        let failed = |doing| {
            move |source: io::Error| BindError::Io {
                path: path.to_owned(),
                doing,
                source,
            }
        };
        remove_dead(path).await?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|e| failed("create a socket")(e.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed("use this path")(e.into()))?;
        bind(&socket, &address).map_err(|e| failed("bind a socket")(e.into()))?;
        let meta = std::fs::symlink_metadata(path).map_err(failed("inspect the socket"))?;
        let file = SocketFile {
            path: path.to_owned(),
            inode: (meta.dev(), meta.ino()),
        };
        // No client can connect before `listen`, so other users never have access.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(|e| failed("set the socket's mode")(e.into()))?;
        listen(&socket, BACKLOG).map_err(|e| failed("listen")(e.into()))?;
        let listener = std::os::unix::net::UnixListener::from(socket);
        let listener = UnixListener::from_std(listener).map_err(failed("listen"))?;
        Ok(Self { listener, _file: file })
    }
}

/// Removes the socket of a server that did not shut down cleanly.
async fn remove_dead(path: &Path) -> Result<(), BindError> {
    let failed = |doing| {
        move |source: io::Error| BindError::Io {
            path: path.to_owned(),
            doing,
            source,
        }
    };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("inspect it")(e)),
        Ok(meta) if !meta.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Err(e)) => Err(failed("find out whether a process is listening")(e)),
        Ok(Ok(_)) | Err(_) => Err(BindError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let bound = Bound::bind(&path).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(Bound::bind(&path).await, Err(BindError::InUse(_))));
        drop(bound);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let bound = Bound::bind(&path).await.unwrap();
        // Another process has taken the path; its socket stays.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        drop(bound);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        assert!(matches!(Bound::bind(&path).await, Err(BindError::NotASocket(_))));
    }
}
