//! What the kernel shows of containers: whether the processes of running ones can be watched and are there, and whether those of others
//! are gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use pleg::runtime::{ContainerPid, Runtime as _};
use pleg::shim::Shim;
use pleg::witness::{WatchError, Witness as _, alive_in};
use pleg::{ContainerId, ContainerState, CriRuntime, Kernel};
use pleg_cri::{Client, Subject};
use tokio::time::{Instant, timeout};

use super::facts::{ContainerProcess, Object, Processes};

/// Containers beyond this many are not asked for: one that is watched shows that all can be.
const MOST: usize = 1000;
/// Calls in flight.
const WIDTH: usize = 8;
/// A runtime that does not say it of so many does not say it.
const SILENT: usize = 3;
/// Deadline of a search of `/proc`.
const PROC_ANSWERS: Duration = Duration::from_secs(2);
/// A runtime may report an exit this late, and a process may outlive its container this long.
const LATE: Duration = Duration::from_secs(2);

/// Looks for the processes of containers. Those of running ones that are gone, and those of others that are not, are looked for again a
/// while later.
pub(super) async fn examine(
    client: &Client,
    running: Vec<Arc<Object>>,
    ended: Vec<Arc<Object>>,
    until: Instant,
) -> Processes {
    let mut kernel = Kernel::new();
    let mut found = Processes {
        running: running.len(),
        why_not: kernel.unavailable().map(|reason| reason.to_string()),
        ..Processes::default()
    };
    if found.why_not.is_some() {
        return found;
    }
    let runtime = CriRuntime::new(client.clone());
    let calls = running.into_iter().take(MOST).map(|object| pid(&runtime, object));
    let mut calls = futures_util::stream::iter(calls).buffer_unordered(WIDTH);
    let mut gone = Vec::new();
    while let Ok(Some((object, pid))) = tokio::time::timeout_at(until, calls.next()).await {
        found.asked += 1;
        let Some(pid) = pid else {
            found.why_not = Some("the runtime does not say which processes containers have".to_owned());
            if found.asked >= SILENT && found.watched == 0 {
                break;
            }
            continue;
        };
        let id: Arc<str> = object.id.as_str().into();
        match kernel.watch(&id, pid) {
            Ok(_) if kernel.lives(&id) => found.watched += 1,
            Ok(_) | Err(WatchError::NotFound(_)) => gone.push((object, pid)),
            Err(error) => found.why_not = Some(error.to_string()),
        }
    }
    drop(calls);
    let left = alive(&ended, until).await;
    if found.watched == 0 && !gone.is_empty() {
        // Nobody's process is here, so it is not theirs that are gone.
        found.why_not = gone.first().map(|(_, pid)| WatchError::NotFound(*pid).to_string());
        gone.clear();
    }
    if gone.is_empty() && left.is_empty() || Instant::now() + LATE >= until {
        return found;
    }
    tokio::time::sleep(LATE).await;
    for (object, pid) in gone {
        let id: Arc<str> = object.id.as_str().into();
        let lives = kernel.watch(&id, pid).is_ok() && kernel.lives(&id);
        if !lives && state(&runtime, &object, until).await == Some(ContainerState::Running) {
            let shim = Shim::parent_of(pid);
            found.exited.push(ContainerProcess { object, pid, shim });
        }
    }
    let still = alive(&ended, until).await;
    for (id, pid) in left.into_iter().filter(|(id, pid)| still.get(id) == Some(pid)) {
        let Some(object) = ended.iter().find(|object| *object.id == *id) else {
            continue;
        };
        // A container that is only created may have a process that waits for its start.
        if state(&runtime, object, until).await == Some(ContainerState::Exited) {
            let (object, shim) = (Arc::clone(object), Shim::parent_of(pid));
            found.leftover.push(ContainerProcess { object, pid, shim });
        }
    }
    found
        .leftover
        .sort_by(|a, b| (&a.object.pod, &a.object.id).cmp(&(&b.object.pod, &b.object.id)));
    found
}

/// Processes that are alive in the cgroups of these containers, if all of `/proc` was searched in time.
async fn alive(containers: &[Arc<Object>], until: Instant) -> HashMap<Arc<str>, u32> {
    if containers.is_empty() {
        return HashMap::new();
    }
    let ids: Vec<Arc<str>> = containers.iter().map(|object| object.id.as_str().into()).collect();
    let search = tokio::task::spawn_blocking(move || alive_in(ids).into_iter().collect());
    // The report does not wait for a search that hangs.
    let left = until.saturating_duration_since(Instant::now()).min(PROC_ANSWERS);
    match timeout(left, search).await {
        Ok(Ok(found)) => found,
        _ => HashMap::new(),
    }
}

fn subject(object: &Object) -> Subject {
    let name = object.container.as_deref().unwrap_or_default();
    Subject::container(object.pod.as_str(), name, object.id.as_str())
}

async fn pid(runtime: &CriRuntime, object: Arc<Object>) -> (Arc<Object>, Option<u32>) {
    let id = ContainerId::from(object.id.as_str());
    let pid = runtime.container_pid(&subject(&object), &id).await.ok();
    (object, pid.and_then(ContainerPid::known))
}

/// What the runtime says now.
async fn state(runtime: &CriRuntime, object: &Object, until: Instant) -> Option<ContainerState> {
    let name: Arc<str> = object.container.as_deref().unwrap_or_default().into();
    let id = ContainerId::from(object.id.as_str());
    let left = until.saturating_duration_since(Instant::now());
    let status = timeout(left, runtime.container_status(&subject(object), &id, &name)).await;
    Some(status.ok()?.ok()?.state)
}
