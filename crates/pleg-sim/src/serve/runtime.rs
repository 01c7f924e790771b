//! The runtime service, but for the lists: each call is one step of the world.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use pleg_cri::v1;
use pleg_cri::v1::runtime_service_server::RuntimeService;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use crate::sim::Shared;
use crate::world::{Stopping, WorldError};

/// The runtime service over the shared world.
#[derive(Debug)]
pub(super) struct Runtime {
    shared: Arc<Shared>,
}

impl Runtime {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

/// The codes that containerd answers with.
pub(super) fn status(error: &WorldError) -> Status {
    let code = match error {
        WorldError::NotFound { .. } | WorldError::NoPod(_) | WorldError::NoContainer { .. } => Code::NotFound,
        WorldError::Invalid(_) => Code::InvalidArgument,
        WorldError::Refused(_) => Code::Unknown,
        WorldError::Full(..) => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

/// Lists are answered before they come here: see `lists`.
fn elsewhere() -> Status {
    Status::internal("lists are answered elsewhere")
}

#[expect(clippy::unnecessary_wraps, reason = "what every handler returns")]
fn ok<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    type StreamPodSandboxesStream =
        Pin<Box<futures_util::stream::Empty<Result<v1::StreamPodSandboxesResponse, Status>>>>;
    type StreamContainersStream = Pin<Box<futures_util::stream::Empty<Result<v1::StreamContainersResponse, Status>>>>;
    type GetContainerEventsStream = BoxStream<'static, Result<v1::ContainerEventResponse, Status>>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        ok(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "pleg-sim".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: self.shared.config.api.to_string(),
        })
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let condition = |kind: &str| v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status: true,
            reason: String::new(),
            message: String::new(),
        };
        let mut info = HashMap::new();
        if request.into_inner().verbose {
            let counts = self.shared.world().counts();
            info.insert("pods".to_owned(), counts.pods.to_string());
            info.insert("containers".to_owned(), counts.containers.to_string());
        }
        ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            }),
            info,
            runtime_handlers: vec![v1::RuntimeHandler::default()],
            features: Some(v1::RuntimeFeatures::default()),
        })
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Result<Response<v1::RuntimeConfigResponse>, Status> {
        ok(v1::RuntimeConfigResponse {
            linux: Some(v1::LinuxRuntimeConfiguration {
                cgroup_driver: v1::CgroupDriver::Cgroupfs.into(),
            }),
        })
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let v1::RunPodSandboxRequest {
            config,
            runtime_handler,
        } = request.into_inner();
        if !runtime_handler.is_empty() {
            return Err(Status::unknown(format!(
                "no runtime for {runtime_handler:?} is configured"
            )));
        }
        let config = config.unwrap_or_default();
        let id = self
            .shared
            .world()
            .run_sandbox(config, &runtime_handler)
            .map_err(|e| status(&e))?;
        ok(v1::RunPodSandboxResponse {
            pod_sandbox_id: id.to_string(),
        })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        self.shared.world().stop_sandbox(&request.into_inner().pod_sandbox_id);
        ok(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        self.shared.world().remove_sandbox(&request.into_inner().pod_sandbox_id);
        ok(v1::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Result<Response<v1::PodSandboxStatusResponse>, Status> {
        let v1::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose,
        } = request.into_inner();
        let world = self.shared.world();
        let found = world.sandbox_status(&pod_sandbox_id).map_err(|e| status(&e))?;
        let mut info = HashMap::new();
        if verbose {
            let process = if found.state == 0 { "running" } else { "deleted" };
            let text = format!(
                r#"{{"pid":{},"processStatus":"{process}","runtimeType":"pleg-sim"}}"#,
                4242
            );
            info.insert("info".to_owned(), text);
        }
        ok(v1::PodSandboxStatusResponse {
            containers_statuses: world.statuses_of(&pod_sandbox_id),
            timestamp: world.clock().now(),
            status: Some(found),
            info,
        })
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Err(elsewhere())
    }

    async fn stream_pod_sandboxes(
        &self,
        _: Request<v1::StreamPodSandboxesRequest>,
    ) -> Result<Response<Self::StreamPodSandboxesStream>, Status> {
        Err(elsewhere())
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Result<Response<v1::CreateContainerResponse>, Status> {
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let created = self.shared.world().create_container(&request.pod_sandbox_id, config);
        let container_id = created.map_err(|e| status(&e))?.to_string();
        ok(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Result<Response<v1::StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.shared.world().start_container(&id).map_err(|e| status(&e))?;
        ok(v1::StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        let stopping = self.shared.world().stop_container(&container_id, grace);
        if let Stopping::KillAfter(grace) = stopping {
            // A client that goes away here leaves the container running, as containerd does.
            tokio::time::sleep(grace).await;
            self.shared.world().kill_container(&container_id);
        }
        ok(v1::StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Result<Response<v1::RemoveContainerResponse>, Status> {
        self.shared.world().remove_container(&request.into_inner().container_id);
        ok(v1::RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        Err(elsewhere())
    }

    async fn stream_containers(
        &self,
        _: Request<v1::StreamContainersRequest>,
    ) -> Result<Response<Self::StreamContainersStream>, Status> {
        Err(elsewhere())
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let v1::ContainerStatusRequest { container_id, verbose } = request.into_inner();
        let found = self
            .shared
            .world()
            .container_status(&container_id)
            .map_err(|e| status(&e))?;
        let mut info = HashMap::new();
        if verbose {
            info.insert("info".to_owned(), r#"{"runtimeType":"pleg-sim"}"#.to_owned());
        }
        ok(v1::ContainerStatusResponse {
            status: Some(found),
            info,
        })
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Result<Response<v1::UpdateContainerResourcesResponse>, Status> {
        let v1::UpdateContainerResourcesRequest {
            container_id, linux, ..
        } = request.into_inner();
        let updated = self.shared.world().update_resources(&container_id, linux);
        updated.map_err(|e| status(&e))?;
        ok(v1::UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Result<Response<v1::ReopenContainerLogResponse>, Status> {
        let id = request.into_inner().container_id;
        self.shared.world().check_running(&id).map_err(|e| status(&e))?;
        ok(v1::ReopenContainerLogResponse {})
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Result<Response<v1::ExecSyncResponse>, Status> {
        let v1::ExecSyncRequest {
            container_id,
            cmd,
            timeout,
        } = request.into_inner();
        self.shared
            .world()
            .check_running(&container_id)
            .map_err(|e| status(&e))?;
        let run = exec(&cmd);
        let limit = u64::try_from(timeout)
            .ok()
            .filter(|&secs| secs > 0)
            .map(Duration::from_secs);
        match limit {
            Some(limit) if run.takes > limit => {
                tokio::time::sleep(limit).await;
                Err(Status::deadline_exceeded(format!("command {cmd:?} timed out")))
            }
            _ => {
                tokio::time::sleep(run.takes).await;
                ok(run.answer)
            }
        }
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let subscription = self.shared.world().subscribe();
        let events = subscription.ok_or_else(|| Status::resource_exhausted("too many subscribers"))?;
        ok(ReceiverStream::new(events).map(Ok).boxed())
    }
}

/// What a command in a container does.
struct Exec {
    takes: Duration,
    answer: v1::ExecSyncResponse,
}

/// `echo` answers its words; otherwise the command is a script, and one that never ends is a program that says yes.
fn exec(cmd: &[String]) -> Exec {
    let mut answer = v1::ExecSyncResponse::default();
    if let Some(("echo", words)) = cmd.split_first().map(|(name, words)| (name.as_str(), words)) {
        answer.stdout = format!("{}\n", words.join(" ")).into_bytes();
    }
    let script = crate::world::Script::parse(cmd.iter().map(String::as_str));
    let takes = script.ends.map_or(Duration::ZERO, |(takes, ending)| {
        answer.exit_code = ending.code();
        takes
    });
    Exec { takes, answer }
}
