//! What comes back for a request.

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;

use super::status::{Status, from_http, transport_error};
use super::{PREFIX, read_prefix};
use crate::ErrorKind;

/// An answer whose head has arrived. Read either pieces of its body ([`Answer::data`]) or whole messages ([`Answer::message`]).
#[derive(Debug)]
pub(crate) struct Answer {
    body: RecvStream,
    /// The status in the head: of an answer that has no message.
    status: Option<Status>,
    /// Received, but not yet returned as a message.
    buffer: BytesMut,
}

impl Answer {
    /// Fails if the head says that the call did.
    pub(super) fn new(response: http::Response<RecvStream>) -> Result<Self, ErrorKind> {
        let (head, body) = response.into_parts();
        let status = Status::read(&head.headers);
        if let Some(status) = &status {
            status.check()?;
        } else if head.status != http::StatusCode::OK {
            return Err(from_http(head.status));
        }
        Ok(Self {
            body,
            status,
            buffer: BytesMut::new(),
        })
    }

    /// The next bytes of the body. `None` only at the end of an answer whose status is OK: what was read before counts then, and
    /// only then.
    pub(crate) async fn data(&mut self) -> Result<Option<Bytes>, ErrorKind> {
        if let Some(data) = self.body.data().await {
            let data = data.map_err(transport_error)?;
            // Fails only for more than was received.
            let _ = self.body.flow_control().release_capacity(data.len());
            // The head spoke for an answer without a message; this one has to end with a status of its own.
            self.status = None;
            return Ok(Some(data));
        }
        if let Some(trailers) = self.body.trailers().await.map_err(transport_error)? {
            self.status = Status::read(&trailers);
        }
        match &self.status {
            Some(status) => status.check().map(|()| None),
            None => Err(ErrorKind::Malformed("the answer ended without a status".to_owned())),
        }
    }

    /// The next message, of at most `limit` bytes; `None` at the end of an answer whose status is OK. Cancel-safe.
    pub(crate) async fn message(&mut self, limit: usize) -> Result<Option<Bytes>, ErrorKind> {
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<PREFIX>() {
                let len = read_prefix(*prefix).map_err(|what| ErrorKind::Malformed(what.to_owned()))?;
                if len > limit {
                    return Err(ErrorKind::TooLarge { limit });
                }
                if self.buffer.len() >= PREFIX + len {
                    self.buffer.advance(PREFIX);
                    return Ok(Some(self.buffer.split_to(len).freeze()));
                }
                self.buffer.reserve(PREFIX + len - self.buffer.len());
            }
            match self.data().await? {
                Some(data) => self.buffer.extend_from_slice(&data),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ErrorKind::Malformed("the answer is truncated".to_owned())),
            }
        }
    }

    /// The one message of a unary answer.
    pub(crate) async fn single(mut self, limit: usize) -> Result<Bytes, ErrorKind> {
        let one = ErrorKind::Malformed("expected exactly one message".to_owned());
        let message = self.message(limit).await?.ok_or_else(|| one.clone())?;
        match self.message(limit).await? {
            None => Ok(message),
            Some(_) => Err(one),
        }
    }
}
