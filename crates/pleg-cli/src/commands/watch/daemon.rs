//! Events of a daemon, across its restarts.
//!
//! The daemon is asked for heartbeats, so that one that has stopped is not taken for a quiet node. Each names a cursor: a reader that
//! comes back continues there, and the daemon tells it what it missed.

use std::io::Write as _;
use std::time::Duration;

use pleg::Cursor;
use pleg_cri::error::seconds;
use tokio::time::{Instant, sleep, timeout};

use super::Skip;
use crate::args::{LineFormat, Watch};
use crate::http::client::{Daemon, Lines, Refused};
use crate::http::{HEARTBEAT, HEARTBEATS_MISSED};
use crate::since::Since;
use crate::wire::Line;

/// From one attempt to connect again to the next: the first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Follows a daemon.
pub(super) struct DaemonEvents<'a> {
    daemon: &'a Daemon,
    query: Vec<(&'static str, String)>,
    skip: Skip,
    since: Since,
    /// After the last line that was read, printed or not; none before the first, and from an older daemon.
    cursor: Option<Cursor>,
    /// The daemon sends heartbeats; one that is older does not know them.
    heartbeats: bool,
    lines: Option<Lines>,
    /// The first line, which was waited for: with it there is a cursor.
    first: Option<String>,
    /// Since when the daemon is gone.
    gone: Option<Instant>,
}

impl<'a> DaemonEvents<'a> {
    pub(super) async fn start(daemon: &'a Daemon, args: &Watch) -> anyhow::Result<Self> {
        let mut query = args.filter.filter()?.query();
        query.push(("follow", "true".to_owned()));
        let usual = match args.output {
            LineFormat::Kubelet => Since::Seq(0),
            _ => Since::Now,
        };
        let since = args.since.unwrap_or(usual);
        let mut events = Self {
            daemon,
            query,
            skip: Skip {
                initial: args.no_initial,
            },
            since,
            cursor: match since {
                Since::Cursor(cursor) => Some(cursor),
                Since::Now | Since::Seq(_) | Since::Time(_) => None,
            },
            heartbeats: true,
            lines: None,
            first: None,
            gone: None,
        };
        events.lines = Some(events.connect().await?);
        if events.heartbeats {
            events.first = Some(events.line().await.map_err(anyhow::Error::msg)?);
        }
        Ok(events)
    }

    /// Since when the daemon is gone, if it is.
    pub(super) fn gone(&self) -> Option<Instant> {
        self.gone
    }

    /// The next line, and whether it is an event. Waits for a daemon that is gone.
    pub(super) async fn next(&mut self) -> anyhow::Result<(String, bool)> {
        loop {
            let line = match self.line().await {
                Ok(line) => line,
                Err(why) => {
                    self.reconnect(&why).await?;
                    continue;
                }
            };
            let read: Line = serde_json::from_str(&line)?;
            self.cursor = read.cursor().or(self.cursor);
            match read {
                Line::Event(event) if self.skip.initial && event.initial => {}
                Line::Event(_) => return Ok((line, true)),
                Line::Gap(_) => return Ok((line, false)),
                Line::Heartbeat(_) => {}
            }
        }
    }

    /// The next line; or why there is none.
    async fn line(&mut self) -> Result<String, String> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let at = self.daemon.address();
        let Some(lines) = &mut self.lines else {
            return Err(format!("the daemon at {at} does not answer"));
        };
        let next = if self.heartbeats {
            let patience = HEARTBEAT * HEARTBEATS_MISSED;
            let late = |_| {
                format!(
                    "the daemon at {at} does not answer: no heartbeat for {}",
                    seconds(patience)
                )
            };
            timeout(patience, lines.next()).await.map_err(late)?
        } else {
            lines.next().await
        };
        match next {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(format!("the daemon at {at} stopped")),
            Err(error) => Err(format!("the daemon at {at} stopped: {error}")),
        }
    }

    async fn connect(&mut self) -> anyhow::Result<Lines> {
        let since = self.cursor.map_or(self.since, Since::Cursor);
        loop {
            let mut query = self.query.clone();
            query.push(("since", since.to_string()));
            if self.heartbeats {
                query.push(("heartbeat", "true".to_owned()));
            }
            match self.daemon.lines("/api/v1/events", &query).await {
                // One that is older does not know the field.
                Err(error) if self.heartbeats && refusal(&error) == Some(400) => self.heartbeats = false,
                lines => return lines,
            }
        }
    }

    /// Connects again, however long it takes. Says so once on stderr.
    async fn reconnect(&mut self, why: &str) -> anyhow::Result<()> {
        self.lines = None;
        let since = *self.gone.get_or_insert_with(Instant::now);
        let _ = writeln!(anstream::stderr(), "{why}; reconnecting");
        let [mut pause, longest] = PAUSES;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
            self.heartbeats = true;
            match self.connect().await {
                Ok(lines) => {
                    self.lines = Some(lines);
                    self.gone = None;
                    let at = self.daemon.address();
                    let after = seconds(Duration::from_secs(since.elapsed().as_secs().max(1)));
                    let _ = writeln!(
                        anstream::stderr(),
                        "connected to the daemon at {at} again, after {after}"
                    );
                    return Ok(());
                }
                // What it refuses now it will refuse again, unless it is only busy.
                Err(error) if refusal(&error).is_some_and(|status| (400..500).contains(&status)) => return Err(error),
                Err(error) => tracing::debug!("cannot reconnect: {error}"),
            }
        }
    }
}

/// The status with which a daemon refused.
fn refusal(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<Refused>().map(|refused| refused.status.as_u16())
}
