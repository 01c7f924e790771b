//! A node without the Go kubelet: makes the pods of this machine be what their manifests say.
//!
//! A reader of the generator like any other: consumes the feed, reads the cache, asks for looks, and acts through CRI. This crate holds
//! what a node wants and does about it: manifests, sources, workers, restarts and back-off, probes, pod status. It must not list or diff
//! what the runtime has: that is `pleg`'s.
//!
//! # The house
//!
//! What is pure has no clock, no I/O and no task: what it needs to know is handed in.
//!
//! | part | job | kind |
//! |---|---|---|
//! | [`manifest`] | texts in, pods or reasons out; the identity of static pods | pure |
//! | [`sources`] | where manifests come from: a directory, a URL; merged into one desired state | tasks, and a pure merge |
//! | [`status`] | the pod's status as Kubernetes shows it, from manifest, cache, probes, store | pure |
//! | [`memory`] | what is remembered of a pod: endings, attempts, back-off | pure |
//! | `observed` | where each container stands, by cache and memory | pure |
//! | [`decide`] | what to do next about a pod, and until when to wait | pure |
//! | [`cri`] | the requests to a runtime, from a manifest | pure |
//! | `hands`, [`volumes`], `cgroups` | does what was decided, through CRI and on the disk | calls |
//! | `worker` | one pod: waits for news, decides, acts, looks again | a task a pod |
//! | [`probes`] | asks containers how they do | a table, and a task a container |
//! | `store` | what has to survive a restart of ours: [`Store`] | a thread |
//! | `sync` | the loop that ties them together | one task |
//! | `crew` | who works on which pod; ends what nobody wants, puts up a worker that fell | a table |
//! | `page` | a page of a container, for probes and hooks | a call |
//! | `tls` | HTTPS, for probes, hooks and URLs | |
//! | `ports` | which pod has which port of the host | a table |
//! | `logs` | keeps what containers write within bounds | a look every 10 s |
//! | `metrics` | what is counted | counters |
//! | [`host`] | what there is to know about this machine | read once |
//! | [`board`] | what the node says about its pods | a table |
//!
//! # Tasks and channels
//!
//! | task | reads | writes | by |
//! |---|---|---|---|
//! | a source (one each) | files, a URL; its timer | the pods it has now, all of them | `mpsc` to the sync loop |
//! | sync loop (one) | sources, the generator's feed, health, workers that ended | what is wanted of each pod; that there is news | a `watch` and a `Notify` for each worker |
//! | worker (one a pod) | these two, the cache by `newer_than`, its own timer | CRI; the board | |
//! | probes (one task a running container that has them) | its timer, the container's answer | results | a table, and the worker's `Notify` |
//! | logs (one) | sizes of logs; the board and the cache | other names for logs; CRI | |
//! | store (a thread) | what workers remember | one file | a map under a mutex, and a `Condvar` |
//!
//! The feed is read whatever the health is: to stop reading it while unhealthy is how a kubelet can lock itself up for good.

pub mod board;
mod cgroups;
mod clock;
mod crew;
pub mod cri;
pub mod decide;
mod hands;
pub mod host;
mod logs;
pub mod manifest;
pub mod memory;
mod metrics;
mod observed;
mod page;
mod ports;
pub mod probes;
pub mod sources;
pub mod status;
mod store;
mod sync;
#[cfg(test)]
mod testing;
mod tls;
pub mod volumes;
mod worker;

pub use board::{Board, PodList, Report};
pub use logs::LogBounds;
pub use store::{Store, StoreError};
pub use sync::{HEARTBEAT, NodeLoop, others};
