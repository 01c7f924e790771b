//! The daemon's HTTP API: who may connect ([`server`]), what is answered ([`routes`], [`events`], [`ready`], [`node`], [`debug`]), and its client.

pub(crate) mod client;
mod debug;
mod events;
mod node;
mod query;
mod ready;
pub(crate) mod routes;
pub(crate) mod server;
