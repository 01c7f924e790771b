//! gRPC as a client of a unix socket needs it, on HTTP/2: no TLS, no load balancing, no compression.
//!
//! A request is one message; its answer is read in pieces as they arrive, because a list must not be collected in memory
//! before it is walked. A generic gRPC client does that only behind a second framing of our own, and triples what callers
//! compile; so the two hundred lines it takes are here.
//!
//! [`Connection`] sends requests, [`Answer`] reads what comes back, `status` turns what went wrong into an [`ErrorKind`].
//!
//! [`ErrorKind`]: crate::ErrorKind

mod answer;
mod connection;
mod status;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

pub(crate) use answer::Answer;
pub(crate) use connection::{Connection, Windows};
#[cfg(test)]
pub(crate) use status::code_name;

/// Length of what precedes each message: a flag for compression and the message's length.
pub(crate) const PREFIX: usize = 5;

/// One message as gRPC frames it.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    // A request of 4 GiB cannot be built from the strings we accept.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    // BytesMut grows, so there is always room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// The compression flag and the length of a message.
pub(crate) fn read_prefix(prefix: [u8; PREFIX]) -> Result<usize, &'static str> {
    match prefix {
        [0, len @ ..] => Ok(u32::from_be_bytes(len) as usize),
        _ => Err("unexpected compressed message"),
    }
}

/// The value of the header `grpc-timeout`, which has at most eight digits.
fn timeout_header(timeout: Duration) -> String {
    format!("{}m", timeout.as_millis().clamp(1, 99_999_999))
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
