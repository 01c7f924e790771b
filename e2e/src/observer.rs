//! A generator that observes one runtime, and what it reports, for comparison.
//!
//! Events are compared as short lines, such as `ContainerDied app#0 137 OOMKilled`, in the order of the feed, pod by pod: that is the
//! order a generator promises. [`Observer::sees`] waits for the next lines of a pod and takes no other; [`Observer::agrees`] ends a
//! scenario: after one more full relist, no unexpected event was reported, and the cache equals the [`Truth`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pleg::event::Subject;
use pleg::{
    Config, ContainerState, CriRuntime, Event, EventType, EventedConfig, Generator, Item, Level, Metrics, Mode,
    Overflow, Pleg, PodUid, ProbeConfig, Report, SandboxState, Start, Subscriber, WitnessMode,
};
use pleg_cri::{Client, Deadlines, Endpoint};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::truth::{ContainerTruth, PodTruth, SandboxTruth, State, Truth, truth};
use crate::wait::{PATIENCE, until};
use crate::{Pod, Runtime};

/// Often enough that no scenario waits for it, seldom enough to leave the machine to the runtime.
pub const PERIOD: Duration = Duration::from_millis(100);

/// Does not subscribe to events.
const POLLS: EventedConfig = EventedConfig {
    exclusive_subscriber: false,
    mode: Mode::Generic,
    most_period: PERIOD,
};

/// A running generator and what is left to read of its feed.
#[derive(Debug)]
pub struct Observer {
    /// The generator's handle.
    pub pleg: Pleg,
    /// Asks the runtime the dull way.
    client: Client,
    feed: Subscriber,
    /// Lines that no scenario has waited for yet, by pod name.
    unseen: BTreeMap<String, VecDeque<String>>,
    /// The number of the last event.
    last: u64,
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Observer {
    /// Starts a generator that only polls.
    pub fn start(runtime: &Runtime) -> Result<Self> {
        Self::with_period(runtime, PERIOD)
    }

    /// Starts a generator that only polls, this often.
    pub fn with_period(runtime: &Runtime, period: Duration) -> Result<Self> {
        // As an operator would who wants to know soon: a hang ends a relist, not a scenario.
        let deadlines = Deadlines {
            list: Duration::from_secs(2),
            inspect: Duration::from_secs(2),
            ..Deadlines::default()
        };
        let config = Config {
            period,
            evented: POLLS,
            witness: WitnessMode::Off,
            ..Config::default()
        };
        Self::with(runtime, runtime.endpoint(), deadlines, config)
    }

    /// Starts a generator that learns of changes by events alone: it relists when it has subscribed, and an hour later. Returns when
    /// it has.
    pub async fn by_events(runtime: &Runtime) -> Result<Self> {
        let config = Config {
            period: Duration::from_hours(1),
            threshold: Duration::from_hours(6),
            evented: EventedConfig {
                mode: Mode::Evented,
                most_period: Duration::from_hours(1),
                exclusive_subscriber: false,
            },
            witness: WitnessMode::Off,
            ..Config::default()
        };
        let node = Self::with(runtime, runtime.endpoint(), Deadlines::default(), config)?;
        node.health("the stream", |report| {
            report.mode.mode == Mode::Evented && report.relists >= 2
        })
        .await?;
        Ok(node)
    }

    /// Starts a generator that learns of changes by the kernel alone: it relists when everything is watched, and an hour later.
    /// Returns when it has; there have to be containers.
    pub async fn by_kernel(runtime: &Runtime) -> Result<Self> {
        let config = Config {
            period: Duration::from_hours(1),
            threshold: Duration::from_hours(6),
            evented: EventedConfig {
                mode: Mode::Generic,
                most_period: Duration::from_hours(1),
                exclusive_subscriber: false,
            },
            ..Config::default()
        };
        let mut node = Self::with(runtime, runtime.endpoint(), Deadlines::default(), config)?;
        node.health("the kernel", |report| {
            report.mode.witness.complete && report.relists >= 2
        })
        .await?;
        node.knows().await?;
        Ok(node)
    }

    /// Starts a generator with the usual deadlines, which sees by itself in seconds what would take it a minute on a node: lists
    /// that hang, and shims. It calls through `endpoint`, which may be a proxy.
    pub fn watchful(runtime: &Runtime, endpoint: &Endpoint) -> Result<Self> {
        let config = Config {
            period: PERIOD,
            evented: POLLS,
            witness: WitnessMode::Off,
            list_patience: Duration::from_secs(1),
            probe: ProbeConfig {
                round: Duration::from_secs(1),
                least_pause: Duration::from_millis(50),
                ..ProbeConfig::default()
            },
            ..Config::default()
        };
        Self::with(runtime, endpoint, Deadlines::default(), config)
    }

    /// Starts a generator with this configuration that observes `runtime` through `endpoint`.
    pub fn with(runtime: &Runtime, endpoint: &Endpoint, deadlines: Deadlines, config: Config) -> Result<Self> {
        // Not `Generator::lazy`, which refuses periods as long as these scenarios want them.
        let client = pleg_cri::Config {
            deadlines,
            ..pleg_cri::Config::default()
        };
        let observed = CriRuntime::new(Client::lazy(endpoint.clone(), client));
        let generator = Generator::new(observed, config, Metrics::new()?);
        let pleg = generator.handle();
        let feed = pleg.subscribe(Start::Oldest, Overflow::Gap);
        let end = CancellationToken::new();
        let task = tokio::spawn(generator.run(end.clone()));
        Ok(Self {
            pleg,
            client: runtime.client().clone(),
            feed,
            unseen: BTreeMap::new(),
            last: 0,
            end,
            task,
        })
    }

    /// Waits for the next events of a pod, which have to be exactly these, in this order.
    pub async fn sees(&mut self, pod: &Pod, expected: &[&str]) -> Result<()> {
        let seen = self.next_of(pod, expected.len()).await;
        let seen = seen.with_context(|| format!("pod {}: expected {expected:?}", pod.name))?;
        ensure!(
            seen == expected,
            "pod {}: expected {expected:?}, saw {seen:?}",
            pod.name
        );
        Ok(())
    }

    /// Waits for the next events of a pod where the runtime itself does things in no order.
    pub async fn sees_in_any_order(&mut self, pod: &Pod, expected: &[&str]) -> Result<()> {
        let seen = self.next_of(pod, expected.len()).await;
        let mut seen = seen.with_context(|| format!("pod {}: expected in any order {expected:?}", pod.name))?;
        let mut sorted = expected.to_vec();
        sorted.sort_unstable();
        seen.sort_unstable();
        ensure!(
            seen == sorted,
            "pod {}: expected in any order {sorted:?}, saw {seen:?}",
            pod.name
        );
        Ok(())
    }

    /// Waits until a relist of everything that starts now is complete, with all that it found changed.
    pub async fn relist(&mut self) -> Result<()> {
        let token = self.pleg.request_all();
        let cache = self.pleg.cache().clone();
        until("a complete relist", PATIENCE, async || {
            let entries = cache.entries();
            let late = entries
                .iter()
                .find(|entry| entry.observed < token && entry.error.is_none());
            ensure!(
                cache.complete() >= token,
                "the last complete one is {:?}",
                cache.complete()
            );
            ensure!(
                late.is_none(),
                "pod {} is not up to date",
                late.map_or("", |entry| &*entry.status.pod.name)
            );
            Ok(())
        })
        .await
    }

    /// No unexpected event was reported, the cache equals the runtime, and the generator is healthy.
    pub async fn agrees(&mut self) -> Result<()> {
        self.relist().await?;
        while let Some(item) = self.feed.try_next() {
            self.take(item)?;
        }
        self.unseen.retain(|_, lines| !lines.is_empty());
        ensure!(self.unseen.is_empty(), "events that nobody expected: {:?}", self.unseen);
        let (ours, theirs) = (self.cached()?, truth(&self.client).await?);
        ensure!(ours == theirs, "the cache says\n{ours}and the runtime says\n{theirs}");
        let health = self.pleg.health().report();
        ensure!(health.level == Level::Healthy, "{health:?}");
        Ok(())
    }

    /// Relists once, on request: exactly these events come of it, for this pod, and none for another.
    pub async fn agrees_after(&mut self, pod: &Pod, expected: &[&str]) -> Result<()> {
        self.relist().await?;
        self.sees(pod, expected).await?;
        self.agrees().await
    }

    /// What there is so far is no news.
    pub async fn knows(&mut self) -> Result<()> {
        self.relist().await?;
        while let Some(item) = self.feed.try_next() {
            self.take(item)?;
        }
        self.unseen.clear();
        Ok(())
    }

    /// Lines about the generator itself that came so far, such as `PlegNotHealthy …`.
    pub fn of_itself(&mut self) -> Result<Vec<String>> {
        while let Some(item) = self.feed.try_next() {
            self.take(item)?;
        }
        Ok(self.unseen.remove("").into_iter().flatten().collect())
    }

    /// Waits until the health is as wanted; `is` says what is missing.
    pub async fn health(&self, what: &str, is: impl Fn(&Report) -> bool) -> Result<Report> {
        let health = self.pleg.health().clone();
        until(what, PATIENCE, async || {
            let report = health.report();
            if is(&report) {
                Ok(report)
            } else {
                Err(format!("{report:?}"))
            }
        })
        .await
    }

    /// Lines of a pod that arrived so far and were not expected.
    pub fn unseen(&mut self, pod: &Pod) -> Result<Vec<String>> {
        while let Some(item) = self.feed.try_next() {
            self.take(item)?;
        }
        Ok(self.unseen.get(&pod.name).into_iter().flatten().cloned().collect())
    }

    /// The cache in the form of the truth.
    pub fn cached(&self) -> Result<Truth> {
        let mut truth = Truth::default();
        for entry in self.pleg.cache().entries() {
            ensure!(entry.error.is_none(), "in quarantine: {:?}", entry.error);
            let status = &entry.status;
            let mut pod = PodTruth {
                name: status.pod.name.to_string(),
                namespace: status.pod.namespace.to_string(),
                ..PodTruth::default()
            };
            for sandbox in &status.sandboxes {
                let it = SandboxTruth {
                    attempt: sandbox.attempt,
                    ready: sandbox.state == SandboxState::Ready,
                };
                pod.sandboxes.insert(sandbox.id.to_string(), it);
            }
            for container in &status.containers {
                let it = ContainerTruth {
                    name: container.name.to_string(),
                    attempt: container.attempt,
                    state: match container.state {
                        ContainerState::Created => State::Created,
                        ContainerState::Running => State::Running,
                        ContainerState::Exited => State::Exited,
                        ContainerState::Unknown => State::Unknown,
                    },
                    exit_code: container.exit_code.unwrap_or(0),
                    reason: container.reason.to_string(),
                };
                pod.containers.insert(container.id.to_string(), it);
            }
            truth.pods.insert(status.pod.uid.to_string(), pod);
        }
        Ok(truth)
    }

    /// The next line of a pod, whatever it says.
    pub async fn next_line(&mut self, pod: &Pod) -> Result<String> {
        let lines = self.next_of(pod, 1).await?;
        lines.into_iter().next().context("no line")
    }

    /// The next event of a pod, of whom no line is unseen.
    pub async fn next_event(&mut self, pod: &Pod) -> Result<Arc<Event>> {
        loop {
            let item = tokio::time::timeout(PATIENCE, self.feed.next()).await;
            let item = item.context("no event in time")?.context("the generator ended")?;
            let event = match &item {
                Item::Event(event) => Arc::clone(event),
                Item::Gap(_) => bail!("events were lost"),
            };
            self.take(item)?;
            if event.pod.as_ref().is_some_and(|of| *of.name == *pod.name) {
                self.unseen.remove(&pod.name);
                return Ok(event);
            }
        }
    }

    async fn next_of(&mut self, pod: &Pod, count: usize) -> Result<Vec<String>> {
        loop {
            let lines = self.unseen.entry(pod.name.clone()).or_default();
            if lines.len() >= count {
                return Ok(lines.drain(..count).collect());
            }
            let Ok(item) = tokio::time::timeout(PATIENCE, self.feed.next()).await else {
                let health = self.pleg.health().report().message;
                bail!("no event within {PATIENCE:?} after {lines:?}; health: {health}");
            };
            self.take(item.context("the generator ended")?)?;
        }
    }

    /// Reads one item of the feed into the lines of its pod.
    fn take(&mut self, item: Item) -> Result<()> {
        let event = match item {
            Item::Event(event) => event,
            Item::Gap(gap) => bail!("events {} to {} were lost", gap.from, gap.to),
        };
        ensure!(
            event.seq == self.last + 1,
            "event {} follows event {}",
            event.seq,
            self.last
        );
        self.last = event.seq;
        // What cannot be seen meanwhile is in the health report; here it is about what happens.
        let was_degraded = |reason: &Arc<str>| reason.contains("it was degraded");
        if event.kind.is_trouble()
            || event.kind == EventType::ProcessExited
            || event.kind == EventType::PlegDegraded
            || (event.kind == EventType::PlegHealthy && event.reason.as_ref().is_some_and(was_degraded))
        {
            return Ok(());
        }
        let pod = event.pod.as_ref().map_or_else(String::new, |pod| pod.name.to_string());
        // The event is never visible before the status that explains it.
        if let Some(pod) = &event.pod {
            self.explained(&pod.uid, &event)?;
        }
        self.unseen.entry(pod).or_default().push_back(line(&event));
        Ok(())
    }

    fn explained(&self, uid: &PodUid, event: &Event) -> Result<()> {
        let (Some(Subject::Container(subject)), Some(code)) = (&event.subject, event.exit_code) else {
            return Ok(());
        };
        // Gone meanwhile, or never there without its status.
        let Some(entry) = self.pleg.cache().get(uid) else {
            return Ok(());
        };
        if let Some(status) = entry.status.container(&subject.id) {
            ensure!(
                status.exit_code == Some(code),
                "{event:?} is not explained by {status:?}"
            );
        }
        Ok(())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end.cancel();
        self.task.abort();
    }
}

/// What matters of an event, in one line.
fn line(event: &Event) -> String {
    let mut words = vec![event.kind.to_string()];
    match &event.subject {
        Some(Subject::Container(container)) => words.push(format!("{}#{}", container.name, container.attempt)),
        Some(Subject::Sandbox { state, .. }) => {
            words.push(state.map_or_else(|| "gone".to_owned(), |state| format!("{state:?}")));
        }
        None => {}
    }
    words.extend(event.exit_code.map(|code| code.to_string()));
    words.extend(event.reason.as_ref().map(ToString::to_string));
    if event.initial {
        words.push("(initial)".to_owned());
    }
    words.join(" ")
}
