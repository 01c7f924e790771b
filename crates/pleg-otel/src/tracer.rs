//! Spans of relists and of the calls to the runtime.
//!
//! A relist is a trace: its root is the relist, from the first list to the last inspection, and the calls that were sent meanwhile are its
//! children. Calls beyond relists are traces of their own: inspections that events or the kernel asked for, and what `pleg node` does to a
//! pod, each of which links to what was done to the pod before. Calls about nothing (`Status`, `Version`) are spans only if they fail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pleg::{Metrics, RelistObserver};
use pleg_cri::{Call, Observer, Outcome, Rpc};
use tokio::time::Instant;

use crate::Counts;
use crate::config::Sampler;
use crate::proto::{KeyValue, Link, Span, Status, attribute};
use crate::queue::Queue;

/// Pods whose last action is remembered.
const MOST_PODS: usize = 256;
/// Bytes of an error's text.
const MAX_ERROR: usize = 512;

const INTERNAL: i32 = 1;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

/// Which span it is.
#[derive(Debug, Clone, Copy)]
struct Context {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    sampled: bool,
}

#[derive(Debug, Clone, Copy)]
struct OpenRelist {
    context: Context,
    started: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// Of everything, and of single pods: the lists of the latter may be sent while the former waits for inspections.
    open: [Option<OpenRelist>; 2],
    /// What was last done to a pod.
    actions: VecDeque<(Arc<str>, Context)>,
}

/// Makes spans.
#[derive(Debug)]
pub(crate) struct Tracer {
    // Held for a lookup; never across an await.
    state: Mutex<State>,
    queue: Arc<Queue<Span>>,
    sampler: Sampler,
    counts: Counts,
}

/// What a call is to a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is a part of a relist.
    List,
    /// It is about one object, and may be a part of a relist.
    Inspect,
    /// It changes a pod.
    Act,
    /// It is worth a span only if it fails.
    Other,
}

fn role(rpc: Rpc) -> Role {
    match rpc {
        Rpc::ListPodSandbox | Rpc::StreamPodSandboxes | Rpc::ListContainers | Rpc::StreamContainers => Role::List,
        Rpc::PodSandboxStatus | Rpc::ContainerStatus => Role::Inspect,
        Rpc::RunPodSandbox
        | Rpc::StopPodSandbox
        | Rpc::RemovePodSandbox
        | Rpc::CreateContainer
        | Rpc::StartContainer
        | Rpc::StopContainer
        | Rpc::RemoveContainer
        | Rpc::UpdateContainerResources
        | Rpc::PullImage
        | Rpc::RemoveImage
        | Rpc::ExecSync => Role::Act,
        _ => Role::Other,
    }
}

impl Tracer {
    pub(crate) fn new(queue: Arc<Queue<Span>>, sampler: Sampler, counts: Counts) -> Self {
        Self {
            state: Mutex::default(),
            queue,
            sampler,
            counts,
        }
    }

    fn root(&self) -> Context {
        Context {
            trace_id: fastrand::u128(1..).to_be_bytes(),
            span_id: fastrand::u64(1..).to_be_bytes(),
            sampled: self.sampler.samples(),
        }
    }

    fn send(&self, span: Span) {
        if !self.queue.push(span) {
            self.counts.add("traces", "dropped", 1);
        }
    }

    fn ended(&self, call: &Call, outcome: Outcome<'_>) {
        let role = role(call.rpc);
        let is_stream = call.deadline.is_none();
        if is_stream || (role == Role::Other && !matches!(outcome, Outcome::Failed(_))) {
            return;
        }
        let (context, parent, link) = self.place(role, call);
        if !context.sampled {
            return;
        }
        let error = match outcome {
            Outcome::Ok => None,
            Outcome::Failed(kind) => Some((kind.label(), kind.to_string())),
            Outcome::Dropped => Some(("dropped", "the answer was no longer needed".to_owned())),
        };
        let mut attributes = attributes(call);
        attributes.extend(error.as_ref().map(|(label, _)| attribute("error.type", *label)));
        let (start, end) = times(call.since.elapsed());
        self.send(Span {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span_id.to_vec()),
            name: call.rpc.name().to_owned(),
            kind: CLIENT,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            links: link.into_iter().map(to_link).collect(),
            status: error.map(|(_, text)| failed(&text)),
        });
    }

    /// The span of a call, its parent, and what it links to.
    fn place(&self, role: Role, call: &Call) -> (Context, Option<Context>, Option<Context>) {
        let mut state = self.state.lock();
        let [full, pods] = state.open.map(|open| open.filter(|open| call.since >= open.started));
        let parent = match role {
            // The newer one sent it.
            Role::List => [full, pods].into_iter().flatten().max_by_key(|open| open.started),
            Role::Inspect => full,
            Role::Act | Role::Other => None,
        };
        if let Some(parent) = parent.map(|open| open.context) {
            let span_id = fastrand::u64(1..).to_be_bytes();
            return (Context { span_id, ..parent }, Some(parent), None);
        }
        let context = self.root();
        let link = match (&call.subject.pod, role) {
            (Some(pod), Role::Act) => state.acted(pod, context),
            _ => None,
        };
        (context, None, link)
    }
}

impl State {
    /// Something is done to a pod. Returns what was done before.
    fn acted(&mut self, pod: &Arc<str>, context: Context) -> Option<Context> {
        let at = self.actions.iter().position(|(known, _)| known == pod);
        let before = at.and_then(|at| self.actions.remove(at)).map(|(_, before)| before);
        if self.actions.len() >= MOST_PODS {
            self.actions.pop_front();
        }
        self.actions.push_back((Arc::clone(pod), context));
        before.filter(|before| before.sampled)
    }
}

impl RelistObserver for Tracer {
    fn relist_started(&self, is_full: bool) {
        let context = self.root();
        let started = Instant::now();
        self.state.lock().open[usize::from(!is_full)] = Some(OpenRelist { context, started });
    }

    fn relist_ended(&self, is_full: bool, error: Option<&str>) {
        let open = self.state.lock().open[usize::from(!is_full)].take();
        let Some(OpenRelist { context, started }) = open.filter(|open| open.context.sampled) else {
            return;
        };
        let (start, end) = times(started.elapsed());
        self.send(Span {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id: Vec::new(),
            name: "relist".to_owned(),
            kind: INTERNAL,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes: vec![attribute("pleg.relist.scope", if is_full { "full" } else { "pods" })],
            links: Vec::new(),
            status: error.map(failed),
        });
    }
}

fn failed(text: &str) -> Status {
    let end = text
        .char_indices()
        .map(|(at, _)| at)
        .take_while(|at| *at <= MAX_ERROR)
        .last();
    let end = if text.len() <= MAX_ERROR {
        text.len()
    } else {
        end.unwrap_or(0)
    };
    Status {
        message: text[..end].to_owned(),
        code: ERROR,
    }
}

fn to_link(context: Context) -> Link {
    Link {
        trace_id: context.trace_id.to_vec(),
        span_id: context.span_id.to_vec(),
    }
}

/// When something that ends now and took this long began and ended, by the wall clock.
fn times(took: Duration) -> (u64, u64) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    (nanos(now.saturating_sub(took)), nanos(now))
}

/// What a call is about, with the names of the semantic conventions.
fn attributes(call: &Call) -> Vec<KeyValue> {
    let service = match call.rpc {
        Rpc::PullImage | Rpc::RemoveImage | Rpc::ListImages | Rpc::ImageStatus | Rpc::ImageFsInfo => {
            "runtime.v1.ImageService"
        }
        _ => "runtime.v1.RuntimeService",
    };
    let mut attributes = vec![
        attribute("rpc.system", "grpc"),
        attribute("rpc.service", service),
        attribute("rpc.method", call.rpc.name()),
    ];
    let subject = &call.subject;
    if let Some((namespace, name)) = subject.pod.as_deref().and_then(|pod| pod.split_once('/')) {
        attributes.push(attribute("k8s.namespace.name", namespace));
        attributes.push(attribute("k8s.pod.name", name));
    }
    if let Some(container) = &subject.container {
        attributes.push(attribute("k8s.container.name", &**container));
    }
    if let Some(id) = &subject.id {
        let is_container = subject.container.is_some() || call.rpc == Rpc::ContainerStatus;
        let key = if is_container { "container.id" } else { "pleg.object.id" };
        attributes.push(attribute(key, &**id));
    }
    attributes
}

/// The calls of a client, for the metrics and for traces.
#[derive(Debug)]
pub(crate) struct TracedCalls {
    metrics: Metrics,
    tracer: Arc<Tracer>,
}

impl TracedCalls {
    pub(crate) fn new(metrics: Metrics, tracer: Arc<Tracer>) -> Self {
        Self { metrics, tracer }
    }
}

impl Observer for TracedCalls {
    fn ended(&self, rpc: Rpc, elapsed: Duration, outcome: Outcome<'_>) {
        self.metrics.ended(rpc, elapsed, outcome);
    }

    fn wants_calls(&self) -> bool {
        true
    }

    fn call_ended(&self, call: &Call, outcome: Outcome<'_>) {
        self.tracer.ended(call, outcome);
    }
}
