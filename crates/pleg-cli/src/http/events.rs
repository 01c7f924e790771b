//! The event stream: NDJSON for programs and people with `curl`, server-sent events for browsers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, StatusCode};
use jiff::Timestamp;
use pleg::{EventType, InstanceId, Item, Overflow, Start, Subscriber};
use pleg_history::{EntryType, HistoryReader, Order, Query};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::query::{Bad, Fields, read_since};
use super::routes::{App, error};
use crate::filter::Filter;
use crate::since::{FromTime, Since};
use crate::wire::Heartbeat;

/// Available events are sent together, up to this many bytes.
const CHUNK: usize = 32 * 1024;
/// Interval of the keep-alive comments on an idle stream of server-sent events.
const ALIVE: Duration = Duration::from_secs(15);
/// Interval of the heartbeat lines on an idle stream of lines, if the client requested them.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
/// From a heartbeat that could not be sent to the next attempt.
const SOON: Duration = Duration::from_millis(50);
/// A daemon that has sent nothing for this many intervals does not answer.
pub(super) const HEARTBEATS_MISSED: u32 = 3;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Ndjson,
    Sse,
}

/// The options of a request for events.
#[derive(Debug)]
pub(super) struct Request {
    follow: bool,
    since: Option<Since>,
    filter: Filter,
    format: Format,
    heartbeat: bool,
}

impl Request {
    pub(super) fn read(query: Option<&str>, headers: &HeaderMap) -> Result<Self, Bad> {
        let fields = Fields::read(query, &["follow", "since", "type", "pod", "namespace", "heartbeat"])?;
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let sse = text(&ACCEPT).is_some_and(|accept| accept.contains("text/event-stream"));
        let since = match (fields.since()?, text(&LAST_EVENT_ID)) {
            // A browser that reconnects repeats its first query; Last-Event-ID overrides it.
            (_, Some(id)) if sse => Some(read_since("Last-Event-ID", id)?),
            (since, _) => since,
        };
        Ok(Self {
            // A browser reopens an event source that ends, so it always follows.
            follow: fields.flag("follow")? || sse,
            since,
            filter: fields.filter()?,
            heartbeat: fields.flag("heartbeat")? && !sse,
            format: if sse { Format::Sse } else { Format::Ndjson },
        })
    }
}

/// Starts the stream.
pub(super) async fn answer(app: &App, request: Request) -> Response {
    let Ok(room) = Arc::clone(&app.followers).try_acquire_owned() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "too many readers of the event stream");
    };
    let content_type = match request.format {
        Format::Ndjson => "application/x-ndjson",
        Format::Sse => "text/event-stream",
    };
    let feed = app.pleg.feed();
    let (start, from) = match (request.since, app.setup.history()) {
        (None, _) => (Start::Oldest, None),
        (Some(Since::Time(time)), Some(history)) => from_history(history, time).await,
        (Some(since), _) => (since.start(feed.instance()), since.beginning()),
    };
    let reader = Reader {
        instance: feed.instance(),
        // Without follow, the stream ends at the newest event of now, however fast more arrive.
        until: (!request.follow).then(|| feed.newest()),
        subscriber: feed.subscribe(start, Overflow::Gap),
        from,
        filter: request.filter,
        format: request.format,
        heartbeat: request.heartbeat.then(Instant::now),
        shutdown: app.shutdown.clone(),
        _room: room,
    };
    let chunks = stream::unfold(reader, async |mut reader| {
        let chunk = reader.chunk().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), reader))
    });
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(chunks)).into_response()
}

/// The start with the first event at or after a time, in the history if it is there; and the filter for those before it.
async fn from_history(history: &HistoryReader, time: Timestamp) -> (Start, Option<FromTime>) {
    let since = Since::Time(time);
    let history = history.clone();
    let events: Vec<_> = EventType::ALL.into_iter().map(EntryType::Event).collect();
    let find = move || {
        let find = |query: Query| {
            let query = Query {
                types: events.clone(),
                limit: Some(1),
                ..query
            };
            // What cannot be read is in the feed, or missing.
            let entries = history.entries(query);
            entries.filter_map(Result::ok).find_map(|entry| entry.event().cloned())
        };
        let first = find(Query {
            since: Some(time),
            ..Query::default()
        })?;
        let earlier = find(Query {
            until: Some(time),
            order: Order::NewestFirst,
            ..Query::default()
        });
        Some((first.instance.at(first.seq - 1), earlier.is_some()))
    };
    let found = tokio::task::spawn_blocking(find).await.ok().flatten();
    let beginning = since.beginning();
    match found {
        Some((cursor, has_earlier)) if has_earlier => (Start::After(cursor), beginning.map(FromTime::without_gap)),
        Some((cursor, _)) => (Start::After(cursor), beginning),
        None => (Start::Oldest, beginning),
    }
}

struct Reader {
    instance: InstanceId,
    subscriber: Subscriber,
    from: Option<FromTime>,
    until: Option<u64>,
    filter: Filter,
    format: Format,
    /// When the next heartbeat is due, if they were requested. The first is due at once: it gives a cursor to clients that have read nothing.
    heartbeat: Option<Instant>,
    shutdown: CancellationToken,
    _room: OwnedSemaphorePermit,
}

impl Reader {
    /// A line that says that the client has read everything up to a cursor.
    fn heartbeat(&mut self) -> Option<Bytes> {
        let Some(cursor) = self.subscriber.caught_up() else {
            // It still reads the history, or something has arrived: the heartbeat follows that.
            self.heartbeat = Some(Instant::now() + SOON);
            return None;
        };
        self.heartbeat = Some(Instant::now() + HEARTBEAT);
        let heartbeat = Heartbeat::at(cursor);
        let mut line = serde_json::to_vec(&heartbeat).ok()?;
        line.push(b'\n');
        Some(line.into())
    }

    /// The next bytes; `None` at the end.
    async fn chunk(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::new();
        loop {
            let item = match self.subscriber.try_next() {
                Some(item) => item,
                None if !chunk.is_empty() => return Some(chunk.into()),
                None if self.until.is_some() && !self.subscriber.reads_history() => return None,
                None => tokio::select! {
                    biased;
                    () = self.shutdown.cancelled() => return None,
                    item = self.subscriber.next() => item?,
                    () = is_due(self.heartbeat) => match self.heartbeat() {
                        Some(line) => return Some(line),
                        // Something has arrived in the meantime.
                        None => continue,
                    },
                    () = tokio::time::sleep(ALIVE), if self.format == Format::Sse => {
                        return Some(Bytes::from_static(b":\n\n"));
                    }
                },
            };
            // A gap that begins before the end is reported; one without a number of this instance begins before everything.
            let (instance, first) = match &item {
                Item::Event(event) => (event.instance, event.seq),
                Item::Gap(gap) => (gap.instance, gap.from.min(gap.to)),
            };
            if instance == self.instance && self.until.is_some_and(|until| first > until) {
                return (!chunk.is_empty()).then(|| chunk.into());
            }
            if let Some(gap) = self.from.as_mut().and_then(|from| from.missed(&item)) {
                self.write(&Item::Gap(gap), &mut chunk);
            }
            if self.from.is_some_and(|from| !from.admits(&item)) {
                continue;
            }
            self.write(&item, &mut chunk);
            if chunk.len() >= CHUNK {
                return Some(chunk.into());
            }
        }
    }

    fn write(&self, item: &Item, chunk: &mut Vec<u8>) {
        if let Item::Event(event) = item
            && !self.filter.matches(event)
        {
            return;
        }
        let start = chunk.len();
        if self.format == Format::Sse {
            // A gap has no id: a browser that reconnects after it sends the id before it and gets the gap again.
            if let Some(cursor) = item.cursor() {
                chunk.extend_from_slice(format!("id: {cursor}\n").as_bytes());
            }
            chunk.extend_from_slice(b"data: ");
        }
        let written = match item {
            Item::Event(event) => serde_json::to_writer(&mut *chunk, &**event),
            Item::Gap(gap) => serde_json::to_writer(&mut *chunk, gap),
        };
        if written.is_err() {
            // Never send half an object.
            chunk.truncate(start);
            return;
        }
        chunk.extend_from_slice(match self.format {
            Format::Ndjson => b"\n",
            Format::Sse => b"\n\n",
        });
    }
}

/// Waits until the next heartbeat is due; forever if none was requested.
async fn is_due(heartbeat: Option<Instant>) {
    match heartbeat {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
