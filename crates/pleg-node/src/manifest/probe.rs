//! Probes and lifecycle hooks of a container.

use std::time::Duration;

/// A probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What it does.
    pub handler: ProbeHandler,
    /// Delay of the first probe after the start of the container.
    pub initial_delay: Duration,
    /// How often it is run.
    pub period: Duration,
    /// Its timeout.
    pub timeout: Duration,
    /// How many successes in a row make it succeed.
    pub success_threshold: u32,
    /// How many failures in a row make it fail.
    pub failure_threshold: u32,
    /// The grace period of a container that is killed because it failed; the pod's if none.
    pub termination_grace: Option<Duration>,
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeHandler {
    /// Runs a command in the container; exit code 0 is a success.
    Exec(Vec<String>),
    /// Sends an HTTP GET request; 200 to 399 is a success.
    Http(HttpGet),
    /// Opens a TCP connection.
    Tcp {
        /// The host; the pod's address if none.
        host: Option<String>,
        /// The port, on the host or the pod.
        port: u16,
    },
    /// Sends a gRPC health check.
    Grpc {
        /// The port, on the pod.
        port: u16,
        /// The service to check; empty for the server as a whole.
        service: String,
    },
}

/// An HTTP GET request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// Over TLS, without verifying the certificate.
    pub tls: bool,
    /// The host; the pod's address if none.
    pub host: Option<String>,
    /// The port.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// Headers to send, in order.
    pub headers: Vec<(String, String)>,
}

/// A lifecycle hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// Runs a command in the container.
    Exec(Vec<String>),
    /// Sends an HTTP GET request; any response is a success.
    Http(HttpGet),
    /// Waits.
    Sleep(Duration),
}

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Until it succeeds the other probes wait; if it fails the container is killed.
    Startup,
    /// If it fails the container is killed.
    Liveness,
    /// While it fails the container is not ready.
    Readiness,
}

impl ProbeKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// The name in lower case, for messages and labels of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        }
    }
}
