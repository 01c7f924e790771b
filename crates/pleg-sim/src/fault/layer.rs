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
use tower::{Service, ServiceExt};

use super::{Faults, events};
use crate::serve::PREFIX;
use crate::stats::GRPC_STATUS;

/// A request is read this far to find its id; containerd takes no larger ones either.
const REQUEST_LIMIT: usize = 16 << 20;
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
    /// Applies faults in front of a server.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

/// The call of a path, such as `/runtime.v1.RuntimeService/ListContainers`. containerd has services of its own on the
/// same socket, with a `Version` too; those are not CRI calls.
pub(crate) fn rpc_of(path: &str) -> Option<Rpc> {
    let (_, method) = path.strip_prefix("/runtime.v1")?.split_once('/')?;
    Rpc::from_name(method)
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
            let (request, id) = if faults.by_id(rpc) {
                match with_id(request).await {
                    Ok(found) => found,
                    Err(status) => return Ok(status.into_http()),
                }
            } else {
                (request, None)
            };
            let plan = faults.plan(rpc, id.as_deref());
            if !plan.latency.is_zero() {
                tokio::time::sleep(plan.latency).await;
            }
            if let Some(code) = plan.fail {
                let status = Status::new(code.0, format!("injected failure of {rpc}"));
                return Ok(status.into_http());
            }
            let request = if rpc == Rpc::StreamContainers && faults.locked() {
                match refused(inner.clone(), request).await? {
                    Ok(refusal) => return Ok(refusal),
                    Err(request) => request,
                }
            } else {
                request
            };
            faults.wait_while_held(rpc, id.as_deref()).await;
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

/// A call that the runtime does not implement is refused whatever is locked. Returns the refusal, or the request unchanged.
async fn refused<S>(inner: S, request: Request<Body>) -> Result<Result<Response<Body>, Request<Body>>, Infallible>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let (head, body) = request.into_parts();
    let bytes = match read(body).await {
        Ok(bytes) => bytes,
        Err(status) => return Ok(Ok(status.into_http())),
    };
    let whole = || Request::from_parts(head.clone(), Body::new(Full::new(bytes.clone())));
    let response = inner.oneshot(whole()).await?;
    if response.headers().contains_key(GRPC_STATUS) {
        return Ok(Ok(response));
    }
    Ok(Err(whole()))
}

async fn read(body: Body) -> Result<Bytes, Status> {
    match Limited::new(body, REQUEST_LIMIT).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(_) => Err(Status::resource_exhausted(format!(
            "the request is larger than {REQUEST_LIMIT} bytes"
        ))),
    }
}

/// Reads the id of a request, and returns the request with its whole body.
async fn with_id(request: Request<Body>) -> Result<(Request<Body>, Option<String>), Status> {
    let (head, body) = request.into_parts();
    let bytes = read(body).await?;
    let id = object_id(&bytes);
    Ok((Request::from_parts(head, Body::new(Full::new(bytes))), id))
}

/// `None` if it cannot be read; the server reports the error.
fn object_id(frame: &Bytes) -> Option<String> {
    let mut message = frame.clone();
    if message.len() < PREFIX || message[0] != 0 {
        return None;
    }
    message.advance(PREFIX);
    prost::Message::decode(message).ok().map(|object: ObjectId| object.id)
}
