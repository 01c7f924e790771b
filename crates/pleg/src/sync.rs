//! What the parts share that are written by one task and read or woken by others: the [requests](crate::generator::requests), the
//! [cache](crate::publish::cache) and the [link](crate::evented) to the stream.
//!
//! They name their locks, atomics and notifications here and nowhere else, so that `tests/seams` can compile the very same files with
//! others, which let a scheduler decide who runs when.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use parking_lot::{Mutex, RwLock};
pub(crate) use tokio::sync::Notify;
