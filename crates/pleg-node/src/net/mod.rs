//! Connections of the node to others: the one HTTP client (`exchange`), GET for probes and hooks, TLS for those and for manifests from a
//! URL. The command line uses [`exchange`](exchange()) too.
//!
//! In: where to connect and what to ask for. Out: an answer or a `NetError`. No state: callers set the timeouts.

pub(crate) mod http_get;
pub(crate) mod redirect;
pub(crate) mod tls;

mod exchange;

use std::io;

pub use exchange::{Connection, Exchange, exchange};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetError {
    /// The pod has no address to connect to.
    #[error("the pod has no IP address")]
    NoAddress,
    /// Nothing accepts the connection.
    #[error("cannot connect to port {port} of {host}")]
    Connect {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// TLS cannot be used at all.
    #[error(transparent)]
    TlsSetup(#[from] tls::TlsSetupError),
    /// The server does not speak TLS, or is not trusted.
    #[error("TLS handshake with {host} failed")]
    Handshake {
        /// A name or an address.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A redirect leads to something that is not HTTP.
    #[error("cannot follow the redirect to {0:?}")]
    BadRedirect(String),
    /// There is no end of redirects.
    #[error("stopped after {0} redirects")]
    TooManyRedirects(usize),
    /// The request is not one that can be sent.
    #[error("invalid HTTP request")]
    Request(#[from] http::Error),
    /// The server does not answer as HTTP servers do.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}
