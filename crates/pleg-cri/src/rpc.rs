//! The calls we make, in one table.
//!
//! To add one: its messages and its line in `proto/cri.proto` (then see `tests/generated.rs`), and a line in the table below. The
//! compiler names the rest: metrics and health match over [`Rpc`] without a catch-all, and the simulator has to serve it.

use std::fmt;
use std::time::Duration;

use crate::v1;

/// How long a call may take. What we read is bounded tightly; what changes the runtime may wait for images and grace periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// `ListPodSandbox`, `ListContainers` and their streaming forms.
    pub list: Duration,
    /// `PodSandboxStatus`, `ContainerStatus`, `Version`, `Status` and the other calls that only read.
    pub inspect: Duration,
    /// Calls that change something: create, start, stop, remove, pull.
    pub act: Duration,
    /// The connection itself, and the first answer on it.
    pub connect: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            list: Duration::from_mins(2),
            inspect: Duration::from_secs(10),
            act: Duration::from_mins(4),
            connect: Duration::from_secs(5),
        }
    }
}

impl Deadlines {
    pub(crate) fn of(&self, class: Class) -> Duration {
        match class {
            Class::List => self.list,
            Class::Inspect => self.inspect,
            Class::Act => self.act,
        }
    }
}

/// Which of the [`Deadlines`] a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// [`Deadlines::list`].
    List,
    /// [`Deadlines::inspect`].
    Inspect,
    /// [`Deadlines::act`].
    Act,
}

/// The service of CRI a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// `RuntimeService`.
    Runtime,
    /// `ImageService`.
    Image,
}

/// The two packages under which runtimes serve the same messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApiVersion {
    /// `runtime.v1`, since Kubernetes 1.23.
    #[default]
    V1,
    /// `runtime.v1alpha2`: what older runtimes speak.
    V1Alpha2,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V1Alpha2 => "v1alpha2",
        })
    }
}

/// A request that has exactly one response; the type names the call.
pub trait Unary: prost::Message + Default + 'static {
    /// Which call this request belongs to.
    const RPC: Rpc;
    /// What the runtime answers.
    type Response: prost::Message + Default + 'static;
    /// The sandbox or container the request is about, for the in-flight table.
    fn object_id(&self) -> Option<&str> {
        None
    }
}

macro_rules! rpcs {
    ($($rpc:ident: $service:ident, $class:ident $(, $req:ident => $resp:ident $(($id:ident))?)?;)*) => {
        /// One CRI call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the names are CRI's own")]
        pub enum Rpc { $($rpc),* }

        impl Rpc {
            /// Every call, in the order of the `.proto`.
            pub const ALL: &[Self] = &[$(Self::$rpc),*];

            /// The name on the wire, such as `ListContainers`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$rpc => stringify!($rpc)),* }
            }

            pub(crate) const fn class(self) -> Class {
                match self { $(Self::$rpc => Class::$class),* }
            }

            pub(crate) const fn path(self, api: ApiVersion) -> &'static str {
                match (self, api) {
                    $(
                        (Self::$rpc, ApiVersion::V1) => rpcs!(@path $service, "v1", $rpc),
                        (Self::$rpc, ApiVersion::V1Alpha2) => rpcs!(@path $service, "v1alpha2", $rpc),
                    )*
                }
            }

            /// True if the request begins with the id of a sandbox or container, which is then its field 1.
            pub const fn has_object(self) -> bool {
                match self {
                    $(Self::$rpc => {
                        const IDS: &[&str] = &[$($(stringify!($id))?)?];
                        !IDS.is_empty()
                    })*
                }
            }

            pub(crate) const fn service(self) -> Service {
                match self { $(Self::$rpc => Service::$service),* }
            }
        }

        $($(
            impl Unary for v1::$req {
                const RPC: Rpc = Rpc::$rpc;
                type Response = v1::$resp;
                $(fn object_id(&self) -> Option<&str> { Some(&self.$id) })?
            }
        )?)*
    };
    (@path Runtime, $version:literal, $rpc:ident) => { concat!("/runtime.", $version, ".RuntimeService/", stringify!($rpc)) };
    (@path Image, $version:literal, $rpc:ident) => { concat!("/runtime.", $version, ".ImageService/", stringify!($rpc)) };
}

// call: service, class of its deadline, request => response (the field with the id of the object it is about).
// Calls that answer with a stream have no types here.
rpcs! {
    Version: Runtime, Inspect, VersionRequest => VersionResponse;
    Status: Runtime, Inspect, StatusRequest => StatusResponse;
    RuntimeConfig: Runtime, Inspect, RuntimeConfigRequest => RuntimeConfigResponse;
    RunPodSandbox: Runtime, Act, RunPodSandboxRequest => RunPodSandboxResponse;
    StopPodSandbox: Runtime, Act, StopPodSandboxRequest => StopPodSandboxResponse (pod_sandbox_id);
    RemovePodSandbox: Runtime, Act, RemovePodSandboxRequest => RemovePodSandboxResponse (pod_sandbox_id);
    PodSandboxStatus: Runtime, Inspect, PodSandboxStatusRequest => PodSandboxStatusResponse (pod_sandbox_id);
    ListPodSandbox: Runtime, List, ListPodSandboxRequest => ListPodSandboxResponse;
    StreamPodSandboxes: Runtime, List;
    CreateContainer: Runtime, Act, CreateContainerRequest => CreateContainerResponse (pod_sandbox_id);
    StartContainer: Runtime, Act, StartContainerRequest => StartContainerResponse (container_id);
    StopContainer: Runtime, Act, StopContainerRequest => StopContainerResponse (container_id);
    RemoveContainer: Runtime, Act, RemoveContainerRequest => RemoveContainerResponse (container_id);
    ListContainers: Runtime, List, ListContainersRequest => ListContainersResponse;
    StreamContainers: Runtime, List;
    ContainerStatus: Runtime, Inspect, ContainerStatusRequest => ContainerStatusResponse (container_id);
    UpdateContainerResources: Runtime, Act, UpdateContainerResourcesRequest => UpdateContainerResourcesResponse (container_id);
    ReopenContainerLog: Runtime, Act, ReopenContainerLogRequest => ReopenContainerLogResponse (container_id);
    ExecSync: Runtime, Act, ExecSyncRequest => ExecSyncResponse (container_id);
    Exec: Runtime, Inspect, ExecRequest => ExecResponse (container_id);
    Attach: Runtime, Inspect, AttachRequest => AttachResponse (container_id);
    PortForward: Runtime, Inspect, PortForwardRequest => PortForwardResponse (pod_sandbox_id);
    ContainerStats: Runtime, Inspect, ContainerStatsRequest => ContainerStatsResponse (container_id);
    ListContainerStats: Runtime, Inspect, ListContainerStatsRequest => ListContainerStatsResponse;
    PodSandboxStats: Runtime, Inspect, PodSandboxStatsRequest => PodSandboxStatsResponse (pod_sandbox_id);
    ListPodSandboxStats: Runtime, Inspect, ListPodSandboxStatsRequest => ListPodSandboxStatsResponse;
    UpdateRuntimeConfig: Runtime, Act, UpdateRuntimeConfigRequest => UpdateRuntimeConfigResponse;
    GetContainerEvents: Runtime, Inspect;
    ListImages: Image, Inspect, ListImagesRequest => ListImagesResponse;
    ImageStatus: Image, Inspect, ImageStatusRequest => ImageStatusResponse;
    PullImage: Image, Act, PullImageRequest => PullImageResponse;
    RemoveImage: Image, Act, RemoveImageRequest => RemoveImageResponse;
    ImageFsInfo: Image, Inspect, ImageFsInfoRequest => ImageFsInfoResponse;
}

impl Rpc {
    /// True for the image service's calls, which a few runtimes serve on another socket.
    pub const fn is_image(self) -> bool {
        matches!(self.service(), Service::Image)
    }

    /// The call of that name, as written on the wire.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rpc| rpc.name() == name)
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_carry_service_and_version() {
        assert_eq!(
            Rpc::ListContainers.path(ApiVersion::V1),
            "/runtime.v1.RuntimeService/ListContainers"
        );
        assert_eq!(
            Rpc::PullImage.path(ApiVersion::V1Alpha2),
            "/runtime.v1alpha2.ImageService/PullImage"
        );
    }

    #[test]
    fn calls_about_an_object_are_told_apart() {
        assert!(Rpc::ContainerStatus.has_object() && Rpc::CreateContainer.has_object());
        assert!(!Rpc::Version.has_object() && !Rpc::ListContainers.has_object() && !Rpc::PullImage.has_object());
    }

    #[test]
    fn every_name_finds_its_call() {
        for &rpc in Rpc::ALL {
            assert_eq!(Rpc::from_name(rpc.name()), Some(rpc));
        }
        assert_eq!(Rpc::from_name("Nope"), None);
    }
}
