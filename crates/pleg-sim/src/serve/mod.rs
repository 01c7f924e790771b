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
//! | `runtime`, `image` | the two CRI services |
//! | `answers` | what a real runtime would know from its processes |

mod answers;
pub(crate) mod connection;
pub(crate) mod front;
mod image;
pub(crate) mod listening;
mod lists;
pub(crate) mod router;
mod runtime;
pub(crate) mod socket;
