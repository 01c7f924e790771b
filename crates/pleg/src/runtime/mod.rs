//! The container runtime, as the generator needs it: two lists, two inspections, and how it is.
//!
//! [`CriRuntime`] is the real one. The trait is small so that a test can drive the generator in-process, with paused time.

mod cri;
pub(crate) mod quirks;
pub mod shim;

use std::sync::Arc;

pub use cri::CriRuntime;
use futures_util::stream::BoxStream;
pub use pleg_cri::{Error, ErrorKind, InFlight, ListFilter, ListSummary, Subject};

use crate::evented::Reached;
use crate::model::status::{ContainerStatus, SandboxStatus};
use crate::model::{ContainerId, PodUid, SandboxId};
pub use crate::records::snapshot::{ContainerList, SandboxList};

/// Name and version of a runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RuntimeVersion {
    /// `containerd`, `cri-o`, …
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of CRI it is spoken to in.
    pub api: String,
}

/// The conditions in `Status` that decide whether a node is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Its condition `RuntimeReady`; none if it has none.
    pub runtime: Option<RuntimeCondition>,
    /// Its condition `NetworkReady`; none if it has none.
    pub network: Option<RuntimeCondition>,
}

/// One condition of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady` or `NetworkReady`.
    pub kind: &'static str,
    /// It is met.
    pub status: bool,
    /// Why, in a word.
    pub reason: Box<str>,
    /// Why, for people.
    pub message: Box<str>,
}

impl std::fmt::Display for RuntimeCondition {
    /// As the kubelet prints it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            status,
            reason,
            message,
        } = self;
        write!(f, "{kind}={status} reason:{reason} message:{message}")
    }
}

/// The first process of a container, by what the runtime says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerPid {
    /// The container runs as this process, by the numbers of the machine that it runs on.
    Known(u32),
    /// The runtime does not say which process it is.
    Unknown,
    /// The container has exited, so it has no process.
    Exited,
}

impl ContainerPid {
    /// The number of the process, where the runtime says it.
    pub fn known(self) -> Option<u32> {
        match self {
            Self::Known(pid) => Some(pid),
            Self::Unknown | Self::Exited => None,
        }
    }
}

/// An event of the runtime: where to look, not what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// The container or sandbox it concerns, if it names one.
    pub id: Option<Arc<str>>,
    /// The pod it concerns, if it names one.
    pub pod: Option<PodUid>,
    /// The state that it claims for the object. It decides nothing, except that the object is checked again if the claim does not hold.
    pub reached: Option<Reached>,
    /// Its creation time. It decides nothing: see `runtime::quirks`.
    pub created_at: i64,
}

/// The runtime's events. Ends after an error, or without one if the runtime ends the subscription so.
pub type EventStream = BoxStream<'static, Result<RuntimeEvent, Error>>;

/// A container runtime that can be observed. Every call is bounded in time by the implementation.
pub trait Runtime: Send + Sync + 'static {
    /// Fills `into` with the sandboxes of the node or of one pod. What it holds counts only if the call succeeds.
    fn list_sandboxes(
        &self,
        filter: &ListFilter,
        into: &mut SandboxList,
    ) -> impl Future<Output = Result<ListSummary, Error>> + Send;

    /// Fills `into` with the containers of the node or of one pod. What it holds counts only if the call succeeds.
    fn list_containers(
        &self,
        filter: &ListFilter,
        into: &mut ContainerList,
    ) -> impl Future<Output = Result<ListSummary, Error>> + Send;

    /// Describes one sandbox.
    fn sandbox_status(
        &self,
        subject: &Subject,
        id: &SandboxId,
    ) -> impl Future<Output = Result<SandboxStatus, Error>> + Send;

    /// Describes one container.
    fn container_status(
        &self,
        subject: &Subject,
        id: &ContainerId,
        name: &Arc<str>,
    ) -> impl Future<Output = Result<ContainerStatus, Error>> + Send;

    /// Asks which process a container has.
    fn container_pid(
        &self,
        _subject: &Subject,
        _id: &ContainerId,
    ) -> impl Future<Output = Result<ContainerPid, Error>> + Send {
        std::future::ready(Ok(ContainerPid::Unknown))
    }

    /// Asks for something about a sandbox that its shim has to answer, without changing anything. The answer does not matter, only
    /// that there is one. A runtime without shims has nothing to ask.
    fn probe_sandbox(&self, _subject: &Subject, _id: &SandboxId) -> impl Future<Output = Result<(), Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Subscribes to the runtime's events. Returns once the subscription stands or is refused; a runtime that has none says
    /// [`ErrorKind::Unimplemented`].
    fn events(&self) -> impl Future<Output = Result<EventStream, Error>> + Send;

    /// Asks which runtime this is. Called whenever the runtime was away or did not know a call, until it answers: it may have
    /// become another one.
    fn version(&self) -> impl Future<Output = Result<RuntimeVersion, Error>> + Send;

    /// Asks how the runtime is.
    fn status(&self) -> impl Future<Output = Result<RuntimeStatus, Error>> + Send;

    /// Where the runtime is, for the commands that health suggests.
    fn endpoint(&self) -> Option<String> {
        None
    }

    /// The calls in flight, for health and metrics.
    fn inflight(&self) -> InFlight {
        InFlight::default()
    }
}
