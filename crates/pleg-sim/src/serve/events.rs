//! The event stream, made of encoded events: all that are ready are sent together.

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use pleg_cri::Rpc;
use tonic::Status;
use tonic::body::Body;

use super::answers::unimplemented;
use super::{GRPC, PREFIX};
use crate::sim::Simulation;
use crate::world::Subscription;

/// Size of the chunks that are passed to HTTP.
const CHUNK: usize = 64 * 1024;

/// Answers `GetContainerEvents`. The stream does not end by itself.
pub(crate) fn answer(shared: &Simulation) -> Result<Response<Body>, Status> {
    if !shared.config.flavour.has_events() {
        return Err(unimplemented(Rpc::GetContainerEvents));
    }
    let subscription = shared.world().subscribe();
    let events = subscription.ok_or_else(|| Status::resource_exhausted("too many subscribers"))?;
    let chunks = stream::unfold(events, |mut events| async move {
        let chunk = next_chunk(&mut events).await;
        Some((Ok::<_, Status>(Frame::data(chunk)), events))
    });
    let mut response = Response::new(Body::new(StreamBody::new(chunks)));
    response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC);
    Ok(response)
}

async fn next_chunk(events: &mut Subscription) -> Bytes {
    let mut event = events.take().await;
    let mut chunk = BytesMut::with_capacity(PREFIX + event.len());
    loop {
        chunk.put_u8(0);
        // An event is as large as the statuses of one pod, which has its limits.
        chunk.put_u32(u32::try_from(event.len()).unwrap_or(u32::MAX));
        chunk.put_slice(&event);
        if chunk.len() >= CHUNK {
            break;
        }
        match events.try_take() {
            Some(next) => event = next,
            None => break,
        }
    }
    chunk.freeze()
}
