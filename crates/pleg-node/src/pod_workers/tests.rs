//! Workers that fall, on a simulated runtime.

use pleg::{CriRuntime, Endpoint, Generator, Metrics};
use pleg_cri::Client;
use pleg_sim::{Sim, SimConfig};
use tokio::sync::watch;

use super::*;
use crate::PodReports;
use crate::testing::{node, pod};

/// A workers on a machine of its own.
struct Stage {
    workers: PodWorkers,
    reports: PodReports,
    sim: Sim,
    // What it stands on.
    _stale: watch::Sender<Option<Arc<crate::status::Stale>>>,
    _dir: tempfile::TempDir,
}

impl Stage {
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

    /// Looks after the workers until the reports shows what is asked for.
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

    /// As a panic does it: the task of the worker is over, and nothing of it is left.
    async fn fell(&mut self, uid: &PodUid) {
        self.workers.running.abort_all();
        let (id, exit) = self.workers.next_exit().await.unwrap();
        assert!(exit.is_err());
        assert_eq!(self.workers.tasks.get(&id), Some(uid));
        self.workers.on_exit(id, exit);
        assert_eq!(self.workers.tasks.len(), 1, "another one has taken over");
    }
}

fn restarts(reports: &PodReports, uid: &PodUid) -> Option<u32> {
    let status = reports.get(uid)?.status;
    let container = &status.container_statuses[0];
    container.ready.then_some(container.restart_count)
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fell_is_put_up_again() {
    let mut stage = Stage::start().await;
    let pod = pod("containers: [{name: app, image: img}]");
    let uid = pod.id.uid.clone();
    let desired = DesiredPod {
        origin: "test".into(),
        pod: Arc::clone(&pod),
    };
    stage.workers.start_pod(desired, true);
    stage.until(|reports| restarts(reports, &uid) == Some(0)).await;
    let end = |stage: &Stage| {
        let pod = pod.id.full_name().parse().unwrap();
        stage
            .sim
            .world()
            .exit(&pod, Some("app"), pleg_sim::Ending::Exit(3))
            .unwrap();
    };
    end(&stage);
    stage.until(|reports| restarts(reports, &uid) == Some(1)).await;

    // The next one attends to the pod, and goes on with what the first one knew.
    stage.fell(&uid).await;
    end(&stage);
    let began = tokio::time::Instant::now();
    stage.until(|reports| restarts(reports, &uid) == Some(2)).await;
    assert!(
        began.elapsed() >= Duration::from_secs(9),
        "the back-off is not forgotten: {:?}",
        began.elapsed()
    );
    assert_eq!(stage.sim.truth().sandboxes.len(), 1);

    // What was wanted of it is not forgotten either.
    stage.workers.terminate(&uid);
    stage.fell(&uid).await;
    stage.until(|reports| reports.pods().is_empty()).await;
    assert_eq!(stage.sim.truth().sandboxes.len(), 0);
}
