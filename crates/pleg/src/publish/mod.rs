//! What readers see: the cache of pod statuses, the feed of events, and the handle through which both are used.
//!
//! Only the generator writes, through the write halves that it owns; everything given to callers is a read half. An event is published
//! after the status that explains it.

pub mod cache;
pub mod feed;
pub(crate) mod filter;
pub(crate) mod handle;
pub(crate) mod past;
