//! What every call passes first, in the simulator and in the proxy: the counters, then the faults.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tower::Service;

use crate::fault::{FaultService, Faults, rpc_of};
use crate::stats::Stats;

/// A CRI server behind counters and faults.
#[derive(Debug, Clone)]
pub(crate) struct Front<S> {
    behind: FaultService<S>,
    stats: Stats,
}

impl<S> Front<S> {
    pub(crate) fn new(inner: S, faults: Faults, stats: Stats) -> Self {
        Self {
            behind: FaultService::new(inner, faults),
            stats,
        }
    }
}

impl<S> Service<Request<Body>> for Front<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.behind.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let flight = self.stats.begin(rpc_of(request.uri().path()));
        let answer = self.behind.call(request);
        Box::pin(async move { Ok(flight.answer(answer.await?)) })
    }
}
