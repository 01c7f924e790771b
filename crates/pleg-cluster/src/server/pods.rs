//! `/pods`: the pods that should run, with their statuses. `/runningpods`: what the runtime has, as of the last relist.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::List;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use pleg::{ContainerState, PodStatus, SandboxState};
use pleg_node::PodList;

use super::NodeState;

pub(super) async fn desired(State(state): State<Arc<NodeState>>) -> Response {
    Json(PodList(state.reports.pods())).into_response()
}

pub(super) async fn running(State(state): State<Arc<NodeState>>) -> Response {
    let mut items: Vec<core::Pod> = state
        .pleg
        .cache()
        .entries()
        .iter()
        .filter_map(|entry| pod(&entry.status))
        .collect();
    items.sort_by(|a, b| (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name)));
    let metadata = ListMeta::default();
    Json(List { items, metadata }).into_response()
}

/// A pod with what runs of it; none if nothing does.
fn pod(status: &PodStatus) -> Option<core::Pod> {
    let running = status
        .containers
        .iter()
        .filter(|one| one.state == ContainerState::Running);
    let containers: Vec<core::Container> = running
        .map(|container| core::Container {
            name: container.name.to_string(),
            image: Some(container.image.to_string()),
            ..core::Container::default()
        })
        .collect();
    let has_sandbox = status
        .sandboxes
        .iter()
        .any(|sandbox| sandbox.state == SandboxState::Ready);
    if containers.is_empty() && !has_sandbox {
        return None;
    }
    Some(core::Pod {
        metadata: ObjectMeta {
            name: Some(status.pod.name.to_string()),
            namespace: Some(status.pod.namespace.to_string()),
            uid: Some(status.pod.uid.as_str().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(core::PodSpec {
            containers,
            ..core::PodSpec::default()
        }),
        status: None,
    })
}
