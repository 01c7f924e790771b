//! One call, measured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pleg_cri::{Client, Error, ErrorKind, ListSummary, Observer, Outcome, Rpc, Subject, v1};
use tokio::time::{Instant, timeout};

use super::facts::{Answer, List, Object, Sample};
use crate::text::clean;

/// How long the last call of each kind took. The first list of a connection may be two calls: the streaming one is tried first.
#[derive(Debug, Clone, Default)]
pub(super) struct Stopwatch(Arc<Mutex<HashMap<Rpc, Duration>>>);

impl Observer for Stopwatch {
    fn ended(&self, rpc: Rpc, elapsed: Duration, _: Outcome<'_>) {
        if let Ok(mut last) = self.0.lock() {
            last.insert(rpc, elapsed);
        }
    }
}

impl Stopwatch {
    fn last(&self, rpc: Rpc) -> Option<Duration> {
        self.0.lock().ok()?.get(&rpc).copied()
    }
}

pub(super) async fn status(client: &Client, object: Arc<Object>, deadline: Duration, verbose: bool) -> Sample {
    let id = object.id.clone();
    let mut sample = if let Some(name) = &object.container {
        let subject = Subject::container(object.pod.as_str(), name.as_str(), id.as_str());
        let request = v1::ContainerStatusRequest {
            container_id: id,
            verbose,
        };
        let call = client.call_for(&subject, request);
        ask(Rpc::ContainerStatus, Some(object), deadline, call).await.0
    } else {
        let subject = Subject::sandbox(object.pod.as_str(), id.as_str());
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id,
            verbose,
        };
        let call = client.call_for(&subject, request);
        ask(Rpc::PodSandboxStatus, Some(object), deadline, call).await.0
    };
    sample.verbose = verbose;
    sample
}

/// Measures one call.
pub(super) async fn ask<T>(
    rpc: Rpc,
    object: Option<Arc<Object>>,
    deadline: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> (Sample, Option<T>) {
    let start = Instant::now();
    let (answer, value) = match timeout(deadline, call).await {
        Ok(Ok(value)) => (Answer::Ok, Some(value)),
        Ok(Err(error)) => (answer_of(&error.kind), None),
        Err(_) => (Answer::None(deadline), None),
    };
    let sample = Sample {
        rpc: rpc.name(),
        verbose: false,
        object,
        took: start.elapsed(),
        answer,
    };
    (sample, value)
}

/// Measures one list; the client has its deadline.
pub(super) async fn listed(
    stopwatch: &Stopwatch,
    rpc: Rpc,
    call: impl Future<Output = Result<ListSummary, Error>>,
) -> (Sample, List) {
    let start = Instant::now();
    let (rpc, mut list) = match call.await {
        Ok(summary) => {
            let rpc = match (rpc, summary.streamed) {
                (rpc, false) => rpc,
                (Rpc::ListPodSandbox, true) => Rpc::StreamPodSandboxes,
                (_, true) => Rpc::StreamContainers,
            };
            let list = List {
                items: summary.items,
                bytes: summary.bytes,
                streamed: summary.streamed,
                ..List::default()
            };
            (rpc, list)
        }
        Err(error) => {
            let list = List {
                answer: answer_of(&error.kind),
                ..List::default()
            };
            (error.rpc, list)
        }
    };
    list.took = stopwatch.last(rpc).unwrap_or_else(|| start.elapsed());
    let sample = Sample {
        rpc: rpc.name(),
        verbose: false,
        object: None,
        took: list.took,
        answer: list.answer.clone(),
    };
    (sample, list)
}

fn answer_of(kind: &ErrorKind) -> Answer {
    match kind {
        ErrorKind::Deadline(after) => Answer::None(*after),
        ErrorKind::NotFound(_) => Answer::NotFound,
        ErrorKind::Unimplemented => Answer::Unimplemented,
        kind if kind.is_unreachable() => Answer::Unreachable(clean(&kind.to_string())),
        kind => Answer::Failed(clean(&kind.to_string())),
    }
}
