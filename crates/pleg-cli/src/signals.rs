//! When to stop: Ctrl-C, SIGTERM, or a closed stdout.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// What the signals to stop cancel: SIGINT, SIGTERM and SIGHUP.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals {
    /// By the first one.
    pub(crate) stop: CancellationToken,
    /// By the second one: stop without waiting for anything.
    pub(crate) stop_now: CancellationToken,
}

/// Listens to signals.
pub(crate) fn listen() -> anyhow::Result<Signals> {
    let signals = Signals::default();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // A program started by nohup inherits an ignored SIGHUP so that it outlives its terminal. A handler would undo that.
    let mut hangup = if ignored(SignalKind::hangup(), &process_status()) {
        None
    } else {
        Some(signal(SignalKind::hangup())?)
    };
    let cancel = signals.clone();
    tokio::spawn(async move {
        for token in [cancel.stop, cancel.stop_now] {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hung_up => {}
            }
            token.cancel();
        }
    });
    Ok(signals)
}

/// /proc/self/status; empty without /proc.
fn process_status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap_or_default()
}

/// Whether the process of this /proc/PID/status ignores `kind`.
fn ignored(kind: SignalKind, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Resolves once the reader of stdout is gone, even while there is nothing to write. Never for files.
pub(crate) async fn stdout_closed() {
    let (gone, tell) = oneshot::channel();
    // Only polling detects that, and tokio polls foreign descriptors only through unsafe code. The thread ends with the process.
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
    // If it cannot be detected, the next write fails.
    if watch.is_err() || tell.await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        for (status, hangup, interrupt) in [
            ("Name:\tpleg\nSigIgn:\t0000000000000001\n", true, false),
            ("SigIgn:\t0000000000001002\n", false, true),
            ("SigIgn:\tnonsense\n", false, false),
            ("", false, false),
        ] {
            assert_eq!(ignored(SignalKind::hangup(), status), hangup, "{status}");
            assert_eq!(ignored(SignalKind::interrupt(), status), interrupt, "{status}");
        }
    }
}
