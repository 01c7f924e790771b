//! What the kernel shows of running containers: whether their processes can be watched, and whether they are still there.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use pleg::runtime::Runtime as _;
use pleg::shim::Shim;
use pleg::witness::{WatchError, Witness as _};
use pleg::{ContainerId, ContainerState, CriRuntime, Kernel};
use pleg_cri::{Client, Subject};
use tokio::time::{Instant, timeout};

use super::facts::{Exited, Object, Processes};

/// Containers beyond this many are not asked for: one that is watched shows that all can be.
const MOST: usize = 1000;
/// Calls in flight.
const WIDTH: usize = 8;
/// A runtime that does not say it of so many does not say it.
const SILENT: usize = 3;
/// A runtime may report an exit this late.
const LATE: Duration = Duration::from_secs(2);

/// Looks for the processes of running containers; those that are gone are looked for again a while later.
pub(super) async fn examine(client: &Client, running: Vec<Arc<Object>>, until: Instant) -> Processes {
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
    if found.watched == 0 && !gone.is_empty() {
        // Nobody's process is here, so it is not theirs that are gone.
        found.why_not = gone.first().map(|(_, pid)| WatchError::NotFound(*pid).to_string());
    } else if !gone.is_empty() && Instant::now() + LATE < until {
        tokio::time::sleep(LATE).await;
        for (object, pid) in gone {
            let id: Arc<str> = object.id.as_str().into();
            let lives = kernel.watch(&id, pid).is_ok() && kernel.lives(&id);
            if !lives && is_running(&runtime, &object, until).await {
                let shim = Shim::parent_of(pid);
                found.exited.push(Exited { object, pid, shim });
            }
        }
    }
    found
}

fn subject(object: &Object) -> Subject {
    let name = object.container.as_deref().unwrap_or_default();
    Subject::container(object.pod.as_str(), name, object.id.as_str())
}

async fn pid(runtime: &CriRuntime, object: Arc<Object>) -> (Arc<Object>, Option<u32>) {
    let id = ContainerId::from(object.id.as_str());
    let pid = runtime.container_pid(&subject(&object), &id).await.ok().flatten();
    (object, pid)
}

async fn is_running(runtime: &CriRuntime, object: &Object, until: Instant) -> bool {
    let name: Arc<str> = object.container.as_deref().unwrap_or_default().into();
    let id = ContainerId::from(object.id.as_str());
    let left = until.saturating_duration_since(Instant::now());
    let status = timeout(left, runtime.container_status(&subject(object), &id, &name)).await;
    matches!(status, Ok(Ok(status)) if status.state == ContainerState::Running)
}
