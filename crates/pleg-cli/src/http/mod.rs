//! The daemon's HTTP API: who may connect ([`server`], [`host`]), what is answered ([`routes`], [`events`], [`ready`], [`node`],
//! [`debug`], [`process`]), how errors look ([`query`], [`explained`]), and its client
//! ([`client`], [`follow`]).

pub(crate) mod client;
mod debug;
mod events;
mod explained;
pub(crate) mod follow;
mod host;
mod node;
mod process;
mod query;
mod ready;
pub(crate) mod routes;
pub(crate) mod server;
