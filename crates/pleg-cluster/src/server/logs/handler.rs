//! `/containerLogs/NAMESPACE/POD/CONTAINER`: which attempt's log it is, and the answer as a stream.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use pleg::{ContainerState, PodUid};
use pleg_node::Report;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::options::{LogOptions, LogOptionsError};
use super::read::{LogReader, Piece, ReadOptions};
use crate::server::NodeState;
use crate::server::answer::refuse;
use crate::server::sessions::FULL;

/// How often a followed log is looked at: the first pause after a line, and the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// The last words of a container may reach its log shortly after its end was reported.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(crate) async fn container_logs(
    State(state): State<Arc<NodeState>>,
    axum::extract::Path((namespace, pod, container)): axum::extract::Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let options = match LogOptions::parse(query.as_deref(), Timestamp::now()) {
        Ok(options) => options,
        Err(error @ LogOptionsError::Query(_)) => return refuse(StatusCode::BAD_REQUEST, &error),
        Err(error @ LogOptionsError::Invalid(_)) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &error),
    };
    let Some(report) = state.pod(&namespace, &pod) else {
        return refuse(StatusCode::NOT_FOUND, &format!("pod {pod:?} does not exist"));
    };
    if !has_container(&report, &container) {
        let message = format!("container {container:?} not found in pod {pod:?}");
        return refuse(StatusCode::NOT_FOUND, &message);
    }
    let id = match logged_container(&report.status, &pod, &container, options.previous) {
        Ok(id) => id,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, &message),
    };
    let uid = report.pod.id.uid.clone();
    let Some(path) = log_path(&state, &uid, &id) else {
        let message = format!("container {container:?} in pod {pod:?} has no log: the runtime has removed it ({id})");
        return refuse(StatusCode::BAD_REQUEST, &message);
    };
    let Some(session) = state.sessions.begin() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, FULL);
    };
    match open(path.clone(), options.read).await {
        Ok(Some(reader)) => {
            let log = FollowedLog {
                reader,
                state,
                uid,
                id,
                pause: SHORTEST_PAUSE,
                ended: false,
                _session: session,
            };
            let pieces = stream::unfold(log, FollowedLog::next);
            ([(CONTENT_TYPE, "text/plain")], Body::from_stream(pieces)).into_response()
        }
        Ok(None) => refuse(StatusCode::BAD_REQUEST, &missing(&path)),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error),
    }
}

fn missing(path: &Path) -> String {
    format!("there is no log {}: it may have been removed by hand", path.display())
}

fn has_container(report: &Report, name: &str) -> bool {
    report.pod.spec.container(name).is_some()
}

async fn open(path: PathBuf, options: ReadOptions) -> io::Result<Option<LogReader>> {
    let opened = tokio::task::spawn_blocking(move || LogReader::open(&path, options)).await;
    opened.map_err(io::Error::other)?
}

/// The log of a container that the runtime has.
fn log_path(state: &NodeState, uid: &PodUid, id: &str) -> Option<PathBuf> {
    let entry = state.pleg.cache().get(uid)?;
    let container = entry
        .status
        .containers
        .iter()
        .find(|container| container.id.as_str() == id)?;
    (!container.log_path.is_empty()).then(|| PathBuf::from(&*container.log_path))
}

/// A log on its way to a client. The client sets the pace: nothing is read before the last piece is on its way.
struct FollowedLog {
    reader: LogReader,
    state: Arc<NodeState>,
    uid: PodUid,
    id: String,
    pause: Duration,
    /// Its container has ended.
    ended: bool,
    _session: OwnedSemaphorePermit,
}

impl FollowedLog {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            let mut reader = self.reader;
            let read = tokio::task::spawn_blocking(move || {
                let piece = reader.next();
                (reader, piece)
            });
            let Ok((reader, piece)) = read.await else { return None };
            self.reader = reader;
            match piece {
                Ok(Piece::Data(data)) if !data.is_empty() => {
                    self.pause = SHORTEST_PAUSE;
                    return Some((Ok(data.into()), self));
                }
                Ok(Piece::Data(_)) => {}
                Ok(Piece::Idle) => self.wait().await?,
                Ok(Piece::End) => return None,
                Err(error) => {
                    tracing::warn!(pod = %self.uid, container = self.id, "cannot serve a log to its end: {error}");
                    return Some((Err(error), self));
                }
            }
            if self.state.sessions.shutdown.is_cancelled() {
                return None;
            }
        }
    }

    /// Waits at the end of a followed log; none at shutdown.
    async fn wait(&mut self) -> Option<()> {
        let pause = if self.is_running() {
            self.pause
        } else if self.ended {
            self.reader.finish();
            return Some(());
        } else {
            self.ended = true;
            LAST_WORDS
        };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.state.sessions.shutdown.run_until_cancelled(sleep(pause)).await
    }

    fn is_running(&self) -> bool {
        let entry = self.state.pleg.cache().get(&self.uid);
        entry.is_some_and(|entry| {
            let mut containers = entry.status.containers.iter();
            containers.any(|one| one.id.as_str() == self.id && one.state == ContainerState::Running)
        })
    }
}

/// The runtime's id of the container whose log is meant, or why there is none: the words are those of a kubelet.
fn logged_container(status: &core::PodStatus, pod: &str, name: &str, previous: bool) -> Result<String, String> {
    let all = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut statuses = all.into_iter().flatten().flatten();
    let Some(container) = statuses.find(|status| status.name == name) else {
        return Err(format!("container {name:?} in pod {pod:?} is not available"));
    };
    let ended = |state: &Option<core::ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    let last = ended(&container.last_state);
    let last_id = last
        .as_ref()
        .and_then(|last| last.container_id.as_deref())
        .and_then(bare_id);
    if previous {
        return last_id.ok_or_else(|| format!("previous terminated container {name:?} in pod {pod:?} not found"));
    }
    let state = container.state.clone().unwrap_or_default();
    let is_terminated = || format!("container {name:?} in pod {pod:?} is terminated");
    if state.running.is_some() {
        let id = container.container_id.as_deref().and_then(bare_id);
        return id.ok_or_else(|| format!("container {name:?} in pod {pod:?} is waiting to start - no logs yet"));
    }
    if let Some(terminated) = state.terminated {
        // If the next attempt could not be created, there is no id.
        let id = terminated.container_id.as_deref().and_then(bare_id);
        return id.or(last_id).ok_or_else(is_terminated);
    }
    if last.is_some() {
        return last_id.ok_or_else(is_terminated);
    }
    Err(match state.waiting.and_then(|waiting| waiting.reason) {
        None => format!("container {name:?} in pod {pod:?} is waiting to start - no logs yet"),
        Some(reason) => {
            let why = match reason.as_str() {
                "ErrImagePull" => "image can't be pulled",
                "ImagePullBackOff" => "trying and failing to pull image",
                other => other,
            };
            format!("container {name:?} in pod {pod:?} is waiting to start: {why}")
        }
    })
}

/// The runtime's part of `containerd://ID`.
fn bare_id(id: &str) -> Option<String> {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn logged(container: serde_json::Value, previous: bool) -> Result<String, String> {
        let mut container = container;
        container["name"] = "c".into();
        for key in ["image", "imageID"] {
            container[key] = "i".into();
        }
        container["ready"] = false.into();
        container["restartCount"] = 0.into();
        let status = serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
        logged_container(&status, "p", "c", previous)
    }

    #[test]
    fn the_log_is_that_of_the_newest_attempt_that_ran() {
        let running = json!({"running": {}});
        let gone = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let cases = [
            (json!({"state": running, "containerID": "containerd://two"}), Ok("two")),
            (
                json!({"state": gone("cri-o://two"), "lastState": gone("cri-o://one")}),
                Ok("two"),
            ),
            (json!({"state": gone(""), "lastState": gone("cri-o://one")}), Ok("one")),
            (
                json!({"state": gone("")}),
                Err(r#"container "c" in pod "p" is terminated"#),
            ),
            (
                json!({"state": waiting("CrashLoopBackOff"), "lastState": gone("x://one")}),
                Ok("one"),
            ),
            (
                json!({"state": waiting("ContainerCreating")}),
                Err(r#"container "c" in pod "p" is waiting to start: ContainerCreating"#),
            ),
            (
                json!({"state": waiting("ErrImagePull")}),
                Err(r#"container "c" in pod "p" is waiting to start: image can't be pulled"#),
            ),
            (
                json!({"state": waiting("ImagePullBackOff")}),
                Err(r#"container "c" in pod "p" is waiting to start: trying and failing to pull image"#),
            ),
            (
                json!({}),
                Err(r#"container "c" in pod "p" is waiting to start - no logs yet"#),
            ),
        ];
        for (container, expected) in cases {
            let found = logged(container.clone(), false);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{container}");
        }
        assert_eq!(
            logged(json!({"state": running, "lastState": gone("x://one")}), true),
            Ok("one".to_owned())
        );
        let none = r#"previous terminated container "c" in pod "p" not found"#;
        assert_eq!(
            logged(json!({"state": running, "containerID": "x://one"}), true),
            Err(none.to_owned())
        );
        let unknown = logged_container(&core::PodStatus::default(), "p", "c", false);
        assert_eq!(unknown, Err(r#"container "c" in pod "p" is not available"#.to_owned()));
    }
}
