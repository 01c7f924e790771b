//! The daemon's HTTP API: connections ([`server`], [`host`]), handlers ([`routes`], [`events`], [`ready`], [`node`], [`debug`],
//! [`process`]), errors ([`query`], [`explained`]), and the client.

pub(crate) mod client;
mod debug;
mod events;
mod explained;
mod host;
mod node;
mod process;
mod query;
mod ready;
pub(crate) mod routes;
pub(crate) mod server;

pub(crate) use events::{HEARTBEAT, HEARTBEATS_MISSED};
