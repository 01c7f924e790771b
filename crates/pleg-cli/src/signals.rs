//! When to stop: Ctrl-C, SIGTERM, or nobody reads our stdout any more.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first Ctrl-C, SIGTERM or hang-up.
pub(crate) fn shutdown() -> anyhow::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let cancel = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        cancel.cancel();
    });
    Ok(token)
}

/// Resolves once the reader of our stdout has gone, also while we have nothing to write. Never for files.
pub(crate) async fn stdout_closed() {
    let (gone, tell) = oneshot::channel();
    // The kernel tells only those who poll, and tokio polls foreign descriptors only in unsafe ways. The thread ends with us.
    let watch = std::thread::Builder::new()
        .name("stdout-reader".to_owned())
        .spawn(move || {
            let stdout = std::io::stdout();
            let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
            while poll(&mut polled, None) == Err(Errno::INTR) {}
            if polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                let _ = gone.send(());
            }
        });
    // Where it cannot be told beforehand, the next write tells.
    if watch.is_err() || tell.await.is_err() {
        std::future::pending::<()>().await;
    }
}
