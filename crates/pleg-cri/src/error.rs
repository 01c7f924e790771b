//! What can go wrong between us and a runtime.

use std::time::Duration;

use crate::duration::seconds;
use crate::{Endpoint, Rpc, Subject};

/// A call that did not succeed: which one, about what, where, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{rpc}{} on {endpoint}: {kind}", .subject.of())]
pub struct Error {
    /// The call.
    pub rpc: Rpc,
    /// What it was about.
    pub subject: Subject,
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// Why it failed.
    pub kind: ErrorKind,
}

/// Why a call failed. Classified by our own clock first: runtimes report one and the same hang under several codes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// No answer within the deadline. Retry later; the call may still take effect in the runtime.
    #[error("no answer within {}", seconds(*.0))]
    Deadline(Duration),
    /// The object does not exist (any more). Retrying does not help.
    #[error("not found: {0}")]
    NotFound(String),
    /// The runtime does not have this call. Retrying does not help until it is upgraded.
    #[error("not implemented by the runtime")]
    Unimplemented,
    /// The connection is gone or cannot be made. Retry with back-off.
    #[error("runtime unreachable: {0}")]
    Unreachable(String),
    /// The answer is larger than we accept. Retrying does not help.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit that was passed.
        limit: usize,
    },
    /// The answer cannot be decoded. Retrying rarely helps.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// Any other answer of the runtime. Retry with back-off.
    #[error("{code}: {message}")]
    Status {
        /// The gRPC code, as its name.
        code: &'static str,
        /// The runtime's own words, cut to a sane length.
        message: String,
    },
}

impl ErrorKind {
    /// The object is gone; everything else says nothing about the object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// The deadline passed.
    pub fn is_deadline(&self) -> bool {
        matches!(self, Self::Deadline(_))
    }

    /// The runtime itself cannot be reached, or says that it is not up (yet, or any more).
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::Status {
                    code: "UNAVAILABLE",
                    ..
                }
        )
    }

    /// A short name with few values, fit for a metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Deadline(_) => "deadline",
            Self::NotFound(_) => "not_found",
            Self::Unimplemented => "unimplemented",
            Self::Unreachable(_)
            | Self::Status {
                code: "UNAVAILABLE", ..
            } => "unreachable",
            Self::TooLarge { .. } => "too_large",
            Self::Malformed(_) => "malformed",
            Self::Status { .. } => "status",
        }
    }
}

/// Why no runtime could be reached at all: one line that names the endpoint, the cause and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// There is no such file.
    #[error(
        "no runtime at {0}: the socket does not exist. Is the runtime running? Name another socket with --runtime-endpoint"
    )]
    Absent(Endpoint),
    /// We may not open it.
    #[error("no access to {0}: permission denied. Run as root, or as a member of the group that owns the socket")]
    NoPermission(Endpoint),
    /// The path is something else.
    #[error("{0} is not a socket. Name the runtime's socket with --runtime-endpoint")]
    NotASocket(Endpoint),
    /// A socket without a listener.
    #[error("no process listens on {0}: the socket was left behind by a stopped runtime. Start the runtime")]
    Refused(Endpoint),
    /// The listener does not speak gRPC.
    #[error("{endpoint} does not speak gRPC ({detail}). Is it the runtime's CRI socket?")]
    NotGrpc {
        /// The socket.
        endpoint: Endpoint,
        /// What the connection said.
        detail: String,
    },
    /// gRPC, but no CRI.
    #[error(
        "{0} speaks gRPC but serves neither CRI v1 nor v1alpha2. Is the CRI plugin disabled (disabled_plugins in containerd's config), or is this the socket of another service?"
    )]
    NotCri(Endpoint),
    /// Accepted, and then silence.
    #[error("{endpoint} accepted the connection but did not answer Version within {}. The runtime may be stuck", seconds(*.after))]
    Silent {
        /// The socket.
        endpoint: Endpoint,
        /// How long we waited.
        after: Duration,
    },
    /// Anything else.
    #[error("cannot talk to {endpoint}: {detail}")]
    Other {
        /// The socket.
        endpoint: Endpoint,
        /// The cause.
        detail: String,
    },
}

/// Foreign text in a message: between quotation marks, with control characters escaped, so that it cannot move a terminal's cursor.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if c.is_control() || matches!(c, '"' | '\\') {
            quoted.extend(c.escape_default());
        } else {
            quoted.push(c);
        }
    }
    quoted.push('"');
    quoted
}

/// Limit for texts of the runtime, which may have any length.
pub(crate) fn clip(message: &str) -> String {
    const MOST: usize = 512;
    match message.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &message[..at]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_texts_stay_where_they_are() {
        assert_eq!(quoted("unix:///run/ü.sock"), "\"unix:///run/ü.sock\"");
        assert_eq!(quoted("it's a \"b\"\\\n\u{1b}"), "\"it's a \\\"b\\\"\\\\\\n\\u{1b}\"");
    }

    #[test]
    fn an_error_names_call_object_and_endpoint() {
        let error = Error {
            rpc: Rpc::ContainerStatus,
            subject: Subject::container("default/web", "app", "c0ffee"),
            endpoint: Endpoint::unix("/run/x.sock"),
            kind: ErrorKind::Deadline(Duration::from_secs(10)),
        };
        assert_eq!(
            error.to_string(),
            "ContainerStatus of container app (c0ffee) in pod default/web on unix:///run/x.sock: no answer within 10s"
        );
    }

    /// "Does not speak gRPC", said of a runtime that is starting, would send people the wrong way.
    #[test]
    fn a_runtime_that_is_starting_speaks_for_itself() {
        let kind = ErrorKind::Status {
            code: "UNAVAILABLE",
            message: "server is not initialized yet".to_owned(),
        };
        assert_eq!(kind.to_string(), "UNAVAILABLE: server is not initialized yet");
        assert!(kind.is_unreachable());
        assert_eq!(kind.label(), "unreachable");
    }

    #[test]
    fn a_long_message_is_cut() {
        assert!(clip(&"é".repeat(10_000)).len() < 1200);
    }
}
