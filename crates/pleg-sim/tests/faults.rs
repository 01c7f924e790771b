//! Faults over a real socket, changed while calls run.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    clippy::large_futures,
    reason = "tests: a failure is a panic, a table is long, and futures live on the test's stack"
)]

mod common;

use std::time::Duration;

use common::{PATIENCE, impatient, pods, rig};
use pleg_cri::{ApiVersion, Client, Config, ErrorKind, ListFilter, Rpc, v1};
use pleg_sim::control::{Reply, RpcName, Set};
use pleg_sim::{Command, Ending, EventFaults, GrpcCode, Odd, Selector, SimConfig};
use tokio::time::{Instant, timeout};

fn selector(pod: &str, container: Option<&str>) -> Selector {
    Selector {
        pod: pod.parse().unwrap(),
        container: container.map(str::to_owned),
    }
}

fn status_of(id: &str) -> v1::ContainerStatusRequest {
    v1::ContainerStatusRequest {
        container_id: id.into(),
        verbose: false,
    }
}

/// Waits until the server holds that many calls.
async fn in_flight(sim: &pleg_sim::Sim, rpc: Rpc, count: u64) {
    timeout(PATIENCE, async {
        while sim.stats().of(rpc).in_flight != count {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn every_call_takes_the_latency() {
    let latency = Duration::from_millis(40);
    let rig = rig(SimConfig { latency, ..pods(1) }).await;
    let took = |started: Instant| started.elapsed();
    let started = Instant::now();
    rig.client.version().await.unwrap();
    assert!(took(started) >= latency);
    // Set for one call only, it overrides the general one.
    rig.sim
        .faults()
        .set_latency(Some(Rpc::Status), Duration::from_millis(120), Duration::ZERO);
    let started = Instant::now();
    rig.client.call(v1::StatusRequest { verbose: false }).await.unwrap();
    assert!(took(started) >= Duration::from_millis(120));
    rig.sim.faults().clear();
}

#[tokio::test]
async fn one_container_is_slow_and_nothing_else() {
    let rig = rig(pods(2)).await;
    let slow = Duration::from_millis(120);
    let set = |latency: Duration, rpc| {
        Command::Set(Set {
            latency: Some(latency.into()),
            rpc,
            pod: Some("default/web-1".parse().unwrap()),
            container: Some("app".into()),
            ..Default::default()
        })
    };
    let rpc = Some(RpcName(Rpc::ContainerStatus));
    let reply = rig.sim.execute(set(slow, rpc)).await.unwrap();
    assert_eq!(
        reply,
        Reply::Done("ContainerStatus about container app of pod default/web-1 takes 120ms".into())
    );
    let app = rig
        .sim
        .world()
        .select(&"default/web-1".parse().unwrap(), Some("app"))
        .unwrap();
    let took = async |id: &str| {
        let started = Instant::now();
        rig.client.call(status_of(id)).await.unwrap();
        started.elapsed()
    };
    // The slow call is begun first; all others are answered before it.
    let (slowest, others) = tokio::join!(took(&app[0]), async {
        let mut worst = Duration::ZERO;
        for container in rig.sim.truth().containers.into_iter().filter(|c| c.id != app[0]) {
            worst = worst.max(took(&container.id).await);
        }
        worst
    });
    assert!(slowest >= slow, "{slowest:?}");
    assert!(others < slow, "{others:?}");
    rig.sim.execute(set(Duration::ZERO, rpc)).await.unwrap();
    assert!(took(&app[0]).await < slow);
    let error = rig.sim.execute(set(slow, Some(RpcName(Rpc::ListContainers)))).await;
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("does not take a pod or container")
    );
}

/// Both ways: a call may be given less than its class has, and more.
#[tokio::test]
async fn a_call_has_the_time_that_it_is_given() {
    let rig = rig(pods(1)).await;
    let (status, node) = (v1::StatusRequest { verbose: false }, pleg_cri::Subject::NODE);
    rig.sim.hang(Rpc::Status, None).unwrap();
    let little = Duration::from_millis(50);
    let error = rig.client.call_within(&node, status, little).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Deadline(little));
    rig.sim.faults().clear();
    let slow = Duration::from_millis(400);
    rig.sim.faults().set_latency(Some(Rpc::Status), slow, Duration::ZERO);
    let impatient = impatient(&rig);
    assert!(impatient.call(status).await.unwrap_err().kind.is_deadline());
    impatient.call_within(&node, status, PATIENCE).await.unwrap();
}

#[tokio::test]
async fn one_container_hangs_and_nothing_else() {
    let rig = rig(pods(3)).await;
    let app = selector("default/web-1", Some("app"));
    rig.sim.hang(Rpc::ContainerStatus, Some(app.clone())).unwrap();
    let ids = rig.sim.world().select(&app.pod, Some("app")).unwrap();
    let hung = tokio::spawn({
        let (client, id) = (rig.client.clone(), ids[0].to_string());
        async move { client.call(status_of(&id)).await }
    });
    in_flight(&rig.sim, Rpc::ContainerStatus, 1).await;
    for container in rig.sim.truth().containers {
        if container.id != ids[0] {
            rig.client.call(status_of(&container.id)).await.unwrap();
        }
    }
    assert!(!hung.is_finished());
    // Let go, it is answered; another client that gave up is counted.
    assert!(
        impatient(&rig)
            .call(status_of(&ids[0]))
            .await
            .unwrap_err()
            .kind
            .is_deadline()
    );
    in_flight(&rig.sim, Rpc::ContainerStatus, 1).await;
    assert_eq!(rig.sim.stats().of(Rpc::ContainerStatus).abandoned, 1);
    assert_eq!(rig.sim.faults().unhang(Some(Rpc::PodSandboxStatus), None), 0);
    assert_eq!(rig.sim.faults().unhang(None, Some(&app)), 1);
    assert!(timeout(PATIENCE, hung).await.unwrap().unwrap().is_ok());

    // A list is about no single pod.
    let error = rig.sim.hang(Rpc::ListContainers, Some(app)).unwrap_err();
    assert!(error.to_string().contains("lock"), "{error}");
    let error = rig
        .sim
        .hang(Rpc::ContainerStatus, Some(selector("default/webx", None)))
        .unwrap_err();
    assert_eq!(error.to_string(), "no pod default/webx; `pleg sim ctl pods` lists them");
    let error = rig
        .sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-0", Some("x"))))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod default/web-0 has no container x; it has app, sidecar"
    );
}

/// containerd takes every container's lock before it filters (containerd#9770, #12680).
#[tokio::test]
async fn one_locked_container_hangs_every_list_of_containers() {
    let rig = rig(pods(2)).await;
    let mut events = rig.client.container_events().await.unwrap();
    let locked = selector("default/web-0", Some("app"));
    let id = rig.sim.world().select(&locked.pod, Some("app")).unwrap()[0].clone();
    rig.sim.lock(locked.clone()).unwrap();
    let impatient = impatient(&rig);
    let uid = rig.sim.truth().sandboxes[0].uid.clone();
    for filter in [ListFilter::All, ListFilter::PodUid(uid)] {
        let listed = impatient.list_containers(&filter, |_| {}).await.unwrap_err();
        // The streaming form, which is not served here, is refused all the same.
        assert_eq!(listed.rpc, Rpc::ListContainers);
        assert!(listed.kind.is_deadline());
    }
    assert!(impatient.call(status_of(&id)).await.unwrap_err().kind.is_deadline());
    // The others by id, and the sandboxes, answer.
    for container in rig.sim.truth().containers {
        if container.id != id {
            rig.client.call(status_of(&container.id)).await.unwrap();
        }
    }
    rig.client.list_sandboxes(&ListFilter::All, |_| {}).await.unwrap();
    // A sandbox that is run meanwhile is there, but its answer and its events wait for the lock.
    let run = v1::RunPodSandboxRequest {
        config: Some(v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "late".into(),
                namespace: "default".into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert!(impatient.call(run).await.unwrap_err().kind.is_deadline());
    assert_eq!(rig.sim.world().counts().sandboxes, 3);
    assert!(timeout(Duration::from_millis(50), events.next()).await.is_err());

    assert_eq!(rig.sim.faults().unlock(Some(&locked)), 1);
    rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    timeout(PATIENCE, events.next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn calls_fail_as_configured() {
    let rig = rig(pods(1)).await;
    let code = "UNAVAILABLE".parse::<GrpcCode>().unwrap();
    rig.sim.faults().fail(Rpc::ListContainers, code, 1.0).unwrap();
    let listed = rig.client.list_containers(&ListFilter::All, |_| {}).await;
    assert!(matches!(
        listed.unwrap_err().kind,
        ErrorKind::Unreachable(_) | ErrorKind::Status { .. }
    ));
    assert_eq!(rig.sim.stats().of(Rpc::ListContainers).errors, 1);
    rig.sim.faults().fail(Rpc::ListContainers, code, 0.5).unwrap();
    let mut failed = 0;
    for _ in 0..100 {
        failed += u32::from(rig.client.list_containers(&ListFilter::All, |_| {}).await.is_err());
    }
    assert!((20..80).contains(&failed), "{failed}");
    rig.sim.faults().fail(Rpc::ListContainers, code, 0.0).unwrap();
    rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    assert!(rig.sim.faults().fail(Rpc::Status, code, 1.5).is_err());
    assert!(rig.sim.faults().fail(Rpc::Status, code, f64::NAN).is_err());
}

/// A 0.4 s restart of containerd must not turn anything off for good (k/k#129827).
#[tokio::test]
async fn the_socket_goes_and_comes_back_with_the_same_world() {
    let rig = rig(pods(3)).await;
    let before = rig.sim.truth();
    let mut events = rig.client.container_events().await.unwrap();
    rig.sim.down(Duration::from_millis(100)).await;
    assert!(!rig.sim.endpoint().path().exists());
    assert!(timeout(PATIENCE, events.next()).await.unwrap().is_err());
    assert!(rig.client.version().await.unwrap_err().kind.is_unreachable());
    rig.sim.wait_up().await;
    timeout(PATIENCE, async { while rig.client.version().await.is_err() {} })
        .await
        .unwrap();
    assert_eq!(rig.sim.truth(), before);
    rig.client.container_events().await.unwrap();
    let path = rig.sim.endpoint().path().to_owned();
    rig.sim.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn the_older_api_is_served_alone() {
    let rig = rig(SimConfig {
        api: ApiVersion::V1Alpha2,
        ..pods(2)
    })
    .await;
    assert_eq!(rig.client.api(), ApiVersion::V1Alpha2);
    assert_eq!(
        rig.client
            .list_containers(&ListFilter::All, |_| {})
            .await
            .unwrap()
            .items,
        4
    );
    rig.client.call(v1::StatusRequest { verbose: false }).await.unwrap();
    rig.client.call(v1::ListImagesRequest { filter: None }).await.unwrap();
    let v1_only = Client::lazy(rig.sim.endpoint().clone(), Config::default());
    let error = v1_only.call(v1::StatusRequest { verbose: false }).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unimplemented));
}

#[tokio::test]
async fn lists_are_streamed_when_configured() {
    let rig = rig(SimConfig {
        streaming_lists: true,
        ..pods(300)
    })
    .await;
    let summary = rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    assert!(summary.streamed);
    assert_eq!(summary.items, 600);
    assert_eq!(rig.sim.stats().of(Rpc::StreamContainers).calls, 1);
    assert_eq!(rig.sim.stats().of(Rpc::ListContainers).calls, 0);
}

#[tokio::test]
async fn calls_are_counted() {
    let rig = rig(pods(2)).await;
    let summary = rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    _ = rig.client.call(status_of("nope")).await;
    let stats = rig.sim.stats();
    assert_eq!(stats.of(Rpc::ListContainers).bytes, summary.bytes as u64 + 5);
    // The client asked for the streaming form first.
    assert_eq!(stats.of(Rpc::StreamContainers).errors, 1);
    assert_eq!(stats.of(Rpc::ContainerStatus).errors, 1);
    assert_eq!(stats.of(Rpc::ContainerStatus).most_in_flight, 1);
    assert_eq!(stats.total.calls, 4);
    in_flight(&rig.sim, Rpc::ListContainers, 0).await;
}

#[tokio::test]
async fn events_are_dropped_doubled_and_halved() {
    let rig = rig(pods(1)).await;
    let mut events = rig.client.container_events().await.unwrap();
    let pod = "default/web-0".parse().unwrap();
    let faults = rig.sim.faults();
    let half = EventFaults {
        half: 1.0,
        double: 1.0,
        ..Default::default()
    };
    faults.set_events(half).unwrap();
    rig.sim.world().exit(&pod, Some("app"), Ending::Exit(0)).unwrap();
    let first = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert_eq!(timeout(PATIENCE, events.next()).await.unwrap().unwrap(), first);
    assert!(first.pod_sandbox_status.is_none() && first.containers_statuses.is_empty());

    faults
        .set_events(EventFaults {
            drop: 1.0,
            ..Default::default()
        })
        .unwrap();
    rig.sim.world().restart(&pod, Some("app")).unwrap();
    // The dropped ones are gone when the last one sent has passed the layer: ask the runtime something on the same connection.
    assert!(timeout(Duration::from_millis(50), events.next()).await.is_err());
    faults.set_events(EventFaults::default()).unwrap();
    rig.sim.world().exit(&pod, Some("sidecar"), Ending::Exit(7)).unwrap();
    let next = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(next.containers_statuses.iter().any(|status| status.exit_code == 7));
    assert!(
        faults
            .set_events(EventFaults {
                drop: 2.0,
                ..Default::default()
            })
            .is_err()
    );
}

#[tokio::test]
async fn odd_objects_are_listed() {
    let rig = rig(pods(1)).await;
    let all = [
        Odd::SandboxWithoutMetadata,
        Odd::ContainerWithoutMetadata,
        Odd::OrphanContainer,
        Odd::EmptyIds,
        Odd::DuplicateIds,
        Odd::UnknownState,
        Odd::NegativeTimes,
        Odd::AbsurdTimes,
    ];
    for odd in all {
        rig.sim.world().add_odd(odd).unwrap();
    }
    let sandboxes = rig
        .client
        .call(v1::ListPodSandboxRequest { filter: None })
        .await
        .unwrap()
        .items;
    let containers = rig
        .client
        .call(v1::ListContainersRequest { filter: None })
        .await
        .unwrap()
        .containers;
    let count = |matches: &dyn Fn(&v1::Container) -> bool| containers.iter().filter(|c| matches(c)).count();
    assert_eq!(sandboxes.iter().filter(|s| s.id.is_empty()).count(), 1);
    assert_eq!(count(&|c| c.id.is_empty()), 1);
    // The one without metadata and the one that is only an empty id.
    assert_eq!(sandboxes.iter().filter(|s| s.metadata.is_none()).count(), 2);
    assert_eq!(count(&|c| c.metadata.is_none()), 2);
    assert_eq!(count(&|c| c.state == 99), 1);
    assert_eq!(count(&|c| c.created_at < 0), 1);
    assert_eq!(count(&|c| c.created_at == i64::MAX), 1);
    let twice = |c: &v1::Container| !c.id.is_empty() && containers.iter().filter(|other| other.id == c.id).count() == 2;
    assert_eq!(count(&twice), 2);
    let orphan = |c: &v1::Container| !c.id.is_empty() && sandboxes.iter().all(|s| s.id != c.pod_sandbox_id);
    assert_eq!(count(&orphan), 1);
    let orphan = containers.iter().find(|c| orphan(c)).unwrap();
    rig.client.call(status_of(&orphan.id)).await.unwrap();

    // No UTF-8: message decoders refuse the whole list, a client that skips labels does not notice.
    rig.sim.world().add_odd(Odd::BadUtf8).unwrap();
    assert!(
        rig.client
            .call(v1::ListContainersRequest { filter: None })
            .await
            .is_err()
    );
    rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
}

/// The kubelet stops at 16 MiB (k/k#131407).
#[tokio::test]
async fn lists_are_padded_beyond_any_limit() {
    let rig = rig(pods(2)).await;
    rig.sim.world().pad_lists(40 << 20);
    let summary = rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    assert_eq!(summary.items, 4);
    assert!(summary.bytes > 40 << 20);
    let config = Config {
        list_limit: 16 << 20,
        ..Default::default()
    };
    let small = Client::lazy(rig.sim.endpoint().clone(), config);
    let error = small.list_containers(&ListFilter::All, |_| {}).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error}");
    rig.sim.world().pad_lists(0);
    assert!(
        rig.client
            .list_containers(&ListFilter::All, |_| {})
            .await
            .unwrap()
            .bytes
            < 10_000
    );
}

#[tokio::test]
async fn it_runs_on_a_thread_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = pleg_cri::Endpoint::unix(dir.path().join("cri.sock"));
    let sim = pleg_sim::Sim::spawn_thread(
        SimConfig {
            churn: 200.0,
            ..pods(10)
        },
        endpoint.clone(),
    )
    .await
    .unwrap();
    let client = Client::connect(endpoint.clone(), Config::default()).await.unwrap();
    let mut events = client.container_events().await.unwrap();
    for _ in 0..20 {
        timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    }
    sim.shutdown().await;
    assert!(!endpoint.path().exists());
}
