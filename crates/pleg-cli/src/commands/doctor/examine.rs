//! Calls the runtime, within a budget of time. Makes only calls that read: `Version`, `Status`, `RuntimeConfig`, the lists, the statuses, and
//! with `--events` a short subscription.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use pleg::internals::Snapshot;
use pleg_cri::{Client, ConnectError, Deadlines, Endpoint, InFlight, ListFilter, Rpc, v1};
use tokio::time::Instant;

use super::ask::{Stopwatch, ask, listed, status};
use super::facts::{Answer, Condition, Facts, Object, Runtime, SHIM_ANSWERS, SLOW, Sample, Silence};
use super::{events, host, inventory, known, processes};
use crate::text::clean;

/// Maximum number of calls in flight: few enough for a runtime in trouble.
const WIDTH: usize = 16;
/// Status calls that are made one after the other, as a kubelet does, to measure the latency of one.
const ALONE: usize = 16;
/// Maximum time for those.
const ALONE_FOR: Duration = Duration::from_secs(1);
/// Lists that are faster than this are repeated, for a better figure.
const QUICK_LIST: Duration = Duration::from_millis(200);
const MOST_LISTS: usize = 3;

/// What to examine, and for how long.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) endpoint: Endpoint,
    /// For everything.
    pub(super) budget: Duration,
    /// For a list.
    pub(super) list: Duration,
    /// For the status of one container or sandbox.
    pub(super) inspect: Duration,
    /// Subscribe to events.
    pub(super) events: bool,
    /// A daemon that may know containers while the runtime does not list them.
    pub(super) daemon: Option<crate::address::DaemonAddress>,
}

/// Progress, for the terminal.
#[derive(Debug, Default)]
pub(super) struct Progress(RefCell<String>);

impl Progress {
    pub(super) fn told(&self) -> String {
        self.0.borrow().clone()
    }

    fn tell(&self, what: String) {
        *self.0.borrow_mut() = what;
    }
}

/// Examines the runtime. An error only if there is none to examine: no permission, no socket, no CRI.
pub(super) async fn examine(plan: &Plan, progress: &Progress) -> anyhow::Result<Facts> {
    let until = Instant::now() + plan.budget;
    let mut facts = Facts {
        endpoint: plan.endpoint.to_string(),
        socket: host::socket(plan.endpoint.path()),
        ..Facts::default()
    };
    progress.tell(format!("the runtime at {} to answer Version", plan.endpoint));
    let first = Deadlines::default().connect.min(plan.budget / 4);
    let deadlines = Deadlines {
        list: plan.list,
        // A slow runtime is not a stuck one, so the first call gets more time. Status calls have their deadline in `ask`.
        inspect: plan.inspect.max(first),
        connect: first,
        ..Deadlines::default()
    };
    let stopwatch = Stopwatch::default();
    let config = pleg_cri::Config {
        deadlines,
        inflight: InFlight::observed_by(Arc::new(stopwatch.clone())),
        ..pleg_cri::Config::default()
    };
    let client = match Client::connect(plan.endpoint.clone(), config).await {
        Ok(client) => client,
        Err(error) => {
            facts.silence = Some(silence(error)?);
            return Ok(facts);
        }
    };
    let mut examination = Examination {
        client,
        stopwatch,
        plan,
        until,
        progress,
        facts,
    };
    // Boxed: three calls at once are a large future.
    Box::pin(examination.ask_about_itself()).await;
    examination.list().await;
    examination.inspect().await;
    examination.confirm_not_found().await;
    examination.ask_shims().await;
    examination.ask_kernel().await;
    examination.subscribe().await;
    Ok(examination.facts)
}

/// What a failed connection says about the runtime; the error itself if there is none.
fn silence(error: ConnectError) -> Result<Silence, ConnectError> {
    match &error {
        ConnectError::Absent(_) | ConnectError::Refused(_) => Ok(Silence::Down(error.to_string())),
        ConnectError::Silent { .. } => Ok(Silence::Stuck(error.to_string())),
        ConnectError::Other { detail, .. } if detail.starts_with("UNAVAILABLE") => Ok(Silence::Down(error.to_string())),
        _ => Err(error),
    }
}

struct Examination<'a> {
    client: Client,
    stopwatch: Stopwatch,
    plan: &'a Plan,
    until: Instant,
    progress: &'a Progress,
    facts: Facts,
}

impl Examination<'_> {
    /// Whether a call of this deadline may still begin.
    fn room(&self, deadline: Duration) -> bool {
        Instant::now() + deadline <= self.until
    }

    async fn ask_about_itself(&mut self) {
        let client = &self.client;
        let deadline = client.deadlines().connect;
        let (version, status, config) = tokio::join!(
            ask(Rpc::Version, None, deadline, client.version()),
            ask(Rpc::Status, None, deadline, client.call(v1::StatusRequest::default())),
            ask(
                Rpc::RuntimeConfig,
                None,
                deadline,
                client.call(v1::RuntimeConfigRequest {})
            ),
        );
        let named = version.1.unwrap_or_default();
        self.facts.runtime = Some(Runtime {
            name: clean(&named.runtime_name),
            version: clean(&named.runtime_version),
            api: self.client.api().to_string(),
            streaming_lists: None,
            runtime_config: match config.0.answer {
                Answer::Ok => Some(true),
                Answer::Unimplemented => Some(false),
                _ => None,
            },
        });
        let conditions = status.1.and_then(|answer| answer.status).unwrap_or_default().conditions;
        self.facts.conditions = conditions
            .into_iter()
            .map(|condition| Condition {
                kind: clean(&condition.r#type),
                status: condition.status,
                reason: clean(&condition.reason),
                message: clean(&condition.message),
            })
            .collect();
        self.facts.samples.extend([version.0, status.0, config.0]);
    }

    /// Both lists, in parallel; repeated if that is cheap, but never behind one that hangs.
    async fn list(&mut self) {
        let mut snapshot = Snapshot::default();
        for n in 0..MOST_LISTS {
            // There is always time for the first: earlier calls cannot exceed their share.
            if n > 0 && !self.room(self.plan.list) {
                break;
            }
            self.progress.tell("the runtime to list pods and containers".to_owned());
            self.list_once(&mut snapshot).await;
            let lists = [&self.facts.sandboxes, &self.facts.containers];
            if lists
                .iter()
                .any(|list| list.answer != Answer::Ok || list.took > QUICK_LIST)
            {
                break;
            }
        }
        self.facts.inventory = inventory::take(&mut snapshot);
        let lists = [&self.facts.sandboxes, &self.facts.containers];
        let answered = lists.into_iter().find(|list| list.answer == Answer::Ok);
        if let (Some(runtime), Some(list)) = (&mut self.facts.runtime, answered) {
            runtime.streaming_lists = Some(list.streamed);
        }
        let hangs =
            matches!(self.facts.containers.answer, Answer::None(_)) && self.facts.sandboxes.answer == Answer::Ok;
        if hangs && self.room(known::DAEMON_ANSWERS) {
            self.progress
                .tell("the daemon to list the containers it knows".to_owned());
            let known = known::to_daemon(self.plan.daemon.as_ref()).await;
            self.facts.inventory.containers = known.unwrap_or_default().into_iter().map(Arc::new).collect();
        }
    }

    async fn list_once(&mut self, snapshot: &mut Snapshot) {
        snapshot.clear();
        let Snapshot { sandboxes, containers } = &mut *snapshot;
        let filter = ListFilter::All;
        let (of_sandboxes, of_containers) = tokio::join!(
            listed(
                &self.stopwatch,
                Rpc::ListPodSandbox,
                self.client.list_sandboxes(&filter, |item| sandboxes.push(&item))
            ),
            listed(
                &self.stopwatch,
                Rpc::ListContainers,
                self.client.list_containers(&filter, |item| containers.push(&item))
            ),
        );
        // The items count only if the call succeeded.
        if of_sandboxes.1.answer != Answer::Ok {
            snapshot.sandboxes.clear();
        }
        if of_containers.1.answer != Answer::Ok {
            snapshot.containers.clear();
        }
        self.facts.samples.extend([of_sandboxes.0, of_containers.0]);
        (self.facts.sandboxes, self.facts.containers) = (of_sandboxes.1, of_containers.1);
    }

    /// Every sandbox and container once. First a few alone, then all others.
    async fn inspect(&mut self) {
        let deadline = self.plan.inspect;
        let inventory = &self.facts.inventory;
        let mut objects: Vec<_> = inventory
            .sandboxes
            .iter()
            .chain(&inventory.containers)
            .cloned()
            .collect();
        // Running objects first, in case time runs out; pod by pod, so that the first few are of both kinds.
        objects.sort_by_cached_key(|object| (!object.alive, object.pod.clone(), object.container.clone()));
        let mut waiting = objects.into_iter();

        let start = Instant::now();
        let mut alone = Vec::new();
        while alone.len() < ALONE && start.elapsed() < ALONE_FOR && self.room(deadline) {
            let Some(object) = waiting.next() else { break };
            let sample = status(&self.client, object, deadline, false).await;
            let hangs = matches!(sample.answer, Answer::None(_));
            if sample.answer == Answer::Ok {
                alone.push(sample.took);
            }
            self.facts.samples.push(sample);
            if hangs {
                break;
            }
        }
        alone.sort_unstable();
        self.facts.alone = alone.get(alone.len() / 2).copied();

        let rest: Vec<_> = waiting.collect();
        // A third of the time is for the shims.
        let until = self.until - self.plan.budget / 3;
        let missed = self.ask_all(rest, deadline, until, false).await;
        if missed > 0 {
            let all = self.facts.inventory.sandboxes.len() + self.facts.inventory.containers.len();
            self.leave_out(format!("the status of {missed} of {all} containers and sandboxes"));
        }
    }

    /// The statuses of all of these, [`WIDTH`] at a time. Returns how many were skipped for lack of time.
    async fn ask_all(&mut self, objects: Vec<Arc<Object>>, deadline: Duration, until: Instant, verbose: bool) -> usize {
        let all = objects.len();
        let (client, progress) = (&self.client, self.progress);
        let what = if verbose { "shims" } else { "statuses" };
        progress.tell(format!("{all} {what}"));
        let calls = objects
            .into_iter()
            .take_while(|_| Instant::now() + deadline <= until)
            .map(|object| status(client, object, deadline, verbose));
        let mut answers = futures_util::stream::iter(calls).buffer_unordered(WIDTH);
        let mut samples = Vec::new();
        while let Some(sample) = answers.next().await {
            samples.push(sample);
            progress.tell(format!("the runtime: {} of {all} {what} so far", samples.len()));
        }
        drop(answers);
        let asked = samples.len();
        self.facts.samples.extend(samples);
        all - asked
    }

    /// An object that is not found may have been removed in the meantime: only one that is listed again is in trouble.
    async fn confirm_not_found(&mut self) {
        let is_missing = |sample: &Sample| sample.answer == Answer::NotFound;
        if !self.facts.samples.iter().any(is_missing) {
            return;
        }
        let mut again = Snapshot::default();
        let lists = [&self.facts.sandboxes, &self.facts.containers];
        if lists.iter().all(|list| list.answer == Answer::Ok) {
            if self.room(self.plan.list) {
                self.list_once(&mut again).await;
            } else {
                self.leave_out("whether objects not found by id are still listed".to_owned());
            }
        }
        let listed = inventory::take(&mut again);
        let listed: HashSet<&str> = listed
            .sandboxes
            .iter()
            .chain(&listed.containers)
            .map(|object| object.id.as_str())
            .collect();
        self.facts.samples.retain(|sample| {
            let gone = |object: &Arc<Object>| !listed.contains(object.id.as_str());
            !(is_missing(sample) && sample.object.as_ref().is_some_and(gone))
        });
    }

    /// A verbose status of every ready sandbox, the suspects first: for this the runtime asks the shim.
    async fn ask_shims(&mut self) {
        let suspects: HashSet<String> = self
            .facts
            .samples
            .iter()
            .filter(|sample| sample.is_plain_status() && (sample.answer != Answer::Ok || sample.took >= SLOW))
            .filter_map(|sample| sample.object.as_ref().map(|object| object.sandbox.clone()))
            .collect();
        let mut ready: Vec<_> = self
            .facts
            .inventory
            .sandboxes
            .iter()
            .filter(|s| s.alive)
            .cloned()
            .collect();
        ready.sort_by_key(|sandbox| !suspects.contains(&sandbox.id));
        let all = ready.len();
        // Shims get their share of time in any case.
        let deadline = self.plan.inspect.max(SHIM_ANSWERS);
        // Reserve time for the events.
        let until = self.until - if self.plan.events { events::TIME } else { Duration::ZERO };
        let missed = self.ask_all(ready, deadline, until, true).await;
        if missed > 0 {
            self.leave_out(format!("the shims of {missed} of {all} ready sandboxes"));
        }
        let hung = self
            .facts
            .samples
            .iter()
            .filter(|sample| sample.verbose && sample.took >= SHIM_ANSWERS);
        let hung = hung.filter_map(|sample| sample.object.as_ref().map(|object| object.sandbox.clone()));
        let left = self.until.saturating_duration_since(Instant::now());
        self.facts.shims = host::shims(hung.collect(), left).await;
    }

    /// Whether the processes of running containers are there, and those of others are not.
    async fn ask_kernel(&mut self) {
        let containers = self.facts.inventory.containers.iter();
        let (running, ended) = containers.cloned().partition(|container| container.alive);
        self.progress.tell("the kernel".to_owned());
        let until = self.until - if self.plan.events { events::TIME } else { Duration::ZERO };
        self.facts.processes = processes::examine(&self.client, running, ended, until).await;
    }

    async fn subscribe(&mut self) {
        let runtime = self.facts.runtime.clone().unwrap_or_default();
        self.progress.tell("events".to_owned());
        let room = self.room(events::TIME);
        self.facts.events = events::listen(&self.client, &runtime, self.plan.events, room).await;
    }

    fn leave_out(&mut self, what: String) {
        self.facts.left_out.push(what);
    }
}
