//! Why "PLEG is not healthy" happens, cause by cause, each made on the simulated runtime and named by health. `pleg doctor` is
//! shown the same in the tests of the command line.

#![allow(clippy::unwrap_used, reason = "tests: a failure is a panic")]

use std::fmt::Write as _;
use std::time::Duration;

use pleg::{Config, Deadlines, Endpoint, Generator, Level, Pleg, ProbeConfig, Report, Trouble};
use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector, Sim, SimConfig};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

struct Node {
    sim: Sim,
    pleg: Pleg,
    end: CancellationToken,
    _dir: TempDir,
}

impl Node {
    /// A node that was well before the trouble began. Everything that waits waits less than it would by default.
    async fn start(sim: SimConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = Endpoint::unix(dir.path().join("cri.sock"));
        let sim = Sim::spawn_thread(sim, listen).await.unwrap();
        let deadlines = Deadlines {
            inspect: Duration::from_secs(6),
            ..Deadlines::default()
        };
        let config = Config {
            period: Duration::from_millis(200),
            list_patience: Duration::from_millis(500),
            probe: ProbeConfig {
                round: Duration::from_millis(500),
                least_pause: Duration::from_millis(20),
                ..ProbeConfig::default()
            },
            ..Config::default()
        };
        let config = Config { deadlines, ..config };
        let generator = Generator::connect(sim.endpoint().clone(), config).await.unwrap();
        let pleg = generator.handle();
        let end = CancellationToken::new();
        tokio::spawn(generator.run(end.clone()));
        let node = Self {
            sim,
            pleg,
            end,
            _dir: dir,
        };
        node.when(|report| report.level == Level::Healthy && report.relists > 1)
            .await;
        node
    }

    async fn when(&self, is: impl Fn(&Report) -> bool) -> Report {
        let started = Instant::now();
        loop {
            let report = self.pleg.health().report();
            if is(&report) {
                return report;
            }
            assert!(started.elapsed() < Duration::from_mins(1), "{report:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The report once it names the trouble as a cause.
    async fn cause(&self, trouble: Trouble) -> Report {
        self.when(|report| report.causes.iter().any(|cause| cause.trouble == trouble))
            .await
    }

    async fn warning(&self, trouble: Trouble) -> Report {
        self.when(|report| report.warnings.iter().any(|warning| warning.trouble == trouble))
            .await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn pods(pods: usize) -> SimConfig {
    SimConfig {
        pods,
        ..Default::default()
    }
}

fn of(container: &str) -> Selector {
    Selector {
        pod: "default/web-1".parse().unwrap(),
        container: Some(container.to_owned()),
    }
}

/// What the operator reads, without what differs from run to run.
fn snapshot(name: &str, report: &Report) {
    let mut text = format!("{:?}: {}\n", report.level, report.headline);
    for cause in &report.causes {
        let _ = write!(
            text,
            "- {} ({:?}, {})\n  {}\n  {}\n",
            cause.text, cause.stage, cause.trouble, cause.means, cause.next
        );
    }
    for warning in &report.warnings {
        let _ = write!(
            text,
            "! {} ({})\n  {}\n  {}\n",
            warning.text, warning.trouble, warning.means, warning.next
        );
    }
    insta::with_settings!({filters => vec![
        (r"[0-9a-f]{64}", "[id]"),
        (r"unix://\S+cri\.sock", "[runtime]"),
        (r"\b(\d+m)?\d+(\.\d+)?(ms|µs|s)\b", "[time]"),
        (r"\d+ attempts?", "[n] attempts"),
    ]}, { insta::assert_snapshot!(name, text) });
}

/// kubernetes#94829 (dead NFS), #97362 (flapping), #98044 (7 pods); cri-o#2584, amazon-eks-ami#1228: inspect hangs, `crictl ps` is fine.
#[tokio::test]
async fn a_status_that_hangs() {
    let node = Node::start(pods(7)).await;
    node.sim.hang(Rpc::ContainerStatus, Some(of("app"))).unwrap();
    node.sim.world().storm(Ending::Exit(1));
    let report = node
        .when(|report| report.causes.iter().any(|cause| cause.attempts > 0))
        .await;
    snapshot("stuck_inspection", &report);
}

/// containerd#9770, #12680, #10583, Azure/AKS#4507: one locked container hangs every list.
#[tokio::test]
async fn a_locked_container() {
    let node = Node::start(pods(7)).await;
    node.sim.lock(of("app")).unwrap();
    let report = node
        .when(|report| report.causes.iter().any(|cause| cause.text.contains("by id either")))
        .await;
    snapshot("locked_container", &report);
}

/// containerd#8167, #2438, #3529, #13814; cri-o#9406: a hung shim.
#[tokio::test]
async fn a_hung_shim() {
    let node = Node::start(pods(7)).await;
    node.sim.world().hang_shim(&"default/web-1".parse().unwrap()).unwrap();
    snapshot("hung_shim", &node.cause(Trouble::HungShim).await);
}

/// kubernetes#94829 without a change: nothing inspects the container, and every list is green.
#[tokio::test]
async fn a_status_that_hangs_while_nothing_changes() {
    let node = Node::start(pods(7)).await;
    node.sim.hang(Rpc::ContainerStatus, Some(of("app"))).unwrap();
    let report = node.cause(Trouble::StuckInspection).await;
    snapshot("stuck_container", &report);
    node.sim.faults().unhang(None, None);
    node.when(|report| report.level == Level::Healthy).await;
}

/// kubernetes#64507 (33,212 dead containers), #45419.
#[tokio::test]
async fn thousands_of_dead_containers() {
    let node = Node::start(SimConfig { dead: 600, ..pods(2) }).await;
    snapshot("many_dead", &node.warning(Trouble::ManyDeadContainers).await);
}

/// talos#10801, kubernetes#131407: the list is beyond 16 MB. We still read it.
#[tokio::test]
async fn a_list_beyond_the_kubelets_limit() {
    let node = Node::start(pods(7)).await;
    node.sim.world().pad_lists(17 << 20);
    let report = node.warning(Trouble::ListOverLimit).await;
    assert_eq!(report.level, Level::Healthy);
    assert!(report.warnings[0].text.ends_with("MiB"), "{report:?}");
}

/// kubernetes#93886 (765 containers, 1m23s), #139788 (300 pods, more than 3 min): many changes at once.
#[tokio::test]
async fn many_changes_at_once() {
    let node = Node::start(pods(500)).await;
    // Short enough to fit between two of our own relists: only there it is timed.
    node.sim
        .faults()
        .set_latency(Some(Rpc::PodSandboxStatus), Duration::from_millis(100), Duration::ZERO);
    node.sim.world().storm(Ending::Exit(1));
    let report = node.warning(Trouble::LongRelist).await;
    // We are through long before.
    assert_ne!(report.level, Level::Unhealthy);
}

/// moby#44300: listed, and neither inspectable nor removable.
#[tokio::test]
async fn a_container_that_cannot_be_inspected() {
    // One container: of two, the report may name one or both.
    let node = Node::start(SimConfig {
        containers: 1,
        ..pods(1)
    })
    .await;
    node.sim
        .faults()
        .fail(Rpc::ContainerStatus, "UNKNOWN".parse().unwrap(), 1.0)
        .unwrap();
    node.sim.world().storm(Ending::Exit(1));
    snapshot("not_inspectable", &node.cause(Trouble::NotInspectable).await);
}

/// The runtime is gone, and comes back.
#[tokio::test]
async fn a_runtime_that_is_down() {
    let node = Node::start(pods(7)).await;
    node.sim.down(Duration::from_secs(3)).await;
    let report = node.cause(Trouble::RuntimeDown).await;
    assert_eq!(report.level, Level::Degraded);
    snapshot("runtime_down", &report);
    node.when(|report| report.level == Level::Healthy).await;
}
