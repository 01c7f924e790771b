//! Container logs: the options of a request ([`options`]), lines ([`line`]), files ([`files`]), the last lines ([`tail`]), and a reader over
//! all of it ([`read`]), which is blocking and knows nothing of HTTP. [`handler`] serves it.

mod files;
mod handler;
mod line;
mod options;
mod read;
mod tail;

pub(super) use handler::container_logs;
