//! A runtime in memory, with faults, driven under paused time.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::struct_excessive_bools, reason = "a test's helper")]

pub mod history;
pub mod kernel;
pub mod oracle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use pleg::model::PodView;
use pleg::runtime::{
    ContainerList, ContainerPid, Error, ErrorKind, EventStream, ListFilter, ListSummary, Runtime, RuntimeEvent,
    RuntimeStatus, RuntimeVersion, SandboxList, Subject,
};
use pleg::status::Resources;
use pleg::{
    Config, ContainerId, ContainerRef, ContainerState, ContainerStatus, Event, EventType, Generator, Item, Metrics,
    Overflow, Pleg, Reached, SandboxId, SandboxState, SandboxStatus, Start, Subscriber,
};
use pleg_cri::{ContainerItem, Endpoint, InFlight, Rpc, SandboxItem};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Number of histories: this many, or `PROPTEST_CASES`.
pub fn cases(usual: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    pub uid: String,
    pub name: String,
    pub state: SandboxState,
    pub created_at: i64,
    pub labelled: bool,
    pub ip: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub struct Container {
    pub uid: String,
    pub sandbox: String,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub exit_code: i32,
    pub created_at: i64,
    pub labelled: bool,
}

#[derive(Debug, Default)]
pub struct World {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    pub clock: i64,
    /// When and by what containers ended, where that matters.
    pub endings: BTreeMap<String, (Timestamp, &'static str)>,
    /// Fails both lists.
    pub list_error: Option<ErrorKind>,
    /// Fails `Version`.
    pub version_error: Option<ErrorKind>,
    /// What `Status` answers.
    pub status: RuntimeStatus,
    /// Fails `Status`.
    pub status_error: Option<ErrorKind>,
    /// Never answers `Status`.
    pub status_hangs: bool,
    /// How often `Version` was answered.
    pub versions: usize,
    /// Never answers lists.
    pub list_hangs: bool,
    /// The list of sandboxes hangs while this is set.
    pub sandbox_list_hangs: bool,
    /// Latency of lists, if different from other calls.
    pub list_latency: Option<Duration>,
    /// The client has a bug: lists panic.
    pub list_panics: bool,
    /// The lock of this container is held: its status and every list of containers wait for it.
    pub locked: Option<String>,
    /// The shims of these sandboxes hang: a probe takes 4 s.
    pub hung_shims: BTreeSet<String>,
    pub probes: Vec<(tokio::time::Instant, String)>,
    pub inflight: InFlight,
    /// Status calls of these ids never answer (the generator's caller bounds them: here after 10 s).
    pub hung: BTreeSet<String>,
    /// Hung calls are answered in the end, just before the deadline.
    pub slow_ends_well: bool,
    /// Status calls of these ids fail.
    pub failing: BTreeSet<String>,
    /// Status calls of these ids answer `NOT_FOUND`.
    pub denied: BTreeSet<String>,
    /// Latency of each call.
    pub latency: Duration,
    /// Additional latency of each call for every other call in flight.
    pub contention: Duration,
    busy: u32,
    /// Additional latency of `ContainerStatus`.
    pub container_latency: Duration,
    /// Memory limits, as `UpdateContainerResources` sets them: in statuses, and in no list.
    pub limits: BTreeMap<String, i64>,
    /// Latencies of consecutive calls, used in turn; if there are any, `latency` is ignored.
    pub latencies: Vec<Duration>,
    /// More calls than this at one point in time mean a busy loop: it is noted in `spun`, and further calls take time. Zero: not counted.
    pub most_calls_at_once: usize,
    pub spun: bool,
    calls_at: Option<(tokio::time::Instant, usize)>,
    /// Full lists that were answered, with their content.
    pub relists: Vec<BTreeMap<String, PodView>>,
    /// When each full list was asked for and answered.
    pub list_times: Vec<(tokio::time::Instant, tokio::time::Instant)>,
    pub filtered_lists: usize,
    /// The pods that each of the last lists of all sandboxes had.
    pub sandbox_lists: Vec<BTreeSet<String>>,
    /// Lists that are being answered.
    pub lists_in_flight: usize,
    pub status_calls: Vec<String>,
    /// It says which processes containers have, and how often it was asked.
    pub tells_pids: bool,
    pub pid_calls: usize,
    /// Latency of the answer which process a container has.
    pub pid_latency: Duration,
    pub in_flight: usize,
    pub most_in_flight: usize,
    /// What `Version` answers.
    pub version: RuntimeVersion,
    /// `GetContainerEvents` is implemented.
    pub has_events: bool,
    /// Fails `GetContainerEvents`.
    pub events_error: Option<ErrorKind>,
    /// `GetContainerEvents` ends at once, without an error.
    pub events_end: bool,
    /// Events that the next subscriber gets first.
    pub backlog: Vec<RuntimeEvent>,
    /// Lists show the world as it was when they were asked for, and not as it is when they are answered.
    pub list_snapshot_early: bool,
    /// The same for statuses.
    pub status_snapshot_early: bool,
    /// When each subscription started.
    pub subscriptions: Vec<tokio::time::Instant>,
    pub subscribers: Vec<mpsc::UnboundedSender<Result<RuntimeEvent, Error>>>,
}

impl World {
    /// Sends an event to every subscriber.
    pub fn tell(&mut self, event: &RuntimeEvent) {
        self.subscribers
            .retain(|subscriber| subscriber.send(Ok(event.clone())).is_ok());
    }

    /// Sends an event about an object, with or without its pod.
    pub fn tell_of(&mut self, id: &str, pod: Option<&str>) {
        self.tell(&RuntimeEvent {
            id: Some(id.into()),
            pod: pod.map(Into::into),
            ..RuntimeEvent::default()
        });
    }

    /// Sends an event that an object was deleted.
    pub fn tell_deleted(&mut self, id: &str, pod: Option<&str>) {
        self.tell(&RuntimeEvent {
            id: Some(id.into()),
            pod: pod.map(Into::into),
            reached: Some(Reached::Gone),
            ..RuntimeEvent::default()
        });
    }

    /// Forgets all lists of sandboxes but the last.
    pub fn forget_sandbox_lists(&mut self) {
        let last = self.sandbox_lists.len().saturating_sub(1);
        self.sandbox_lists.drain(..last);
    }

    /// Ends every stream.
    pub fn cut(&mut self) {
        self.subscribers.clear();
    }

    fn latency(&mut self) -> Duration {
        let now = tokio::time::Instant::now();
        let before = self.calls_at.filter(|(at, _)| *at == now).map_or(0, |(_, calls)| calls);
        self.calls_at = Some((now, before + 1));
        if self.most_calls_at_once > 0 && before >= self.most_calls_at_once {
            self.spun = true;
            return Duration::from_millis(1);
        }
        if self.latencies.is_empty() {
            return self.latency;
        }
        self.latencies.rotate_left(1);
        self.latencies[0]
    }

    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    pub fn add_sandbox(&mut self, uid: &str, id: &str) {
        let created_at = self.tick();
        let sandbox = Sandbox {
            uid: uid.into(),
            name: uid.into(),
            state: SandboxState::Ready,
            created_at,
            labelled: true,
            ip: Some("10.0.0.1"),
        };
        self.sandboxes.insert(id.into(), sandbox);
    }

    pub fn add_container(&mut self, uid: &str, sandbox: &str, id: &str, state: ContainerState) {
        let created_at = self.tick();
        let container = Container {
            uid: uid.into(),
            sandbox: sandbox.into(),
            name: format!("name-{id}"),
            attempt: 0,
            state,
            exit_code: 0,
            created_at,
            labelled: true,
        };
        self.containers.insert(id.into(), container);
    }

    /// A pod `uid` with sandbox `s-uid` and running containers.
    pub fn add_pod(&mut self, uid: &str, containers: &[&str]) {
        let sandbox = format!("s-{uid}");
        self.add_sandbox(uid, &sandbox);
        for id in containers {
            self.add_container(uid, &sandbox, id, ContainerState::Running);
        }
    }

    pub fn exit(&mut self, id: &str, exit_code: i32) {
        let container = self.containers.get_mut(id).unwrap();
        (container.state, container.exit_code) = (ContainerState::Exited, exit_code);
    }

    pub fn remove_pod(&mut self, uid: &str) {
        self.containers.retain(|_, container| container.uid != uid);
        self.sandboxes.retain(|_, sandbox| sandbox.uid != uid);
    }

    /// What the runtime would list, by pod.
    pub fn views(&self) -> BTreeMap<String, PodView> {
        let mut views: BTreeMap<String, PodView> = BTreeMap::new();
        let mut sandboxes: Vec<_> = self.sandboxes.iter().collect();
        sandboxes.sort_by_key(|(_, s)| std::cmp::Reverse(s.created_at));
        for (id, sandbox) in sandboxes {
            views
                .entry(sandbox.uid.clone())
                .or_default()
                .sandboxes
                .push((id.as_str().into(), sandbox.state));
        }
        let mut containers: Vec<_> = self.containers.iter().collect();
        containers.sort_by_key(|(_, c)| c.created_at);
        for (id, container) in containers {
            views
                .entry(container.uid.clone())
                .or_default()
                .containers
                .push((container.reference(id), container.state));
        }
        views
    }
}

impl Container {
    pub fn reference(&self, id: &str) -> ContainerRef {
        ContainerRef {
            id: id.into(),
            name: self.name.as_str().into(),
            attempt: self.attempt,
        }
    }
}

/// The runtime. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Fake(Arc<Mutex<World>>);

impl Fake {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }

    fn error(rpc: Rpc, subject: &Subject, kind: ErrorKind) -> Error {
        Error {
            rpc,
            subject: subject.clone(),
            endpoint: Endpoint::unix("/test.sock"),
            kind,
        }
    }

    /// Waits while the lock is held, within the deadline.
    async fn unlocked(
        &self,
        deadline: Duration,
        rpc: Rpc,
        subject: &Subject,
        waits: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        let freed = async {
            while self.world().locked.as_deref().is_some_and(&waits) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let timeout = tokio::time::timeout(deadline, freed).await;
        timeout.map_err(|_| Self::error(rpc, subject, ErrorKind::Deadline(deadline)))
    }

    fn early<T>(&self, part: impl Fn(&World) -> T) -> Option<T> {
        let world = self.world();
        world.list_snapshot_early.then(|| part(&world))
    }

    fn early_status<T>(&self, part: impl Fn(&World) -> T) -> Option<T> {
        let world = self.world();
        world.status_snapshot_early.then(|| part(&world))
    }

    /// Processes a call: the more calls are in flight, the longer it takes.
    async fn take(&self, latency: Duration) {
        let contention = {
            let mut world = self.world();
            world.busy += 1;
            world.contention * (world.busy - 1)
        };
        let _busy = Busy(self.clone());
        tokio::time::sleep(latency + contention).await;
    }

    async fn list_call(&self, rpc: Rpc) -> Result<(), Error> {
        self.world().lists_in_flight += 1;
        let _listing = Landing(self.clone(), |world| &mut world.lists_in_flight);
        let deadline = Duration::from_mins(2);
        let inflight = self.world().inflight.clone();
        let _call = inflight.begin(rpc, Subject::NODE, Some(deadline));
        if rpc == Rpc::ListContainers {
            self.unlocked(deadline, rpc, &Subject::NODE, |_| true).await?;
        } else {
            let answers = async {
                while self.world().sandbox_list_hangs {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let answered = tokio::time::timeout(deadline, answers).await;
            answered.map_err(|_| Self::error(rpc, &Subject::NODE, ErrorKind::Deadline(deadline)))?;
        }
        let (latency, hangs) = {
            let mut world = self.world();
            let latency = world.latency();
            (world.list_latency.unwrap_or(latency), world.list_hangs)
        };
        assert!(!self.world().list_panics, "a bug in {rpc}");
        if hangs {
            tokio::time::sleep(Duration::from_mins(2)).await;
            return Err(Self::error(
                rpc,
                &Subject::NODE,
                ErrorKind::Deadline(Duration::from_mins(2)),
            ));
        }
        self.take(latency).await;
        match self.world().list_error.clone() {
            Some(kind) => Err(Self::error(rpc, &Subject::NODE, kind)),
            None => Ok(()),
        }
    }

    async fn status_call(&self, rpc: Rpc, subject: &Subject, id: &str) -> Result<(), Error> {
        let deadline = Duration::from_secs(10);
        let inflight = self.world().inflight.clone();
        let _call = inflight.begin(rpc, subject.clone(), Some(deadline));
        self.unlocked(deadline, rpc, subject, |locked| locked == id).await?;
        let (latency, hung) = {
            let mut world = self.world();
            world.status_calls.push(id.to_owned());
            world.in_flight += 1;
            world.most_in_flight = world.most_in_flight.max(world.in_flight);
            (world.latency(), world.hung.contains(id))
        };
        let _landing = Landing(self.clone(), |world| &mut world.in_flight);
        if hung {
            // As the client does: an answer or an error within the deadline.
            tokio::time::sleep(Duration::from_secs(10)).await;
            if self.world().slow_ends_well {
                return Ok(());
            }
            return Err(Self::error(rpc, subject, ErrorKind::Deadline(Duration::from_secs(10))));
        }
        let more = if rpc == Rpc::ContainerStatus {
            self.world().container_latency
        } else {
            Duration::ZERO
        };
        self.take(latency + more).await;
        let world = self.world();
        if world.failing.contains(id) {
            return Err(Self::error(
                rpc,
                subject,
                ErrorKind::Status {
                    code: "INTERNAL",
                    message: "broken".into(),
                },
            ));
        }
        if world.denied.contains(id) {
            return Err(Self::error(rpc, subject, ErrorKind::NotFound(id.into())));
        }
        Ok(())
    }
}

/// A call that is being processed.
struct Busy(Fake);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.world().busy -= 1;
    }
}

/// Counts a call in flight until it is dropped.
struct Landing(Fake, fn(&mut World) -> &mut usize);

impl Drop for Landing {
    fn drop(&mut self) {
        *(self.1)(&mut self.0.world()) -= 1;
    }
}

fn bytes(flag: bool, text: &str) -> &[u8] {
    if flag { text.as_bytes() } else { b"" }
}

impl Runtime for Fake {
    async fn list_sandboxes(&self, filter: &ListFilter, into: &mut SandboxList) -> Result<ListSummary, Error> {
        let early = self.early(|world| world.sandboxes.clone());
        self.list_call(Rpc::ListPodSandbox).await?;
        let mut world = self.world();
        let listed = early.as_ref().unwrap_or(&world.sandboxes).values();
        let pods = listed.map(|sandbox| sandbox.uid.clone()).collect();
        if *filter == ListFilter::All {
            world.sandbox_lists.push(pods);
        } else {
            // A filtered list vouches for its pod as a full one does.
            world.sandbox_lists.insert(0, pods);
        }
        for (id, sandbox) in early.as_ref().unwrap_or(&world.sandboxes) {
            let item = SandboxItem {
                id: id.as_bytes(),
                has_metadata: true,
                uid: sandbox.uid.as_bytes(),
                namespace: b"default",
                name: sandbox.name.as_bytes(),
                attempt: 0,
                state: i32::from(sandbox.state != SandboxState::Ready),
                created_at: sandbox.created_at,
                pod_uid_label: bytes(sandbox.labelled, &sandbox.uid),
            };
            if *filter == ListFilter::All
                || *filter == ListFilter::PodUid(String::from_utf8_lossy(item.pod_uid_label).into())
            {
                into.push(&item);
            }
        }
        Ok(ListSummary::default())
    }

    async fn list_containers(&self, filter: &ListFilter, into: &mut ContainerList) -> Result<ListSummary, Error> {
        let asked = tokio::time::Instant::now();
        let early = self.early(|world| world.containers.clone());
        self.list_call(Rpc::ListContainers).await?;
        let mut world = self.world();
        for (id, container) in early.as_ref().unwrap_or(&world.containers) {
            let item = ContainerItem {
                id: id.as_bytes(),
                pod_sandbox_id: container.sandbox.as_bytes(),
                name: container.name.as_bytes(),
                attempt: container.attempt,
                state: container.state as i32,
                created_at: container.created_at,
                pod_uid_label: bytes(container.labelled, &container.uid),
                pod_name_label: bytes(container.labelled, &container.uid),
                pod_namespace_label: bytes(container.labelled, "default"),
            };
            if *filter == ListFilter::All
                || *filter == ListFilter::PodUid(String::from_utf8_lossy(item.pod_uid_label).into())
            {
                into.push(&item);
            }
        }
        if *filter == ListFilter::All {
            let views = world.views();
            world.relists.push(views);
            world.list_times.push((asked, tokio::time::Instant::now()));
        } else {
            world.filtered_lists += 1;
        }
        Ok(ListSummary::default())
    }

    async fn sandbox_status(&self, subject: &Subject, id: &SandboxId) -> Result<SandboxStatus, Error> {
        let find = |world: &World| world.sandboxes.get(id.as_str()).cloned();
        let early = self.early_status(find);
        self.status_call(Rpc::PodSandboxStatus, subject, id.as_str()).await?;
        let Some(sandbox) = early.unwrap_or_else(|| find(&self.world())) else {
            return Err(Self::error(
                Rpc::PodSandboxStatus,
                subject,
                ErrorKind::NotFound(id.to_string()),
            ));
        };
        Ok(SandboxStatus {
            id: id.clone(),
            state: sandbox.state,
            attempt: 0,
            created_at: None,
            ips: sandbox.ip.iter().map(|ip| ip.parse().unwrap()).collect(),
            runtime_handler: Box::default(),
            labels: pleg::status::Pairs::default(),
            annotations: pleg::status::Pairs::default(),
        })
    }

    async fn container_status(
        &self,
        subject: &Subject,
        id: &ContainerId,
        name: &Arc<str>,
    ) -> Result<ContainerStatus, Error> {
        let find = |world: &World| world.containers.get(id.as_str()).cloned();
        let early = self.early_status(find);
        self.status_call(Rpc::ContainerStatus, subject, id.as_str()).await?;
        let Some(container) = early.unwrap_or_else(|| find(&self.world())) else {
            return Err(Self::error(
                Rpc::ContainerStatus,
                subject,
                ErrorKind::NotFound(id.to_string()),
            ));
        };
        let exited = container.state == ContainerState::Exited;
        let ending = self.world().endings.get(id.as_str()).copied().filter(|_| exited);
        Ok(ContainerStatus {
            id: id.clone(),
            name: Arc::clone(name),
            attempt: container.attempt,
            state: container.state,
            created_at: None,
            started_at: None,
            finished_at: ending.map(|(at, _)| at),
            exit_code: exited.then_some(container.exit_code),
            // As containerd reports a container whose start failed.
            reason: match (exited, container.exit_code, ending) {
                (false, ..) => "".into(),
                (true, _, Some((_, reason))) => reason.into(),
                (true, 128, None) => "StartError".into(),
                (true, _, None) => "Error".into(),
            },
            message: Box::default(),
            image: "image".into(),
            image_ref: Box::default(),
            log_path: Box::default(),
            resources: self.world().limits.get(id.as_str()).map(|&limit| {
                Box::new(Resources {
                    cpu_period: 0,
                    cpu_quota: 0,
                    cpu_shares: 0,
                    memory_limit_in_bytes: limit,
                    oom_score_adj: 0,
                })
            }),
        })
    }

    async fn container_pid(&self, subject: &Subject, id: &ContainerId) -> Result<ContainerPid, Error> {
        let latency = {
            let mut world = self.world();
            world.pid_calls += 1;
            world.pid_latency
        };
        if latency > Duration::ZERO {
            tokio::time::sleep(latency).await;
        }
        let hangs = self.world().hung.contains(id.as_str());
        if hangs {
            self.status_call(Rpc::ContainerStatus, subject, id.as_str()).await?;
        }
        let world = self.world();
        let running = |container: &Container| container.state == ContainerState::Running;
        let runs = world.containers.get(id.as_str()).is_some_and(running);
        Ok(match (runs, world.tells_pids) {
            (false, _) => ContainerPid::Exited,
            (true, false) => ContainerPid::Unknown,
            (true, true) => ContainerPid::Known(kernel::pid_of(id.as_str())),
        })
    }

    async fn probe_sandbox(&self, _: &Subject, id: &SandboxId) -> Result<(), Error> {
        let hung = {
            let mut world = self.world();
            world.probes.push((tokio::time::Instant::now(), id.to_string()));
            world.hung_shims.contains(id.as_str())
        };
        if hung {
            tokio::time::sleep(Duration::from_secs(4)).await;
        } else if self.world().contention > Duration::ZERO {
            let latency = self.world().latency;
            self.take(latency).await;
        }
        Ok(())
    }

    fn inflight(&self) -> InFlight {
        self.world().inflight.clone()
    }

    async fn events(&self) -> Result<EventStream, Error> {
        let mut world = self.world();
        let refusal = world.events_error.clone();
        let refusal = refusal.or((!world.has_events).then_some(ErrorKind::Unimplemented));
        if let Some(kind) = refusal {
            return Err(Self::error(Rpc::GetContainerEvents, &Subject::NODE, kind));
        }
        let (subscriber, events) = mpsc::unbounded_channel();
        world.subscriptions.push(tokio::time::Instant::now());
        for event in std::mem::take(&mut world.backlog) {
            let _ = subscriber.send(Ok(event));
        }
        if !world.events_end {
            world.subscribers.push(subscriber);
        }
        let next = |mut events: mpsc::UnboundedReceiver<_>| async move { Some((events.recv().await?, events)) };
        Ok(stream::unfold(events, next).boxed())
    }

    async fn version(&self) -> Result<RuntimeVersion, Error> {
        let mut world = self.world();
        if let Some(kind) = world.version_error.clone() {
            return Err(Self::error(Rpc::Version, &Subject::NODE, kind));
        }
        world.versions += 1;
        Ok(world.version.clone())
    }

    async fn status(&self) -> Result<RuntimeStatus, Error> {
        if self.world().status_hangs {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let late = ErrorKind::Deadline(Duration::from_secs(10));
            return Err(Self::error(Rpc::Status, &Subject::NODE, late));
        }
        let world = self.world();
        match world.status_error.clone() {
            Some(kind) => Err(Self::error(Rpc::Status, &Subject::NODE, kind)),
            None => Ok(world.status.clone()),
        }
    }
}

/// A running generator.
pub struct Rig {
    pub fake: Fake,
    pub pleg: Pleg,
    pub events: Subscriber,
    pub shutdown: CancellationToken,
    pub task: tokio::task::JoinHandle<()>,
}

impl Rig {
    pub fn start(fake: &Fake, config: Config) -> Self {
        Self::run(fake, Generator::new(fake.clone(), config, Metrics::new().unwrap()))
    }

    /// With a kernel whose word is used.
    pub fn start_witnessed(fake: &Fake, config: Config, kernel: &kernel::FakeKernel) -> Self {
        fake.world().tells_pids = true;
        let generator = Generator::new(fake.clone(), config, Metrics::new().unwrap());
        Self::run(fake, generator.with_witness(kernel.clone()))
    }

    fn run(fake: &Fake, generator: Generator<Fake>) -> Self {
        let pleg = generator.handle();
        let events = pleg.subscribe(Start::Oldest, Overflow::Gap);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(generator.run(shutdown.clone()));
        Self {
            fake: fake.clone(),
            pleg,
            events,
            shutdown,
            task,
        }
    }

    /// Waits until everything done so far was relisted.
    pub async fn seen(&self) {
        let token = self.pleg.cache().token();
        self.pleg.cache().synced(token, Duration::MAX).await.unwrap();
        self.settle().await;
    }

    /// Lets everything that is ready run, without time passing.
    pub async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    /// The events since the last call, one line each, without those about troubles, which `tests/troubles.rs` covers.
    pub fn drain(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(item) = self.events.try_next() {
            lines.push(match item {
                Item::Event(event) if is_of_trouble(&event) => continue,
                Item::Event(event) => line(&event),
                Item::Gap(gap) => format!("Gap {}-{}", gap.from, gap.to),
            });
        }
        lines
    }
}

/// It is about a trouble, or about the generator being degraded.
pub fn is_of_trouble(event: &Event) -> bool {
    let was_degraded = |reason: &Arc<str>| reason.contains("it was degraded");
    let recovery = event.kind == EventType::PlegHealthy && event.reason.as_ref().is_some_and(was_degraded);
    event.kind.is_trouble() || event.kind == EventType::PlegDegraded || recovery
}

/// `Type pod subject[=exit]`.
pub fn line(event: &Event) -> String {
    use pleg::event::Subject;
    let pod = event.pod.as_ref().map_or("", |pod| pod.uid.as_str());
    let subject = match &event.subject {
        Some(Subject::Container(container)) => container.id.to_string(),
        Some(Subject::Sandbox { id, state }) => format!("{id}:{}", state.map_or("gone".into(), |s| format!("{s:?}"))),
        None => String::new(),
    };
    let exit = event.exit_code.map(|code| format!("={code}")).unwrap_or_default();
    format!(
        "{} {pod} {subject}{exit}{}",
        event.kind,
        if event.initial { " initial" } else { "" }
    )
    .trim_end()
    .to_owned()
}
