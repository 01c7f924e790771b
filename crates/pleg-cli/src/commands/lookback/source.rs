//! Where a history is read: from a daemon, or from the file without one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use jiff::Timestamp;
use pleg_cri::duration::seconds;
use pleg_history::{Entry, HistoryPod, HistoryReader, Hour, Order, PodMatch, Query};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::Usage;
use crate::args::{Global, HistorySource, Observe, default_history_file};
use crate::connect::{self, tell};
use crate::http::client::{Daemon, Lines, Refused};

/// Deadline for the next line of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A history.
#[derive(Debug)]
pub(super) enum Source {
    Daemon { daemon: Daemon, patience: Duration },
    File { reader: HistoryReader, path: PathBuf },
}

/// An entry, as it was sent and as far as it is understood.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) text: String,
    /// None if it is of a type that only a newer version knows.
    pub(super) entry: Option<Entry>,
}

impl Line {
    fn read(text: String) -> Self {
        let entry = serde_json::from_str(&text).ok();
        Self { text, entry }
    }
}

/// Which entries, and the label selector as it was typed.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) query: Query,
    pub(super) selector: Option<String>,
}

impl From<Query> for Wanted {
    fn from(query: Query) -> Self {
        Self { query, selector: None }
    }
}

impl Source {
    /// The daemon or file that the flags name; else a daemon at the default address; else its file.
    pub(super) async fn find(global: &Global, args: &HistorySource) -> anyhow::Result<Self> {
        if global.runtime_endpoint.is_some() {
            let words = "--runtime-endpoint cannot be used here: a runtime keeps no history. Name a daemon with --daemon, or its file \
                         with --history-file";
            return Err(Usage(words.to_owned()).into());
        }
        if let Some(path) = &args.history_file {
            return Self::open(path).await;
        }
        let observe = Observe {
            daemon: args.daemon.clone(),
        };
        if let Some(daemon) = connect::daemon_only(global, &observe).await? {
            let patience = global.timeout.unwrap_or(PATIENCE);
            return Ok(Self::Daemon { daemon, patience });
        }
        let of_environment = std::env::var_os("PLEG_HISTORY_FILE").filter(|path| !path.is_empty());
        let path = of_environment.map(PathBuf::from).or_else(default_history_file);
        match path.filter(|path| path.exists()) {
            Some(path) => {
                tell(&format!("no daemon runs; reading {}", path.display()));
                Self::open(&path).await
            }
            None => anyhow::bail!(
                "no daemon runs, and there is no history to read. Start one with: pleg run; or name its file with --history-file"
            ),
        }
    }

    async fn open(path: &Path) -> anyhow::Result<Self> {
        let path = path.to_owned();
        let opened = path.clone();
        let reader = tokio::task::spawn_blocking(move || HistoryReader::open(&opened)).await?;
        let reader = reader.context("cannot read the history")?;
        Ok(Self::File { reader, path })
    }

    /// A daemon answers, so what has not ended goes on.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Daemon { .. })
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Daemon { daemon, .. } => format!("the history of the daemon at {}", daemon.address()),
            Self::File { path, .. } => format!("the history in {}", path.display()),
        }
    }

    /// Reads the entries of a query one after another. From a file they are made into JSON only if `as_json` asks for it.
    pub(super) async fn read(&self, wanted: &Wanted, as_json: bool) -> anyhow::Result<Reading> {
        let query = wanted.query.clone();
        Ok(match self {
            Self::Daemon { daemon, patience } => {
                let lines = daemon.lines("/api/v1/history", &parameters(wanted)).await;
                Reading::Daemon {
                    lines: lines.map_err(refused)?,
                    patience: *patience,
                    name: self.name(),
                }
            }
            Self::File { reader, .. } => Reading::File {
                reader: reader.clone(),
                page: Vec::new().into_iter(),
                next: Some(Box::new(query)),
                as_json,
            },
        })
    }

    /// All entries of a query that this version understands, the oldest first; whoever asks gives it a limit.
    pub(super) async fn entries(&self, query: Query) -> anyhow::Result<Vec<Entry>> {
        let newest_first = query.order == Order::NewestFirst;
        let mut reading = self.read(&query.into(), false).await?;
        let mut entries = Vec::new();
        while let Some(line) = reading.next().await? {
            entries.extend(line.entry);
        }
        if newest_first {
            entries.reverse();
        }
        Ok(entries)
    }

    /// The time of the oldest entry; none if there is none.
    pub(super) async fn held_since(&self) -> anyhow::Result<Option<Timestamp>> {
        let oldest = Query {
            limit: Some(1),
            ..Query::default()
        };
        Ok(self.entries(oldest).await?.first().map(Entry::time))
    }

    /// The sums of the hours from `since` to `until`.
    pub(super) async fn hours(&self, since: Timestamp, until: Timestamp) -> anyhow::Result<Vec<Hour>> {
        match self {
            Self::Daemon { .. } => {
                let query = [("since", since.to_string()), ("until", until.to_string())];
                self.objects("/api/v1/history/hours", &query).await
            }
            Self::File { reader, .. } => {
                let reader = reader.clone();
                Ok(tokio::task::spawn_blocking(move || reader.hours(Some(since), Some(until))).await??)
            }
        }
    }

    /// The pods that the history knows: those that the query's pod and namespace choose.
    pub(super) async fn pods(&self, query: Query) -> anyhow::Result<Vec<HistoryPod>> {
        match self {
            Self::Daemon { .. } => self.objects("/api/v1/history/pods", &parameters(&query.into())).await,
            Self::File { reader, .. } => {
                let reader = reader.clone();
                Ok(tokio::task::spawn_blocking(move || reader.pods(&query)).await??)
            }
        }
    }

    /// One object a line.
    async fn objects<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Vec<T>> {
        let Self::Daemon { daemon, .. } = self else {
            return Ok(Vec::new());
        };
        let text = daemon.query_text(path, query).await;
        let text = text.map_err(refused)?;
        let objects: Result<_, _> = text.lines().map(serde_json::from_str).collect();
        objects.with_context(|| format!("the daemon at {} has another version: {path}", daemon.address()))
    }
}

/// Why a daemon does not answer about its history, and what to do.
fn refused(error: anyhow::Error) -> anyhow::Error {
    let status = error.downcast_ref::<Refused>().map(|refused| refused.status);
    match status {
        Some(StatusCode::SERVICE_UNAVAILABLE) => {
            error.context("there is no history; see --history-size of pleg run and pleg node")
        }
        Some(StatusCode::NOT_FOUND) => error.context("the daemon is of a version that keeps no history"),
        _ => error,
    }
}

/// Entries, one after another.
#[derive(Debug)]
pub(super) enum Reading {
    Daemon {
        lines: Lines,
        patience: Duration,
        name: String,
    },
    File {
        reader: HistoryReader,
        page: std::vec::IntoIter<Entry>,
        next: Option<Box<Query>>,
        as_json: bool,
    },
}

impl Reading {
    /// Lines of a daemon that are followed.
    pub(super) fn of(lines: Lines, source: &Source) -> Self {
        Self::Daemon {
            lines,
            patience: PATIENCE,
            name: source.name(),
        }
    }

    /// The next entry; none at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Line>> {
        match self {
            Self::Daemon { lines, patience, name } => {
                let line = timeout(*patience, lines.next()).await;
                let late = || format!("no further answer from {name} within {}", seconds(*patience));
                let line = line.map_err(|_| anyhow::anyhow!(late()))??;
                Ok(line.map(Line::read))
            }
            Self::File {
                reader,
                page,
                next,
                as_json,
            } => loop {
                if let Some(entry) = page.next() {
                    let text = if *as_json {
                        serde_json::to_string(&entry)?
                    } else {
                        String::new()
                    };
                    return Ok(Some(Line {
                        text,
                        entry: Some(entry),
                    }));
                }
                let Some(query) = next.take() else {
                    return Ok(None);
                };
                let reader = reader.clone();
                let read = tokio::task::spawn_blocking(move || reader.page(&query)).await??;
                *page = read.entries.into_iter();
                *next = read.next;
            },
        }
    }

    /// The same for what is followed, which may be silent for long.
    pub(super) async fn next_of_stream(&mut self) -> anyhow::Result<Option<Line>> {
        match self {
            Self::Daemon { lines, .. } => Ok(lines.next().await?.map(Line::read)),
            Self::File { .. } => self.next().await,
        }
    }
}

/// A query, as the API takes it.
pub(super) fn parameters(wanted: &Wanted) -> Vec<(&'static str, String)> {
    let query = &wanted.query;
    let mut fields = Vec::new();
    match &query.pod {
        Some(PodMatch::Uid(uid)) => fields.push(("uid", uid.to_string())),
        Some(PodMatch::Name { namespace, name }) => fields.push(("pod", qualified(namespace.as_deref(), name, ""))),
        Some(PodMatch::Prefix { namespace, prefix }) => {
            fields.push(("pod", qualified(namespace.as_deref(), prefix, "*")));
        }
        None => {}
    }
    let join = |words: Vec<&str>| words.join(",");
    fields.extend(query.namespace.clone().map(|namespace| ("namespace", namespace)));
    fields.extend(wanted.selector.clone().map(|selector| ("labels", selector)));
    fields.extend(query.container.clone().map(|container| ("container", container)));
    fields.extend(query.since.map(|since| ("since", since.to_string())));
    fields.extend(query.until.map(|until| ("until", until.to_string())));
    if !query.types.is_empty() {
        fields.push(("type", join(query.types.iter().map(|kind| kind.name()).collect())));
    }
    if !query.reasons.is_empty() {
        fields.push(("reason", join(query.reasons.iter().map(String::as_str).collect())));
    }
    fields.extend(query.after.map(|after| ("after", after.to_string())));
    fields.extend(query.before.map(|before| ("before", before.to_string())));
    fields.extend(query.limit.map(|limit| ("limit", limit.to_string())));
    if query.order == Order::NewestFirst {
        fields.push(("order", "newest".to_owned()));
    }
    fields
}

fn qualified(namespace: Option<&str>, name: &str, end: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}{end}"),
        None => format!("{name}{end}"),
    }
}

#[cfg(test)]
mod tests {
    use pleg::EventType;
    use pleg_history::EntryType;

    use super::*;

    #[test]
    fn a_query_has_the_names_of_the_api() {
        let wanted = Wanted {
            query: Query {
                pod: Some(PodMatch::parse("default/web*")),
                namespace: Some("default".to_owned()),
                container: Some("app".to_owned()),
                since: "2026-11-16T18:00:00Z".parse().ok(),
                types: vec![EntryType::Event(EventType::ContainerDied), EntryType::Gap],
                reasons: vec!["OOMKilled".to_owned(), "hung-shim".to_owned()],
                after: Some(7),
                limit: Some(3),
                order: Order::NewestFirst,
                ..Query::default()
            },
            selector: Some("app=web,!canary".to_owned()),
        };
        let fields: Vec<String> = parameters(&wanted)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            fields.join("&"),
            "pod=default/web*&namespace=default&labels=app=web,!canary&container=app&since=2026-11-16T18:00:00Z\
             &type=ContainerDied,Gap&reason=OOMKilled,hung-shim&after=7&limit=3&order=newest"
        );
        assert!(parameters(&Wanted::default()).is_empty());
    }

    /// A newer daemon may have types that are not known yet.
    #[test]
    fn an_unknown_entry_is_kept_as_it_came() {
        let line = Line::read(
            r#"{"id":1,"time":"2026-11-16T18:00:00Z","instance":"5f0c2a9be1d34c77","type":"News"}"#.to_owned(),
        );
        assert!(line.entry.is_none() && line.text.contains("News"));
    }
}
