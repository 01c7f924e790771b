//! A simulated CRI runtime on a real unix socket: thousands of pods, churn, scripted containers, and faults that change while
//! it runs.
//!
//! The socket is real so that a client's deadlines, connections and byte costs are real. The crate may hold whatever helps to
//! test and demonstrate clients of CRI; it must not hold anything the product needs to run on a real node.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use pleg_sim::{Ending, Sim, SimConfig};
//!
//! let config = SimConfig { pods: 100, ..Default::default() };
//! let sim = Sim::spawn_thread(config, "unix:///tmp/sim.sock".parse()?).await?;
//! sim.world().exit(&"default/web-7".parse()?, Some("app"), Ending::Exit(3))?;
//! assert_eq!(sim.stats().total.errors, 0);
//! sim.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # Map
//!
//! | module | job |
//! |---|---|
//! | [`sim`] | a running simulator: its tasks and the handle to it |
//! | [`world`] | the state, pure and synchronous |
//! | `serve` | CRI on the socket |
//! | `processes` | real processes of containers, where they are wanted |
//! | [`fault`] | faults as a layer that knows calls and ids only |
//! | [`proxy`] | the same faults before a real runtime |
//! | [`control`] | commands: library, HTTP on a second socket, scenario files |
//! | [`stats`] | counters of every call |
//! | [`flavour`] | which runtime the simulator imitates |
//! | [`selector`], [`duration`], [`clock`], [`config`] | names, `400ms`, time, what a simulator starts with |
//!
//! # Tasks
//!
//! All are spawned on one `TaskTracker` and end with one `CancellationToken`, both owned by [`Sim`]. A [`Proxy`] has the first two and
//! the fourth, and one more for its connection to the runtime.
//!
//! | task | reads | writes |
//! |---|---|---|
//! | listener (one) | connections; requests to go down | spawns connections, cuts them |
//! | connection and call (many) | the world and the faults, under their locks | the world, the counters |
//! | driver (one) | the next due time; woken when it changes | the world: exits, restarts, churn |
//! | control (one, optional) | commands over HTTP | the world, the faults |
//! | reaper (a thread, optional) | deaths of containers' processes | the world: their ends |
//! | scenario (one, optional) | steps of the configuration | the world, the faults |

pub mod clock;
pub mod config;
pub mod control;
pub mod duration;
pub mod fault;
pub mod flavour;
mod processes;
pub mod proxy;
pub mod selector;
mod serve;
pub mod sim;
pub mod stats;
pub mod world;

pub use clock::Clock;
pub use config::SimConfig;
pub use control::{Command, CommandError, ControlClient, Scenario};
pub use duration::Span;
pub use fault::{EventFaults, Faults, GrpcCode};
pub use flavour::Flavour;
pub use proxy::{Proxy, ProxyConfig, ProxyError};
pub use selector::{PodRef, Selector};
pub use serve::socket::BindError;
pub use sim::{Sim, SimError};
pub use stats::StatsSnapshot;
pub use world::{ContainerSpec, Ending, EventStats, Odd, PodSpec, Readiness, Script, Truth, World, WorldError};
