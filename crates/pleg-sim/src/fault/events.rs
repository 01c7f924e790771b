//! Faults of the event stream: its messages are dropped, duplicated, emptied, reordered or delayed.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use pleg_cri::v1;
use prost::Message;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

use super::Faults;
use crate::serve::PREFIX;

/// Maximum size of a message that is buffered.
const LONGEST: usize = 64 << 20;

/// Maximum time that an event waits for the next one, to be sent after it.
const HELD: Duration = Duration::from_millis(200);

/// A stream to which faults are applied.
struct Passing {
    inner: Body,
    faults: Faults,
    /// Bytes of an incomplete message.
    partial: BytesMut,
    /// To be sent after the next message.
    held: Option<Frame<Bytes>>,
    /// Ready to be sent.
    ready: VecDeque<Frame<Bytes>>,
}

/// Applies the faults in force, message by message.
pub(super) fn with_faults(response: Response<Body>, faults: Faults) -> Response<Body> {
    response.map(|inner| {
        let passing = Passing {
            inner,
            faults,
            partial: BytesMut::new(),
            held: None,
            ready: VecDeque::new(),
        };
        Body::new(StreamBody::new(stream::try_unfold(passing, |mut passing| async move {
            let frame = passing.next().await?;
            Ok::<_, Status>(frame.map(|frame| (frame, passing)))
        })))
    })
}

impl Passing {
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Status> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                let delay = self.faults.events().delay.0;
                if frame.is_data() && !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                // While a container is locked, containerd sends no events at all.
                self.faults.unlocked().await;
                return Ok(Some(frame));
            }
            let received = if self.held.is_none() {
                self.inner.frame().await
            } else if let Ok(received) = timeout(HELD, self.inner.frame()).await {
                received
            } else {
                // No other message arrived in time.
                self.ready.extend(self.held.take());
                continue;
            };
            let Some(frame) = received.transpose()? else {
                return Ok(self.held.take());
            };
            match frame.into_data() {
                Ok(data) => {
                    self.partial.put(data);
                    while let Some(message) = self.take_message()? {
                        self.pass(&message);
                    }
                }
                Err(trailers) => {
                    self.ready.extend(self.held.take());
                    self.ready.push_back(trailers);
                }
            }
        }
    }

    /// One whole message with its prefix.
    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(mut length) = self.partial.get(1..PREFIX) else {
            return Ok(None);
        };
        let length = length.get_u32() as usize;
        if length > LONGEST {
            return Err(Status::internal(format!("an event of {length} bytes")));
        }
        if self.partial.len() < PREFIX + length {
            return Ok(None);
        }
        Ok(Some(self.partial.split_to(PREFIX + length).freeze()))
    }

    fn pass(&mut self, message: &Bytes) {
        let rates = self.faults.events();
        if self.faults.happens(rates.drop) {
            return;
        }
        let message = if self.faults.happens(rates.half) {
            halve(message)
        } else {
            message.clone()
        };
        if self.faults.happens(rates.double) {
            self.ready.push_back(Frame::data(message.clone()));
        }
        if self.held.is_none() && self.faults.happens(rates.reorder) {
            self.held = Some(Frame::data(message));
            return;
        }
        self.ready.push_back(Frame::data(message));
        self.ready.extend(self.held.take());
    }
}

/// The same event without statuses, as some runtimes send it.
fn halve(message: &Bytes) -> Bytes {
    let Ok(mut event) = v1::ContainerEventResponse::decode(message.slice(PREFIX..)) else {
        return message.clone();
    };
    event.pod_sandbox_status = None;
    event.containers_statuses.clear();
    let mut half = BytesMut::with_capacity(PREFIX + event.encoded_len());
    half.put_u8(0);
    half.put_u32(u32::try_from(event.encoded_len()).unwrap_or(u32::MAX));
    half.put_slice(&event.encode_to_vec());
    half.freeze()
}
