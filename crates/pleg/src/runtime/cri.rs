//! A CRI runtime behind a unix socket.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use pleg_cri::{Client, Error, ErrorKind, Hint, InFlight, ListFilter, ListSummary, Rpc, Subject, v1};

use super::{ContainerPid, EventStream, Runtime, RuntimeCondition, RuntimeEvent, RuntimeStatus, RuntimeVersion};
use crate::evented::Reached;
use crate::model::status::{ContainerStatus, SandboxStatus, text};
use crate::model::{ContainerId, SandboxId};
use crate::records::snapshot::{ContainerList, SandboxList};

/// The generator's view of a [`Client`].
#[derive(Debug, Clone)]
pub struct CriRuntime {
    client: Client,
}

impl CriRuntime {
    /// Calls through `client`.
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
        // The verbose answer is long, and is not used.
        self.client.is_answered(subject, request).await
    }

    async fn container_pid(&self, subject: &Subject, id: &ContainerId) -> Result<ContainerPid, Error> {
        let request = v1::ContainerStatusRequest {
            container_id: id.as_str().to_owned(),
            verbose: true,
        };
        let answer = self.client.call_for(subject, request).await?;
        let exited = |status: &v1::ContainerStatus| status.state() == v1::ContainerState::ContainerExited;
        if answer.status.as_ref().is_some_and(exited) {
            return Ok(ContainerPid::Exited);
        }
        let pid = answer.info.get("info").and_then(|info| pid_in(info));
        Ok(pid.map_or(ContainerPid::Unknown, ContainerPid::Known))
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

    async fn events(&self) -> Result<EventStream, Error> {
        let events = self.client.container_event_hints().await?;
        let next = |events: Option<pleg_cri::EventStream<Hint>>| async move {
            let mut events = events?;
            match events.next().await {
                Ok(hint) => Some((Ok(event(&hint)), Some(events))),
                Err(_) if events.ended_cleanly() => None,
                Err(error) => Some((Err(error), None)),
            }
        };
        Ok(stream::unfold(Some(events), next).boxed())
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

/// Text that is not UTF-8, or longer than any id, is ignored.
fn event(hint: &Hint) -> RuntimeEvent {
    const LONGEST: usize = 256;
    let text = |bytes| {
        std::str::from_utf8(bytes)
            .ok()
            .filter(|text| !text.is_empty() && text.len() <= LONGEST)
    };
    RuntimeEvent {
        id: text(&hint.id).map(Into::into),
        pod: hint.pod().and_then(text).map(Into::into),
        reached: match hint.event_type() {
            Some(v1::ContainerEventType::ContainerStartedEvent) => Some(Reached::Running),
            Some(v1::ContainerEventType::ContainerStoppedEvent) => Some(Reached::Ended),
            Some(v1::ContainerEventType::ContainerDeletedEvent) => Some(Reached::Gone),
            Some(v1::ContainerEventType::ContainerCreatedEvent) | None => None,
        },
        created_at: hint.created_at,
    }
}

/// The process in the verbose part of a container's status, which containerd and CRI-O write as JSON.
fn pid_in(info: &str) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Info {
        #[serde(default)]
        pid: i64,
    }
    let info: Info = serde_json::from_str(info).ok()?;
    u32::try_from(info.pid).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn read(event: &v1::ContainerEventResponse) -> RuntimeEvent {
        super::event(&Hint::decode(&*event.encode_to_vec()).unwrap())
    }

    fn whole() -> v1::ContainerEventResponse {
        v1::ContainerEventResponse {
            container_id: "c".into(),
            container_event_type: v1::ContainerEventType::ContainerDeletedEvent.into(),
            created_at: 7,
            pod_sandbox_status: Some(v1::PodSandboxStatus {
                id: "s".into(),
                metadata: Some(v1::PodSandboxMetadata {
                    name: "web".into(),
                    uid: "u".into(),
                    namespace: "default".into(),
                    attempt: 3,
                }),
                ..Default::default()
            }),
            containers_statuses: vec![v1::ContainerStatus {
                id: "c".into(),
                ..Default::default()
            }],
        }
    }

    #[test]
    fn an_event_tells_its_object_and_its_pod() {
        let expected = RuntimeEvent {
            id: Some("c".into()),
            pod: Some("u".into()),
            reached: Some(Reached::Gone),
            created_at: 7,
        };
        assert_eq!(read(&whole()), expected);
    }

    /// kubernetes#114351, #128654: the kubelet panicked on these.
    #[test]
    fn missing_and_malformed_fields_of_events_are_ignored() {
        let mut event = whole();
        event.pod_sandbox_status.as_mut().unwrap().metadata = None;
        assert_eq!(read(&event).pod, None);
        event.pod_sandbox_status = None;
        assert_eq!((read(&event).pod, read(&event).id), (None, Some("c".into())));
        event.container_id = "x".repeat(300);
        event.container_event_type = 99;
        assert_eq!((read(&event).id, read(&event).reached), (None, None));
        assert_eq!(read(&v1::ContainerEventResponse::default()), RuntimeEvent::default());
        let bad = Hint {
            id: vec![0xff, 0xfe].into(),
            ..Hint::default()
        };
        assert_eq!(super::event(&bad).id, None);
    }
}
