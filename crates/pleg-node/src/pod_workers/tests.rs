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
    board: PodReports,
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
        let shared = Shared::new(client, pleg, node(dir.path()), "sim", is_stale).unwrap();
        Self {
            board: shared.board.clone(),
            workers: PodWorkers::new(shared),
            sim,
            _stale: stale,
            _dir: dir,
        }
    }

    /// Looks after the workers until the board shows what is asked for.
    async fn until(&mut self, is: impl Fn(&PodReports) -> bool) {
        let board = self.board.clone();
        let mut shown = std::pin::pin!(board.wait_for(is));
        let waited = tokio::time::timeout(Duration::from_mins(10), async {
            loop {
                tokio::select! {
                    () = &mut shown => return,
                    Some((id, ended)) = self.workers.next_end() => self.workers.ended(id, ended),
                }
            }
        });
        assert!(waited.await.is_ok(), "not within ten minutes");
    }

    /// As a panic does it: the task of the worker is over, and nothing of it is left.
    async fn fell(&mut self, uid: &PodUid) {
        self.workers.running.abort_all();
        let (id, ended) = self.workers.next_end().await.unwrap();
        assert!(ended.is_err());
        assert_eq!(self.workers.tasks.get(&id), Some(uid));
        self.workers.ended(id, ended);
        assert_eq!(self.workers.tasks.len(), 1, "another one has taken over");
    }
}

fn restarts(board: &PodReports, uid: &PodUid) -> Option<u32> {
    let status = board.get(uid)?.status;
    let container = &status.container_statuses[0];
    container.ready.then_some(container.restart_count)
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fell_is_put_up_again() {
    let mut stage = Stage::start().await;
    let pod = pod("containers: [{name: app, image: img}]");
    let uid = pod.id.uid.clone();
    let offer = DesiredPod {
        origin: "test".into(),
        pod: Arc::clone(&pod),
    };
    stage.workers.begin(offer, true);
    stage.until(|board| restarts(board, &uid) == Some(0)).await;
    let end = |stage: &Stage| {
        let pod = pod.id.full_name().parse().unwrap();
        stage
            .sim
            .world()
            .exit(&pod, Some("app"), pleg_sim::Ending::Exit(3))
            .unwrap();
    };
    end(&stage);
    stage.until(|board| restarts(board, &uid) == Some(1)).await;

    // The next one attends to the pod, and goes on with what the first one knew.
    stage.fell(&uid).await;
    end(&stage);
    let began = tokio::time::Instant::now();
    stage.until(|board| restarts(board, &uid) == Some(2)).await;
    assert!(
        began.elapsed() >= Duration::from_secs(9),
        "the back-off is not forgotten: {:?}",
        began.elapsed()
    );
    assert_eq!(stage.sim.truth().sandboxes.len(), 1);

    // What was wanted of it is not forgotten either.
    stage.workers.end(&uid);
    stage.fell(&uid).await;
    stage.until(|board| board.pods().is_empty()).await;
    assert_eq!(stage.sim.truth().sandboxes.len(), 0);
}
