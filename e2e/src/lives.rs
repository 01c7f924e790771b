//! When each container ran, observed from beside through the runtime's own socket, and that none ran twice at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use parking_lot::Mutex;
use pleg_cri::list::{POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL};
use pleg_cri::{Client, v1};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::kubelet::CONTAINER_NAME_LABEL;

/// How often the runtime is asked. A container that is removed sooner after its end is known to have run until it was last seen.
const PERIOD: Duration = Duration::from_millis(100);

/// The observer. It ends when it is dropped.
#[derive(Debug)]
pub struct Lives {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    by_id: BTreeMap<String, Life>,
    rounds: usize,
}

#[derive(Debug, Clone)]
struct Life {
    /// Whose: the pod and the name of the container.
    of: (String, String),
    /// Nanoseconds since 1970.
    from: i64,
    /// At least until then.
    to: i64,
    /// It has ended: nothing more is to be learned of it.
    over: bool,
}

impl Lives {
    /// Observes the runtime of this client, which must not go through any faults.
    pub fn of(client: Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let to = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                // A runtime that is stopped or restarted is asked again.
                if see(&client, &to).await.is_ok() {
                    to.lock().rounds += 1;
                }
                sleep(PERIOD).await;
            }
        });
        Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// No container of a pod ran twice at the same time, as far as was seen.
    pub fn check(&self) -> Result<()> {
        let seen = self.seen.lock();
        ensure!(seen.rounds > 0 && !seen.by_id.is_empty(), "no container was seen");
        let mut lives: Vec<(&String, &Life)> = seen.by_id.iter().collect();
        lives.sort_by(|(_, a), (_, b)| (&a.of, a.from).cmp(&(&b.of, b.from)));
        for pair in lives.windows(2) {
            let [(id, one), (other, next)] = pair else { continue };
            ensure!(
                one.of != next.of || next.from >= one.to,
                "container {} of {} ran twice at once: {id} from {} to {} at least, {other} from {}",
                one.of.1,
                one.of.0,
                one.from,
                one.to,
                next.from
            );
        }
        Ok(())
    }

    /// How many containers were seen.
    pub fn count(&self) -> usize {
        self.seen.lock().by_id.len()
    }
}

async fn see(client: &Client, seen: &Mutex<Seen>) -> Result<()> {
    let asked = Timestamp::now().as_nanosecond();
    let asked = i64::try_from(asked).unwrap_or(i64::MAX);
    let list = client.call(v1::ListContainersRequest::default()).await?;
    for container in list.containers {
        if seen.lock().by_id.get(&container.id).is_some_and(|life| life.over) {
            continue;
        }
        let request = v1::ContainerStatusRequest {
            container_id: container.id.clone(),
            verbose: false,
        };
        // It may be gone by now.
        let Ok(answer) = client.call(request).await else {
            continue;
        };
        let Some(status) = answer.status else { continue };
        let (to, over) = match status.state() {
            v1::ContainerState::ContainerRunning => (asked, false),
            v1::ContainerState::ContainerExited => (status.finished_at, true),
            _ => continue,
        };
        if status.started_at == 0 {
            continue;
        }
        let life = Life {
            of: owner(&container.labels),
            from: status.started_at,
            to,
            over,
        };
        seen.lock().by_id.insert(container.id, life);
    }
    Ok(())
}

/// A pod of the API may be replaced by one of the same name while it ends; a static pod may not. Their names tell them apart here.
fn owner(labels: &std::collections::HashMap<String, String>) -> (String, String) {
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    let name = label(POD_NAME_LABEL);
    let pod = if name.starts_with("static") {
        format!("{}/{name}", label(POD_NAMESPACE_LABEL))
    } else {
        label(POD_UID_LABEL)
    };
    (pod, label(CONTAINER_NAME_LABEL))
}
