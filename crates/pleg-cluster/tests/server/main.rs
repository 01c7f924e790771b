//! The node's server over real TLS, on a simulated runtime and with an API server that only reviews.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod access;
mod fake_api;
mod logs;
mod node;
mod pki;
mod pods;
mod sessions;
mod stats;
