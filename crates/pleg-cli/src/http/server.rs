//! Sockets and connections: permissions, limits and deadlines.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::explained::Explained;
use super::{host, web};

/// Maximum number of connections. Followers have a smaller limit, so they cannot use up all of them.
const CONNECTIONS: usize = 128;
/// Deadline of a request head.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum size of a request head.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// Delay after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for open requests to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(2);

/// Time for a client beyond the limit to read the refusal.
const REFUSAL: Duration = Duration::from_millis(500);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\
    retry-after: 1\r\ncontent-length: 33\r\n\r\n{\"error\":\"too many connections\"}\n";

/// A process that was just killed may hold its socket for a moment: a restart waits this long for it.
const TAKEOVER: Duration = Duration::from_secs(2);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(50);

/// The permissions of a unix socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) mode: u32,
    /// The group of the socket; `None` keeps the group of the process.
    pub(crate) group: Option<u32>,
}

/// A listening unix socket; its file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at `path`. Replaces a socket on which no process listens, and nothing else.
    pub(crate) async fn bind(path: &Path, access: Access) -> anyhow::Result<Self> {
        let name = path.display();
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
        }
        let until = Instant::now() + TAKEOVER;
        while is_taken(path).await? {
            anyhow::ensure!(
                Instant::now() < until,
                "another process listens on {name}: is a pleg running already? Stop it, or choose another socket with --listen"
            );
            tokio::time::sleep(TAKEOVER_PAUSE).await;
        }
        // No other user may connect before group and mode are set. This is the only thread so far, so the umask is safe.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let socket = Self {
            listener: listener.with_context(|| format!("cannot listen on {name}"))?,
            path: path.to_owned(),
        };
        if let Some(group) = access.group {
            std::os::unix::fs::chown(path, None, Some(group))
                .with_context(|| format!("cannot give {name} to the group {group}"))?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(access.mode))
            .with_context(|| format!("cannot set the permissions of {name}"))?;
        Ok(socket)
    }
}

/// Whether a process listens at `path`. Removes a socket on which none does.
async fn is_taken(path: &Path) -> anyhow::Result<bool> {
    let name = path.display();
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => anyhow::bail!("cannot listen on {name}: it is not a socket"),
        Ok(_) => match tokio::net::UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).with_context(|| format!("cannot replace the stale socket {name}"))?;
                Ok(false)
            }
            // Its owner has removed it in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error).with_context(|| format!("cannot check whether a process listens on {name}")),
        },
        Err(_) => Ok(false),
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A listening TCP socket.
#[derive(Debug)]
pub(crate) struct TcpSocket {
    listener: TcpListener,
    address: SocketAddr,
    /// It can be reached from other machines, under names that are not known here.
    any: bool,
}

impl TcpSocket {
    /// Listens on an address, which must be a loopback address unless `any` is set.
    pub(crate) async fn bind(address: SocketAddr, any: bool) -> anyhow::Result<Self> {
        if !any && !address.ip().is_loopback() {
            return Err(crate::Usage(format!(
                "--listen-tcp {address} can be reached from outside: use 127.0.0.1, or add --insecure-listen-any"
            ))
            .into());
        }
        let until = Instant::now() + TAKEOVER;
        let listener = loop {
            match TcpListener::bind(address).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    tokio::time::sleep(TAKEOVER_PAUSE).await;
                }
                bound => break bound.with_context(|| format!("cannot listen on {address}"))?,
            }
        };
        let address = listener.local_addr()?;
        Ok(Self { listener, address, any })
    }

    /// The address it listens on, with the port that the kernel chose for port 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves until `shutdown`, then drains.
pub(crate) async fn serve(unix: UnixSocket, tcp: Option<TcpSocket>, router: Router, shutdown: &CancellationToken) {
    let server = Server {
        shutdown: shutdown.clone(),
        room: Arc::new(Semaphore::new(CONNECTIONS)),
        tasks: TaskTracker::new(),
    };
    let tunnelled = host::guarded_unix(router.clone());
    let from_unix = server.accept(&tunnelled, async || {
        unix.listener.accept().await.map(|(stream, _)| stream)
    });
    let from_tcp = async {
        if let Some(tcp) = &tcp {
            let router = if !tcp.any {
                host::guarded(router.clone(), tcp.address)
            } else if tcp.address.ip().is_loopback() {
                router.clone()
            } else {
                web::refused(router.clone())
            };
            server
                .accept(&router, async || tcp.listener.accept().await.map(|(stream, _)| stream))
                .await;
        }
    };
    tokio::join!(from_unix, from_tcp);
    server.tasks.close();
    // Connections that do not end in time are dropped with the runtime.
    let _ = tokio::time::timeout(DRAIN, server.tasks.wait()).await;
}

/// Refuses a connection beyond the limit. It reads the request first: closing before that would discard the answer.
async fn refuse(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(FULL).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    let mut left = HEAD_BYTES;
    while left > 0 {
        match stream.read(&mut rest).await? {
            0 => break,
            n => left = left.saturating_sub(n),
        }
    }
    Ok(())
}

struct Server {
    shutdown: CancellationToken,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Server {
    async fn accept<S>(&self, router: &Router, accept: impl AsyncFn() -> io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return,
                accepted = accept() => accepted,
            };
            match accepted {
                Ok(stream) => self.connection(router, stream),
                Err(error) => {
                    // Most likely out of file descriptors: other connections have to close first.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn connection<S>(&self, router: &Router, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            self.tasks.spawn(async move {
                let _ = tokio::time::timeout(REFUSAL, refuse(&mut stream)).await;
            });
            return;
        };
        let service = TowerToHyperService::new(router.clone());
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .max_headers(HEADERS);
            let connection = http.serve_connection(TokioIo::new(Explained::new(stream)), service);
            tokio::pin!(connection);
            tokio::select! {
                biased;
                _ = &mut connection => {}
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(room);
        });
    }
}
