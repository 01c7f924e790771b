//! How a call ended, as gRPC, HTTP and the connection say it.

use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode;

use crate::ErrorKind;
use crate::error::clip;

const NOT_FOUND: u32 = 5;
const UNIMPLEMENTED: u32 = 12;

/// The names of the codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a code; that of UNKNOWN for a number that gRPC does not define.
pub(crate) fn code_name(code: u32) -> &'static str {
    let index = usize::try_from(code).unwrap_or(usize::MAX);
    CODES.get(index).copied().unwrap_or("UNKNOWN")
}

/// The status a runtime ends an answer with. Its details are not read.
#[derive(Debug)]
pub(super) struct Status {
    code: u32,
    message: String,
}

impl Status {
    /// The status in headers or trailers.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?;
        // A code that is no number is an error of unknown kind.
        let code = code.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(2);
        let message = headers.get("grpc-message").map_or_else(String::new, |message| {
            percent_decode(message.as_bytes()).decode_utf8_lossy().into_owned()
        });
        Some(Self { code, message })
    }

    /// The error that this status is, if it is one.
    pub(super) fn check(&self) -> Result<(), ErrorKind> {
        let message = clip(&self.message);
        Err(match self.code {
            0 => return Ok(()),
            NOT_FOUND => ErrorKind::NotFound(message),
            UNIMPLEMENTED => ErrorKind::Unimplemented,
            code => ErrorKind::Status {
                code: code_name(code),
                message,
            },
        })
    }
}

/// What an HTTP status without a gRPC status means, by gRPC's own table ("HTTP to gRPC Status Code Mapping"): 404 is a server
/// without this service, 503 one that is not up yet.
pub(super) fn from_http(status: StatusCode) -> ErrorKind {
    let code = match status {
        StatusCode::BAD_REQUEST => "INTERNAL",
        StatusCode::UNAUTHORIZED => "UNAUTHENTICATED",
        StatusCode::FORBIDDEN => "PERMISSION_DENIED",
        StatusCode::NOT_FOUND => return ErrorKind::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => "UNAVAILABLE",
        _ => "UNKNOWN",
    };
    ErrorKind::Status {
        code,
        message: format!("HTTP status {status}"),
    }
}

/// A failure below the answer. A call that the runtime resets fails by itself; a runtime that stops also ends its calls with `CANCEL`
/// or `REFUSED_STREAM`, so those mean that it is away, as does every failure of the connection.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn transport_error(error: h2::Error) -> ErrorKind {
    let message = clip(&error.to_string());
    match error.reason().filter(|_| error.is_reset() && error.is_remote()) {
        None | Some(h2::Reason::NO_ERROR | h2::Reason::CANCEL | h2::Reason::REFUSED_STREAM) => {
            ErrorKind::Unreachable(message)
        }
        Some(h2::Reason::ENHANCE_YOUR_CALM) => ErrorKind::Status {
            code: "RESOURCE_EXHAUSTED",
            message,
        },
        Some(_) => ErrorKind::Status {
            code: "INTERNAL",
            message,
        },
    }
}
