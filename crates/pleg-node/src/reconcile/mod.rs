//! What to do about one pod: pure decisions, without clock, I/O or tasks.
//!
//! In: the manifest, the pod's entry in the cache, its history, probe results, and what is in flight. Out: the actions that can be taken
//! now, and the time of the next decision. The pod worker owns the history and carries out the actions.
//!
//! | question | answered in |
//! |---|---|
//! | what to do next | [`decide`] |
//! | is a container restarted? (restart policy, probes) | `restart` |
//! | when is it restarted? (back-off) | [`backoff`] |
//! | which init container or sidecar is next | `init_containers` |
//! | which ephemeral container is started | `ephemeral_containers` |
//! | when are the limits of a running container changed | [`resize`] |
//! | in which order a pod terminates | `terminate` |
//! | what state a container is in | `observed` |
//! | what happened before, and survives a restart of `pleg node` | [`history`] |
//! | when it was accepted, whatever the clocks say | `start_time` |
//! | what can be done at all | [`action`] |

pub mod action;
pub mod backoff;
pub mod decide;
pub mod history;
pub(crate) mod observed;
pub mod resize;
pub(crate) mod restart;
pub(crate) mod start_time;

mod ephemeral_containers;
mod init_containers;
mod terminate;
