//! One bad pod never hurts another: the generator against the simulated runtime on its real socket.
//!
//! Times are compared within one run, on the same node, with and without the fault. What a fault would cost without isolation is
//! seconds (a call is late after one, given up after three), so the bounds leave room for a busy machine and still can fail.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pleg::event::Subject;
use pleg::{Config, Deadlines, Endpoint, EventType, Generator, Item, Level, Overflow, Pleg, Start, Subscriber};
use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector, Sim, SimConfig};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

const PODS: usize = 110;
const CONTAINERS: usize = 2;
/// Long enough for a machine under load; no test waits it out.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a busy machine may add to a measurement by itself.
const NOISE: Duration = Duration::from_millis(400);
/// No event of another pod is later, whatever hangs.
const LATEST: Duration = Duration::from_secs(1);

/// One test at a time: each measures, and the machine is small.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Node {
    sim: Sim,
    pleg: Pleg,
    feed: Subscriber,
    end: CancellationToken,
    running: JoinHandle<()>,
    /// Deaths that were read in pods that a test was not waiting for.
    aside: Vec<Subject>,
    _dir: TempDir,
}

impl Node {
    /// A generator that has seen everything there is. On a thread of its own the simulator does not slow the generator down;
    /// on ours it shares a paused time.
    async fn start(sim: SimConfig, config: Config, own_thread: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = Endpoint::unix(dir.path().join("cri.sock"));
        let sim = if own_thread {
            Sim::spawn_thread(sim, listen).await.unwrap()
        } else {
            Sim::start(sim, listen).await.unwrap()
        };
        // What is named when a call has failed is named sooner.
        let deadlines = Deadlines {
            inspect: Duration::from_secs(3),
            ..Deadlines::default()
        };
        let config = Config { deadlines, ..config };
        let connected = Generator::connect(sim.endpoint().clone(), config).await;
        let generator = connected.unwrap();
        let pleg = generator.handle();
        let end = CancellationToken::new();
        let running = tokio::spawn(generator.run(end.clone()));
        let mut node = Self {
            feed: pleg.subscribe(Start::Oldest, Overflow::Gap),
            sim,
            pleg,
            end,
            running,
            aside: Vec::new(),
            _dir: dir,
        };
        let all = node.sim.truth().containers.len();
        node.until(EventType::ContainerStarted, all, &BTreeSet::new()).await;
        node
    }

    async fn end(self) {
        self.end.cancel();
        self.running.await.unwrap();
        self.sim.shutdown().await;
    }

    async fn next(&mut self) -> pleg::Event {
        self.next_within(PATIENCE).await
    }

    /// The next event about what happened, not about what cannot be seen.
    async fn next_within(&mut self, patience: Duration) -> pleg::Event {
        loop {
            let next = timeout(patience, self.feed.next()).await;
            match next.unwrap_or_else(|_| panic!("no event; {:?}", self.pleg.health().report())) {
                Some(Item::Event(event)) if event.pod.is_none() || event.kind.is_trouble() => {}
                Some(Item::Event(event)) => return (*event).clone(),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Nothing has happened that was not read.
    fn has_no_news(&mut self) -> bool {
        std::iter::from_fn(|| self.feed.try_next())
            .all(|item| matches!(item, Item::Event(event) if event.pod.is_none() || event.kind.is_trouble()))
    }

    /// Reads until so many events of a kind have come, about pods that are not in `but`; says when each came, and that none did
    /// twice.
    async fn until(&mut self, kind: EventType, count: usize, but: &BTreeSet<String>) -> Vec<Duration> {
        let started = Instant::now();
        let mut seen = BTreeSet::new();
        let mut times = Vec::new();
        while times.len() < count {
            let event = self.next().await;
            let pod = event.pod.as_ref().map_or(String::new(), ToString::to_string);
            if event.kind == kind && !but.contains(&pod) {
                assert!(seen.insert(format!("{:?}", event.subject)), "twice: {event:?}");
                times.push(started.elapsed());
            } else if event.kind == EventType::ContainerDied {
                self.aside.extend(event.subject);
            }
        }
        times
    }

    /// Nothing is asked, for long enough that nothing is about to be.
    async fn quiet(&self) {
        let asking = || {
            self.pleg
                .health()
                .inflight()
                .calls()
                .iter()
                .any(|call| call.deadline.is_some())
        };
        let mut quiet = 0;
        while quiet < 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            quiet = if asking() { 0 } else { quiet + 1 };
        }
    }

    /// Everything but the pods in `but` dies at once; how long it took until each death was reported.
    async fn storm(&mut self, but: &BTreeSet<String>) -> Duration {
        let deaths = (PODS - but.len()) * CONTAINERS;
        self.sim.world().storm(Ending::Exit(1));
        self.pleg.request_all();
        let times = self.until(EventType::ContainerDied, deaths, but).await;
        times.into_iter().max().unwrap()
    }

    /// Everything but the pods in `but` comes back.
    async fn restart(&mut self, but: &BTreeSet<String>) {
        for n in 0..PODS {
            let pod = format!("default/web-{n}");
            if !but.contains(&pod) {
                self.sim.world().restart(&pod.parse().unwrap(), None).unwrap();
            }
        }
        self.pleg.request_all();
        let starts = (PODS - but.len()) * CONTAINERS;
        self.until(EventType::ContainerStarted, starts, but).await;
    }
}

fn pods(pods: usize) -> SimConfig {
    SimConfig {
        pods,
        containers: CONTAINERS,
        ..Default::default()
    }
}

/// So many containers do not answer, for good, and everything dies at once.
async fn hung(count: usize) {
    let _turn = TURN.lock().await;
    let mut node = Node::start(pods(PODS), Config::default(), true).await;
    let nobody = BTreeSet::new();
    // The first storm warms up; the second one is what it takes.
    node.storm(&nobody).await;
    node.restart(&nobody).await;
    let usual = node.storm(&nobody).await;
    node.restart(&nobody).await;

    // A status that is on its way when the hang begins may be answered after the storm.
    node.quiet().await;
    let hung: BTreeSet<String> = (0..count).map(|n| format!("default/web-{}", n * 20 + 7)).collect();
    for pod in &hung {
        let app = selector(pod, "app");
        node.sim.hang(Rpc::ContainerStatus, Some(app)).unwrap();
    }
    // While it is news that they hang, and again while they are in quarantine.
    for round in 0..2 {
        let worst = node.storm(&hung).await;
        assert!(
            worst <= 2 * usual.max(NOISE) && worst < LATEST,
            "{count} hang, storm {round}: the last death was reported after {worst:?}, and after {usual:?} when none hung"
        );
        node.restart(&hung).await;
    }

    // They are named, and it is them alone.
    let named = async {
        loop {
            let report = node.pleg.health().report();
            assert_ne!(report.level, Level::Unhealthy, "{report:?}");
            let named: BTreeSet<String> = report
                .causes
                .iter()
                .filter(|cause| cause.who.container.as_deref() == Some("app"))
                .filter_map(|cause| Some(cause.who.pod.as_ref()?.to_string()))
                .collect();
            assert!(named.is_subset(&hung), "{report:?}");
            if named == hung {
                assert_eq!(report.level, Level::Degraded);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = timeout(PATIENCE, named).await;
    assert!(in_time.is_ok(), "{hung:?}, but {:#?}", node.pleg.health().report());

    // The other containers of the same pods were reported meanwhile.
    let name = |subject: &Subject| match subject {
        Subject::Container(container) => container.name.to_string(),
        other @ Subject::Sandbox { .. } => format!("{other:?}"),
    };
    while node.aside.len() < count {
        let event = node.next().await;
        node.aside.extend(event.subject);
    }
    let siblings: Vec<_> = node.aside.drain(..).map(|subject| name(&subject)).collect();
    assert_eq!(siblings, vec!["sidecar"; count]);

    // When they answer again, so are they.
    node.sim.faults().unhang(None, None);
    for _ in 0..count {
        let event = node.next().await;
        assert_eq!(event.kind, EventType::ContainerDied, "{event:?}");
        assert_eq!(event.subject.as_ref().map(name).as_deref(), Some("app"));
    }
    node.end().await;
}

/// The kubelet: half of the others 120 s late (kubernetes/kubernetes#45419).
#[tokio::test]
async fn one_hung_container_delays_no_other_pod() {
    hung(1).await;
}

#[tokio::test]
async fn five_hung_containers_delay_no_other_pod() {
    hung(5).await;
}

/// What is logged, line by line.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Of this thread, until the answer is dropped.
    fn capture(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("pleg=info")
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// The runtime goes away in the middle of a storm: half of it is dead before, half dies meanwhile.
async fn outage(length: Duration, own_thread: bool) {
    let _turn = TURN.lock().await;
    let log = Log::default();
    let _captured = log.capture();
    let mut node = Node::start(pods(PODS), Config::default(), own_thread).await;
    let truth = node.sim.truth().containers;
    let (first, second) = truth.split_at(truth.len() / 2);
    let kill = |containers: &[pleg_sim::world::ContainerTruth]| {
        let mut world = node.sim.world();
        for container in containers {
            assert!(world.finish(&container.id, Ending::Exit(3)));
        }
    };
    kill(first);
    node.pleg.request_all();
    // In the middle of the inspections.
    let asked = async {
        while node.sim.stats().of(Rpc::ContainerStatus).calls < (PODS * CONTAINERS + PODS / 2) as u64 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap();
    let down = Instant::now();
    node.sim.down(length).await;
    kill(second);
    node.sim.wait_up().await;
    assert!(down.elapsed() >= length);

    let mut deaths: BTreeMap<String, usize> = BTreeMap::new();
    while deaths.len() < truth.len() {
        let event = timeout(2 * PATIENCE, node.next()).await.unwrap();
        assert_eq!(event.kind, EventType::ContainerDied, "{event:?}");
        assert_eq!(event.exit_code, Some(3), "{event:?}");
        *deaths.entry(format!("{:?}", event.subject)).or_default() += 1;
    }
    // And nothing more: after a relist of everything that started later.
    let relists = node.pleg.health().report().relists;
    node.pleg.request_all();
    let later = async {
        while node.pleg.health().report().relists < relists + 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, later).await.unwrap();
    assert!(node.has_no_news());
    assert!(deaths.values().all(|&times| times == 1), "{deaths:?}");
    let healthy = async {
        while node.pleg.health().report().level != Level::Healthy {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, healthy).await.unwrap();
    node.end().await;

    // What the event stream does is reported by lines of its own.
    let (stream, lines): (Vec<_>, Vec<_>) = log.lines().into_iter().partition(|line| line.contains("event"));
    assert!(
        stream.iter().filter(|line| line.contains("is down")).count() <= 1,
        "{stream:#?}"
    );
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("relist failed"), "{lines:#?}");
    assert!(lines[1].contains("the runtime answers again after"), "{lines:#?}");
}

#[tokio::test]
async fn a_short_restart_in_a_storm_loses_nothing() {
    outage(Duration::from_millis(400), true).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_restart_in_a_storm_loses_nothing() {
    outage(Duration::from_mins(2), false).await;
}

fn selector(pod: &str, container: &str) -> Selector {
    Selector {
        pod: pod.parse().unwrap(),
        container: Some(container.to_owned()),
    }
}

/// One container's lock hangs every list for ten minutes (containerd/containerd#9770). Paused time, real socket.
#[tokio::test(start_paused = true)]
async fn a_lock_of_ten_minutes_hides_no_death_and_is_named() {
    let _turn = TURN.lock().await;
    let mut node = Node::start(pods(10), Config::default(), false).await;
    node.sim.lock(selector("default/web-3", "app")).unwrap();
    let locked = Instant::now();
    // Deaths of others, early and late: the first waits for the generator to lose its patience with the list.
    for (pod, at) in [("default/web-1", 0), ("default/web-2", 60), ("default/web-4", 500)] {
        tokio::time::sleep_until(locked + Duration::from_secs(at)).await;
        let died = Instant::now();
        node.sim
            .world()
            .exit(&pod.parse().unwrap(), Some("app"), Ending::Exit(3))
            .unwrap();
        loop {
            let event = node.next_within(Duration::from_mins(5)).await;
            if event.kind == EventType::ContainerDied {
                assert_eq!(
                    (event.pod.unwrap().full_name().as_ref(), event.exit_code),
                    (pod, Some(3))
                );
                break;
            }
        }
        assert!(died.elapsed() <= Duration::from_secs(10), "{pod}: {:?}", died.elapsed());
        let report = node.pleg.health().report();
        let unhealthy = at > 180;
        assert_eq!(report.level == Level::Unhealthy, unhealthy, "{report:?}");
        let named = report.causes.iter().any(|cause| {
            cause.who.pod.as_deref() == Some("default/web-3") && cause.who.container.as_deref() == Some("app")
        });
        assert!(named || at == 0, "{report:?}");
        assert!(
            !unhealthy || report.message.contains("default/web-3"),
            "{}",
            report.message
        );
    }
    tokio::time::sleep_until(locked + Duration::from_mins(10)).await;
    let relists = node.pleg.health().report().relists;
    node.sim.faults().unlock(None);
    let recovered = async {
        while node.pleg.health().report().relists == relists {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, recovered).await.unwrap();
    assert_eq!(node.pleg.health().report().level, Level::Healthy, "after one relist");
    assert_eq!(
        node.sim.stats().of(Rpc::ListContainers).most_in_flight,
        1,
        "lists never pile up"
    );
    node.end().await;
}

/// The lists stay green while a pod's shim hangs: only the probe finds it.
#[tokio::test(start_paused = true)]
async fn a_shim_that_hangs_in_silence_is_named() {
    let _turn = TURN.lock().await;
    let mut node = Node::start(pods(PODS), Config::default(), false).await;
    let pod: pleg_sim::PodRef = "default/web-77".parse().unwrap();
    node.sim.world().hang_shim(&pod).unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
    let hung = Instant::now();
    let health = node.pleg.health().clone();
    let level = async |level: Level| {
        while health.report().level != level {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_mins(2), level(Level::Degraded)).await.unwrap();
    assert!(hung.elapsed() < Duration::from_mins(1), "{:?}", hung.elapsed());
    let report = node.pleg.health().report();
    assert_eq!(report.causes.len(), 1, "{report:?}");
    assert_eq!(
        report.causes[0].who.pod.as_deref(),
        Some("default/web-77"),
        "{report:?}"
    );
    assert!(node.has_no_news(), "nothing of the pod can be seen");
    node.sim.world().unhang_shim(Some(&pod)).unwrap();
    timeout(Duration::from_mins(2), level(Level::Healthy)).await.unwrap();
    let died = node.next().await;
    assert_eq!((died.kind, died.exit_code), (EventType::ContainerDied, Some(3)));
    node.end().await;
}

fn gauge(pleg: &Pleg, name: &str) -> usize {
    let text = pleg.render_metrics().unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().unwrap()
}

/// Everything takes ten times as long: we ask for less at once, and what we ask for still gets done. Paused time: the latency is
/// the simulator's, not the machine's.
#[tokio::test(start_paused = true)]
async fn a_slow_runtime_is_asked_for_less_at_once() {
    let _turn = TURN.lock().await;
    let usual = Duration::from_millis(10);
    let mut config = Config::default();
    // Probes have their own bound.
    config.probe.round = Duration::ZERO;
    let sim = SimConfig {
        latency: usual,
        ..pods(PODS)
    };
    let mut node = Node::start(sim, config, false).await;
    let nobody = BTreeSet::new();
    let quick = node.storm(&nobody).await;
    node.restart(&nobody).await;
    let limit = |node: &Node| gauge(&node.pleg, "pleg_inspections_limit ");
    let before = limit(&node);

    node.sim.faults().set_latency(None, 10 * usual, Duration::ZERO);
    let mut samples = Vec::new();
    let mut storms = Vec::new();
    for _ in 0..3 {
        let (pleg, stats) = (node.pleg.clone(), node.sim.counters().clone());
        let sampling = async {
            loop {
                let in_flight = |rpc| stats.snapshot().of(rpc).in_flight;
                let in_flight = in_flight(Rpc::ContainerStatus) + in_flight(Rpc::PodSandboxStatus);
                let limit = gauge(&pleg, "pleg_inspections_limit ");
                samples.push((limit, usize::try_from(in_flight).unwrap()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = sampling => {}
            took = node.storm(&nobody) => storms.push(took),
        }
        node.restart(&nobody).await;
    }
    // It falls as long as this is slow; what stays slow is the new usual in time.
    let lowest = samples.iter().map(|(limit, _)| *limit).min().unwrap();
    assert!(lowest <= before / 2, "the limit was {before} and fell to {lowest} only");
    // A limit that fell holds once the calls are answered that were in flight by then: within two latencies.
    for (n, (_, in_flight)) in samples.iter().enumerate() {
        let allowed = samples[n.saturating_sub(10)..=n].iter().map(|(limit, _)| *limit).max();
        assert!(allowed.is_some_and(|allowed| *in_flight <= allowed), "{n}: {samples:?}");
    }
    assert!(
        samples.iter().any(|(_, in_flight)| *in_flight > 0),
        "nothing was sampled"
    );
    // Ten times as slow may take ten times as long, and some more for the fewer at once; with the least of them, eight, each of
    // the 330 calls would wait for forty others.
    let slowest = storms.into_iter().max().unwrap();
    assert!(slowest < 30 * quick.max(usual * 4), "{slowest:?}, usually {quick:?}");
    let stats = node.sim.stats();
    assert_eq!(
        stats.of(Rpc::ContainerStatus).abandoned,
        0,
        "no call was given up: {stats:?}"
    );
    node.end().await;
}
