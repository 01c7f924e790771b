//! gRPC codes by the names people write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tonic::Code;

/// A gRPC code, read and written as `UNAVAILABLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GrpcCode(pub Code);

const NAMES: [(&str, Code); 16] = [
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

/// The text is not a gRPC code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is not a gRPC code; expected one of CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, \
         ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, \
         UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED",
    pleg_cri::error::quoted(.0)
)]
pub struct BadCode(String);

impl FromStr for GrpcCode {
    type Err = BadCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.to_ascii_uppercase().replace('-', "_");
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found
            .map(|&(_, code)| Self(code))
            .ok_or_else(|| BadCode(text.chars().take(40).collect()))
    }
}

impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(_, code)| *code == self.0);
        f.write_str(found.map_or("OK", |(name, _)| name))
    }
}

impl TryFrom<String> for GrpcCode {
    type Error = BadCode;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<GrpcCode> for String {
    fn from(code: GrpcCode) -> Self {
        code.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, code) in NAMES {
            assert_eq!(name.parse::<GrpcCode>(), Ok(GrpcCode(code)));
            assert_eq!(GrpcCode(code).to_string(), name);
        }
        assert_eq!("not-found".parse::<GrpcCode>(), Ok(GrpcCode(Code::NotFound)));
        assert!("OK".parse::<GrpcCode>().is_err());
    }
}
