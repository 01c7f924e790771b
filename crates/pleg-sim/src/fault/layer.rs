//! The tower service that applies the faults to every call.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use pleg_cri::Rpc;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::{Faults, events};

/// A request is read this far to find its id; containerd takes no larger ones either.
const REQUEST_LIMIT: usize = 16 << 20;
/// gRPC's prefix of a message: a flag and a length.
const PREFIX: usize = 5;

/// The id in field 1, which every request about one object has there.
#[derive(Clone, PartialEq, prost::Message)]
struct ObjectId {
    #[prost(string, tag = "1")]
    id: String,
}

/// A CRI server behind faults.
#[derive(Debug, Clone)]
pub struct FaultService<S> {
    inner: S,
    faults: Faults,
}

impl<S> FaultService<S> {
    /// Puts faults before a server.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

/// The call that a path means, such as `/runtime.v1.RuntimeService/ListContainers`.
pub(crate) fn rpc_of(path: &str) -> Option<Rpc> {
    path.rsplit('/').next().and_then(Rpc::from_name)
}

impl<S> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The service that was polled ready is the one to call; its clone waits for its own turn.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Some(rpc) = rpc_of(request.uri().path()) else {
            return Box::pin(inner.call(request));
        };
        let faults = self.faults.clone();
        Box::pin(async move {
            let plan = faults.plan(rpc);
            if !plan.latency.is_zero() {
                tokio::time::sleep(plan.latency).await;
            }
            if let Some(code) = plan.fail {
                let status = Status::new(code.0, format!("{rpc} fails because it was told to"));
                return Ok(status.into_http());
            }
            let (request, id) = if plan.by_id {
                match with_id(request).await {
                    Ok(found) => found,
                    Err(status) => return Ok(status.into_http()),
                }
            } else {
                (request, None)
            };
            faults.pass(rpc, id.as_deref()).await;
            let response = inner.call(request).await?;
            match rpc {
                // On containerd these take effect, but their answer waits for the lock of any container.
                Rpc::RunPodSandbox | Rpc::CreateContainer | Rpc::StartContainer => faults.unlocked().await,
                Rpc::GetContainerEvents => return Ok(events::with_faults(response, faults)),
                _ => {}
            }
            Ok(response)
        })
    }
}

/// Reads the request's id, and makes the request whole again.
async fn with_id(request: Request<Body>) -> Result<(Request<Body>, Option<String>), Status> {
    let (head, body) = request.into_parts();
    let bytes = Limited::new(body, REQUEST_LIMIT)
        .collect()
        .await
        .map_err(|_| Status::resource_exhausted(format!("a request may have {REQUEST_LIMIT} bytes")))?
        .to_bytes();
    let id = object_id(&bytes);
    Ok((Request::from_parts(head, Body::new(Full::new(bytes))), id))
}

/// `None` for what cannot be read: the server behind says what is wrong with it.
fn object_id(frame: &Bytes) -> Option<String> {
    let mut message = frame.clone();
    if message.len() < PREFIX || message[0] != 0 {
        return None;
    }
    message.advance(PREFIX);
    prost::Message::decode(message).ok().map(|object: ObjectId| object.id)
}
