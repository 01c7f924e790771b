//! Publishing one status: a patch if something differs, and the end of a deletion.

use k8s_openapi::api::core::v1 as core;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use pleg::{PodRef, PodUid};
use pleg_node::Report;
use tracing::{debug, info};

use super::merge::merge;
use super::patch::patch;
use crate::api::{ApiError, call};
use crate::pods::{PodCalls, PodTable};

/// Publishes the status of a pod; the last one of a pod that is being deleted also ends its deletion. A pod that the API server does not
/// have is done.
pub(super) async fn publish(server: &PodCalls, table: &PodTable, report: &Report, last: bool) -> Result<(), ApiError> {
    if report.pod.is_static() {
        return publish_mirror(server, table, report).await;
    }
    let id = &report.pod.id;
    let Some(known) = table.get(&id.uid) else {
        return Ok(());
    };
    let is_there = send(server, table, id, &known.status, report).await?;
    // What it is now: its deletion may have begun meanwhile.
    let is_deleting = table.get(&id.uid).is_some_and(|known| known.is_deleting());
    if last && is_there && is_deleting {
        delete_now(server, id).await?;
        info!(pod = %id, uid = %id.uid, "deleted the pod from the API server: nothing of it is left");
    }
    Ok(())
}

/// The status of a static pod is that of its mirror pod. Without one it waits for its creation.
async fn publish_mirror(server: &PodCalls, table: &PodTable, report: &Report) -> Result<(), ApiError> {
    match table.mirror(&report.pod.id.full_name()) {
        Some(mirror) => send(server, table, &mirror.id, &mirror.status, report).await.map(drop),
        None => Ok(()),
    }
}

/// Makes the status of a pod what it should be. Returns whether the pod is still there.
async fn send(
    server: &PodCalls,
    table: &PodTable,
    id: &PodRef,
    old: &core::PodStatus,
    report: &Report,
) -> Result<bool, ApiError> {
    let new = merge(report, old);
    let Some(patch) = patch(&id.uid, old, &new) else {
        return Ok(true);
    };
    let pods = pods(server, id);
    let what = format!("patch the status of pod {id}");
    let patch = Patch::Strategic(patch);
    let params = PatchParams::default();
    match call(what, pods.patch_status(&id.name, &params, &patch)).await {
        Ok(answer) => {
            table.apply(answer);
            Ok(true)
        }
        Err(error) => ended(server, id, error).await.map(|()| false),
    }
}

/// Deletes a pod without a grace period, if it is still the same one.
pub(crate) async fn delete_now(server: &PodCalls, id: &PodRef) -> Result<(), ApiError> {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(id.uid.to_string()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let pods = pods(server, id);
    match call(format!("delete pod {id}"), pods.delete(&id.name, &params)).await {
        Ok(_) => Ok(()),
        Err(error) => ended(server, id, error).await,
    }
}

/// A pod that is gone, or another pod of its name, needs nothing. The API server says so in several ways.
async fn ended(server: &PodCalls, id: &PodRef, error: ApiError) -> Result<(), ApiError> {
    if error.is_not_found() {
        return Ok(());
    }
    if !error.is_conflict() && error.code() != Some(422) {
        return Err(error);
    }
    match server.find(&id.namespace, &id.name).await? {
        Some(pod) if pod.metadata.uid.as_deref() == Some(id.uid.as_str()) => Err(error),
        _ => {
            debug!("{error}");
            Ok(())
        }
    }
}

fn pods(server: &PodCalls, id: &PodRef) -> kube::Api<core::Pod> {
    kube::Api::namespaced(server.api().client(), &id.namespace)
}

/// Whether the API server has something else than what the node reports.
pub(super) fn differs(table: &PodTable, report: &Report) -> bool {
    let compare = |uid: &PodUid, old: &core::PodStatus| patch(uid, old, &merge(report, old)).is_some();
    if report.pod.is_static() {
        let mirror = table.mirror(&report.pod.id.full_name());
        return mirror.is_some_and(|mirror| compare(&mirror.id.uid, &mirror.status));
    }
    let known = table.get(&report.pod.id.uid);
    known.is_some_and(|known| compare(&known.pod.id.uid, &known.status))
}
