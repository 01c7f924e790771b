//! From a path to its handler: lists made of bytes, then the rest.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use pleg_cri::v1::image_service_server::ImageServiceServer;
use pleg_cri::v1::runtime_service_server::RuntimeServiceServer;
use pleg_cri::{ApiVersion, Rpc};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::image::Image;
use super::runtime::Runtime;
use super::{events, lists};
use crate::sim::Simulation;

/// Maximum size of a request, as in containerd.
const REQUEST_LIMIT: usize = 16 << 20;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The simulated CRI server, without faults.
#[derive(Clone)]
pub(crate) struct Router {
    shared: Arc<Simulation>,
    runtime: RuntimeServiceServer<Runtime>,
    image: ImageServiceServer<Image>,
}

impl Router {
    pub(crate) fn new(shared: &Arc<Simulation>) -> Self {
        let runtime = Runtime::new(Arc::clone(shared));
        let image = Image::new(Arc::clone(shared));
        Self {
            shared: Arc::clone(shared),
            runtime: RuntimeServiceServer::new(runtime).max_decoding_message_size(REQUEST_LIMIT),
            image: ImageServiceServer::new(image).max_decoding_message_size(REQUEST_LIMIT),
        }
    }
}

impl Service<Request<Body>> for Router {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Answer {
        let Some((service, rpc)) = route(request.uri().path(), self.shared.config.api) else {
            let status = unserved(request.uri().path());
            return Box::pin(async move { Ok(status.into_http()) });
        };
        // The handlers behind know v1 only; the messages are the same.
        if self.shared.config.api != ApiVersion::V1 {
            let path = PathAndQuery::try_from(format!("/runtime.v1.{service}/{rpc}"));
            *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        }
        match rpc {
            Rpc::ListPodSandbox | Rpc::ListContainers | Rpc::StreamPodSandboxes | Rpc::StreamContainers => {
                let shared = Arc::clone(&self.shared);
                Box::pin(async move {
                    let answer = lists::answer(&shared, rpc, request).await;
                    Ok(answer.unwrap_or_else(Status::into_http))
                })
            }
            Rpc::GetContainerEvents => {
                let answer = events::answer(&self.shared);
                Box::pin(async move { Ok(answer.unwrap_or_else(Status::into_http)) })
            }
            rpc if rpc.is_image() => self.image.call(request),
            _ => self.runtime.call(request),
        }
    }
}

/// Why a path leads nowhere.
fn unserved(path: &str) -> Status {
    let instead = match path.rsplit('/').next().unwrap_or(path) {
        "ListPodSandboxMetrics" | "ListMetricDescriptors" => {
            "no metrics; the stats calls work (crictl stats, crictl statsp)"
        }
        "CheckpointContainer" => "the simulated runtime has no processes to checkpoint",
        _ => {
            let path: String = path.chars().take(200).collect();
            return Status::unimplemented(format!("unknown service or method {path}"));
        }
    };
    Status::unimplemented(instead)
}

/// Service and call of a path, if it is one of the API that is served.
fn route(path: &str, api: ApiVersion) -> Option<(&'static str, Rpc)> {
    let (service, method) = path.strip_prefix("/runtime.")?.split_once('/')?;
    let (version, service) = service.split_once('.')?;
    let rpc = Rpc::from_name(method)?;
    let expected = if rpc.is_image() {
        "ImageService"
    } else {
        "RuntimeService"
    };
    (version == api.to_string() && service == expected).then_some((expected, rpc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_served_api_are_routed() {
        let list = Some(("RuntimeService", Rpc::ListContainers));
        assert_eq!(route("/runtime.v1.RuntimeService/ListContainers", ApiVersion::V1), list);
        assert_eq!(
            route("/runtime.v1alpha2.RuntimeService/ListContainers", ApiVersion::V1Alpha2),
            list
        );
        for path in [
            "/runtime.v1alpha2.RuntimeService/ListContainers",
            "/runtime.v1.ImageService/ListContainers",
            "/runtime.v1.RuntimeService/Nope",
            "/grpc.health.v1.Health/Check",
            "",
        ] {
            assert_eq!(route(path, ApiVersion::V1), None, "{path}");
        }
    }
}
