//! Event-driven generation over a real socket: storms, backlogs, and a runtime that must not wait for us.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use pleg::event::Subject;
use pleg::{Config, Endpoint, EventType, Generator, Item, Mode, Overflow, Pleg, Start, Subscriber};
use pleg_cri::v1;
use pleg_sim::{Ending, Flavour, Sim, SimConfig};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Long enough for a machine under load; no test waits it out.
const PATIENCE: Duration = Duration::from_secs(30);

/// One test at a time: each measures, and the machine is small.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

struct Node {
    sim: Sim,
    pleg: Pleg,
    feed: Subscriber,
    end: CancellationToken,
    running: JoinHandle<()>,
}

impl Node {
    async fn sim(config: SimConfig) -> (Sim, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let listen = Endpoint::unix(dir.path().join("cri.sock"));
        (Sim::spawn_thread(config, listen).await.unwrap(), dir)
    }

    async fn start(sim: Sim) -> Self {
        let endpoint = sim.endpoint().clone();
        let generator = Generator::connect(endpoint, Config::default()).await.unwrap();
        let pleg = generator.handle();
        let end = CancellationToken::new();
        Self {
            feed: pleg.subscribe(Start::Oldest, Overflow::Gap),
            running: tokio::spawn(generator.run(end.clone())),
            sim,
            pleg,
            end,
        }
    }

    async fn until(&self, what: &str, is: impl Fn(&pleg::Report) -> bool) {
        let reached = async {
            while !is(&self.pleg.health().report()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{what}: {:#?}", self.pleg.health().report());
    }

    /// Everything was relisted after this call, and the cache is the runtime's truth.
    async fn agrees(&self) {
        let token = self.pleg.request_all();
        let cache = self.pleg.cache();
        let wait = async {
            cache.synced(token, PATIENCE).await.unwrap();
            for entry in cache.entries() {
                cache
                    .newer_than(&entry.status.pod.uid, token, Duration::MAX)
                    .await
                    .unwrap();
            }
        };
        timeout(PATIENCE, wait).await.unwrap();
        let mut ours: BTreeMap<String, String> = BTreeMap::new();
        for entry in cache.entries() {
            for container in &entry.status.containers {
                ours.insert(container.id.to_string(), format!("{:?}", container.state));
            }
        }
        let truth = self.sim.truth().containers;
        let theirs = truth
            .iter()
            .map(|container| (container.id.to_string(), state(container.state)));
        assert_eq!(ours, theirs.collect());
    }

    async fn end(self) {
        self.end.cancel();
        self.running.await.unwrap();
        self.sim.shutdown().await;
    }
}

fn state(state: v1::ContainerState) -> String {
    match state {
        v1::ContainerState::ContainerCreated => "Created",
        v1::ContainerState::ContainerRunning => "Running",
        v1::ContainerState::ContainerExited => "Exited",
        v1::ContainerState::ContainerUnknown => "Unknown",
    }
    .to_owned()
}

/// Ten thousand events as fast as they can be made: everything is right afterwards. How soon they are read is for the benchmark
/// `latency`, where the simulator is as fast as it should be.
#[tokio::test]
async fn a_storm_of_10_000_events_leaves_everything_right() {
    let _turn = TURN.lock().await;
    let config = SimConfig {
        pods: 500,
        event_queue: 1 << 20,
        ..SimConfig::default()
    };
    let (sim, _dir) = Node::sim(config).await;
    let mut node = Node::start(sim).await;
    node.until("the stream", |report| report.mode.mode == Mode::Evented)
        .await;
    let before = node.sim.world().event_stats().sent;
    // Beside the generator, not instead of it.
    let sim = node.sim;
    let storm = tokio::task::spawn_blocking(move || {
        for n in 0..1700 {
            let pod = format!("default/web-{}", n % 500).parse().unwrap();
            let mut world = sim.world();
            world.exit(&pod, None, Ending::Exit(1)).unwrap();
            world.restart(&pod, None).unwrap();
        }
        sim
    });
    node.sim = storm.await.unwrap();
    let stats = node.sim.world().event_stats();
    assert!(stats.sent - before >= 10_000, "{stats:?}");
    node.agrees().await;
    let stats = node.sim.world().event_stats();
    assert_eq!(stats.dropped, 0, "{stats:?}");
    // Every death and every start was reported at most once.
    let mut told: BTreeMap<(EventType, String), usize> = BTreeMap::new();
    while let Some(item) = node.feed.try_next() {
        let Item::Event(event) = item else { continue };
        if let Some(Subject::Container(container)) = &event.subject {
            *told.entry((event.kind, container.id.to_string())).or_default() += 1;
        }
    }
    let twice: Vec<_> = told.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    node.end().await;
}

/// containerd 2.1 hands over what it kept for five minutes; the kubelet, with more than 1000 of them, never started.
#[tokio::test]
async fn a_backlog_of_5000_does_not_delay_the_start() {
    let _turn = TURN.lock().await;
    let config = SimConfig {
        pods: 110,
        flavour: Flavour::Containerd2_1,
        ..SimConfig::default()
    };
    let mut times = Vec::new();
    for events in [0, 5000] {
        let (sim, _dir) = Node::sim(config.clone()).await;
        while sim.world().event_stats().waiting < events {
            let pod = "default/web-7".parse().unwrap();
            sim.world().exit(&pod, None, Ending::Exit(1)).unwrap();
            let mut world = sim.world();
            let dead = world.truth().containers;
            let dead = dead
                .iter()
                .filter(|container| container.state == v1::ContainerState::ContainerExited);
            let dead: Vec<_> = dead.map(|container| container.id.clone()).collect();
            world.restart(&pod, None).unwrap();
            for id in dead {
                world.remove_container(&id);
            }
        }
        let started = Instant::now();
        let mut node = Node::start(sim).await;
        node.until("a complete relist", |report| report.relists > 0).await;
        for entry in node.pleg.cache().entries() {
            let token = node.pleg.cache().complete();
            timeout(
                PATIENCE,
                node.pleg
                    .cache()
                    .newer_than(&entry.status.pod.uid, token, Duration::MAX),
            )
            .await
            .unwrap()
            .unwrap();
        }
        times.push(started.elapsed());
        node.until("the stream", |report| report.mode.mode == Mode::Evented)
            .await;
        node.agrees().await;
        let mut seen = std::collections::BTreeSet::new();
        while let Some(item) = node.feed.try_next() {
            let Item::Event(event) = item else { panic!("a gap") };
            assert!(event.initial, "an old event made news: {event:?}");
            assert!(
                seen.insert(format!("{:?} {:?}", event.kind, event.subject)),
                "twice: {event:?}"
            );
        }
        node.until("the rest of the backlog", |_| {
            node.sim.world().event_stats().waiting == 0
        })
        .await;
        node.end().await;
    }
    // Generous, for a busy machine; without the backlog it takes as long.
    assert!(times[1] < times[0] + Duration::from_millis(500), "{times:?}");
}
