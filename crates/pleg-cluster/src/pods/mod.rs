//! The pods that are bound to this node.
//!
//! In: the pods of the API server with this node's name, by a list and then a watch. Out: snapshots for the node loop of `pleg-node`, and
//! [`PodTable`], what the API server has of each pod, for those who write to it. [`PodSource`] owns the watch and is the only one that
//! removes a pod from the table.
//!
//! | module | job | kind |
//! |---|---|---|
//! | `source` | the tasks: list and watch, snapshots, pods that are missing | tasks |
//! | `follower` | puts what is listed and watched into the table | |
//! | `calls` | the Node object, and a pod by its name | calls |
//! | `known` | what is known of each pod, and which pods a list removes | pure |
//! | `table` | the same, shared | a table |
//! | `mirrors` | a mirror pod for each static pod, so that the cluster sees it | one task, and pure parts |
//! | `checker` | checks new pods against the Node object before the node loop sees them | calls |
//! | `admission` | whether labels and taints of the node let a pod run | pure |
//!
//! While the API server is away, the last snapshot stays in force: nothing is deleted.
//!
//! # Which pods are removed
//!
//! | the API server | the pod |
//! |---|---|
//! | sends `DELETED` for it | is removed at once |
//! | lists another pod of its name, or lists it no more while it is being deleted | is removed at once |
//! | does not list it, and it was not being deleted | is kept for 30 s, then asked for by name, and removed if it does not exist |
//! | does not list it, and is itself older than it was (etcd was restored) | the same, after 5 min |
//! | does not answer | is kept |
//!
//! So a pod that was force-deleted while the watch was cut runs for half a minute longer than with a kubelet, and an API server that was
//! restored from an old backup has five minutes to get the pod back before it is terminated. After a restart of `pleg node` the first
//! complete list is believed: there is nothing to compare it with.

mod admission;
mod calls;
mod checker;
mod follower;
mod known;
mod mirrors;
mod source;
mod table;

pub(crate) use calls::PodCalls;
pub use mirrors::MirrorPods;
pub use source::PodSource;
pub use table::PodTable;
