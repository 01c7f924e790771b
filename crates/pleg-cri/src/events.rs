//! The runtime's own events.
//!
//! An event carries the status of its whole pod, which may be large and is not needed by a reader that takes it only as a hint. So there
//! are two ways to read the stream: whole messages, and [`Hint`]s, which skip over the statuses without decoding them.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::client::UNARY_LIMIT;
use crate::details::without_details;
use crate::error::root_cause;
use crate::{Client, Error, ErrorKind, Rpc, Subject, v1};

/// Flow-control window for events in bytes, enough for some thousands: a runtime must not wait for the window to open.
const WINDOW: u32 = 8 << 20;
/// How long a runtime may take to refuse a subscription. It has no need to answer one that it accepts.
const REFUSAL: Duration = Duration::from_secs(1);

/// The identifying part of an event. Its texts are bytes: invalid UTF-8 must not end the stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hint {
    /// The container or sandbox it is about.
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    /// A [`v1::ContainerEventType`].
    #[prost(int32, tag = "2")]
    pub kind: i32,
    /// When it was made, by the runtime's clock: in nanoseconds, or in seconds, or 0.
    #[prost(int64, tag = "3")]
    pub created_at: i64,
    /// Whose it is; some runtimes leave it out.
    #[prost(message, optional, tag = "4")]
    pub sandbox: Option<HintSandbox>,
}

/// The sandbox of a [`Hint`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HintSandbox {
    /// Its id.
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    /// Its names.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<HintMetadata>,
}

/// The names of a [`HintSandbox`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HintMetadata {
    /// The pod's UID.
    #[prost(bytes = "bytes", tag = "2")]
    pub uid: Bytes,
}

impl Hint {
    /// The UID of the pod, if the event has it.
    pub fn pod(&self) -> Option<&[u8]> {
        let metadata = self.sandbox.as_ref()?.metadata.as_ref()?;
        Some(&*metadata.uid).filter(|uid| !uid.is_empty())
    }

    /// What happened, if it is something that CRI has a word for.
    pub fn event_type(&self) -> Option<v1::ContainerEventType> {
        v1::ContainerEventType::try_from(self.kind).ok()
    }
}

/// The runtime's events, as they come. Ends with an error when the stream ends; open a new one then.
#[derive(Debug)]
pub struct EventStream<M = v1::ContainerEventResponse> {
    events: Events<M>,
    client: Client,
    /// Keeps the stream in the in-flight table.
    _flight: crate::inflight::Flight,
}

type Opening<M> = Pin<Box<dyn Future<Output = Result<tonic::Streaming<M>, ErrorKind>> + Send>>;

/// Where a subscription stands.
enum Events<M> {
    /// Not refused; no event so far.
    Quiet(Opening<M>),
    /// Answered.
    Open(Box<tonic::Streaming<M>>),
    /// It ended, with an error that was told; `clean`: the runtime had no complaint.
    Ended { clean: bool },
}

impl<M> fmt::Debug for Events<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet(_) => "Quiet",
            Self::Open(_) => "Open",
            Self::Ended { .. } => "Ended",
        })
    }
}

async fn open<M: Message + Default + 'static>(
    channel: Channel,
    path: &'static str,
) -> Result<tonic::Streaming<M>, ErrorKind> {
    let mut grpc = Grpc::new(without_details(channel)).max_decoding_message_size(UNARY_LIMIT);
    grpc.ready().await.map_err(|e| ErrorKind::Unreachable(root_cause(&e)))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let codec = ProstCodec::<v1::GetEventsRequest, M>::default();
    let answer = grpc
        .server_streaming(tonic::Request::new(v1::GetEventsRequest {}), path, codec)
        .await;
    answer
        .map_err(|status| ErrorKind::from_status(&status))
        .map(tonic::Response::into_inner)
}

impl Client {
    /// Subscribes to the runtime's events. Read it without pause: a slow reader holds up the runtime.
    ///
    /// Returns once the runtime has answered, or has had the time to refuse: Go servers say nothing before the first event.
    pub async fn container_events(&self) -> Result<EventStream, Error> {
        self.events().await
    }

    /// As [`Client::container_events`], for callers that need only the identifying part of each event.
    pub async fn container_event_hints(&self) -> Result<EventStream<Hint>, Error> {
        self.events().await
    }

    async fn events<M: Message + Default + 'static>(&self) -> Result<EventStream<M>, Error> {
        let rpc = Rpc::GetContainerEvents;
        let deadline = self.deadlines().inspect;
        let mut opening: Opening<M> = Box::pin(open(self.own_channel(WINDOW), rpc.path(self.api())));
        let events = self
            .tracked(rpc, &Subject::NODE, deadline, async {
                match timeout(REFUSAL.min(deadline), &mut opening).await {
                    Ok(answer) => answer.map(|stream| Events::Open(Box::new(stream))),
                    Err(_) => Ok(Events::Quiet(opening)),
                }
            })
            .await?;
        let flight = self.inflight().begin(rpc, Subject::NODE, None);
        Ok(EventStream {
            events,
            client: self.clone(),
            _flight: flight,
        })
    }
}

impl<M> EventStream<M> {
    /// The runtime ended the stream, and had no complaint.
    pub fn ended_cleanly(&self) -> bool {
        matches!(self.events, Events::Ended { clean: true })
    }

    /// The next event. Cancel-safe. Never returns `Ok` again after an error.
    pub async fn next(&mut self) -> Result<M, Error> {
        let mut clean = false;
        let kind = loop {
            match &mut self.events {
                Events::Quiet(opening) => match opening.await {
                    Ok(stream) => self.events = Events::Open(Box::new(stream)),
                    Err(kind) => break kind,
                },
                Events::Open(stream) => match stream.message().await {
                    Ok(Some(event)) => return Ok(event),
                    Ok(None) => {
                        clean = true;
                        break ErrorKind::Unreachable("the runtime ended the stream".to_owned());
                    }
                    Err(status) => break ErrorKind::from_status(&status),
                },
                Events::Ended { clean: before } => {
                    clean = *before;
                    break ErrorKind::Unreachable("the stream has ended".to_owned());
                }
            }
        };
        self.events = Events::Ended { clean };
        Err(self.client.error(Rpc::GetContainerEvents, &Subject::NODE, kind))
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use hyper_util::server::conn::auto;
    use hyper_util::service::TowerToHyperService;
    use tokio::net::UnixListener;
    use tokio::sync::watch;

    use super::*;
    use crate::{Config, Endpoint};

    /// A server that holds every answer back until it is told to go on, and then answers with one empty message.
    fn serve(path: &std::path::Path, go: &watch::Receiver<bool>) {
        let (listener, go) = (UnixListener::bind(path).unwrap(), go.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let go = go.clone();
                let service = tower::service_fn(move |_: http::Request<_>| {
                    let mut go = go.clone();
                    async move {
                        let _ = go.wait_for(|go| *go).await;
                        let body = http_body_util::Full::new(Bytes::from_static(&[0; 5]));
                        let mut response = http::Response::new(body);
                        let grpc = http::HeaderValue::from_static("application/grpc");
                        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder
                        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                        .await;
                });
            }
        });
    }

    /// containerd and CRI-O send no head before the first event, which on a quiet node may be minutes away.
    #[tokio::test]
    async fn a_subscription_to_a_quiet_runtime_stands() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.sock");
        let (go, wait) = watch::channel(false);
        serve(&path, &wait);
        let client = Client::lazy(Endpoint::unix(path), Config::default());
        let mut events = client.container_events().await.unwrap();
        assert!(timeout(Duration::from_millis(50), events.next()).await.is_err());
        assert_eq!(client.inflight().calls().len(), 1);
        go.send(true).unwrap();
        assert_eq!(events.next().await.unwrap(), v1::ContainerEventResponse::default());
        assert!(events.next().await.is_err());
        assert!(events.next().await.is_err());
    }
}
