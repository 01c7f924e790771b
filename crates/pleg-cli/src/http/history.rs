//! What happened: entries of the history as lines of JSON, its pods, and its sums by hour.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use jiff::Timestamp;
use pleg_history::{EntryType, HistoryError, HistoryReader, Order, Page, PodMatch, Query};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::query::{Bad, Fields};
use super::routes::{App, error};
use crate::filter::PodName;
use crate::since::Since;

/// Fields that say which pods.
const POD_FIELDS: [&str; 4] = ["pod", "uid", "namespace", "labels"];
const FIELDS: [&str; 14] = [
    "pod",
    "uid",
    "namespace",
    "labels",
    "container",
    "since",
    "until",
    "type",
    "reason",
    "after",
    "before",
    "limit",
    "order",
    "follow",
];

/// `/api/v1/history`.
pub(super) async fn entries(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let fields = Fields::read(query.as_deref(), &FIELDS)?;
    let (query, follow) = (read(&fields)?, fields.flag("follow")?);
    if follow && (query.until.is_some() || query.before.is_some() || query.order == Order::NewestFirst) {
        return Err(Bad::new(
            "follow",
            "cannot be combined with until, before or order=newest",
            &[],
        ));
    }
    let Some(reader) = app.setup.history() else {
        return Ok(off());
    };
    let Ok(room) = Arc::clone(&app.followers).try_acquire_owned() else {
        let message = "too many readers of events and history";
        return Ok(error(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let mut reading = Reading {
        written: reader.written(),
        reader: reader.clone(),
        query: Some(Box::new(query)),
        follow,
        is_idle: false,
        shutdown: app.shutdown.clone(),
        _room: room,
    };
    // The first page decides about the status.
    let first = match reading.page().await {
        Ok(first) => first,
        Err(failed) => return Ok(unavailable(&failed)),
    };
    let chunks = stream::unfold((first, reading), async |(first, mut reading)| {
        let chunk = match first {
            Some(chunk) => chunk,
            None => reading.chunk().await?,
        };
        Some((Ok::<_, std::convert::Infallible>(chunk), (None, reading)))
    });
    Ok(lines(Body::from_stream(chunks)))
}

/// `/api/v1/history/pods`.
pub(super) async fn pods(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let fields = Fields::read(query.as_deref(), &POD_FIELDS)?;
    let query = read(&fields)?;
    Ok(table(&app, move |reader| reader.pods(&query)).await)
}

/// `/api/v1/history/hours`.
pub(super) async fn hours(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Result<Response, Bad> {
    let fields = Fields::read(query.as_deref(), &["since", "until"])?;
    let (since, until) = (time(&fields, "since")?, time(&fields, "until")?);
    Ok(table(&app, move |reader| reader.hours(since, until)).await)
}

/// Rows that are read at once, one a line.
async fn table<T, F>(app: &App, read: F) -> Response
where
    T: Serialize + Send + 'static,
    F: FnOnce(&HistoryReader) -> Result<Vec<T>, HistoryError> + Send + 'static,
{
    let Some(reader) = app.setup.history().cloned() else {
        return off();
    };
    let Ok(_room) = app.followers.try_acquire() else {
        return error(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many readers of events and history",
        );
    };
    let rows = tokio::task::spawn_blocking(move || {
        let rows = read(&reader)?;
        let mut text = Vec::new();
        for row in rows {
            write_line(&row, &mut text);
        }
        Ok(text)
    });
    match rows.await {
        Ok(Ok(text)) => lines(Body::from(text)),
        Ok(Err(failed)) => unavailable(&failed),
        Err(failed) => error(StatusCode::INTERNAL_SERVER_ERROR, &failed.to_string()),
    }
}

fn read(fields: &Fields) -> Result<Query, Bad> {
    let pod = match (fields.get("pod"), fields.get("uid")) {
        (Some(_), Some(_)) => return Err(Bad::new("uid", "cannot be combined with pod", &[])),
        (Some(text), None) => {
            let accepted = ["NAME", "NAMESPACE/NAME", "PREFIX*", "NAMESPACE/PREFIX*"];
            let name = text
                .strip_suffix('*')
                .filter(|prefix| !prefix.is_empty())
                .unwrap_or(text);
            PodName::parse(name).map_err(|_| Bad::new("pod", "not the name of a pod", &accepted))?;
            Some(PodMatch::parse(text))
        }
        (None, Some("")) => return Err(Bad::new("uid", "is empty", &["UID"])),
        (None, Some(uid)) => Some(PodMatch::Uid(uid.into())),
        (None, None) => None,
    };
    let labels = match fields.get("labels").map(str::parse) {
        None => None,
        Some(Ok(selector)) => Some(selector),
        Some(Err(error)) => return Err(Bad::new("labels", format!("{error}"), &[])),
    };
    let mut types = Vec::new();
    for name in fields.get("type").into_iter().flat_map(|text| text.split(',')) {
        let names: Vec<&str> = EntryType::all().map(EntryType::name).collect();
        types.push(EntryType::parse(name).ok_or_else(|| Bad::new("type", "no such type", &names))?);
    }
    let number = |name: &'static str| {
        let number = fields.get(name).map(str::parse::<u64>).transpose();
        number.map_err(|_| Bad::new(name, "not a number", &["a number from 0 on"]))
    };
    let order = match fields.get("order") {
        None | Some("oldest") => Order::OldestFirst,
        Some("newest") => Order::NewestFirst,
        Some(_) => return Err(Bad::new("order", "no such order", &["oldest", "newest"])),
    };
    let texts = |name: &str| -> Vec<String> {
        let text = fields.get(name).unwrap_or_default();
        let words = text.split(',').filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    Ok(Query {
        pod,
        namespace: fields.get("namespace").map(str::to_owned),
        labels,
        container: fields.get("container").map(str::to_owned),
        since: time(fields, "since")?,
        until: time(fields, "until")?,
        types,
        reasons: texts("reason"),
        after: number("after")?,
        before: number("before")?,
        limit: number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        order,
    })
}

fn time(fields: &Fields, name: &'static str) -> Result<Option<Timestamp>, Bad> {
    let accepted = [
        "a duration, as in 10m",
        "a time, as in 2026-11-16T18:00:00Z or 2026-11-16T18:00",
    ];
    match fields.get(name).map(str::parse) {
        None => Ok(None),
        Some(Ok(Since::Time(time))) => Ok(Some(time)),
        Some(_) => Err(Bad::new(name, "not a time", &accepted)),
    }
}

/// A client that reads entries.
struct Reading {
    reader: HistoryReader,
    written: watch::Receiver<u64>,
    /// What is left to read; none at the end.
    query: Option<Box<Query>>,
    follow: bool,
    /// Everything that is written was read.
    is_idle: bool,
    shutdown: CancellationToken,
    _room: OwnedSemaphorePermit,
}

impl Reading {
    /// The next bytes; none at the end. A history that fails meanwhile ends the answer: the client continues from its last id.
    async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            self.query.as_ref()?;
            if self.is_idle {
                tokio::select! {
                    () = self.shutdown.cancelled() => return None,
                    changed = self.written.changed() => changed.ok()?,
                }
            }
            if let Some(chunk) = self.page().await.ok()? {
                return Some(chunk);
            }
        }
    }

    /// The lines of the next page; none if it is empty.
    async fn page(&mut self) -> Result<Option<Bytes>, HistoryError> {
        let Some(query) = self.query.take() else {
            return Ok(None);
        };
        let end = *self.written.borrow_and_update();
        let reader = self.reader.clone();
        let read = tokio::task::spawn_blocking(move || {
            let page = reader.page(&query)?;
            let mut text = Vec::new();
            for entry in &page.entries {
                write_line(entry, &mut text);
            }
            Ok((page, text, query))
        });
        let (page, text, query) = match read.await {
            Ok(read) => read?,
            Err(_) => return Err(HistoryError::Off("reading it panicked (a bug in pleg)".into())),
        };
        self.is_idle = page.next.is_none();
        self.query = self.after(page, *query, end);
        Ok((!text.is_empty()).then(|| text.into()))
    }

    /// What to read after a page. `end`: the id after the newest entry before it was read.
    fn after(&self, page: Page, query: Query, end: u64) -> Option<Box<Query>> {
        if page.next.is_some() || !self.follow {
            return page.next;
        }
        let taken = page.entries.len();
        let limit = query.limit.map(|limit| limit.saturating_sub(taken));
        let last = page.entries.last().map(|entry| entry.id);
        // Everything up to the end was looked at.
        let after = [query.after, last, end.checked_sub(1)].into_iter().flatten().max();
        (limit != Some(0)).then(|| Box::new(Query { after, limit, ..query }))
    }
}

fn write_line(row: &impl Serialize, text: &mut Vec<u8>) {
    let start = text.len();
    match serde_json::to_writer(&mut *text, row) {
        Ok(()) => text.push(b'\n'),
        // Never send half an object.
        Err(_) => text.truncate(start),
    }
}

fn lines(body: Body) -> Response {
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}

fn off() -> Response {
    let message = "this daemon keeps no history: start it without --history-size 0";
    error(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn unavailable(failed: &HistoryError) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, &failed.to_string())
}
