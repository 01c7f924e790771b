//! Faults as a layer in front of any CRI server: it knows the call's name and the id in the request, and nothing of the
//! runtime behind it. So the same layer works in the simulator and as a proxy before a real runtime.
//!
//! | module | job |
//! |---|---|
//! | `rules` | the faults in force, which can change while calls run |
//! | `layer` | the tower service that applies them |
//! | `events` | faults of the event stream: dropped, duplicated, half-filled, reordered, delayed |
//! | [`code`] | gRPC codes by their names |

pub mod code;
mod events;
mod layer;
mod rules;

pub use code::GrpcCode;
pub use layer::FaultService;
pub(crate) use layer::rpc_of;
pub use rules::{EventFaults, FaultError, Faults};
