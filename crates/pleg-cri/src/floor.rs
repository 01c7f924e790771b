//! The floor under what a look can cost: the same bytes over the same connection, received and dropped.
//!
//! It is an ordinary tonic call with a codec that decodes nothing; benchmarks divide by it.

use bytes::Buf;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::{Client, Error, Rpc};

impl Client {
    /// Asks for both full lists and drops the answers. Returns their bytes.
    pub async fn drain_lists(&self) -> Result<usize, Error> {
        let (sandboxes, containers) = tokio::join!(self.drain(Rpc::ListPodSandbox), self.drain(Rpc::ListContainers));
        Ok(sandboxes? + containers?)
    }

    async fn drain(&self, rpc: Rpc) -> Result<usize, Error> {
        self.unary(rpc, &crate::Subject::NODE, Request::new(()), Drain, usize::MAX)
            .await
    }
}

/// Sends an empty message and counts the bytes of the answer.
#[derive(Debug, Clone, Copy)]
struct Drain;

impl Codec for Drain {
    type Encode = ();
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Drain {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Drain {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let n = bytes.remaining();
        bytes.advance(n);
        Ok(Some(n))
    }
}
