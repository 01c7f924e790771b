//! What must never happen to the status of a pod, watched from beside for as long as a scenario lasts, at the API server itself.
//!
//! A terminal phase is final, and a container's count of restarts never goes down.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::ControlPlane;

/// The wait before the API server is asked again: it may be down.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a list may take.
const ANSWER: Duration = Duration::from_secs(10);

/// The watch. It ends when it is dropped.
#[derive(Debug)]
pub struct PodWatch {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    pods: BTreeMap<String, Last>,
    /// What must not happen, and did.
    wrong: Vec<String>,
    changes: usize,
}

/// What a pod's status said last.
#[derive(Debug, Default)]
struct Last {
    phase: String,
    restarts: BTreeMap<String, u64>,
}

impl PodWatch {
    /// Of the pods of a namespace.
    pub fn start(cluster: &ControlPlane, namespace: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let pods = kube::Api::namespaced_with(cluster.client(), namespace, &resource);
        let to = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                follow(&pods, &to).await;
                sleep(PAUSE).await;
            }
        });
        Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Nothing happened that must not.
    pub fn check(&self) -> Result<()> {
        let seen = self.seen.lock();
        ensure!(seen.changes > 0, "no pod was seen");
        ensure!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
        Ok(())
    }
}

/// A list, then a watch until it ends.
async fn follow(pods: &kube::Api<DynamicObject>, seen: &Mutex<Seen>) {
    let Ok(Ok(list)) = timeout(ANSWER, pods.list(&ListParams::default())).await else {
        return;
    };
    list.items.iter().for_each(|pod| seen.lock().see(pod));
    let version = list.metadata.resource_version.unwrap_or_default();
    let Ok(Ok(events)) = timeout(ANSWER, pods.watch(&WatchParams::default(), &version)).await else {
        return;
    };
    let mut events = pin!(events);
    while let Some(Ok(event)) = events.next().await {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) => seen.lock().see(&pod),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(_) => return,
        }
    }
}

impl Seen {
    fn see(&mut self, pod: &DynamicObject) {
        self.changes += 1;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let status = &pod.data["status"];
        let last = self.pods.entry(uid).or_default();
        let phase = status["phase"].as_str().unwrap_or_default();
        if matches!(last.phase.as_str(), "Succeeded" | "Failed") && phase != last.phase {
            let what = format!("the phase of {name} went from {} to {phase}: {status}", last.phase);
            self.wrong.push(what);
        }
        phase.clone_into(&mut last.phase);
        for (container, restarts) in restarts(status) {
            let before = last.restarts.insert(container.clone(), restarts).unwrap_or_default();
            if restarts < before {
                let what = format!("the restarts of {name}/{container} went from {before} to {restarts}: {status}");
                self.wrong.push(what);
            }
        }
    }
}

fn restarts(status: &Value) -> Vec<(String, u64)> {
    let lists = ["initContainerStatuses", "containerStatuses"].map(|list| status[list].as_array());
    let all = lists.into_iter().flatten().flatten();
    let of = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["restartCount"].as_u64()?));
    all.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(phase: &str, restarts: u64) -> DynamicObject {
        let status = json!({ "phase": phase, "containerStatuses": [{ "name": "app", "restartCount": restarts }] });
        let object = json!({ "metadata": { "name": "p", "uid": "1" }, "status": status });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_status_that_goes_back_is_noticed() {
        for (first, second, wrong) in [
            (pod("Pending", 0), pod("Running", 1), 0),
            (pod("Running", 2), pod("Failed", 2), 0),
            (pod("Failed", 0), pod("Running", 0), 1),
            (pod("Succeeded", 0), pod("Failed", 0), 1),
            (pod("Running", 2), pod("Running", 1), 1),
        ] {
            let mut seen = Seen::default();
            seen.see(&first);
            seen.see(&second);
            assert_eq!(seen.wrong.len(), wrong, "{:?}", seen.wrong);
        }
    }
}
