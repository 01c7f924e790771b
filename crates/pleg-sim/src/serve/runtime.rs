//! The runtime service, but for the lists: each call is one step of the world.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pleg_cri::error::quoted;
use pleg_cri::v1::runtime_service_server::RuntimeService;
use pleg_cri::{Rpc, v1};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use super::answers::{conditions, container_info, exec, sandbox_info, unimplemented};
use super::logs;
use crate::sim::Simulation;
use crate::world::{Stopping, WorldError};

/// How long containerd waits for a shim that does not report the status of its sandbox.
const SHIM_PATIENCE: Duration = Duration::from_secs(4);
/// How long containerd waits for a shim to start a container.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The runtime service over the shared world.
#[derive(Debug)]
pub(super) struct Runtime {
    shared: Arc<Simulation>,
}

impl Runtime {
    pub(super) fn new(shared: Arc<Simulation>) -> Self {
        Self { shared }
    }
}

/// The codes that containerd answers with.
pub(super) fn status(error: &WorldError) -> Status {
    let code = match error {
        WorldError::NotFound { .. } | WorldError::NoPod(_) | WorldError::NoContainer { .. } => Code::NotFound,
        WorldError::Invalid(_) => Code::InvalidArgument,
        WorldError::Refused(_) | WorldError::Process(_) => Code::Unknown,
        WorldError::Full(..) => Code::ResourceExhausted,
    };
    Status::new(code, error.to_string())
}

/// Lists and events are answered elsewhere: see `lists` and `events`.
fn elsewhere() -> Status {
    Status::internal("not handled by this server")
}

#[expect(clippy::unnecessary_wraps, reason = "what every handler returns")]
fn ok<T>(message: T) -> Result<Response<T>, Status> {
    Ok(Response::new(message))
}

impl Runtime {
    /// The container that a request names: clients may shorten ids as long as they are unique.
    fn container(&self, id: String) -> String {
        self.shared.world().full_container_id(id)
    }

    /// The sandbox that a request names.
    fn sandbox(&self, id: String) -> String {
        self.shared.world().full_sandbox_id(id)
    }

    /// To end a sandbox or container, or to run something in it, its shim is needed.
    async fn ending(&self, id: &str) {
        let changes = self.shared.world().shims();
        self.shared.wait_until(changes, |world| !world.waits_for_shim(id)).await;
    }

    /// One hung shim hangs the stats of everybody, as on containerd.
    async fn all_shims(&self) {
        let changes = self.shared.world().shims();
        self.shared.wait_until(changes, |world| !world.any_shim_hangs()).await;
    }

    /// Waits while an event subscriber that does not read blocks the runtime.
    async fn events_sent(&self) {
        let changes = self.shared.world().subscribers_read();
        self.shared.wait_until(changes, |world| !world.blocked()).await;
    }
}

/// Ends the lock that `UpdateContainerResources` holds, also when the client gives up.
struct Unlock<'a>(&'a Simulation, &'a str);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.faults.unlock_id(self.1);
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    type StreamPodSandboxesStream =
        Pin<Box<futures_util::stream::Empty<Result<v1::StreamPodSandboxesResponse, Status>>>>;
    type StreamContainersStream = Pin<Box<futures_util::stream::Empty<Result<v1::StreamContainersResponse, Status>>>>;
    type GetContainerEventsStream = Pin<Box<futures_util::stream::Empty<Result<v1::ContainerEventResponse, Status>>>>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        let (name, version) = self.shared.config.flavour.runtime();
        ok(v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            runtime_api_version: self.shared.config.api.to_string(),
        })
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let readiness = self.shared.world().readiness();
        let mut info = HashMap::new();
        if request.into_inner().verbose {
            let counts = self.shared.world().counts();
            info.insert("pods".to_owned(), counts.pods.to_string());
            info.insert("containers".to_owned(), counts.containers.to_string());
        }
        ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: conditions(readiness),
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
        if !self.shared.config.flavour.has_runtime_config() {
            return Err(unimplemented(Rpc::RuntimeConfig));
        }
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
                "no runtime for {} is configured",
                quoted(&runtime_handler)
            )));
        }
        let config = config.unwrap_or_default();
        let id = self
            .shared
            .world()
            .run_sandbox(config, &runtime_handler)
            .map_err(|e| status(&e))?;
        self.events_sent().await;
        ok(v1::RunPodSandboxResponse {
            pod_sandbox_id: id.to_string(),
        })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Result<Response<v1::StopPodSandboxResponse>, Status> {
        let id = self.sandbox(request.into_inner().pod_sandbox_id);
        self.ending(&id).await;
        self.shared.world().stop_sandbox(&id);
        ok(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Result<Response<v1::RemovePodSandboxResponse>, Status> {
        let id = self.sandbox(request.into_inner().pod_sandbox_id);
        self.ending(&id).await;
        self.shared.world().remove_sandbox(&id);
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
        let pod_sandbox_id = self.sandbox(pod_sandbox_id);
        // containerd asks the shim for this, and gives up after a while without an error.
        let silent = verbose && timeout(SHIM_PATIENCE, self.shared.shim(&pod_sandbox_id)).await.is_err();
        let world = self.shared.world();
        let found = world.sandbox_status(&pod_sandbox_id).map_err(|e| status(&e))?;
        let mut info = HashMap::new();
        if verbose {
            let process = match found.state {
                _ if silent => "unknown",
                0 => "running",
                _ => "deleted",
            };
            info.insert("info".to_owned(), sandbox_info(&pod_sandbox_id, process));
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
        let sandbox = self.sandbox(request.pod_sandbox_id);
        let created = self.shared.world().create_container(&sandbox, config);
        let container_id = created.map_err(|e| status(&e))?.to_string();
        self.events_sent().await;
        ok(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Result<Response<v1::StartContainerResponse>, Status> {
        let id = self.container(request.into_inner().container_id);
        if timeout(START_PATIENCE, self.shared.shim(&id)).await.is_err() {
            let error = self.shared.world().fail_start(&id, "context deadline exceeded");
            return Err(status(&error));
        }
        let log_texts = {
            let mut world = self.shared.world();
            world.start_container(&id).map_err(|e| status(&e))?;
            world.take_log_texts()
        };
        logs::write(log_texts);
        self.events_sent().await;
        ok(v1::StartContainerResponse {})
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        let container_id = self.container(container_id);
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        self.ending(&container_id).await;
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
        let id = self.container(request.into_inner().container_id);
        self.ending(&id).await;
        self.shared.world().remove_container(&id);
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
        let container_id = self.container(container_id);
        let (found, pid) = {
            let world = self.shared.world();
            let found = world.container_status(&container_id).map_err(|e| status(&e))?;
            (found, world.pid(&container_id))
        };
        let mut info = HashMap::new();
        if verbose {
            info.insert("info".to_owned(), container_info(pid));
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
        let container_id = self.container(container_id);
        if self.shared.world().waits_for_shim(&container_id) {
            // containerd holds the container's lock while it asks the shim.
            let lock = self.shared.faults.lock(None, [container_id.as_str().into()]);
            lock.map_err(|e| Status::resource_exhausted(e.to_string()))?;
            let _lock = Unlock(&self.shared, &container_id);
            self.shared.shim(&container_id).await;
        }
        let updated = self.shared.world().update_resources(&container_id, linux);
        updated.map_err(|e| status(&e))?;
        ok(v1::UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Result<Response<v1::ReopenContainerLogResponse>, Status> {
        let id = self.container(request.into_inner().container_id);
        let path = self.shared.world().log_of(&id).map_err(|e| status(&e))?;
        if let Some(path) = path {
            logs::reopen(&path).map_err(|e| Status::unknown(format!("failed to open log file {path}: {e}")))?;
        }
        ok(v1::ReopenContainerLogResponse {})
    }

    async fn exec(&self, _: Request<v1::ExecRequest>) -> Result<Response<v1::ExecResponse>, Status> {
        let instead = "the simulated runtime has no streaming server; ExecSync works (crictl exec -s)";
        Err(Status::unimplemented(instead))
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Result<Response<v1::AttachResponse>, Status> {
        let why = "the simulated runtime has no streaming server, and its containers have no processes to attach to";
        Err(Status::unimplemented(why))
    }

    async fn port_forward(
        &self,
        _: Request<v1::PortForwardRequest>,
    ) -> Result<Response<v1::PortForwardResponse>, Status> {
        let why = "the simulated runtime has no streaming server, and its pods have no network";
        Err(Status::unimplemented(why))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Result<Response<v1::ExecSyncResponse>, Status> {
        let v1::ExecSyncRequest {
            container_id,
            cmd,
            timeout,
        } = request.into_inner();
        let container_id = self.container(container_id);
        self.shared
            .world()
            .check_running(&container_id)
            .map_err(|e| status(&e))?;
        self.ending(&container_id).await;
        let run = exec(&cmd);
        let limit = u64::try_from(timeout)
            .ok()
            .filter(|&secs| secs > 0)
            .map(Duration::from_secs);
        match limit {
            Some(limit) if run.takes > limit => {
                tokio::time::sleep(limit).await;
                Err(Status::deadline_exceeded(format!(
                    "command {} timed out",
                    quoted(&cmd.join(" "))
                )))
            }
            _ => {
                tokio::time::sleep(run.takes).await;
                ok(run.answer)
            }
        }
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Result<Response<v1::ContainerStatsResponse>, Status> {
        let id = self.container(request.into_inner().container_id);
        // A real runtime asks the shim; so do the three calls below.
        self.ending(&id).await;
        let stats = self.shared.world().container_stats(&id).map_err(|e| status(&e))?;
        ok(v1::ContainerStatsResponse { stats: Some(stats) })
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Result<Response<v1::ListContainerStatsResponse>, Status> {
        let mut filter = request.into_inner().filter.unwrap_or_default();
        filter.id = self.container(filter.id);
        filter.pod_sandbox_id = self.sandbox(filter.pod_sandbox_id);
        self.all_shims().await;
        let stats = self.shared.world().list_container_stats(&filter);
        ok(v1::ListContainerStatsResponse { stats })
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Result<Response<v1::PodSandboxStatsResponse>, Status> {
        let id = self.sandbox(request.into_inner().pod_sandbox_id);
        self.ending(&id).await;
        let stats = self.shared.world().sandbox_stats(&id).map_err(|e| status(&e))?;
        ok(v1::PodSandboxStatsResponse { stats: Some(stats) })
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Result<Response<v1::ListPodSandboxStatsResponse>, Status> {
        let mut filter = request.into_inner().filter.unwrap_or_default();
        filter.id = self.sandbox(filter.id);
        self.all_shims().await;
        let stats = self.shared.world().list_sandbox_stats(&filter);
        ok(v1::ListPodSandboxStatsResponse { stats })
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<v1::UpdateRuntimeConfigResponse>, Status> {
        let config = request.into_inner().runtime_config.unwrap_or_default();
        let cidr = config.network_config.unwrap_or_default().pod_cidr;
        self.shared.world().set_pod_cidr(&cidr).map_err(|e| status(&e))?;
        ok(v1::UpdateRuntimeConfigResponse {})
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        Err(elsewhere())
    }
}
