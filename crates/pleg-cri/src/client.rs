//! One place through which every call goes: it sets the deadline, enters the in-flight table and names what failed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::time::{Instant, timeout};
use tonic::client::Grpc;
use tonic::codec::Codec;
use tonic::transport::{Channel, Endpoint as Builder};
use tonic_prost::ProstCodec;
use tower::{Service, ServiceExt};

use crate::details::without_details;
use crate::error::root_cause;
use crate::list::{self, ContainerItem, Form, ListFilter, ListSummary, Malformed, SandboxItem, Visit};
use crate::socket::Socket;
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
    channel: Channel,
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
        let channel = channel(&endpoint, &config, |channel| channel);
        let (api, streaming) = (AtomicU8::new(0), AtomicU8::new(Streaming::Unknown as u8));
        Self {
            inner: Arc::new(Inner {
                endpoint,
                channel,
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
        let codec = ProstCodec::<R, R::Response>::default();
        let mut request = tonic::Request::new(request);
        request.set_timeout(deadline);
        self.unary_by(api, R::RPC, subject, request, codec, UNARY_LIMIT, deadline)
            .await
    }

    pub(crate) async fn unary<C>(
        &self,
        rpc: Rpc,
        subject: &Subject,
        mut request: tonic::Request<C::Encode>,
        codec: C,
        limit: usize,
    ) -> Result<C::Decode, Error>
    where
        C: Codec<Encode: Sync, Decode: Sync>,
    {
        let deadline = self.inner.config.deadlines.of(rpc.class());
        request.set_timeout(deadline);
        self.unary_by(self.api(), rpc, subject, request, codec, limit, deadline)
            .await
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the one place where all of a call comes together"
    )]
    async fn unary_by<C>(
        &self,
        api: ApiVersion,
        rpc: Rpc,
        subject: &Subject,
        request: tonic::Request<C::Encode>,
        codec: C,
        limit: usize,
        deadline: Duration,
    ) -> Result<C::Decode, Error>
    where
        C: Codec<Encode: Sync, Decode: Sync>,
    {
        self.tracked(rpc, subject, deadline, async {
            let mut grpc = Grpc::new(without_details(self.inner.channel.clone())).max_decoding_message_size(limit);
            grpc.ready().await.map_err(|e| ErrorKind::Unreachable(root_cause(&e)))?;
            let path = http::uri::PathAndQuery::from_static(rpc.path(api));
            let response = grpc
                .unary(request, path, codec)
                .await
                .map_err(|status| ErrorKind::from_status(&status))?;
            Ok(response.into_inner())
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
        self.tracked(rpc, &Subject::NODE, deadline, async {
            let response = self.post(rpc, request).await?;
            list::read_list(response, form, self.inner.config.list_limit, visit)
                .await
                .map_err(|error| match error {
                    list::ReadError::Status(status) => ErrorKind::from_status(&status),
                    list::ReadError::Malformed(what) => ErrorKind::Malformed(what.to_owned()),
                    list::ReadError::TooLarge { limit } => ErrorKind::TooLarge { limit },
                })
        })
        .await
    }

    /// A bare gRPC request: tonic's own codecs want the whole answer in one buffer before they decode it.
    async fn post(&self, rpc: Rpc, request: &Bytes) -> Result<http::Response<tonic::body::Body>, ErrorKind> {
        let mut channel = self.inner.channel.clone();
        let channel = channel
            .ready()
            .await
            .map_err(|e| ErrorKind::Unreachable(root_cause(&e)))?;
        let request = http::Request::post(http::Uri::from_static(rpc.path(self.api())))
            .header(http::header::TE, "trailers")
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .body(tonic::body::Body::new(http_body_util::Full::new(request.clone())))
            .map_err(|e| ErrorKind::Malformed(e.to_string()))?;
        channel
            .call(request)
            .await
            .map_err(|e| ErrorKind::Unreachable(root_cause(&e)))
    }

    /// A connection of its own, on which so many bytes may be on their way before they are read.
    pub(crate) fn own_channel(&self, window: u32) -> Channel {
        channel(&self.inner.endpoint, &self.inner.config, |channel| {
            channel
                .initial_stream_window_size(window)
                .initial_connection_window_size(window)
        })
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

/// Connects with the first call, and again by itself.
fn channel(endpoint: &Endpoint, config: &Config, settings: impl FnOnce(Builder) -> Builder) -> Channel {
    let path: PathBuf = endpoint.path().into();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { Socket::connect(&path).await.map(TokioIo::new) }
    });
    // gRPC over a unix socket wants the authority `localhost`: containerd refuses a path there.
    let builder = Channel::from_static("http://localhost").connect_timeout(config.deadlines.connect);
    settings(builder).connect_with_connector_lazy(connector)
}

/// One message as gRPC frames it.
fn frame(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + len);
    bytes.put_u8(0);
    // A filter of 4 GiB cannot be built from the strings we accept.
    bytes.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    // BytesMut grows, so there is always room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
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
