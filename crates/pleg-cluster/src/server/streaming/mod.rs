//! `/exec`, `/attach` and `/portForward`: the runtime is asked for the address of a session ([`handlers`]), and the connection of the client
//! is joined to it ([`proxy`]). SPDY or WebSocket is spoken by the two ends; here are only bytes.

mod handlers;
mod options;
mod proxy;

pub(super) use handlers::{attach, attach_uid, exec, exec_uid, port_forward, port_forward_uid};
