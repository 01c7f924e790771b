//! A node without the Go kubelet: runs the pods of a set of manifests on this machine.
//!
//! It is a reader of the generator like any other: it consumes the feed, reads the cache, requests relists, and acts through CRI. This crate
//! contains desired state and reconciliation: manifests, sources, pod workers, restarts and back-off, probes, pod status. It must not list or
//! diff what the runtime has; `pleg` does that.
//!
//! # Map
//!
//! Pure parts have no clock, no I/O and no task: callers pass in what they need.
//!
//! | part | job | kind |
//! |---|---|---|
//! | [`manifest`] | parses manifests into pods or refusals; the identity of static pods | pure |
//! | [`sources`] | sources of manifests: a directory, a URL; merged into one desired state | tasks, and a pure merge |
//! | [`status`] | the pod's status as Kubernetes shows it, from manifest, cache, probes, store | pure |
//! | [`memory`] | the history of a pod: exits, attempts, back-off | pure |
//! | `observed` | the state of each container, from cache and history | pure |
//! | [`decide`] | the next actions for a pod, and until when to wait | pure |
//! | [`cri`] | builds CRI requests from a manifest | pure |
//! | `executor`, [`volumes`], `cgroups` | carries out decisions, through CRI and on disk | calls |
//! | `worker` | the pod worker: waits for changes, decides, acts, requests a relist | a task per pod |
//! | [`probes`] | liveness, readiness and startup probes | a table, and a task per container |
//! | `store` | the state that survives a restart of `pleg node`: [`Store`] | a thread |
//! | `sync` | the loop that ties them together | one task |
//! | `workers` | the registry of pod workers; terminates orphaned pods, restarts panicked workers | a table |
//! | `page` | an HTTP GET to a container, for probes and hooks | a call |
//! | `tls` | HTTPS, for probes, hooks and URLs | |
//! | `ports` | which pod owns which host port | a table |
//! | `logs` | rotates container logs | a check every 10 s |
//! | `metrics` | the metrics of a node | counters |
//! | [`host`] | facts about this machine | read once |
//! | [`reports`] | the published status of each pod | a table |
//!
//! # Tasks and channels
//!
//! | task | reads | writes | by |
//! |---|---|---|---|
//! | a source (one each) | files, a URL; its timer | all pods it has now | `mpsc` to the sync loop |
//! | sync loop (one) | sources, the generator's feed, health, workers that ended | the desired state of each pod; wake-ups | a `watch` and a `Notify` for each worker |
//! | worker (one per pod) | these two, the cache by `newer_than`, its own timer | CRI; the reports | |
//! | probes (one task per running container with probes) | its timer, the container's answer | results | a table, and the worker's `Notify` |
//! | logs (one) | log sizes; the reports and the cache | renamed logs; CRI | |
//! | store (a thread) | the history of pods | one file | a map under a mutex, and a `Condvar` |
//!
//! The feed is read in every state of health: a kubelet that stops reading while unhealthy can deadlock for good.

mod error;
pub mod executor;
pub mod host;
pub mod manifest;
mod metrics;
mod net;
mod node_loop;
mod pod_workers;
pub mod probes;
pub mod reconcile;
pub mod sources;
pub mod status;
mod store;
#[cfg(test)]
mod testing;

pub use executor::logs::LogLimits;
pub use node_loop::{HEARTBEAT, NodeLoop, foreign_pods};
pub use status::reports::{PodList, PodReports, Report};
pub use store::{Store, StoreError};
