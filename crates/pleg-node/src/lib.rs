//! A node without the Go kubelet: runs the pods of a set of manifests on this machine.
//!
//! It is a reader of the generator like any other: it consumes the feed, reads the cache, requests relists, and acts through CRI. This crate
//! contains desired state and reconciliation: manifests, sources, pod workers, restarts and back-off, probes, pod status. It must not list or
//! diff what the runtime has; `pleg` does that. The README has an example.
//!
//! # Map
//!
//! The folders are the stages, in the order in which a manifest passes them. Pure parts have no clock, no I/O and no task: callers pass in
//! what they need.
//!
//! | part | job | kind |
//! |---|---|---|
//! | [`manifest`] | pods: from text or the Kubernetes API to the spec that runs, or to problems | pure |
//! | [`sources`] | sources of manifests (a directory, a URL), the identity of static pods, all merged into one desired state | tasks, and a pure merge |
//! | `node_loop` | ties sources, generator and workers together; finds orphaned pods: [`NodeLoop`] | one task |
//! | `pod_workers` | the registry of pod workers, and the worker of each pod | a table, and a task per pod |
//! | [`reconcile`] | what to do next about a pod: actions, restarts, back-off, history | pure |
//! | [`executor`] | carries out actions through CRI and on disk; rotates logs | calls, and one task |
//! | `cgroups` | cgroups of pods by class, with the limits of whole pods | pure, and calls |
//! | `images` | removes unused images when their filesystem is full | one task, and a pure choice |
//! | `eviction` | pressure on memory, disk and process ids: conditions, reclaim, eviction of pods | one task, and pure parts |
//! | [`events`] | what happened, with the kubelet's reasons and words, to one [`events::EventSink`]; none by default | pure, and a trait |
//! | [`probes`] | liveness, readiness and startup probes | a table, and a task per container |
//! | [`status`] | the pod status of the Kubernetes API, computed and published: [`PodReports`] | pure, and a table |
//! | `store` | the state that survives a restart of `pleg node`: [`Store`] | a thread |
//! | [`net`] | the HTTP client, and TLS, for probes, hooks and URLs | calls |
//! | [`host`] | facts about this machine, and the clock | calls |
//! | [`Activity`] | how busy the runtime is: what nobody waits for yields | a counter |
//! | `metrics` | the metrics of a node | counters |
//!
//! # Where do I find …
//!
//! | question | file |
//! |---|---|
//! | whether a container is restarted | `reconcile/restart.rs` |
//! | when it is restarted | `reconcile/backoff.rs` |
//! | what a field of a manifest means, or why it is refused | `manifest/convert/` |
//! | the request that a CRI call gets | `executor/requests/` |
//! | why a pod is not admitted | `pod_workers/host_ports.rs`, `eviction/admission.rs` |
//! | which pod is evicted | `eviction/ranking.rs` |
//! | how pods end when the node shuts down | `node_loop/graceful_shutdown.rs` |
//! | how a pod without a manifest is terminated | `pod_workers/orphans.rs` |
//!
//! # Tasks and channels
//!
//! | task | reads | writes | by |
//! |---|---|---|---|
//! | a source (one each) | files, a URL; its timer | all pods it has now | `mpsc` to the node loop |
//! | node loop (one) | sources, the generator's feed, health, exits of workers | each pod as it is desired, and whether it runs; wake-ups | two `watch`es and a `Notify` for each worker |
//! | pod worker (one per pod) | these two, the cache by `newer_than`, its own timer | CRI; its report | |
//! | probes (one task per running container with probes) | its timer, the container's answer | results | a table, and the worker's `Notify` |
//! | log rotation (one) | log sizes; the reports and the cache | renamed logs; CRI | |
//! | image collector (one) | images and containers by CRI, the image filesystem; requests | CRI | `mpsc` of 1, with a `oneshot` |
//! | eviction manager (one) | the machine, cgroups and directories of pods; the reports and the cache | conditions; requests to the image collector; evictions | `mpsc` of 1 to the node loop, then the worker's `Notify` |
//! | store (a thread) | histories and manifests of pods | one file | a map under a mutex, and a `Condvar` |
//!
//! The feed is read in every state of health: a kubelet that stops reading while unhealthy can deadlock for good.

pub mod events;
pub mod executor;
pub mod host;
pub mod manifest;
pub mod net;
pub mod probes;
pub mod reconcile;
pub mod sources;
pub mod status;

mod activity;
mod cgroups;
mod error;
mod eviction;
mod images;
mod metrics;
mod node_loop;
mod pod_workers;
mod store;
#[cfg(test)]
mod testing;

pub use activity::{Acting, Activity};
pub use eviction::EvictionConfig;
pub use eviction::admission::{NodePressure, PressureCondition};
pub use eviction::signals::Signal;
pub use eviction::thresholds::{DEFAULT_HARD, Threshold, ThresholdError};
pub use eviction::usage::{CgroupUsage, CpuAndMemory, cgroup_usage};
pub use executor::logs::LogLimits;
pub use images::ImageGcPolicy;
pub use metrics::MetricsError;
pub use node_loop::{GracefulShutdown, HEARTBEAT, NodeLoop, foreign_pods};
pub use pod_workers::allocatable::Allocatable;
pub use status::reports::{PodList, PodReports, Report, StuckCall};
pub use store::{Store, StoreError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
