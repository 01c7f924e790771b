//! The Pod Lifecycle Event Generator: knows what the containers of a Kubernetes node are really doing.
//!
//! Asks the container runtime for all pods, compares with what it last saw, sends lifecycle events, keeps the pod status cache, and
//! says whether it is healthy. This crate holds the generator and what it is made of, with the runtime behind a small trait; it must
//! not hold sockets, command lines or HTTP.
//!
//! # The house
//!
//! One task, [`Generator::run`], looks and writes; everybody else reads through its [`Pleg`] handle.
//!
//! | part | job | written by | read by |
//! |---|---|---|---|
//! | `hints` | the dirty set: what should be looked at | anybody, through [`Pleg::request`] | generator |
//! | [`runtime`] | the runtime as the generator needs it | | generator |
//! | [`snapshot`] | what the two lists said | generator | generator |
//! | [`records`] | what was listed and committed for each pod | generator | generator |
//! | [`diff`] | what happened between two views: pure | | generator |
//! | `inspect`, `limiter` | asks about one pod; how many at once | | generator |
//! | [`cache`] | pod statuses, "newer than" | generator | anybody |
//! | [`feed`] | the events | generator | subscribers |
//! | [`health`] | healthy, degraded, unhealthy, and why | generator | anybody |
//! | [`metrics`] | what is counted | generator, client | scrapers |
//!
//! # What a poller cannot see
//!
//! A container that was made, died and was removed between two looks leaves no trace in any list, and so no event. States between two
//! looks are not seen: from `Created` to `Exited` there is a `ContainerDied` without a `ContainerStarted`. What is reported is
//! always the difference between two states that were really seen, and a change is reported exactly once.

pub mod cache;
pub mod diff;
pub mod event;
pub mod feed;
pub mod generator;
mod handle;
pub mod health;
mod hints;
mod inspect;
pub mod kubelet;
pub mod limiter;
pub mod metrics;
pub mod model;
pub mod records;
pub mod runtime;
pub mod snapshot;
pub mod status;

pub use cache::{Cache, NotFresh, PodEntry, Token};
pub use event::{Event, EventType, Source};
pub use feed::{Feed, Item, Overflow, Start, Subscriber};
pub use generator::{Config, Generator};
pub use handle::Pleg;
pub use health::{Health, Level, Report};
pub use kubelet::{KubeletEvents, kubelet_events};
pub use metrics::Metrics;
pub use model::{ContainerId, ContainerRef, ContainerState, PodRef, PodUid, SandboxId, SandboxState};
pub use runtime::{CriRuntime, Runtime};
pub use status::{ContainerStatus, PodStatus, SandboxStatus};
