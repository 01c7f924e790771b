//! The options of a request for a log: those of `PodLogOptions`.

use jiff::{SignedDuration, Timestamp};

use super::line::{Format, LogStream};
use super::read::ReadOptions;
use crate::server::query::{Query, QueryError};

/// Which log, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// The log of the attempt before this one.
    pub(crate) previous: bool,
    /// What to read of it.
    pub(crate) read: ReadOptions,
}

/// Why a request for a log is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogOptionsError {
    /// It cannot be read.
    #[error("{0}")]
    Query(QueryError),
    /// It contradicts itself, or a value is out of range.
    #[error("{0}")]
    Invalid(&'static str),
}

impl LogOptions {
    pub(crate) fn parse(query: Option<&str>, now: Timestamp) -> Result<Self, LogOptionsError> {
        let query = Query::parse(query).map_err(LogOptionsError::Query)?;
        let number = |name| query.number(name).map_err(LogOptionsError::Query);
        let invalid = |what| Err(LogOptionsError::Invalid(what));
        let tail_lines = match (query.get("tail"), number("tailLines")?) {
            // Older clients use `tail`.
            (Some("all"), _) => None,
            (Some(_), _) => number("tail")?,
            (None, lines) => lines,
        };
        let Ok(tail_lines) = tail_lines.map(u64::try_from).transpose() else {
            return invalid("tailLines: must be greater than or equal to 0");
        };
        let limit_bytes = match number("limitBytes")?.map(u64::try_from) {
            None => None,
            Some(Ok(bytes)) if bytes > 0 => Some(bytes),
            Some(_) => return invalid("limitBytes: must be greater than 0"),
        };
        let since_time = query
            .value("sinceTime", "a time of RFC 3339")
            .map_err(LogOptionsError::Query)?;
        let since = match (number("sinceSeconds")?, since_time) {
            (Some(_), Some(_)) => return invalid("at most one of `sinceTime` or `sinceSeconds` may be specified"),
            (Some(seconds), None) if seconds < 1 => return invalid("sinceSeconds: must be greater than 0"),
            // Before all times there are means everything.
            (Some(seconds), None) => now.checked_sub(SignedDuration::from_secs(seconds)).ok(),
            (None, time) => time,
        };
        let stream = match query.get("stream") {
            None | Some("All") => None,
            Some("Stdout") => Some(LogStream::Stdout),
            Some("Stderr") => Some(LogStream::Stderr),
            Some(_) => return invalid("stream: supported values: \"All\", \"Stdout\", \"Stderr\""),
        };
        if stream.is_some() && tail_lines.is_some() {
            return invalid("`tailLines` and specific `stream` are mutually exclusive for now");
        }
        Ok(Self {
            previous: query.flag("previous"),
            read: ReadOptions {
                format: Format {
                    since,
                    timestamps: query.flag("timestamps"),
                    stream,
                    limit_bytes,
                },
                tail_lines,
                follow: query.flag("follow"),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<LogOptions, LogOptionsError> {
        LogOptions::parse(Some(query), "2026-11-18T00:01:00Z".parse().unwrap())
    }

    #[test]
    fn options_are_those_of_the_kubernetes_api() {
        let defaults = LogOptions::parse(None, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((defaults.previous, defaults.read), (false, ReadOptions::default()));
        let all =
            parse("follow=true&previous&timestamps=1&tailLines=5&limitBytes=9&sinceSeconds=30&stream=All").unwrap();
        assert!(all.previous && all.read.follow && all.read.format.timestamps);
        assert_eq!((all.read.tail_lines, all.read.format.limit_bytes), (Some(5), Some(9)));
        let half = "2026-11-18T00:00:30Z".parse().ok();
        assert_eq!(all.read.format.since, half);
        assert_eq!(
            parse("sinceTime=2026-11-18T01%3A00%3A30%2B01%3A00")
                .unwrap()
                .read
                .format
                .since,
            half
        );
        assert_eq!(
            parse("sinceSeconds=9223372036854775807").unwrap().read.format.since,
            None
        );
        assert_eq!(parse("tail=all&tailLines=3").unwrap().read.tail_lines, None);
        assert_eq!(parse("tail=2&tailLines=3").unwrap().read.tail_lines, Some(2));
        assert_eq!(
            parse("stream=Stderr").unwrap().read.format.stream,
            Some(LogStream::Stderr)
        );
    }

    #[test]
    fn bad_options_are_refused() {
        for (query, message) in [
            ("tailLines=-1", "tailLines: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: must be greater than 0"),
            (
                "sinceSeconds=1&sinceTime=2026-11-18T00:00:00Z",
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            (
                "stream=stdout",
                "stream: supported values: \"All\", \"Stdout\", \"Stderr\"",
            ),
            (
                "stream=Stdout&tailLines=1",
                "`tailLines` and specific `stream` are mutually exclusive for now",
            ),
            ("tailLines=x", "tailLines: \"x\" is not a number"),
            ("sinceTime=now", "sinceTime: \"now\" is not a time of RFC 3339"),
        ] {
            assert_eq!(parse(query).unwrap_err().to_string(), message, "{query}");
        }
    }
}
