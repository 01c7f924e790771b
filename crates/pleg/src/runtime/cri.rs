//! A CRI runtime behind a unix socket.

use std::sync::Arc;

use pleg_cri::{Client, Error, ErrorKind, InFlight, ListFilter, ListSummary, Rpc, Subject, v1};

use super::{Runtime, RuntimeCondition, RuntimeStatus, RuntimeVersion};
use crate::model::{ContainerId, SandboxId};
use crate::snapshot::{ContainerList, SandboxList};
use crate::status::{ContainerStatus, SandboxStatus, text};

/// The generator's view of a [`Client`].
#[derive(Debug, Clone)]
pub struct CriRuntime {
    client: Client,
}

impl CriRuntime {
    /// Looks through `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client underneath.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn empty_answer(&self, rpc: Rpc, subject: &Subject) -> Error {
        let kind = ErrorKind::Malformed("the answer has no status".to_owned());
        Error {
            rpc,
            subject: subject.clone(),
            endpoint: self.client.endpoint().clone(),
            kind,
        }
    }
}

impl Runtime for CriRuntime {
    async fn list_sandboxes(&self, filter: &ListFilter, into: &mut SandboxList) -> Result<ListSummary, Error> {
        self.client.list_sandboxes_raw(filter, |item| into.push_raw(item)).await
    }

    async fn list_containers(&self, filter: &ListFilter, into: &mut ContainerList) -> Result<ListSummary, Error> {
        self.client
            .list_containers_raw(filter, |item| into.push_raw(item))
            .await
    }

    async fn sandbox_status(&self, subject: &Subject, id: &SandboxId) -> Result<SandboxStatus, Error> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.as_str().to_owned(),
            verbose: false,
        };
        let answer = self.client.call_for(subject, request).await?;
        let status = answer
            .status
            .ok_or_else(|| self.empty_answer(Rpc::PodSandboxStatus, subject))?;
        Ok(SandboxStatus::from_cri(id, &status))
    }

    async fn probe_sandbox(&self, subject: &Subject, id: &SandboxId) -> Result<(), Error> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.as_str().to_owned(),
            verbose: true,
        };
        self.client.call_for(subject, request).await.map(drop)
    }

    async fn container_status(
        &self,
        subject: &Subject,
        id: &ContainerId,
        name: &Arc<str>,
    ) -> Result<ContainerStatus, Error> {
        let request = v1::ContainerStatusRequest {
            container_id: id.as_str().to_owned(),
            verbose: false,
        };
        let answer = self.client.call_for(subject, request).await?;
        let status = answer
            .status
            .ok_or_else(|| self.empty_answer(Rpc::ContainerStatus, subject))?;
        Ok(ContainerStatus::from_cri(id, name, &status))
    }

    async fn version(&self) -> Result<RuntimeVersion, Error> {
        let answer = self.client.version().await?;
        Ok(RuntimeVersion {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api: self.client.api().to_string(),
        })
    }

    async fn status(&self) -> Result<RuntimeStatus, Error> {
        let request = v1::StatusRequest { verbose: false };
        let answer = self.client.call_for(&Subject::NODE, request).await?;
        let status = answer
            .status
            .ok_or_else(|| self.empty_answer(Rpc::Status, &Subject::NODE))?;
        // Of several with one name the first counts, as for the kubelet.
        let condition = |kind: &'static str| {
            let found = status.conditions.iter().find(|condition| condition.r#type == kind)?;
            Some(RuntimeCondition {
                kind,
                status: found.status,
                reason: text(&found.reason).into(),
                message: text(&found.message).into(),
            })
        };
        Ok(RuntimeStatus {
            runtime: condition("RuntimeReady"),
            network: condition("NetworkReady"),
        })
    }

    fn endpoint(&self) -> Option<String> {
        Some(self.client.endpoint().to_string())
    }

    fn inflight(&self) -> InFlight {
        self.client.inflight().clone()
    }
}
