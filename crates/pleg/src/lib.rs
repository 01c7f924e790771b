//! The Pod Lifecycle Event Generator: knows what the containers of a Kubernetes node are really doing.
//!
//! It lists all pods of the container runtime, compares them with the previous list, publishes lifecycle events, keeps the pod status cache,
//! and reports its health. This crate contains the generator and its parts, with the runtime behind a small trait; it must not contain
//! sockets, command lines or HTTP.
//!
//! # Map
//!
//! One task, [`Generator::run`], relists and writes; all others read through its [`Pleg`] handle.
//!
//! | part | job | written by | read by |
//! |---|---|---|---|
//! | [`generator`] | the loop: relist, inspect, commit, quarantine, probe; its [`Config`] | | |
//! | `handle` | [`Pleg`], through which callers use the generator | | |
//! | `connect`, `task` | from an endpoint to running tasks, in one call: [`Pleg::spawn`] | | |
//! | [`model`], [`status`], [`mod@event`] | ids and states; statuses of pods; events | | |
//! | `hints` | the dirty set: what to relist or inspect | callers, through [`Pleg::request_relist`]; [`evented`] | generator |
//! | [`evented`] | the task that reads the event stream; how far the stream is trusted | generator | generator |
//! | [`runtime`] | the trait through which the generator calls the runtime | | generator |
//! | [`snapshot`] | the content of the two lists | generator | generator |
//! | [`records`] | what was listed and committed for each pod | generator | generator |
//! | [`diff`] | the changes between two views: pure | | generator |
//! | [`kubelet`] | the projection of events onto those of the kubelet: pure | | readers |
//! | `inspect`, [`limiter`] | the status calls of one pod; the limit of calls in flight | | generator |
//! | [`cache`] | pod statuses, "newer than", waits for a condition | generator | callers |
//! | [`feed`] | the events | generator | subscribers |
//! | [`cursor`] | the position of a reader: generator instance and event | | readers |
//! | [`shim`] | the process behind a pod, as `/proc` shows it | | generator, doctor |
//! | [`health`] | healthy, degraded, unhealthy, and why | generator | callers |
//! | [`trouble`] | what a problem usually means and what to type next: texts only | | health, doctor |
//! | [`readiness`], `monitor` | the node's Ready condition; the task that calls `Status` | [`RuntimeMonitor`] | callers |
//! | `node_health` | health and Ready condition of one moment, for everything that reports them: [`Pleg::observe`] | | callers |
//! | [`recorder`] | the last minutes, for [`Pleg::recording`]; and [`recorder::replay()`] | generator | callers |
//! | [`metrics`] | the metrics | generator, client | scrapers |
//! | `sync` | the locks, which tests replace | | |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use pleg::{Config, Endpoint, EventType, Item, Overflow, Pleg, Start};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let endpoint = Endpoint::parse("unix:///run/containerd/containerd.sock")?;
//! #   // A simulated runtime takes its place here.
//! #   let dir = tempfile::tempdir()?;
//! #   let pods = pleg_sim::SimConfig { pods: 3, ..Default::default() };
//! #   let sim = pleg_sim::Sim::start(pods, Endpoint::unix(dir.path().join("cri.sock"))).await?;
//! #   let endpoint = sim.endpoint().clone();
//! #   let mut seen = None;
//!     let (pleg, task) = Pleg::spawn(endpoint, Config::default()).await?;
//!     let mut events = pleg.subscribe(Start::Oldest, Overflow::PodSync);
//!
//!     while let Some(item) = events.next().await {
//!         let Item::Event(event) = item else {
//!             continue; // A gap; a PodSync for every pod in the cache follows it.
//!         };
//!         let Some(pod) = &event.pod else {
//!             continue; // PlegNotHealthy or PlegHealthy: about the generator itself.
//!         };
//!         println!("{} {} {pod}", event.seq, event.kind);
//!         if event.kind == EventType::ContainerStarted {
//!             // The cache already holds the status that explains the event.
//!             println!("{:?}", pleg.cache().get(&pod.uid));
//!             // What is true after this line? Inspect the pod again, and wait for that.
//!             match pleg.refresh(&pod.uid, Duration::from_secs(10)).await {
//!                 Ok(entry) => println!("{} containers, {:?}", entry.status.containers.len(), entry.status.ips),
//!                 Err(error) => println!("{error}"), // In quarantine, with the call that failed; too late; or ended.
//!             }
//! #           seen = pleg.cache().get(&pod.uid);
//!             break;
//!         }
//!     }
//!
//!     task.shutdown().await?;
//! #   let seen = seen.expect("the pod whose container started is cached");
//! #   assert_eq!((seen.status.containers.len(), seen.error.is_none()), (2, true));
//! #   sim.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # How new is a status?
//!
//! An entry of the cache has two parts of different age: existence and states are as of [`PodEntry::observed`], which every complete
//! relist advances; IPs, resources, reasons and times are as of [`PodEntry::inspected`]. [`Cache::newer_than`] is about the first,
//! [`Pleg::refresh`] brings both up to date, [`Cache::wait_for`] waits for a condition. The documentation of [`cache`] has the details.
//!
//! # What a poller cannot see
//!
//! A container that is created, dies and is removed between two relists is in no list, so it causes no event. States between two relists
//! are not seen: from `Created` to `Exited` there is a `ContainerDied` without a `ContainerStarted`. Every
//! reported change is the difference between two states that were really observed, and is reported exactly once.

pub mod blocking;
mod connect;
pub mod evented;
pub mod generator;
pub mod health;
pub mod inspect;
pub mod metrics;
pub mod model;
mod publish;
pub mod recorder;
pub mod records;
pub mod runtime;
mod sync;
mod task;

pub use health::readiness;
pub use model::{cursor, event, status};
pub use publish::{cache, feed};
pub use runtime::shim;

pub use cache::{Awaited, Cache, PodEntry, StalePart, Token, WaitError};
pub use connect::ConnectError;
pub use cursor::{Cursor, InstanceId};
pub use event::{Event, EventType, Gap, GapReason, Source};
pub use evented::{EventedConfig, Mode, ModeReport, Reached};
pub use feed::{Feed, Item, Overflow, Start, Subscriber};
pub use generator::{Config, ConfigError, Generator, ProbeConfig};
pub use health::diagnosis::Trouble;
pub use health::monitor::RuntimeMonitor;
pub use health::node_health::NodeHealth;
pub use health::{Health, Level, Report};
pub use metrics::{Metrics, MetricsError};
pub use model::kubelet_events::{KubeletEvents, kubelet_events};
pub use model::selector::{BadSelector, LabelSelector};
pub use model::{ContainerId, ContainerRef, ContainerState, PodRef, PodUid, SandboxId, SandboxState};
pub use pleg_cri::{Deadlines, Endpoint};
pub use publish::filter::EventFilter;
pub use publish::handle::Pleg;
pub use readiness::{NodeCondition, Readiness};
pub use recorder::{RecorderConfig, Recording};
pub use runtime::{CriRuntime, Runtime};
pub use status::{ContainerStatus, PodStatus, SandboxStatus};
pub use task::{PlegTask, TaskPanicked};
