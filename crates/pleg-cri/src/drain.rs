//! Calls whose answers are received and dropped: ordinary tonic calls with a codec that decodes nothing.
//!
//! A probe only needs to know whether there is an answer. And the same bytes over the same connection, received and dropped, are
//! the floor under what a relist can cost: benchmarks divide by it.

use std::fmt;
use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::client::UNARY_LIMIT;
use crate::{Client, Error, Subject, Unary, v1};

impl Client {
    /// Asks for both full lists and drops the answers. Returns their bytes.
    pub async fn drain_lists(&self) -> Result<usize, Error> {
        let (sandboxes, containers) = tokio::join!(
            self.drain(v1::ListPodSandboxRequest::default()),
            self.drain(v1::ListContainersRequest::default()),
        );
        Ok(sandboxes? + containers?)
    }

    /// Makes any call and drops the answer, whatever its size. Returns its bytes.
    pub async fn drain<R: Unary>(&self, request: R) -> Result<usize, Error> {
        self.dropped(&Subject::NODE, request, usize::MAX).await
    }

    /// Makes a call about an object to learn whether it is answered, and nothing else.
    pub async fn is_answered<R: Unary>(&self, subject: &Subject, request: R) -> Result<(), Error> {
        self.dropped(subject, request, UNARY_LIMIT).await.map(drop)
    }

    async fn dropped<R: Unary>(&self, subject: &Subject, request: R, limit: usize) -> Result<usize, Error> {
        let codec = Drain(PhantomData::<fn(R)>);
        self.unary(R::RPC, subject, Request::new(request), codec, limit).await
    }
}

/// Sends a message and counts the bytes of the answer.
struct Drain<R>(PhantomData<fn(R)>);

impl<R> Clone for Drain<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Drain<R> {}

impl<R> fmt::Debug for Drain<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Drain")
    }
}

impl<R: Message + 'static> Codec for Drain<R> {
    type Encode = R;
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl<R: Message> Encoder for Drain<R> {
    type Item = R;
    type Error = Status;

    fn encode(&mut self, request: R, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request
            .encode(bytes)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl<R> Decoder for Drain<R> {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let n = bytes.remaining();
        bytes.advance(n);
        Ok(Some(n))
    }
}
