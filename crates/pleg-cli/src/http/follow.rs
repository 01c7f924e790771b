//! Events of a daemon, across its restarts.
//!
//! The daemon is asked for heartbeats, so that one that has stopped is not taken for a quiet node. Each names a cursor: a reader that
//! comes back continues there, and the daemon sends it what it missed.

use std::time::Duration;

use pleg::Cursor;
use pleg_cri::duration::seconds;
use tokio::time::{Instant, sleep, timeout_at};

use super::client::{Daemon, Lines, Refused};
use super::events::{HEARTBEAT, HEARTBEATS_MISSED};
use crate::connect::tell;
use crate::since::Since;
use crate::wire::Line;

/// From one attempt to connect again to the next: the first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Follows a daemon.
#[derive(Debug)]
pub(crate) struct DaemonEvents<'a> {
    daemon: &'a Daemon,
    query: Vec<(&'static str, String)>,
    since: Since,
    /// After the last line that was read, printed or not; none before the first, and from an older daemon.
    cursor: Option<Cursor>,
    /// The daemon sends heartbeats; one that is older does not know them.
    heartbeats: bool,
    lines: Option<Lines>,
    /// The first line, which was waited for: with it there is a cursor.
    first: Option<String>,
    /// When the last line came.
    heard: Instant,
    /// Since when the daemon is gone.
    gone: Option<Instant>,
}

impl<'a> DaemonEvents<'a> {
    /// Asks for events from `since` on, of those that `query` chooses.
    pub(crate) async fn start(
        daemon: &'a Daemon,
        mut query: Vec<(&'static str, String)>,
        since: Since,
    ) -> anyhow::Result<Self> {
        query.push(("follow", "true".to_owned()));
        let mut events = Self {
            daemon,
            query,
            since,
            cursor: match since {
                Since::Cursor(cursor) => Some(cursor),
                Since::Now | Since::Seq(_) | Since::Time(_) => None,
            },
            heartbeats: true,
            lines: None,
            first: None,
            heard: Instant::now(),
            gone: None,
        };
        events.lines = Some(events.connect().await?);
        if events.heartbeats {
            events.first = Some(events.line().await.map_err(anyhow::Error::msg)?);
        }
        Ok(events)
    }

    /// Since when the daemon is gone, if it is.
    pub(crate) fn gone(&self) -> Option<Instant> {
        self.gone
    }

    /// The next event or gap, also as it was sent. Waits for a daemon that is gone.
    pub(crate) async fn next(&mut self) -> anyhow::Result<(String, Line)> {
        loop {
            match self.read().await? {
                Ok(read) => return Ok(read),
                Err(why) => self.reconnect(&why).await?,
            }
        }
    }

    /// The next event or gap, also as it was sent; or why there is none, after which [`Self::reconnect`] is due. Cancel-safe.
    pub(crate) async fn read(&mut self) -> anyhow::Result<Result<(String, Line), String>> {
        loop {
            let line = match self.line().await {
                Ok(line) => line,
                Err(why) => return Ok(Err(why)),
            };
            self.heard = Instant::now();
            let read: Line = serde_json::from_str(&line)?;
            self.cursor = read.cursor().or(self.cursor);
            match read {
                Line::Event(_) | Line::Gap(_) => return Ok(Ok((line, read))),
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
            timeout_at(self.heard + patience, lines.next()).await.map_err(late)?
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

    /// Connects again, however long it takes. Says so on stderr, once before and once after.
    pub(crate) async fn reconnect(&mut self, why: &str) -> anyhow::Result<()> {
        tell(&format!("{why}; reconnecting"));
        let after = self.reconnect_silently().await?;
        let at = self.daemon.address();
        let after = seconds(Duration::from_secs(after.as_secs().max(1)));
        tell(&format!("connected to the daemon at {at} again, after {after}"));
        Ok(())
    }

    /// Connects again, however long it takes; returns how long the daemon was gone.
    pub(crate) async fn reconnect_silently(&mut self) -> anyhow::Result<Duration> {
        self.lines = None;
        let since = *self.gone.get_or_insert_with(Instant::now);
        let [mut pause, longest] = PAUSES;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(longest);
            self.heartbeats = true;
            match self.connect().await {
                Ok(lines) => {
                    self.lines = Some(lines);
                    self.heard = Instant::now();
                    self.gone = None;
                    return Ok(since.elapsed());
                }
                // What it refuses now it will refuse again, unless it is only busy.
                Err(error) if refuses(&error) => return Err(error),
                Err(error) => tracing::debug!("cannot reconnect: {error}"),
            }
        }
    }
}

/// The daemon refuses the request itself: asking again changes nothing.
pub(crate) fn refuses(error: &anyhow::Error) -> bool {
    refusal(error).is_some_and(|status| (400..500).contains(&status))
}

/// The status with which a daemon refused.
fn refusal(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<Refused>().map(|refused| refused.status.as_u16())
}
