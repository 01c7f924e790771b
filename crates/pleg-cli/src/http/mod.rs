//! The daemon's HTTP API: connections ([`server`], [`host`]), handlers ([`routes`], [`events`], [`history`], [`ready`], [`node`], [`debug`],
//! [`process`]), the web pages ([`web`]), errors ([`query`], [`explained`]), and the client ([`client`], [`follow`]).

pub(crate) mod client;
mod debug;
mod events;
mod explained;
pub(crate) mod follow;
mod history;
mod host;
mod node;
mod process;
mod query;
mod ready;
pub(crate) mod routes;
pub(crate) mod server;
mod web;
