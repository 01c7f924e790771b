//! The Kubernetes Container Runtime Interface, as a client that never waits without saying for what.
//!
//! Holds the CRI v1 messages ([`v1`]), the client ([`Client`]), endpoint discovery ([`Endpoint`]), a deadline for every call
//! ([`Deadlines`]) and the table of calls in flight ([`InFlight`]). It must not hold Kubernetes policy: what a state means for a
//! pod is `pleg`'s business.
//!
//! | module | job |
//! |---|---|
//! | [`rpc`] | the calls: wire names, request and response types, deadline classes |
//! | [`endpoint`] | the address of a runtime: a unix socket |
//! | `discovery` | finds that socket as crictl does (feature `discovery`) |
//! | [`client`] | one place through which every call goes: deadline, in-flight entry, error with names |
//! | `grpc` | the connection, requests on it, answers message by message |
//! | [`socket`] | the unix stream below it, with an aligned read buffer |
//! | [`inflight`] | which call, for which pod and container, since when |
//! | [`list`] | the two lists, read frame by frame without building messages |
//! | [`events`] | events of the runtime: complete, or only their identifying part |
//! | `drain` | answers received and dropped, for probes and for benchmarks to divide by |
//! | [`error`] | what can go wrong, and whether to try again |
//! | [`duration`] | durations as messages show them |

pub mod client;
#[cfg(feature = "discovery")]
pub mod discovery;
mod drain;
pub mod duration;
pub mod endpoint;
pub mod error;
pub mod events;
mod grpc;
pub mod inflight;
pub mod list;
pub mod rpc;
pub mod socket;

/// Messages of CRI v1, generated from `proto/cri.proto` (see `tests/generated.rs`); with the feature `server`, the server traits
/// too.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "generated"
)]
pub mod v1 {
    include!("generated/runtime.v1.rs");
}

pub use client::{Client, Config};
pub use endpoint::Endpoint;
pub use error::{ConnectError, Error, ErrorKind};
pub use events::{EventStream, Hint};
pub use inflight::{Call, InFlight, Observer, Outcome, Subject};
pub use list::{ContainerItem, ListFilter, ListSummary, SandboxItem};
pub use rpc::{ApiVersion, Deadlines, Rpc, Unary};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
