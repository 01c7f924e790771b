//! Addresses of a daemon: where to reach it, and where it listens on TCP.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use http::uri::Authority;
use pleg_cri::Endpoint;
use pleg_cri::error::quoted;

/// The environment variable with the daemon's address.
pub(crate) const DAEMON_VARIABLE: &str = "PLEG_DAEMON";

/// The address of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DaemonAddress {
    /// Its unix socket.
    Unix(Endpoint),
    /// `HOST:PORT` of its `--listen-tcp`.
    Tcp(Authority),
}

impl DaemonAddress {
    /// Parses `unix:///path`, a bare absolute path, or `http://HOST:PORT`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("http://") {
            let wrong = || format!("{}: expected http://HOST:PORT without a path", quoted(text));
            let authority: Authority = rest.trim_end_matches('/').parse().map_err(|_| wrong())?;
            if authority.port_u16().is_none() || authority.as_str().contains('@') {
                return Err(wrong());
            }
            return Ok(Self::Tcp(authority));
        }
        match Endpoint::parse(text) {
            Ok(endpoint) => Ok(Self::Unix(endpoint)),
            Err(pleg_cri::endpoint::EndpointError::Scheme(_)) => Err(format!(
                "{}: expected unix:///path/to/socket, or http://HOST:PORT if the daemon has --listen-tcp",
                quoted(text)
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The address in `$PLEG_DAEMON`, if it is set.
    pub(crate) fn from_environment() -> Result<Option<Self>, crate::Usage> {
        match std::env::var(DAEMON_VARIABLE) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => match Self::parse(&text) {
                Ok(address) => Ok(Some(address)),
                Err(error) => Err(crate::Usage(format!("${DAEMON_VARIABLE}: {error}"))),
            },
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(crate::Usage(format!("${DAEMON_VARIABLE}: {error}"))),
        }
    }
}

impl From<Endpoint> for DaemonAddress {
    fn from(endpoint: Endpoint) -> Self {
        Self::Unix(endpoint)
    }
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(endpoint) => endpoint.fmt(f),
            Self::Tcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

/// Parses `IP:PORT` or `localhost:PORT`. Other names are refused: they may resolve to a public address later.
pub(crate) fn parse_listen_tcp(text: &str) -> Result<SocketAddr, String> {
    let localhost = || {
        let port = text.strip_prefix("localhost:")?.parse().ok()?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    text.parse()
        .ok()
        .or_else(localhost)
        .ok_or_else(|| "an address and a port, as in 127.0.0.1:10255, [::1]:10255 or localhost:10255".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_daemons() {
        for (text, shown) in [
            ("unix:///run/pleg/pleg.sock", "unix:///run/pleg/pleg.sock"),
            ("/run/pleg/pleg.sock", "unix:///run/pleg/pleg.sock"),
            ("http://127.0.0.1:10255", "http://127.0.0.1:10255"),
            ("http://node-7:10255/", "http://node-7:10255"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(DaemonAddress::parse(text).unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "pleg.sock",
            "127.0.0.1:80",
            "https://127.0.0.1:80",
            "http://127.0.0.1",
            "http://:80x",
            "http://me@127.0.0.1:80",
            "http://127.0.0.1:80/metrics",
        ] {
            assert!(DaemonAddress::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_to_listen_on() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:10255", "127.0.0.1:10255"),
        ] {
            assert_eq!(parse_listen_tcp(text).unwrap().to_string(), address);
        }
        for bad in [
            "localhost",
            "localhost:",
            "localhost:70000",
            "node-7:80",
            "127.0.0.1",
            ":80",
        ] {
            assert!(parse_listen_tcp(bad).is_err(), "{bad}");
        }
    }
}
