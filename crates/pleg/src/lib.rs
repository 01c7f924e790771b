//! The Pod Lifecycle Event Generator: knows what the containers of a Kubernetes node are really doing.
//!
//! It relists all pods of the container runtime, compares them with the previous relist, publishes lifecycle events, keeps a cache of pod
//! statuses, and reports its own health. One call starts it:
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
//! # How do I …
//!
//! | … | with |
//! |---|---|
//! | start it | [`Pleg::spawn`]; [`Pleg::spawn_lazy`] if the runtime may start later; [`blocking::Pleg`] without tokio |
//! | stop it | [`PlegTask::shutdown`], or drop the [`PlegTask`]; a daemon awaits [`PlegTask::run_until`] |
//! | read events | [`Pleg::subscribe`]; a [`Subscriber`] is also a `Stream` |
//! | read only some of them | [`Subscriber::with_filter`] and an [`EventFilter`]: types, namespaces, labels |
//! | not act on what happened before I started | [`Start::AfterFirstRelist`]; or skip events that are [`initial`](Event::initial) |
//! | continue after my restart | store [`Event::cursor`] as text, and come back with [`Start::After`] |
//! | miss nothing after hours, or a restart of the daemon | give [`Config::history`] a [`FeedHistory`], such as crate `pleg-history` has |
//! | know that I missed something | [`Overflow`]: a `PodSync` for each pod, or an [`Item::Gap`] |
//! | read a pod's status | [`Cache::get`] by UID, [`Cache::find`] by name, [`Cache::find_container`]; [`Cache::entries`] has all pods |
//! | read its labels and annotations | [`PodStatus::labels`], [`PodStatus::annotations`]; bounded |
//! | have a status newer than my own action | [`Pleg::refresh`]: inspects the pod again and waits for that |
//! | have all pods as of now | [`Pleg::request_all`], then [`Cache::synced`] |
//! | wait until a pod is ready, gone, … | [`Cache::wait_for`] with a condition; every wait has a deadline and fails with [`WaitError`] |
//! | know whether the generator can be trusted | [`Pleg::health`]; [`Pleg::readiness`] is the Ready condition of the node; [`Pleg::observe`] both |
//! | tell my stop from a crash | [`Pleg::will_stop`] before the call: the death is preceded by `ContainerStopped` |
//! | export metrics | [`Pleg::render_metrics`] |
//! | store or send what I read | every type of data has serde, with the names of the HTTP API (`docs/http-api.md`) |
//! | observe something that is not CRI | implement [`Runtime`], and use [`Generator::new`] and [`Generator::spawn`] |
//! | test my agent | crate `pleg-sim`: a CRI runtime on a socket, with faults |
//!
//! `examples/` has three agents: alerts on OOM kills, an exporter of restart counts, and one that waits until a pod is ready.
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
//!
//! # Map of the inside
//!
//! The crate contains the generator and its parts, with the runtime behind a small trait; it must not contain sockets, command lines or
//! HTTP. One task, [`Generator::run`], relists and writes; all others read through its [`Pleg`] handle.
//!
//! | part | job | written by | read by |
//! |---|---|---|---|
//! | `generator` | the loop: relist, inspect, commit, quarantine, probe; its [`Config`] | | |
//! | `publish` | what callers see: [`cache`], [`feed`], filters, and the handle [`Pleg`] | generator | callers |
//! | `connect`, `task`, [`blocking`] | from an endpoint to running tasks | | |
//! | [`model`] | ids and states; [`status`]es of pods; [`mod@event`]s; [`cursor`]s; label selectors; the projection onto the kubelet's events | | |
//! | `generator::requests` | the dirty set: what to relist or inspect | callers, through [`Pleg::request_relist`]; `evented` | generator |
//! | `evented` | the task that reads the event stream; how far the stream is trusted | generator | generator |
//! | [`witness`] | what the kernel shows: processes of containers that exit, cgroups that come and go | generator | generator |
//! | [`runtime`] | the trait through which the generator calls the runtime; CRI; [`shim`]s in `/proc`; quirks of runtimes | | generator |
//! | `records` | what was listed and committed for each pod; the content of the two lists; their difference, which is pure | generator | generator |
//! | `inspect` | the status calls of one pod; the limit of calls in flight | | generator |
//! | [`health`] | healthy, degraded, unhealthy, and why; what a trouble means and what to type next | generator | callers |
//! | [`readiness`], `health::monitor` | the node's Ready condition; the task that calls `Status` | [`RuntimeMonitor`] | callers |
//! | `health::node_health` | health and Ready condition of one moment, for everything that reports them: [`Pleg::observe`] | | callers |
//! | [`recorder`] | the last minutes, for [`Pleg::recording`]; and [`recorder::replay()`] | generator | callers |
//! | `metrics` | the metrics | generator, client | scrapers |
//! | `sync` | the locks, which tests replace | | |

pub mod blocking;
mod connect;
mod evented;
mod generator;
pub mod health;
mod inspect;
mod metrics;
pub mod model;
mod publish;
pub mod recorder;
mod records;
pub mod runtime;
mod sync;
mod task;
pub mod witness;

pub use health::readiness;
pub use model::{cursor, event, status};
pub use publish::{cache, feed};
pub use runtime::shim;

pub use cache::{Awaited, Cache, PodEntry, PodError, StalePart, Token, WaitError};
pub use connect::ConnectError;
pub use cursor::{Cursor, InstanceId};
pub use event::{Event, EventType, Gap, GapReason, Source};
pub use evented::BadMode;
pub use evented::{EventedConfig, Mode, ModeReport, Reached};
pub use feed::{Feed, Item, Overflow, Start, Subscriber};
pub use generator::{Config, ConfigError, Generator, ProbeConfig};
pub use health::diagnosis::Trouble;
pub use health::monitor::RuntimeMonitor;
pub use health::node_health::NodeHealth;
pub use health::{Health, Level, Report};
pub use inspect::limiter::LimiterConfig;
pub use metrics::{Metrics, MetricsError, RelistObserver};
pub use model::kubelet_events::{KubeletEvents, kubelet_events};
pub use model::selector::{BadSelector, LabelSelector};
pub use model::{ContainerId, ContainerRef, ContainerState, PodRef, PodUid, SandboxId, SandboxState};
pub use pleg_cri::{Deadlines, Endpoint};
pub use publish::filter::EventFilter;
pub use publish::handle::Pleg;
pub use publish::past::{EventHistory, FeedHistory, Past, PastFuture};
pub use readiness::{NodeCondition, Readiness};
pub use recorder::{RecorderConfig, Recording};
pub use runtime::{CriRuntime, Runtime};
pub use status::{ContainerStatus, PodStatus, SandboxStatus};
pub use task::{PlegTask, TaskPanicked};
pub use witness::{Announcement, Kernel, Witness, WitnessMode, WitnessReport};

/// Parts for the benchmarks and for `pleg doctor`. Not part of the API: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::records::diff::{Change, diff};
    pub use crate::records::snapshot::Snapshot;
    pub use crate::records::{Coverage, PodKey, Records};
    pub use crate::runtime::quirks::Quirks;
}
