//! Which container or sandbox a session is in, and the runtime's address for it.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use pleg::{ContainerState, PodEntry, SandboxState};
use pleg_cri::{ErrorKind, Subject, Unary, v1};
use pleg_node::Report;

use super::options::{OptionsError, Streams, command, ports};
use super::proxy;
use crate::server::NodeState;
use crate::server::answer::refuse;
use crate::server::query::Query;

/// An answer that is an error.
type Refused = (StatusCode, String);

/// A container as a path names it.
struct Named {
    namespace: String,
    pod: String,
    uid: Option<String>,
    container: String,
}

impl Named {
    fn new(namespace: String, pod: String, uid: Option<String>, container: String) -> Self {
        Self {
            namespace,
            pod,
            uid,
            container,
        }
    }
}

type Session = State<Arc<NodeState>>;

pub(crate) async fn exec(
    state: Session,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let named = Named::new(namespace, pod, None, container);
    run_exec(&state.0, named, request).await.unwrap_or_else(answer)
}

pub(crate) async fn exec_uid(
    state: Session,
    Path((namespace, pod, uid, container)): Path<(String, String, String, String)>,
    request: Request,
) -> Response {
    let named = Named::new(namespace, pod, Some(uid), container);
    run_exec(&state.0, named, request).await.unwrap_or_else(answer)
}

pub(crate) async fn attach(
    state: Session,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let named = Named::new(namespace, pod, None, container);
    run_attach(&state.0, named, request).await.unwrap_or_else(answer)
}

pub(crate) async fn attach_uid(
    state: Session,
    Path((namespace, pod, uid, container)): Path<(String, String, String, String)>,
    request: Request,
) -> Response {
    let named = Named::new(namespace, pod, Some(uid), container);
    run_attach(&state.0, named, request).await.unwrap_or_else(answer)
}

pub(crate) async fn port_forward(
    state: Session,
    Path((namespace, pod)): Path<(String, String)>,
    request: Request,
) -> Response {
    let forwarded = run_port_forward(&state.0, &namespace, &pod, None, request).await;
    forwarded.unwrap_or_else(answer)
}

pub(crate) async fn port_forward_uid(
    state: Session,
    Path((namespace, pod, uid)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    let forwarded = run_port_forward(&state.0, &namespace, &pod, Some(&uid), request).await;
    forwarded.unwrap_or_else(answer)
}

async fn run_exec(state: &Arc<NodeState>, named: Named, request: Request) -> Result<Response, Refused> {
    let query = parse(&request)?;
    let streams = Streams::of(&query).map_err(bad_request)?;
    let cmd = command(&query).map_err(bad_request)?;
    let (container_id, subject) = find_container(state, &named)?;
    let request_url = v1::ExecRequest {
        container_id,
        cmd,
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let url = ask(state, &subject, request_url).await?.url;
    Ok(proxy::join(&state.sessions, &url, request).await)
}

async fn run_attach(state: &Arc<NodeState>, named: Named, request: Request) -> Result<Response, Refused> {
    let streams = Streams::of(&parse(&request)?).map_err(bad_request)?;
    let report = find_pod(state, &named.namespace, &named.pod, named.uid.as_deref())?;
    let (container_id, subject) = find_container(state, &named)?;
    // Whether its process has a terminal was decided when it started.
    let tty = report.pod.spec.container(&named.container).is_some_and(|spec| spec.tty);
    let request_url = v1::AttachRequest {
        container_id,
        stdin: streams.stdin,
        tty,
        stdout: streams.stdout,
        stderr: streams.stderr && !tty,
    };
    let url = ask(state, &subject, request_url).await?.url;
    Ok(proxy::join(&state.sessions, &url, request).await)
}

async fn run_port_forward(
    state: &Arc<NodeState>,
    namespace: &str,
    pod: &str,
    uid: Option<&str>,
    request: Request,
) -> Result<Response, Refused> {
    let port = ports(&parse(&request)?).map_err(bad_request)?;
    let report = find_pod(state, namespace, pod, uid)?;
    let entry = state.pleg.cache().get(&report.pod.id.uid);
    let ready = |entry: &PodEntry| {
        let mut sandboxes = entry.status.sandboxes.iter();
        sandboxes
            .find(|sandbox| sandbox.state == SandboxState::Ready)
            .map(|sandbox| sandbox.id.as_str().to_owned())
    };
    let Some(pod_sandbox_id) = entry.as_ref().and_then(ready) else {
        return Err((
            StatusCode::NOT_FOUND,
            format!("pod {pod:?} has no sandbox that is ready"),
        ));
    };
    let request_url = v1::PortForwardRequest { pod_sandbox_id, port };
    let subject = Subject::id(request_url.pod_sandbox_id.as_str());
    let url = ask(state, &subject, request_url).await?.url;
    Ok(proxy::join(&state.sessions, &url, request).await)
}

fn answer((status, message): Refused) -> Response {
    refuse(status, &message)
}

fn bad_request(error: impl Into<OptionsError>) -> Refused {
    (StatusCode::BAD_REQUEST, error.into().to_string())
}

fn parse(request: &Request) -> Result<Query, Refused> {
    Query::parse(request.uri().query()).map_err(bad_request)
}

fn find_pod(state: &NodeState, namespace: &str, pod: &str, uid: Option<&str>) -> Result<Report, Refused> {
    let found = state.pod(namespace, pod);
    let Some(report) = found.filter(|report| uid.is_none_or(|uid| report.pod.id.uid.as_str() == uid)) else {
        return Err((StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist")));
    };
    Ok(report)
}

/// The runtime's id of a container: of the running one, else of the newest, which the runtime refuses in its own words.
fn find_container(state: &NodeState, named: &Named) -> Result<(String, Subject), Refused> {
    let report = find_pod(state, &named.namespace, &named.pod, named.uid.as_deref())?;
    let entry = state.pleg.cache().get(&report.pod.id.uid);
    let newest = |entry: &PodEntry| {
        let containers = entry
            .status
            .containers
            .iter()
            .filter(|container| *container.name == *named.container);
        let newest = containers.max_by_key(|container| (container.state == ContainerState::Running, container.attempt));
        newest.map(|container| container.id.as_str().to_owned())
    };
    let id = entry.as_ref().and_then(newest).ok_or_else(|| {
        let message = format!("container not found ({:?})", named.container);
        (StatusCode::NOT_FOUND, message)
    })?;
    Ok((id.clone(), Subject::id(id)))
}

async fn ask<R: Unary>(state: &NodeState, subject: &Subject, request: R) -> Result<R::Response, Refused> {
    state.runtime.call_for(subject, request).await.map_err(|error| {
        let status = match &error.kind {
            kind if kind.is_not_found() => StatusCode::NOT_FOUND,
            ErrorKind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Deadline(_) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, error.to_string())
    })
}
