//! List answers made of encoded items: no message is built, and nothing is copied before the client reads.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, Limited};
use pleg_cri::{Rpc, v1};
use prost::Message;
use tonic::Status;
use tonic::body::Body;

use super::answers::unimplemented;
use super::{GRPC, PREFIX};
use crate::sim::Simulation;
use crate::world::ListAnswer;

/// A list request has a filter and nothing else.
const REQUEST_LIMIT: usize = 1 << 20;
/// Size of the chunks that are passed to HTTP, which splits them into frames of 16 kB without copying.
const CHUNK: usize = 128 * 1024;

/// Answers one of the four list calls.
pub(crate) async fn answer(shared: &Simulation, rpc: Rpc, request: Request<Body>) -> Result<Response<Body>, Status> {
    let streamed = matches!(rpc, Rpc::StreamPodSandboxes | Rpc::StreamContainers);
    if streamed && !shared.config.streaming_lists {
        return Err(unimplemented(rpc));
    }
    let bytes = Limited::new(request.into_body(), REQUEST_LIMIT)
        .collect()
        .await
        .map_err(|_| Status::resource_exhausted(format!("the list request is larger than {REQUEST_LIMIT} bytes")))?
        .to_bytes();
    let message = match bytes.first() {
        Some(0) if bytes.len() >= PREFIX => bytes.slice(PREFIX..),
        Some(1) => return Err(Status::unimplemented("compressed requests are not supported")),
        _ => return Err(Status::internal("the request is not a gRPC message")),
    };
    // The streaming requests have the same fields.
    let answer = if matches!(rpc, Rpc::ListPodSandbox | Rpc::StreamPodSandboxes) {
        let mut request = v1::ListPodSandboxRequest::decode(message).map_err(|e| malformed(&e))?;
        let mut world = shared.world();
        if let Some(filter) = &mut request.filter {
            filter.id = world.full_sandbox_id(std::mem::take(&mut filter.id));
        }
        world.list_sandboxes(request.filter.as_ref())
    } else {
        let mut request = v1::ListContainersRequest::decode(message).map_err(|e| malformed(&e))?;
        let mut world = shared.world();
        if let Some(filter) = &mut request.filter {
            filter.id = world.full_container_id(std::mem::take(&mut filter.id));
            filter.pod_sandbox_id = world.full_sandbox_id(std::mem::take(&mut filter.pod_sandbox_id));
        }
        world.list_containers(request.filter.as_ref())
    };
    let body = ListBody {
        items: answer_items(answer, streamed)?,
        streamed,
        ended: false,
    };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    Ok(response)
}

fn malformed(error: &prost::DecodeError) -> Status {
    Status::internal(format!("failed to decode the list request: {error}"))
}

/// What is still to be sent.
struct Items {
    /// The prefix of a unary answer, until it is sent.
    prefix: Option<u32>,
    rest: std::vec::IntoIter<std::sync::Arc<[u8]>>,
}

fn answer_items(answer: ListAnswer, streamed: bool) -> Result<Items, Status> {
    let length = u32::try_from(answer.bytes).map_err(|_| {
        Status::resource_exhausted(format!(
            "a list of {} bytes does not fit into a gRPC message",
            answer.bytes
        ))
    })?;
    Ok(Items {
        prefix: (!streamed).then_some(length),
        rest: answer.items.into_iter(),
    })
}

/// The body of a list answer: chunks of concatenated items, then the trailers.
struct ListBody {
    items: Items,
    /// Each chunk is a message of its own.
    streamed: bool,
    ended: bool,
}

impl ListBody {
    fn chunk(&mut self) -> Option<Bytes> {
        let prefix = self.items.prefix.take();
        if prefix.is_none() && self.items.rest.len() == 0 {
            return None;
        }
        let mut chunk = BytesMut::with_capacity(CHUNK + CHUNK / 8);
        if self.streamed {
            chunk.put_bytes(0, PREFIX);
        } else if let Some(length) = prefix {
            chunk.put_u8(0);
            chunk.put_u32(length);
        }
        while chunk.len() < CHUNK {
            let Some(item) = self.items.rest.next() else { break };
            chunk.put_slice(&item);
        }
        if self.streamed {
            let length = u32::try_from(chunk.len() - PREFIX).unwrap_or(u32::MAX);
            chunk[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        }
        Some(chunk.freeze())
    }
}

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = self.chunk().map_or_else(
            || {
                self.ended = true;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Frame::trailers(trailers)
            },
            Frame::data,
        );
        Poll::Ready(Some(Ok(frame)))
    }
}
