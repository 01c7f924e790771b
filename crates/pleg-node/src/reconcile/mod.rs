//! What to do about one pod: pure decisions, without clock, I/O or tasks.
//!
//! In come the pod's manifest, its entry in the cache ([`observed`]) and what is remembered of it ([`history`]); out come the next
//! actions and the moment of the next decision ([`decide`]). The pod worker owns the state and carries out the actions.

pub mod decide;
pub mod history;
mod init_containers;
pub(crate) mod observed;
mod terminate;
