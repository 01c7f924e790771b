//! CRI on a socket.
//!
//! | module | job |
//! |---|---|
//! | `socket` | a unix socket that only its owner may open, and that leaves nothing behind |
//! | `connection` | HTTP connections as tasks with an owner |
//! | `listening` | the socket, open or closed for a while |
//! | `front` | what every call passes first: counters, faults |
//! | `router` | from a path to its handler: API version, lists, the rest |
//! | `lists` | list answers made of encoded items |
//! | `events` | the event stream, made of encoded events |
//! | `runtime`, `image` | the two CRI services |
//! | `logs` | the log files of containers that clients created |
//! | `answers` | what a real runtime would know from its processes |

mod answers;
pub(crate) mod connection;
mod events;
pub(crate) mod front;
mod image;
pub(crate) mod listening;
mod lists;
pub(crate) mod logs;
pub(crate) mod router;
mod runtime;
pub(crate) mod socket;

/// gRPC's prefix of a message: a flag and a length.
pub(crate) const PREFIX: usize = 5;
/// The content type of answers that are made of bytes.
const GRPC: http::HeaderValue = http::HeaderValue::from_static("application/grpc");
