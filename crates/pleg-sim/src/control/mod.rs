//! What people can do to a running simulator: one set of commands for `pleg sim ctl`, scenario files and the library.
//!
//! | module | job |
//! |---|---|
//! | `command` | the commands and what they do |
//! | `http` | the commands as JSON over HTTP on a second socket |
//! | `client` | the other end of it |
//! | [`scenario`] | the commands in a file, each at its time |

mod client;
mod command;
mod http;
pub mod scenario;

pub use client::{ControlClient, ControlError};
pub(crate) use command::execute;
pub use command::{
    Add, Command, CommandError, Down, Exit, Fail, Hang, OddObject, Pad, PodState, Reply, RpcName, Set, Storm, Unhang,
    Unlock,
};
pub(crate) use http::serve;
pub(crate) use scenario::run_steps;
pub use scenario::{Scenario, ScenarioError, Step};
