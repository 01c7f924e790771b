//! Workers that panic, pods that are terminated twice, and ephemeral containers, on a simulated runtime.

mod objects;

use pleg::{CriRuntime, Endpoint, Generator, Metrics};
use pleg_cri::Client;
use pleg_sim::{Sim, SimConfig};
use tokio::sync::watch;

use super::*;
use crate::PodReports;
use crate::testing::{node, pod};

/// The pod workers of a simulated machine.
struct Machine {
    workers: PodWorkers,
    reports: PodReports,
    sim: Sim,
    // Kept alive.
    _stale: watch::Sender<Option<Arc<crate::status::Stale>>>,
    _dir: tempfile::TempDir,
}

impl Machine {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = Endpoint::unix(dir.path().join("cri.sock"));
        let sim = Sim::start(SimConfig::default(), listen).await.unwrap();
        let client = Client::connect(sim.endpoint().clone(), pleg_cri::Config::default());
        let client = client.await.unwrap();
        let metrics = Metrics::new().unwrap();
        let generator = Generator::new(CriRuntime::new(client.clone()), pleg::Config::default(), metrics);
        let pleg = generator.handle();
        tokio::spawn(generator.run(CancellationToken::new()));
        let (stale, is_stale) = watch::channel(None);
        let context = NodeContext::new(client, pleg, node(dir.path()), "sim", is_stale).unwrap();
        Self {
            reports: context.reports.clone(),
            workers: PodWorkers::new(context),
            sim,
            _stale: stale,
            _dir: dir,
        }
    }

    /// Runs the registry until the reports are as asked for.
    async fn until(&mut self, is: impl Fn(&PodReports) -> bool) {
        let reports = self.reports.clone();
        let mut shown = std::pin::pin!(reports.wait_for(is));
        let waited = tokio::time::timeout(Duration::from_mins(10), async {
            loop {
                tokio::select! {
                    () = &mut shown => return,
                    Some((id, exit)) = self.workers.next_exit() => self.workers.on_exit(id, exit),
                }
            }
        });
        assert!(waited.await.is_ok(), "not within ten minutes");
    }

    /// Has the same effect as a panic: the task of the worker is over, and nothing of it is left.
    async fn panic(&mut self, uid: &PodUid) {
        self.workers.running.abort_all();
        let (id, exit) = self.workers.next_exit().await.unwrap();
        assert!(exit.is_err());
        assert_eq!(self.workers.tasks.get(&id), Some(uid));
        self.workers.on_exit(id, exit);
        assert_eq!(self.workers.tasks.len(), 1, "another worker has taken over");
    }
}

fn restarts(reports: &PodReports, uid: &PodUid) -> Option<i32> {
    let report = reports.get(uid)?;
    let container = &report.containers()[0];
    container.ready.then_some(container.restart_count)
}

#[tokio::test(start_paused = true)]
async fn a_panicked_worker_is_restarted() {
    let mut machine = Machine::start().await;
    let pod = pod("containers: [{name: app, image: img}]");
    let uid = pod.id.uid.clone();
    let desired = DesiredPod {
        origin: "test".into(),
        pod: Arc::clone(&pod),
    };
    machine.workers.start_pod(desired, true);
    machine.until(|reports| restarts(reports, &uid) == Some(0)).await;
    let end = |machine: &Machine| {
        let pod = pod.id.full_name().parse().unwrap();
        machine
            .sim
            .world()
            .exit(&pod, Some("app"), pleg_sim::Ending::Exit(3))
            .unwrap();
    };
    end(&machine);
    machine.until(|reports| restarts(reports, &uid) == Some(1)).await;

    // The next worker takes over the pod, with its history.
    machine.panic(&uid).await;
    end(&machine);
    let began = tokio::time::Instant::now();
    machine.until(|reports| restarts(reports, &uid) == Some(2)).await;
    assert!(
        began.elapsed() >= Duration::from_secs(9),
        "the back-off is kept: {:?}",
        began.elapsed()
    );
    assert_eq!(machine.sim.truth().sandboxes.len(), 1);

    // Its goal is kept as well.
    machine.workers.terminate(&uid);
    machine.panic(&uid).await;
    machine.until(|reports| reports.pods().is_empty()).await;
    assert_eq!(machine.sim.truth().sandboxes.len(), 0);
}

/// A pod is deleted again, with less time: its kill in flight is cut off. More time is not given.
#[tokio::test(start_paused = true)]
async fn a_second_shorter_delete_shortens_the_grace_period() {
    let hook = "lifecycle: {preStop: {sleep: {seconds: 500}}}";
    for container in ["command: [ignore-term]", hook] {
        let mut machine = Machine::start().await;
        let pod = pod(&format!(
            "terminationGracePeriodSeconds: 600, containers: [{{name: app, image: img, {container}}}]"
        ));
        let uid = pod.id.uid.clone();
        let desired = DesiredPod {
            origin: "test".into(),
            pod,
        };
        machine.workers.start_pod(desired, true);
        machine.until(|reports| restarts(reports, &uid) == Some(0)).await;
        let began = tokio::time::Instant::now();
        machine.workers.terminate(&uid);
        let ends_later = |machine: &Machine| {
            let report = machine.reports.get(&uid).unwrap();
            matches!(report.goal, Goal::Terminate { grace, .. } if grace > Duration::from_mins(1))
        };
        machine
            .until(|reports| reports.get(&uid).is_some_and(|pod| pod.goal != Goal::Run))
            .await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        machine.workers.terminate_within(&uid, Duration::from_mins(15));
        machine.workers.wake(None);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ends_later(&machine) && !machine.sim.truth().sandboxes.is_empty());
        machine.workers.terminate_within(&uid, Duration::from_secs(5));
        machine.until(|reports| reports.pods().is_empty()).await;
        let took = began.elapsed();
        assert!((26..=28).contains(&took.as_secs()), "{container}: {took:?}");
        assert_eq!(machine.sim.truth().sandboxes.len(), 0);
    }
}

/// They are added to a pod that runs, are not started again in a new sandbox, and end with the pod.
#[tokio::test(start_paused = true)]
async fn ephemeral_containers_are_started_once() {
    let mut machine = Machine::start().await;
    let mut pod = pod("containers: [{name: app, image: img}]");
    let uid = pod.id.uid.clone();
    let desired = |pod: &Arc<Pod>| DesiredPod {
        origin: "test".into(),
        pod: Arc::clone(pod),
    };
    machine.workers.start_pod(desired(&pod), true);
    machine.until(|reports| restarts(reports, &uid) == Some(0)).await;

    let app = pod.spec.containers[0].clone();
    let added = |name: &str, target: Option<&str>| crate::manifest::Container {
        name: name.to_owned(),
        role: crate::manifest::Role::Ephemeral,
        target: target.map(str::to_owned),
        ..app.clone()
    };
    let all = [added("debug", Some("app")), added("typo", Some("ap"))];
    Arc::make_mut(&mut pod).spec.ephemeral_containers.extend(all);
    machine.workers.update(desired(&pod));
    let states = |reports: &PodReports| {
        let report = reports.get(&uid)?;
        let [debug, typo] = report.ephemeral_containers() else {
            return None;
        };
        let (debug, typo) = (debug.state.clone()?, typo.state.clone()?);
        Some((
            debug.running.is_some(),
            typo.waiting?.reason?,
            debug.terminated.is_some(),
        ))
    };
    let wanted = |runs: bool| Some((runs, "CreateContainerConfigError".to_owned(), !runs));
    machine.until(|reports| states(reports) == wanted(true)).await;
    assert_eq!(restarts(&machine.reports, &uid), Some(0));

    let sandbox = machine.sim.truth().sandboxes.remove(0).id;
    machine.sim.world().stop_sandbox(&sandbox);
    machine.until(|reports| restarts(reports, &uid) == Some(1)).await;
    machine.until(|reports| states(reports) == wanted(false)).await;
    let truth = machine.sim.truth();
    let attempts = truth.containers.iter().filter(|container| container.name == "debug");
    assert_eq!((attempts.count(), truth.sandboxes.len()), (1, 2));

    Arc::make_mut(&mut pod).spec.ephemeral_containers[1].target = None;
    machine.workers.update(desired(&pod));
    let starts = |reports: &PodReports| {
        let report = reports.get(&uid)?;
        report.ephemeral_containers()[1].state.clone()?.running
    };
    machine.until(|reports| starts(reports).is_some()).await;
    machine.workers.terminate(&uid);
    machine.until(|reports| reports.pods().is_empty()).await;
    assert!(machine.sim.truth().containers.is_empty());
}
