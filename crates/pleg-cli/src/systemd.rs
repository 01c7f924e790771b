//! What `pleg run` and `pleg node` tell systemd: that they are ready, alive and stopping, and how they are (`sd_notify(3)`).
//!
//! systemd names a datagram socket in `$NOTIFY_SOCKET` and, for a unit with `WatchdogSec=`, its patience in `$WATCHDOG_USEC`. Without the
//! first nothing is sent and nothing runs.
//!
//! - *Ready* is a daemon that knows something about the runtime: after the first relist, or once health can name what delays it. A runtime
//!   that hangs is what this daemon is for, so it must not keep the unit from starting.
//! - *Alive* is a generator whose task takes turns, whatever the runtime does: a restart repairs our own hang, and nothing else.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use pleg::Pleg;
use pleg::health::Report;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::text::{clean, short_ids, shorten};

/// Interval until the unit is ready.
const UNTIL_READY: Duration = Duration::from_millis(100);
/// Interval of the status after that; of the watchdog, if that is sooner.
const PACE: Duration = Duration::from_secs(10);
/// How many signs of life fit into the watchdog's timeout.
const OFTEN: u32 = 3;
/// Longest status: it is one line of `systemctl status`.
const STATUS: usize = 200;

/// The service manager that started this process, if one did and wants to be told.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// systemd's patience.
    watchdog: Option<Duration>,
}

impl Systemd {
    /// As the environment says.
    pub(crate) fn of_this_process() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(name) = var("NOTIFY_SOCKET") else {
            return Self::default();
        };
        match open(&name) {
            Ok(socket) => Self {
                socket: Some(socket),
                watchdog: patience(var("WATCHDOG_USEC"), var("WATCHDOG_PID"), std::process::id()),
            },
            Err(error) => {
                tracing::warn!("systemd is not told anything: $NOTIFY_SOCKET is {name:?}: {error}");
                Self::default()
            }
        }
    }

    /// Tells systemd about the generator until `shutdown`.
    pub(crate) async fn tell(&self, pleg: &Pleg, shutdown: &CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        let pace = self.watchdog.map_or(PACE, |patience| PACE.min(patience / OFTEN));
        let mut teller = Teller::default();
        let mut tick = tokio::time::interval(UNTIL_READY.min(pace));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                _ = tick.tick() => {}
            }
            let was_ready = teller.ready;
            let report = pleg.health().report();
            self.send(&teller.news(is_known(&report), status(&report), pleg.progress()));
            if teller.ready && !was_ready {
                tick = tokio::time::interval(pace);
                tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            }
        }
        self.send("STOPPING=1\nSTATUS=Stopping\n");
    }

    fn send(&self, news: &str) {
        let Some((socket, address)) = self.socket.as_ref().filter(|_| !news.is_empty()) else {
            return;
        };
        // Lost news come again, but for `READY=1`: without it systemd restarts us, which the log should explain.
        if let Err(error) = socket.send_to_addr(news.as_bytes(), address) {
            tracing::warn!("cannot notify systemd: {error}");
        }
    }
}

/// Decides what is news.
#[derive(Debug, Default)]
struct Teller {
    ready: bool,
    status: String,
    /// Turns of the generator when last asked.
    turns: Option<u64>,
}

impl Teller {
    /// The message for systemd; empty if there is nothing new. `known`: there is something to report about the runtime.
    fn news(&mut self, known: bool, status: String, turns: u64) -> String {
        let mut news = String::new();
        if known && !self.ready {
            self.ready = true;
            news.push_str("READY=1\n");
        }
        if self.turns.replace(turns) != Some(turns) {
            news.push_str("WATCHDOG=1\n");
        }
        if status != self.status {
            news.push_str("STATUS=");
            news.push_str(&status);
            news.push('\n');
            self.status = status;
        }
        news
    }
}

/// Whether the daemon has anything to report about the runtime.
fn is_known(report: &Report) -> bool {
    report.relists > 0 || !report.causes.is_empty()
}

/// One line: the level, and what is wrong.
fn status(report: &Report) -> String {
    let text = match report.causes.first() {
        None if report.relists == 0 => "Waiting for the first relist".to_owned(),
        None => format!("{}: {}", report.level, report.headline),
        Some(cause) => format!("{}: {}", report.level, cause.text),
    };
    shorten(&short_ids(&clean(&text)), STATUS)
}

/// The socket of that name: a path, or `@` and an abstract name.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not delay the daemon.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// How long systemd waits between two signs of life; none if it does not, or means another process.
fn patience(micros: Option<OsString>, of: Option<OsString>, own: u32) -> Option<Duration> {
    let number = |text: OsString| text.to_str()?.parse::<u64>().ok();
    if of.is_some_and(|of| number(of) != Some(own.into())) {
        return None;
    }
    number(micros?).filter(|micros| *micros > 0).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_told() {
        let mut teller = Teller::default();
        for (known, status, turns, news) in [
            (false, "Waiting", 1, "WATCHDOG=1\nSTATUS=Waiting\n"),
            (false, "Waiting", 2, "WATCHDOG=1\n"),
            // The generator hangs: no sign of life for the watchdog, however long it lasts.
            (false, "Waiting", 2, ""),
            (true, "Healthy", 2, "READY=1\nSTATUS=Healthy\n"),
            (true, "Healthy", 2, ""),
            (true, "Healthy", 3, "WATCHDOG=1\n"),
            // Ready is said once.
            (false, "Degraded", 4, "WATCHDOG=1\nSTATUS=Degraded\n"),
            (true, "Degraded", 5, "WATCHDOG=1\n"),
        ] {
            assert_eq!(teller.news(known, status.to_owned(), turns), news);
        }
    }

    #[test]
    fn the_patience_is_of_this_process() {
        let some = |text: &str| Some(OsString::from(text));
        let half_minute = Some(Duration::from_secs(30));
        for (micros, of, expected) in [
            (some("30000000"), None, half_minute),
            (some("30000000"), some("7"), half_minute),
            (some("30000000"), some("8"), None),
            (some("30000000"), some("x"), None),
            (some("0"), None, None),
            (some("soon"), None, None),
            (None, some("7"), None),
        ] {
            assert_eq!(patience(micros.clone(), of.clone(), 7), expected, "{micros:?} {of:?}");
        }
    }

    #[test]
    fn sockets_are_paths_or_abstract_names() {
        let (_, path) = open(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(path.as_pathname(), Some("/run/systemd/notify".as_ref()));
        let (_, name) = open(OsStr::new("@pleg")).unwrap();
        assert_eq!(name.as_abstract_name(), Some("pleg".as_ref()));
        for bad in ["relative", "vsock:2:1234", &format!("/{}", "long".repeat(50))] {
            assert!(open(OsStr::new(bad)).is_err(), "{bad}");
        }
    }
}
