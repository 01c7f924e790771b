//! What the node asks over the network: HTTP GET for probes and hooks, TLS for those and for manifests from a URL.

pub(crate) mod http_get;
pub(crate) mod tls;
