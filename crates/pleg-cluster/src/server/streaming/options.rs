//! The options of a session, as an API server writes them for a kubelet.

use crate::server::query::{Query, QueryError};

/// Which streams a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a flag of the request")]
pub(super) struct Streams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// Why a session is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum OptionsError {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStream,
    #[error("no command: the query parameter \"command\" is required")]
    NoCommand,
    #[error("query parameter \"port\": {0:?} is not a port")]
    Port(String),
}

impl Streams {
    pub(super) fn of(query: &Query) -> Result<Self, OptionsError> {
        let is_set = |name| query.get(name) == Some("1");
        let tty = is_set("tty");
        let streams = Self {
            stdin: is_set("input"),
            stdout: is_set("output"),
            // A terminal has one output.
            stderr: is_set("error") && !tty,
            tty,
        };
        if !(streams.stdin || streams.stdout || streams.stderr) {
            return Err(OptionsError::NoStream);
        }
        Ok(streams)
    }
}

/// The command of `exec`.
pub(super) fn command(query: &Query) -> Result<Vec<String>, OptionsError> {
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(OptionsError::NoCommand);
    }
    Ok(command)
}

/// The ports of `port-forward` by WebSocket; by SPDY, each stream names its port.
pub(super) fn ports(query: &Query) -> Result<Vec<i32>, OptionsError> {
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(i32::from(port)),
        _ => Err(OptionsError::Port(text.chars().take(32).collect())),
    };
    query.all("port").flat_map(|ports| ports.split(',')).map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(Some(text)).unwrap()
    }

    #[test]
    fn options_are_those_of_an_api_server() {
        let streams = |text: &str| Streams::of(&query(text)).map(|it| (it.stdin, it.stdout, it.stderr, it.tty));
        assert_eq!(streams("input=1&output=1&tty=1&error=1"), Ok((true, true, false, true)));
        assert_eq!(streams("error=1"), Ok((false, false, true, false)));
        assert_eq!(streams("output=true"), Err(OptionsError::NoStream));
        assert_eq!(
            command(&query("command=sh&command=-c&command=echo+a%26b")).unwrap(),
            ["sh", "-c", "echo a&b"]
        );
        assert_eq!(command(&query("output=1")), Err(OptionsError::NoCommand));
        assert_eq!(ports(&query("port=80,81&port=82")).unwrap(), [80, 81, 82]);
        assert_eq!(ports(&query("")).unwrap(), [] as [i32; 0]);
        for bad in ["port=0", "port=65536", "port=-1", "port=http"] {
            assert!(ports(&query(bad)).is_err(), "{bad}");
        }
    }
}
