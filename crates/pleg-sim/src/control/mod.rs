//! What people can do to a running simulator: one set of commands for `pleg sim ctl`, scenario files and the library.
//!
//! | module | job |
//! |---|---|
//! | `command` | the commands |
//! | `execute` | what they do: faults, the same for a simulator and a proxy |
//! | `world` | what they do to a simulated world |
//! | `http` | the commands as JSON over HTTP on a second socket |
//! | `client` | the other end of it |
//! | [`scenario`] | the commands in a file, each at its time |

mod client;
mod command;
mod execute;
mod http;
pub mod scenario;
mod world;

pub use client::{ControlClient, ControlError};
pub(crate) use command::state_name;
pub use command::{
    Add, Command, CommandError, Down, Exit, Fail, Hang, Object, OddObject, Pad, PodState, Reply, RpcName, Set, Shim,
    Shims, Storm, Unhang,
};
pub(crate) use execute::{Commanded, execute};
pub(crate) use http::serve;
pub(crate) use scenario::run_steps;
pub use scenario::{Scenario, ScenarioError, Step};
