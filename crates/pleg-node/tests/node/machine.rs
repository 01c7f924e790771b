//! A node on a simulated runtime, in one process and with paused time: hours pass in moments. Everything between the node and the runtime is
//! real, from the socket to the deadlines.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pleg::{CriRuntime, Endpoint, Generator, Metrics, Pleg, PodUid};
use pleg_cri::v1::ContainerState;
use pleg_cri::{Client, Deadlines, Rpc};
use pleg_node::executor::requests::{Cgroups, HostOptions, NodeConfig};
use pleg_node::host::resources::{Amount, Filesystem, HostResources};
use pleg_node::manifest::{DnsConfig, NodeName, Pod};
use pleg_node::sources::static_pods::{ConfigSource, read};
use pleg_node::sources::{DesiredPod, Origin, Snapshot};
use pleg_node::status::Phase;
use pleg_node::{HEARTBEAT, NodeLoop, PodReports, Store};
use pleg_sim::world::{ContainerTruth, SandboxTruth};
use pleg_sim::{Sim, SimConfig};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A pod with one container that runs this command.
pub(crate) fn pod(name: &str, command: &str) -> String {
    spec(
        name,
        &format!("containers: [{{name: app, image: img, command: [{command}]}}]"),
    )
}

/// A pod with this `spec`.
pub(crate) fn spec(name: &str, spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}")
}

/// The source of manifests, if a test has only one.
const SOURCE: &str = "test";

/// The pods of these documents.
pub(crate) fn read_pods(text: &str) -> Vec<Arc<Pod>> {
    let found = read(text.as_bytes(), &NodeName::new("n").unwrap(), ConfigSource::File);
    found.map(|found| found.pods).unwrap_or_default()
}

/// The snapshot of a source with these manifests.
pub(crate) fn snapshot(manifests: &[String]) -> Snapshot {
    snapshot_of(SOURCE, manifests)
}

fn snapshot_of(source: &str, manifests: &[String]) -> Snapshot {
    let pods = read_pods(&manifests.join("\n---\n"));
    assert_eq!(pods.len(), manifests.len(), "a manifest of the test is wrong");
    let desired = |pod| DesiredPod {
        origin: source.into(),
        pod,
    };
    Snapshot {
        source: source.into(),
        pods: pods.into_iter().map(desired).collect(),
        problems: Vec::new(),
        refused: Vec::new(),
        complete: true,
    }
}

/// A simulated machine: a runtime and a disk that outlive the nodes on it.
pub(crate) struct Machine {
    pub(crate) sim: Arc<Sim>,
    pub(crate) dir: tempfile::TempDir,
    lives: Arc<Mutex<Lives>>,
    watcher: JoinHandle<()>,
    host: Arc<TestHost>,
}

impl Machine {
    pub(crate) async fn start() -> Self {
        Self::start_with(SimConfig::default()).await
    }

    pub(crate) async fn start_with(config: SimConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sim = Sim::start(config, Endpoint::unix(dir.path().join("cri.sock")))
            .await
            .unwrap();
        let (sim, lives) = (Arc::new(sim), Arc::new(Mutex::new(Lives::default())));
        let host = Arc::new(TestHost::new(Arc::clone(&sim)));
        // In every test: two containers of one name never run at once in one pod. Checked often enough to see every container before it is
        // removed; the runtime knows to the nanosecond when it ran.
        let (watched, seen) = (Arc::clone(&sim), Arc::clone(&lives));
        let watcher = tokio::spawn(async move {
            loop {
                seen.lock().unwrap().see(&watched);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Self {
            sim,
            dir,
            lives,
            watcher,
            host,
        }
    }

    /// What the machine says about its resources.
    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.host.figures.lock().unwrap()
    }

    /// A node on this machine.
    pub(crate) async fn node(&self) -> Running {
        self.node_with(Deadlines::default()).await
    }

    pub(crate) async fn node_with(&self, deadlines: Deadlines) -> Running {
        self.node_of(deadlines, &[SOURCE]).await
    }

    /// A node with several sources.
    pub(crate) async fn node_with_sources(&self, sources: &[&str]) -> Running {
        self.node_of(Deadlines::default(), sources).await
    }

    /// A node that is set up by the test.
    pub(crate) async fn node_set_up(&self, set_up: impl FnOnce(NodeLoop) -> NodeLoop) -> Running {
        self.node_of_all(Deadlines::default(), &[SOURCE], set_up).await
    }

    async fn node_of(&self, deadlines: Deadlines, sources: &[&str]) -> Running {
        self.node_of_all(deadlines, sources, |node| node).await
    }

    async fn node_of_all(
        &self,
        deadlines: Deadlines,
        sources: &[&str],
        set_up: impl FnOnce(NodeLoop) -> NodeLoop,
    ) -> Running {
        let metrics = Metrics::new().unwrap();
        let config = pleg_cri::Config {
            deadlines,
            ..Default::default()
        };
        let client = Client::connect(self.sim.endpoint().clone(), config).await.unwrap();
        let config = pleg::Config {
            heartbeat: Some(HEARTBEAT),
            ..Default::default()
        };
        let generator = Generator::new(CriRuntime::new(client.clone()), config, metrics);
        let pleg = generator.handle();
        let node = node(self.dir.path());
        let shutdown = CancellationToken::new();
        let store = Store::open(&self.dir.path().join("node.redb")).unwrap();
        let sources = sources.iter().map(|source| Origin::from(*source));
        let node_loop = NodeLoop::new(client, pleg.clone(), node, sources, "sim").unwrap();
        let host: Arc<dyn HostResources> = Arc::clone(&self.host) as _;
        let node_loop = set_up(node_loop.with_store(store).with_host(host));
        let reports = node_loop.reports();
        let (wants, snapshots) = mpsc::channel(4);
        let monitor = generator.runtime_monitor();
        let tasks = vec![
            tokio::spawn(monitor.run(shutdown.child_token())),
            tokio::spawn(generator.run(shutdown.child_token())),
            tokio::spawn(node_loop.run(snapshots, shutdown.clone())),
        ];
        Running {
            pleg,
            reports,
            wants,
            shutdown,
            tasks,
            sim: Arc::clone(&self.sim),
        }
    }

    /// Containers that run, by the name of their pod.
    pub(crate) fn running(&self) -> Vec<ContainerTruth> {
        let mut all = self.sim.truth().containers;
        all.retain(|container| container.state == ContainerState::ContainerRunning);
        all
    }

    /// UIDs of the pods whose manifests are in the state file. No node may have it open.
    pub(crate) fn kept_manifests(&self) -> Vec<PodUid> {
        let store = Store::open(&self.dir.path().join("node.redb")).unwrap();
        let pods = store.manifests(&NodeName::new("n").unwrap());
        pods.into_iter().map(|desired| desired.pod.id.uid.clone()).collect()
    }

    /// The time, by the runtime's clock.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(self.sim.world().clock().now().into()).unwrap()
    }

    /// Whether a container of this pod runs.
    pub(crate) fn runs(&self, uid: &PodUid) -> bool {
        self.running().iter().any(|container| *container.uid == *uid.as_str())
    }

    /// Ids of all objects of a pod of that name, containers first.
    pub(crate) fn objects_of(&self, name: &str) -> Vec<Arc<str>> {
        let truth = self.sim.truth();
        let own: Vec<_> = truth.sandboxes.iter().filter(|sandbox| sandbox.name == name).collect();
        let containers = truth.containers.iter();
        let containers = containers.filter(|container| own.iter().any(|sandbox| sandbox.id == container.sandbox));
        let sandboxes = own.iter().map(|sandbox| Arc::clone(&sandbox.id));
        containers
            .map(|container| Arc::clone(&container.id))
            .chain(sandboxes)
            .collect()
    }

    /// Waits until the runtime works on that many calls of a kind.
    pub(crate) async fn until_in_flight(&self, rpc: Rpc, calls: u64) {
        let waited = tokio::time::timeout(Duration::from_mins(10), async {
            while self.sim.stats().of(rpc).in_flight < calls {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        assert!(waited.await.is_ok(), "{rpc}: {:?}", self.sim.stats().of(rpc));
    }

    /// Waits until the runtime has no sandbox.
    pub(crate) async fn until_no_sandbox(&self) {
        let waited = tokio::time::timeout(Duration::from_mins(10), async {
            while !self.sandboxes().is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        assert!(waited.await.is_ok(), "{:?}", self.sandboxes());
    }

    pub(crate) fn sandboxes(&self) -> Vec<SandboxTruth> {
        self.sim.truth().sandboxes
    }

    /// Every attempt of a pod's containers that the runtime still has, in order.
    pub(crate) fn attempts(&self, uid: &PodUid) -> Vec<ContainerTruth> {
        let mut all = self.sim.truth().containers;
        all.retain(|container| *container.uid == *uid.as_str());
        all.sort_by_key(|container| (container.created_at, container.attempt));
        all
    }

    /// Checks that no container ran twice at once. Call it at the end of every test.
    pub(crate) fn check(self) {
        self.watcher.abort();
        let mut lives = self.lives.lock().unwrap();
        lives.see(&self.sim);
        lives.check();
    }
}

/// What a machine says about its resources.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) memory: Amount,
    /// Memory once no container of this pod runs.
    pub(crate) relieved_by: Option<(PodUid, Amount)>,
    pub(crate) processes: Amount,
    /// Of pods and logs.
    pub(crate) disk: Filesystem,
    /// The size of the disk of images, if they have one. What the images of the runtime need is not available.
    pub(crate) image_disk: Option<u64>,
}

/// A machine with plenty of everything, until a test says otherwise.
#[derive(Debug)]
struct TestHost {
    figures: Mutex<Figures>,
    sim: Arc<Sim>,
}

impl TestHost {
    fn new(sim: Arc<Sim>) -> Self {
        let plenty = Amount {
            capacity: 8 << 30,
            available: 7 << 30,
        };
        let figures = Figures {
            memory: plenty,
            relieved_by: None,
            processes: plenty,
            disk: Filesystem {
                capacity: 1 << 40,
                available: 1 << 39,
                inodes: 1 << 20,
                inodes_free: 1 << 19,
            },
            image_disk: Some(1 << 40),
        };
        Self {
            figures: Mutex::new(figures),
            sim,
        }
    }

    fn is_image_path(path: &Path) -> bool {
        path.starts_with("/var/lib/containerd")
    }
}

impl HostResources for TestHost {
    fn filesystem(&self, path: &Path) -> std::io::Result<Filesystem> {
        let figures = self.figures.lock().unwrap();
        let Some(capacity) = figures.image_disk.filter(|_| Self::is_image_path(path)) else {
            return Ok(figures.disk);
        };
        let (used, _) = self.sim.world().image_usage();
        Ok(Filesystem {
            capacity,
            available: capacity.saturating_sub(used),
            ..figures.disk
        })
    }

    fn same_filesystem(&self, one: &Path, other: &Path) -> std::io::Result<bool> {
        let own = self.figures.lock().unwrap().image_disk.is_some();
        Ok(!own || Self::is_image_path(one) == Self::is_image_path(other))
    }

    fn memory(&self) -> std::io::Result<Amount> {
        let figures = self.figures.lock().unwrap();
        let runs = |uid: &PodUid| {
            let mut containers = self.sim.truth().containers.into_iter();
            containers.any(|one| *one.uid == *uid.as_str() && one.state == ContainerState::ContainerRunning)
        };
        match &figures.relieved_by {
            Some((uid, after)) if !runs(uid) => Ok(*after),
            _ => Ok(figures.memory),
        }
    }

    fn processes(&self) -> std::io::Result<Amount> {
        Ok(self.figures.lock().unwrap().processes)
    }
}

/// When each container ran, by id.
#[derive(Default)]
struct Lives(BTreeMap<Arc<str>, Life>);

struct Life {
    of: (Arc<str>, String),
    from: i64,
    /// At least until then.
    to: i64,
}

impl Lives {
    fn see(&mut self, sim: &Sim) {
        let now = sim.world().clock().now();
        for container in sim.truth().containers {
            let to = match container.state {
                ContainerState::ContainerRunning => now,
                ContainerState::ContainerExited => container.finished_at,
                _ => continue,
            };
            if container.started_at == 0 {
                continue;
            }
            let life = Life {
                of: (container.uid, container.name),
                from: container.started_at,
                to,
            };
            self.0.insert(container.id, life);
        }
    }

    fn check(&self) {
        let mut lives: Vec<&Life> = self.0.values().collect();
        lives.sort_by(|a, b| (&a.of, a.from).cmp(&(&b.of, b.from)));
        for pair in lives.windows(2) {
            let twice = pair[0].of == pair[1].of && pair[1].from < pair[0].to;
            assert!(!twice, "{:?} ran twice at once", pair[0].of);
        }
    }
}

fn node(directory: &Path) -> NodeConfig {
    NodeConfig {
        name: NodeName::new("n").unwrap(),
        ips: vec!["192.0.2.1".parse().unwrap()],
        memory: 8 << 30,
        logs: directory.join("logs"),
        log_links: directory.join("containers"),
        pods: directory.join("pods"),
        cgroups_per_qos: true,
        cgroups: Cgroups::Path,
        cgroup_root: "pleg-test".to_owned(),
        cgroup_mount: directory.join("cgroup"),
        oom_group: false,
        systemctl: directory.join("systemctl"),
        dns: DnsConfig::default(),
        host: HostOptions::default(),
    }
}

/// A node that runs.
pub(crate) struct Running {
    pub(crate) pleg: Pleg,
    pub(crate) reports: PodReports,
    pub(crate) wants: mpsc::Sender<Snapshot>,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    sim: Arc<Sim>,
}

impl Running {
    /// Desires these pods from now on. Returns their UIDs.
    pub(crate) async fn want(&self, manifests: &[String]) -> Vec<PodUid> {
        self.want_from(SOURCE, manifests).await
    }

    /// The same, for one source of several.
    pub(crate) async fn want_from(&self, source: &str, manifests: &[String]) -> Vec<PodUid> {
        let snapshot = snapshot_of(source, manifests);
        let uids = snapshot.pods.iter().map(|desired| desired.pod.id.uid.clone()).collect();
        self.wants.send(snapshot).await.unwrap();
        uids
    }

    /// Waits until the reports are as asked for, for at most an hour of simulated time.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&PodReports) -> bool) {
        let waited = tokio::time::timeout(Duration::from_hours(1), self.reports.wait_for(is)).await;
        if waited.is_err() {
            let seen: Vec<String> = self
                .reports
                .pods()
                .iter()
                .map(|pod| serde_json::to_string(&pod.status).unwrap())
                .collect();
            panic!("{what}: not within an hour; {seen:#?}; {:#?}", self.sim.truth());
        }
    }

    pub(crate) async fn until_phase(&self, uid: &PodUid, phase: Phase) {
        let is = |reports: &PodReports| reports.get(uid).is_some_and(|pod| pod.phase() == phase);
        self.until(&format!("{phase:?}"), is).await;
    }

    pub(crate) async fn until_ready(&self, uid: &PodUid) {
        self.until("ready", |reports| is_ready(reports, uid)).await;
    }

    /// Waits until no pod is reported.
    pub(crate) async fn until_gone(&self) {
        self.until("nothing", |reports| reports.pods().is_empty()).await;
    }

    /// The state of a pod's container, in a word.
    pub(crate) fn state(&self, uid: &PodUid, container: &str) -> String {
        let Some(report) = self.reports.get(uid) else {
            return "none".to_owned();
        };
        let all = report.init_containers().iter().chain(report.containers());
        let mut all = all.chain(report.ephemeral_containers());
        let found = all.find(|other| other.name == container).unwrap();
        let state = found.state.clone().unwrap();
        match (state.waiting, state.terminated) {
            (Some(waiting), _) => waiting.reason.unwrap(),
            (_, Some(terminated)) => format!("Terminated {}", terminated.exit_code),
            (None, None) => "Running".to_owned(),
        }
    }

    /// Ends the node as `kill -9` does: no call is awaited, and nothing is said.
    pub(crate) async fn kill(self) {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
    }

    /// How many containers were killed for this reason.
    pub(crate) fn kills(&self, why: &str) -> u64 {
        let text = self.pleg.render_metrics().unwrap();
        let name = format!("pleg_node_container_kills_total{{why=\"{why}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().unwrap())
    }

    /// Waits until the node loop has ended by itself.
    pub(crate) async fn ended(mut self) {
        let node_loop = self.tasks.pop().unwrap();
        node_loop.await.unwrap();
        self.stop().await;
    }

    /// Stops the node; its pods keep running.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

pub(crate) fn is_ready(reports: &PodReports, uid: &PodUid) -> bool {
    let ready = |pod: pleg_node::Report| pod.containers().iter().all(|container| container.ready);
    reports.get(uid).is_some_and(ready)
}
