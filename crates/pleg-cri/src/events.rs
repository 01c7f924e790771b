//! The runtime's own events.
//!
//! An event carries the status of its whole pod, which may be large and is not needed by a reader that takes it only as a hint. So there
//! are two ways to read the stream: whole messages, and [`Hint`]s, which skip over the statuses without decoding them.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use tokio::time::timeout;

use crate::client::UNARY_LIMIT;
use crate::grpc::{Answer, Connection, Windows, frame};
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
    state: State,
    client: Client,
    message: PhantomData<fn() -> M>,
    /// Keeps the stream in the in-flight table.
    _flight: crate::inflight::Flight,
}

type Opening = Pin<Box<dyn Future<Output = Result<Answer, ErrorKind>> + Send>>;

/// Where a subscription stands.
enum State {
    /// The runtime has neither refused the subscription nor answered it: it has no event so far.
    Quiet(Opening),
    /// The runtime has answered.
    Open(Answer),
    /// The stream ended, and `next` has returned the error. `clean`: the runtime ended it with the status OK.
    Ended { clean: bool },
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet(_) => "Quiet",
            Self::Open(_) => "Open",
            Self::Ended { .. } => "Ended",
        })
    }
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
        // A connection of its own: events must not wait behind a large list.
        let windows = Windows {
            stream: WINDOW,
            connection: WINDOW,
        };
        let connection = Connection::new(self.endpoint().clone(), self.deadlines().connect, windows);
        let (path, request) = (rpc.path(self.api()), frame(&v1::GetEventsRequest {}));
        let mut opening: Opening = Box::pin(async move { connection.call(path, request, None).await });
        let state = self
            .tracked(rpc, &Subject::NODE, deadline, async {
                match timeout(REFUSAL.min(deadline), &mut opening).await {
                    Ok(answer) => answer.map(State::Open),
                    Err(_) => Ok(State::Quiet(opening)),
                }
            })
            .await?;
        let flight = self.inflight().begin(rpc, Subject::NODE, None);
        Ok(EventStream {
            state,
            client: self.clone(),
            message: PhantomData,
            _flight: flight,
        })
    }
}

impl<M: Message + Default> EventStream<M> {
    /// The runtime ended the stream with the status OK.
    pub fn ended_cleanly(&self) -> bool {
        matches!(self.state, State::Ended { clean: true })
    }

    /// The next event. Cancel-safe. Never returns `Ok` again after an error.
    pub async fn next(&mut self) -> Result<M, Error> {
        let mut clean = false;
        let kind = loop {
            match &mut self.state {
                State::Quiet(opening) => match opening.await {
                    Ok(answer) => self.state = State::Open(answer),
                    Err(kind) => break kind,
                },
                State::Open(answer) => match answer.message(UNARY_LIMIT).await {
                    Ok(Some(event)) => match M::decode(event) {
                        Ok(event) => return Ok(event),
                        Err(error) => break ErrorKind::Malformed(error.to_string()),
                    },
                    Ok(None) => {
                        clean = true;
                        break ErrorKind::Unreachable("the runtime ended the stream".to_owned());
                    }
                    Err(kind) => break kind,
                },
                State::Ended { clean: before } => {
                    clean = *before;
                    break ErrorKind::Unreachable("the stream has ended".to_owned());
                }
            }
        };
        self.state = State::Ended { clean };
        Err(self.client.error(Rpc::GetContainerEvents, &Subject::NODE, kind))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::Config;
    use crate::grpc::testing::{Prepared, listen};

    /// containerd and CRI-O send no head before the first event, which on a quiet node may be minutes away.
    #[tokio::test]
    async fn a_subscription_to_a_quiet_runtime_stands() {
        let directory = tempfile::tempdir().unwrap();
        let (endpoint, listener) = listen(directory.path());
        let (go, wait) = oneshot::channel();
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let (_, respond) = connection.accept().await.unwrap().unwrap();
            wait.await.unwrap();
            Prepared::ok(vec![0; 5]).send(respond).unwrap();
            while let Some(Ok(_)) = connection.accept().await {}
        });
        let client = Client::lazy(endpoint, Config::default());
        let mut events = client.container_events().await.unwrap();
        assert!(timeout(Duration::from_millis(50), events.next()).await.is_err());
        assert_eq!(client.inflight().calls().len(), 1);
        go.send(()).unwrap();
        assert_eq!(events.next().await.unwrap(), v1::ContainerEventResponse::default());
        assert!(events.next().await.is_err());
        assert!(events.next().await.is_err());
    }
}
