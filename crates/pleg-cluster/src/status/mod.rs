//! Pod statuses on their way to the API server.
//!
//! In: statuses that changed, from `pleg-node`, and what the API server has ([`crate::pods::PodTable`]). Out: patches, at most one for a
//! pod at a time, and the deletion of pods that have terminated. [`StatusPublisher`] owns what is in flight; statuses that wait are owned
//! by `pleg-node`.
//!
//! | module | job | kind |
//! |---|---|---|
//! | `publisher` | the task: what is published next, retries, what others have overwritten | one task |
//! | `calls` | one patch, and the end of a deletion | calls |
//! | `merge` | the status that the API server should have | pure |
//! | `patch` | the difference, as a strategic merge patch | pure |

mod calls;
mod merge;
mod patch;
mod publisher;

pub use merge::STUCK;
pub use publisher::StatusPublisher;

pub(crate) use calls::delete_now;
pub(crate) use merge::is_foreign;
