//! The address of a runtime: a unix socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A unix socket of a runtime. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    path: Arc<Path>,
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a unix socket.
    #[error("{}: only unix sockets are supported; use unix:///path/to/socket", crate::error::quoted(.0))]
    Scheme(String),
    /// Nothing after the scheme, or not from the root.
    #[error("{}: the socket path must be absolute, as in unix:///run/containerd/containerd.sock", crate::error::quoted(.0))]
    Relative(String),
    /// The kernel takes no longer ones.
    #[error("{}: the socket path is longer than 107 bytes", crate::error::quoted(.0))]
    TooLong(String),
}

impl Endpoint {
    /// The socket at an absolute path.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into().into(),
        }
    }

    /// Reads `unix:///path`, `unix:/path` or a bare absolute path.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => return Err(EndpointError::Scheme(text.to_owned())),
            _ => text,
        };
        if !path.starts_with('/') {
            return Err(EndpointError::Relative(text.to_owned()));
        }
        if path.len() > 107 {
            return Err(EndpointError::TooLong(text.to_owned()));
        }
        Ok(Self::unix(path))
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_crictl_reads_them() {
        for (text, path) in [
            (
                "unix:///run/containerd/containerd.sock",
                Some("/run/containerd/containerd.sock"),
            ),
            ("unix:/run/a.sock", Some("/run/a.sock")),
            ("/run/a.sock", Some("/run/a.sock")),
            ("/run/with:colon.sock", Some("/run/with:colon.sock")),
            ("run/a.sock", None),
            ("unix://run/a.sock", None),
            ("tcp://127.0.0.1:1", None),
            ("npipe:////./pipe/x", None),
            ("", None),
        ] {
            assert_eq!(
                Endpoint::parse(text).ok().map(|e| e.path().to_owned()),
                path.map(PathBuf::from),
                "{text:?}"
            );
        }
        assert!(Endpoint::parse(&format!("/{}", "x".repeat(107))).is_err());
    }
}
