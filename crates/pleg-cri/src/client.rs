//! One place through which every call goes: it sets the deadline, enters the in-flight table and names what failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::time::{Instant, timeout};

use crate::grpc::{Connection, Windows, frame};
use crate::list::{self, ContainerItem, Form, ListFilter, ListSummary, Malformed, SandboxItem, Visit};
use crate::{
    ApiVersion, ConnectError, Deadlines, Endpoint, Error, ErrorKind, InFlight, Outcome, Rpc, Subject, Unary, v1,
};

/// The largest answer of any call but the lists.
pub(crate) const UNARY_LIMIT: usize = 64 << 20;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long calls may take.
    pub deadlines: Deadlines,
    /// The largest list answer, in bytes. The kubelet's 16 MiB are passed by some 20,000 containers.
    pub list_limit: usize,
    /// Where calls are entered while they are in flight.
    pub inflight: InFlight,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            deadlines: Deadlines::default(),
            list_limit: 256 << 20,
            inflight: InFlight::default(),
        }
    }
}

/// A CRI runtime. Clones share the connection, which is made again by itself after it broke.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    connection: Connection,
    config: Config,
    /// An [`ApiVersion`]: what the last `Version` found out.
    api: AtomicU8,
    /// Whether the runtime streams its lists; a [`Streaming`].
    streaming: AtomicU8,
}

/// What we know about the streaming list calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Streaming {
    Unknown = 0,
    Yes = 1,
    No = 2,
}

impl Client {
    /// Connects, and finds out that CRI is spoken there and in which version.
    pub async fn connect(endpoint: Endpoint, config: Config) -> Result<Self, ConnectError> {
        probe(&endpoint, config.deadlines.connect).await?;
        let client = Self::lazy(endpoint.clone(), config);
        let after = client.inner.config.deadlines.connect;
        match timeout(after, client.version()).await {
            Err(_) => Err(ConnectError::Silent { endpoint, after }),
            Ok(Ok(_)) => Ok(client),
            Ok(Err(error)) => Err(match error.kind {
                ErrorKind::Unimplemented => ConnectError::NotCri(endpoint),
                ErrorKind::Deadline(after) => ConnectError::Silent { endpoint, after },
                ErrorKind::Unreachable(detail) => ConnectError::NotGrpc { endpoint, detail },
                kind => ConnectError::Other {
                    endpoint,
                    detail: kind.to_string(),
                },
            }),
        }
    }

    /// A client that connects with its first call, and assumes CRI v1 until [`Client::version`] was asked.
    pub fn lazy(endpoint: Endpoint, config: Config) -> Self {
        let connection = Connection::new(endpoint.clone(), config.deadlines.connect, Windows::default());
        let (api, streaming) = (AtomicU8::new(0), AtomicU8::new(Streaming::Unknown as u8));
        Self {
            inner: Arc::new(Inner {
                endpoint,
                connection,
                config,
                api,
                streaming,
            }),
        }
    }

    /// Where this client sends its calls.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// The deadlines in force.
    pub fn deadlines(&self) -> &Deadlines {
        &self.inner.config.deadlines
    }

    /// The calls in flight.
    pub fn inflight(&self) -> &InFlight {
        &self.inner.config.inflight
    }

    /// The version of the API in use.
    pub fn api(&self) -> ApiVersion {
        match self.inner.api.load(Ordering::Relaxed) {
            0 => ApiVersion::V1,
            _ => ApiVersion::V1Alpha2,
        }
    }

    /// Asks for the runtime's name and version, and settles the API version on the way. Ask again after the runtime was
    /// away: it may have come back as another version, with other features.
    pub async fn version(&self) -> Result<v1::VersionResponse, Error> {
        for api in [ApiVersion::V1, ApiVersion::V1Alpha2] {
            let request = v1::VersionRequest {
                version: api.to_string(),
            };
            match self.send(api, &Subject::NODE, request).await {
                Err(Error {
                    kind: ErrorKind::Unimplemented,
                    ..
                }) => {}
                answer => {
                    if answer.is_ok() {
                        self.inner.api.store(u8::from(api != ApiVersion::V1), Ordering::Relaxed);
                        self.inner.streaming.store(Streaming::Unknown as u8, Ordering::Relaxed);
                    }
                    return answer;
                }
            }
        }
        Err(self.error(Rpc::Version, &Subject::NODE, ErrorKind::Unimplemented))
    }

    /// Makes a call. The in-flight table knows the object by its id.
    pub async fn call<R: Unary>(&self, request: R) -> Result<R::Response, Error> {
        let subject = request.object_id().map_or(Subject::NODE, Subject::id);
        self.call_for(&subject, request).await
    }

    /// Makes a call about an object whose pod and name the caller knows.
    pub async fn call_for<R: Unary>(&self, subject: &Subject, request: R) -> Result<R::Response, Error> {
        self.send(self.api(), subject, request).await
    }

    /// Makes a call that may take as long as this, whatever its class says: a stop takes its grace period, a pull what the network
    /// takes, a command what it was given.
    pub async fn call_within<R: Unary>(
        &self,
        subject: &Subject,
        request: R,
        within: Duration,
    ) -> Result<R::Response, Error> {
        self.send_within(self.api(), subject, request, within).await
    }

    async fn send<R: Unary>(&self, api: ApiVersion, subject: &Subject, request: R) -> Result<R::Response, Error> {
        let deadline = self.inner.config.deadlines.of(R::RPC.class());
        self.send_within(api, subject, request, deadline).await
    }

    async fn send_within<R: Unary>(
        &self,
        api: ApiVersion,
        subject: &Subject,
        request: R,
        deadline: Duration,
    ) -> Result<R::Response, Error> {
        let decode =
            |answer: Bytes| R::Response::decode(answer).map_err(|error| ErrorKind::Malformed(error.to_string()));
        self.unary(api, subject, request, UNARY_LIMIT, deadline, decode).await
    }

    /// Makes a call whose answer is one message of at most `limit` bytes, and hands that to `read`.
    pub(crate) async fn unary<R: Unary, T>(
        &self,
        api: ApiVersion,
        subject: &Subject,
        request: R,
        limit: usize,
        deadline: Duration,
        read: impl FnOnce(Bytes) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        let path = R::RPC.path(api);
        let call = self.inner.connection.call(path, frame(&request), Some(deadline));
        self.tracked(R::RPC, subject, deadline, async {
            read(call.await?.single(limit).await?)
        })
        .await
    }

    /// Lists sandboxes, handing each to `visit` as its bytes arrive. What was visited counts only if the call succeeds.
    pub async fn list_sandboxes(
        &self,
        filter: &ListFilter,
        mut visit: impl FnMut(SandboxItem<'_>) + Send,
    ) -> Result<ListSummary, Error> {
        let each = |batch: &[&[u8]]| {
            batch
                .iter()
                .try_for_each(|item| list::parse_sandbox(item).map(&mut visit))
        };
        self.list_sandboxes_raw(filter, each).await
    }

    /// Lists containers, handing each to `visit` as its bytes arrive. What was visited counts only if the call succeeds.
    pub async fn list_containers(
        &self,
        filter: &ListFilter,
        mut visit: impl FnMut(ContainerItem<'_>) + Send,
    ) -> Result<ListSummary, Error> {
        let each = |batch: &[&[u8]]| {
            batch
                .iter()
                .try_for_each(|item| list::parse_container(item).map(&mut visit))
        };
        self.list_containers_raw(filter, each).await
    }

    /// As [`Client::list_sandboxes`], with items as their bytes, up to [`list::BATCH`] at a time: for who can tell from a glance
    /// that there is no more to read.
    pub async fn list_sandboxes_raw(
        &self,
        filter: &ListFilter,
        mut visit: impl FnMut(&[&[u8]]) -> Result<(), Malformed> + Send,
    ) -> Result<ListSummary, Error> {
        let request = frame(&filter.sandboxes());
        self.list([Rpc::StreamPodSandboxes, Rpc::ListPodSandbox], &request, &mut visit)
            .await
    }

    /// As [`Client::list_containers`], with items as their bytes, up to [`list::BATCH`] at a time.
    pub async fn list_containers_raw(
        &self,
        filter: &ListFilter,
        mut visit: impl FnMut(&[&[u8]]) -> Result<(), Malformed> + Send,
    ) -> Result<ListSummary, Error> {
        let request = frame(&filter.containers());
        self.list([Rpc::StreamContainers, Rpc::ListContainers], &request, &mut visit)
            .await
    }

    /// Sends the request by the streaming call where the runtime has it, else by the unary one.
    async fn list(
        &self,
        [stream, unary]: [Rpc; 2],
        request: &Bytes,
        visit: &mut Visit<'_>,
    ) -> Result<ListSummary, Error> {
        let mut visited = false;
        if self.inner.streaming.load(Ordering::Relaxed) != Streaming::No as u8 {
            let answer = self
                .list_by(stream, Form::Streaming, request, &mut |batch| {
                    visited = true;
                    visit(batch)
                })
                .await;
            match answer {
                Err(Error {
                    kind: ErrorKind::Unimplemented,
                    ..
                }) if !visited => {
                    self.inner.streaming.store(Streaming::No as u8, Ordering::Relaxed);
                }
                answer => {
                    if answer.is_ok() {
                        self.inner.streaming.store(Streaming::Yes as u8, Ordering::Relaxed);
                    }
                    return answer.map(|(items, bytes)| ListSummary {
                        items,
                        bytes,
                        streamed: true,
                    });
                }
            }
        }
        let (items, bytes) = self.list_by(unary, Form::Unary, request, visit).await?;
        Ok(ListSummary {
            items,
            bytes,
            streamed: false,
        })
    }

    async fn list_by(
        &self,
        rpc: Rpc,
        form: Form,
        request: &Bytes,
        visit: &mut Visit<'_>,
    ) -> Result<(usize, usize), Error> {
        let deadline = self.inner.config.deadlines.list;
        let call = self.inner.connection.call(rpc.path(self.api()), request.clone(), None);
        self.tracked(rpc, &Subject::NODE, deadline, async {
            list::read_list(call.await?, form, self.inner.config.list_limit, visit).await
        })
        .await
    }

    /// Runs a call under its deadline and in the table.
    pub(crate) async fn tracked<T>(
        &self,
        rpc: Rpc,
        subject: &Subject,
        deadline: Duration,
        call: impl Future<Output = Result<T, ErrorKind>>,
    ) -> Result<T, Error> {
        let flight = self.inflight().begin(rpc, subject.clone(), Some(deadline));
        let started = Instant::now();
        let result = match timeout(deadline, call).await {
            Ok(Err(kind)) if started.elapsed() >= deadline && !kind.is_not_found() => {
                Err(ErrorKind::Deadline(deadline))
            }
            Ok(result) => result,
            Err(_) => Err(ErrorKind::Deadline(deadline)),
        };
        flight.end(match &result {
            Ok(_) => Outcome::Ok,
            Err(kind) => Outcome::Failed(kind),
        });
        result.map_err(|kind| self.error(rpc, subject, kind))
    }

    pub(crate) fn error(&self, rpc: Rpc, subject: &Subject, kind: ErrorKind) -> Error {
        Error {
            rpc,
            subject: subject.clone(),
            endpoint: self.inner.endpoint.clone(),
            kind,
        }
    }
}

/// Opens the socket once by hand, because the system's own error is the clearest one.
async fn probe(endpoint: &Endpoint, within: Duration) -> Result<(), ConnectError> {
    use std::io::ErrorKind as Io;
    use std::os::unix::fs::FileTypeExt;

    let fail = |error: std::io::Error| match error.kind() {
        Io::NotFound | Io::NotADirectory => ConnectError::Absent(endpoint.clone()),
        Io::PermissionDenied => ConnectError::NoPermission(endpoint.clone()),
        Io::ConnectionRefused => ConnectError::Refused(endpoint.clone()),
        _ => ConnectError::Other {
            endpoint: endpoint.clone(),
            detail: error.to_string(),
        },
    };
    let meta = tokio::fs::metadata(endpoint.path()).await.map_err(fail)?;
    if !meta.file_type().is_socket() {
        return Err(ConnectError::NotASocket(endpoint.clone()));
    }
    match timeout(within, tokio::net::UnixStream::connect(endpoint.path())).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(fail(error)),
        Err(_) => Err(ConnectError::Silent {
            endpoint: endpoint.clone(),
            after: within,
        }),
    }
}
