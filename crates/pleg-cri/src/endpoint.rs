//! Where a runtime listens.
//!
//! The order is crictl's: a flag, the environment, `/etc/crictl.yaml`, the usual sockets.

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

/// The environment variable that crictl and the kubelet's tools read too.
pub const ENVIRONMENT: &str = "CONTAINER_RUNTIME_ENDPOINT";
/// crictl's configuration file.
pub const CRICTL_CONFIG: &str = "/etc/crictl.yaml";
/// Where the runtimes people use put their sockets.
pub const USUAL_SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
];
/// A configuration file larger than this is not one.
const CONFIG_LIMIT: u64 = 64 * 1024;

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

/// What `/etc/crictl.yaml` may say; other keys are crictl's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CrictlConfig {
    /// The runtime's socket.
    pub runtime_endpoint: Option<String>,
    /// The image service's socket, where it differs.
    pub image_endpoint: Option<String>,
    /// Seconds for one call.
    pub timeout: Option<i64>,
}

impl CrictlConfig {
    /// Reads a file; `None` where there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, DiscoverError> {
        let unreadable = |detail: String| DiscoverError::Config {
            path: path.to_owned(),
            detail,
        };
        let text = match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(unreadable(e.to_string())),
            Ok(meta) if meta.len() > CONFIG_LIMIT => {
                return Err(unreadable(format!("the file is too large ({} bytes)", meta.len())));
            }
            Ok(_) => std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?,
        };
        if text.trim().is_empty() {
            return Ok(Some(Self::default()));
        }
        serde_saphyr::from_str(&text)
            .map(Some)
            .map_err(|e| unreadable(e.to_string()))
    }

    /// The time for one call, where the file sets one. crictl reads 0 and less as "the default".
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
            .and_then(|secs| u64::try_from(secs).ok())
            .filter(|&secs| secs > 0)
            .map(Duration::from_secs)
    }
}

/// Why no endpoint was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// A flag, the variable or the file holds something that is no endpoint.
    #[error("{from}: {error}")]
    Invalid {
        /// Where the endpoint was configured.
        from: String,
        /// What is wrong with it.
        #[source]
        error: EndpointError,
    },
    /// The configuration file is there, but of no use.
    #[error("{}: {detail}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// Nothing is configured, and none of the usual sockets exists.
    #[error("no container runtime found: tried ${ENVIRONMENT}, {CRICTL_CONFIG} and {}", looked.join(", "))]
    Nowhere {
        /// The sockets that are not there.
        looked: Vec<String>,
    },
}

/// Where to search when no endpoint is given; the default suits a command on a node.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// The value of `CONTAINER_RUNTIME_ENDPOINT`, if set.
    pub environment: Option<String>,
    /// The configuration file.
    pub config: PathBuf,
    /// Sockets to try, in this order.
    pub sockets: Vec<PathBuf>,
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            environment: std::env::var(ENVIRONMENT).ok(),
            config: CRICTL_CONFIG.into(),
            sockets: USUAL_SOCKETS.iter().map(PathBuf::from).collect(),
        }
    }
}

impl Discovery {
    /// The endpoint, and where it was configured.
    pub fn find(&self) -> Result<(Endpoint, String), DiscoverError> {
        let named = |text: &str, from: String| match Endpoint::parse(text) {
            Ok(endpoint) => Ok((endpoint, from)),
            Err(error) => Err(DiscoverError::Invalid { from, error }),
        };
        if let Some(text) = self.environment.as_deref().filter(|text| !text.is_empty()) {
            return named(text, format!("${ENVIRONMENT}"));
        }
        if let Some(config) = CrictlConfig::read(&self.config)?
            && let Some(text) = config.runtime_endpoint.as_deref().filter(|text| !text.is_empty())
        {
            return named(text, self.config.display().to_string());
        }
        // A socket that is there but closed to us is still the one to name: the error then says so.
        let is_socket = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        match self.sockets.iter().find(is_socket) {
            Some(path) => Ok((Endpoint::unix(path), "found".to_owned())),
            None => Err(DiscoverError::Nowhere {
                looked: self.sockets.iter().map(|s| s.display().to_string()).collect(),
            }),
        }
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

    fn discovery(dir: &Path) -> Discovery {
        Discovery {
            environment: None,
            config: dir.join("crictl.yaml"),
            sockets: vec![dir.join("a.sock"), dir.join("b.sock")],
        }
    }

    #[test]
    fn the_order_is_environment_file_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let mut look = discovery(dir.path());
        assert!(matches!(look.find(), Err(DiscoverError::Nowhere { looked }) if looked.len() == 2));

        // A plain file at a usual place is no socket.
        std::fs::write(dir.path().join("a.sock"), "").unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("b.sock")).unwrap();
        assert_eq!(look.find().unwrap().0, Endpoint::unix(dir.path().join("b.sock")));

        std::fs::write(
            &look.config,
            "runtime-endpoint: unix:///run/from-file.sock\ntimeout: 7\ndebug: true\n",
        )
        .unwrap();
        assert_eq!(look.find().unwrap().0, Endpoint::unix("/run/from-file.sock"));
        let config = CrictlConfig::read(&look.config).unwrap().unwrap();
        assert_eq!(config.timeout(), Some(Duration::from_secs(7)));

        look.environment = Some("unix:///run/from-env.sock".into());
        assert_eq!(
            look.find().unwrap(),
            (
                Endpoint::unix("/run/from-env.sock"),
                "$CONTAINER_RUNTIME_ENDPOINT".into()
            )
        );
        look.environment = Some("tcp://1".into());
        assert!(matches!(look.find(), Err(DiscoverError::Invalid { .. })));
    }

    #[test]
    fn a_bad_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let look = discovery(dir.path());
        std::fs::write(&look.config, "runtime-endpoint: [1").unwrap();
        assert!(look.find().unwrap_err().to_string().contains("crictl.yaml"));
        std::fs::write(&look.config, "# nothing\n").unwrap();
        assert!(matches!(look.find(), Err(DiscoverError::Nowhere { .. })));
    }
}
