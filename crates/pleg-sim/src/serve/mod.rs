//! CRI on a socket.
//!
//! | module | job |
//! |---|---|
//! | `socket` | a unix socket that only its owner may open, and that leaves nothing behind |
//! | `connection` | HTTP connections as tasks with an owner |
//! | `router` | from a path to its handler: API version, counters, faults, lists, the rest |
//! | `lists` | list answers made of encoded items |
//! | `runtime`, `image` | the two CRI services |

pub(crate) mod connection;
mod image;
mod lists;
pub(crate) mod router;
mod runtime;
pub(crate) mod socket;
