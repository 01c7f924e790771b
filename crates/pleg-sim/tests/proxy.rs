//! The faults before another server: a simulator stands for the real runtime.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

mod common;

use std::time::Duration;

use common::{PATIENCE, Rig, containers, pods, rig, sandboxes};
use pleg_cri::{Client, Config, Deadlines, Endpoint, ErrorKind, ListFilter, Rpc, v1};
use pleg_sim::control::{Add, Fail, Hang, Object, Reply, RpcName, Set, Storm, Unhang};
use pleg_sim::{Command, CommandError, ControlClient, Ending, Proxy, ProxyConfig, ProxyError, SimConfig};
use tokio::time::{Instant, timeout};

struct Proxied {
    /// The runtime behind, and a client that goes straight to it.
    behind: Rig,
    proxy: Proxy,
    control: ControlClient,
    /// Goes through the proxy.
    client: Client,
}

async fn proxied(config: SimConfig) -> Proxied {
    let behind = rig(config).await;
    let control = Endpoint::unix(behind.dir.path().join("ctl.sock"));
    let proxy = Proxy::start(ProxyConfig {
        upstream: behind.sim.endpoint().clone(),
        listen: Endpoint::unix(behind.dir.path().join("proxy.sock")),
        control: Some(control.clone()),
        seed: 1,
    })
    .await
    .unwrap();
    let client = Client::connect(proxy.endpoint().clone(), Config::default())
        .await
        .unwrap();
    Proxied {
        behind,
        proxy,
        control: ControlClient::new(control),
        client,
    }
}

impl Proxied {
    fn impatient(&self) -> Client {
        let short = Duration::from_millis(150);
        let deadlines = Deadlines {
            list: short,
            inspect: short,
            act: short,
            connect: PATIENCE,
        };
        let config = Config {
            deadlines,
            ..Default::default()
        };
        Client::lazy(self.proxy.endpoint().clone(), config)
    }

    fn id(&self, container: &str) -> String {
        let pod = "default/web-1".parse().unwrap();
        self.behind.sim.world().select(&pod, Some(container)).unwrap()[0].to_string()
    }
}

fn status_of(id: &str) -> v1::ContainerStatusRequest {
    v1::ContainerStatusRequest {
        container_id: id.into(),
        verbose: false,
    }
}

fn web_1(container: Option<&str>) -> Object {
    Object {
        pod: Some("default/web-1".parse().unwrap()),
        container: container.map(str::to_owned),
        id: None,
    }
}

#[tokio::test]
async fn everything_passes_as_it_is() {
    for streaming_lists in [false, true] {
        let rig = proxied(SimConfig {
            streaming_lists,
            ..pods(20)
        })
        .await;
        // Larger than any window on the way.
        rig.behind.sim.world().pad_lists(20 << 20);
        let straight = &rig.behind.client;
        let all = ListFilter::All;
        assert_eq!(containers(&rig.client, &all).await, containers(straight, &all).await);
        assert_eq!(sandboxes(&rig.client, &all).await, sandboxes(straight, &all).await);
        let (through, direct) = (rig.client.version().await.unwrap(), straight.version().await.unwrap());
        assert_eq!(through, direct);
        let echo = v1::ExecSyncRequest {
            container_id: rig.id("app"),
            cmd: vec!["echo".into(), "hello".into()],
            timeout: 0,
        };
        assert_eq!(rig.client.call(echo).await.unwrap().stdout, b"hello\n");
        // Errors too, in the runtime's words.
        let through = rig.client.call(status_of("nope")).await.unwrap_err().kind;
        let direct = straight.call(status_of("nope")).await.unwrap_err().kind;
        assert!(through.is_not_found());
        assert_eq!(through, direct);
    }
}

#[tokio::test]
async fn events_pass_as_they_come() {
    let rig = proxied(pods(2)).await;
    let mut events = rig.client.container_events().await.unwrap();
    let pod = "default/web-1".parse().unwrap();
    rig.behind.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
    let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert_eq!(event.container_id, rig.id("app"));
    assert_eq!(event.containers_statuses.len(), 2);
    // A client that leaves is gone at the runtime too.
    drop(events);
    let gone = async {
        while rig.behind.sim.stats().of(Rpc::GetContainerEvents).in_flight > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
}

/// What the proxy has no name for is passed on, and what only looks like a call of CRI has none of its faults.
#[tokio::test]
async fn unknown_services_and_methods_pass() {
    let rig = proxied(pods(1)).await;
    let status = "RESOURCE_EXHAUSTED".parse().unwrap();
    rig.proxy.faults().fail(Rpc::Version, status, 1.0).unwrap();
    let socket = rig.proxy.endpoint().path().to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let channel = tonic::transport::Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .unwrap();
    for (path, code) in [
        ("/runtime.v1.RuntimeService/FromTheFuture", tonic::Code::Unimplemented),
        (
            "/containerd.services.version.v1.Version/Version",
            tonic::Code::Unimplemented,
        ),
        ("/runtime.v1.RuntimeService/Version", tonic::Code::ResourceExhausted),
    ] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::VersionRequest, v1::VersionResponse>::default();
        let request = tonic::Request::new(v1::VersionRequest::default());
        let answer = grpc
            .unary(request, http::uri::PathAndQuery::from_static(path), codec)
            .await;
        assert_eq!(answer.unwrap_err().code(), code, "{path}");
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_at_the_runtime() {
    let rig = proxied(pods(2)).await;
    rig.behind.sim.hang(Rpc::ContainerStatus, None).unwrap();
    let error = rig.impatient().call(status_of(&rig.id("app"))).await.unwrap_err();
    assert!(error.kind.is_deadline(), "{error}");
    let abandoned = async {
        while rig.behind.sim.stats().of(Rpc::ContainerStatus).abandoned != 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, abandoned).await.unwrap();
    assert_eq!(rig.behind.sim.stats().of(Rpc::ContainerStatus).in_flight, 0);
}

#[tokio::test]
async fn faults_are_named_as_in_the_simulator() {
    let rig = proxied(pods(3)).await;
    let (app, sidecar) = (rig.id("app"), rig.id("sidecar"));
    let impatient = rig.impatient();
    let done = async |command: Command| match rig.control.send(&command).await.unwrap() {
        Reply::Done(words) => words,
        reply => format!("{reply:?}"),
    };
    let Object { pod, container, id } = web_1(Some("app"));
    let hang = Hang {
        rpc: RpcName(Rpc::ContainerStatus),
        pod,
        container,
        id,
    };
    assert_eq!(
        done(Command::Hang(hang)).await,
        "ContainerStatus about container app of pod default/web-1 hangs until unhang"
    );
    assert!(impatient.call(status_of(&app)).await.unwrap_err().kind.is_deadline());
    rig.client.call(status_of(&sidecar)).await.unwrap();
    assert_eq!(done(Command::Unhang(Unhang::default())).await, "1 hang ended");
    rig.client.call(status_of(&app)).await.unwrap();

    // By its id: what no list says.
    let by_id = |rpc| Hang {
        rpc: RpcName(rpc),
        pod: None,
        container: None,
        id: Some(sidecar.clone()),
    };
    done(Command::Hang(by_id(Rpc::ContainerStatus))).await;
    assert!(
        impatient
            .call(status_of(&sidecar))
            .await
            .unwrap_err()
            .kind
            .is_deadline()
    );
    rig.client.call(status_of(&app)).await.unwrap();
    let unhang = Unhang {
        id: Some(sidecar.clone()),
        ..Default::default()
    };
    assert_eq!(done(Command::Unhang(unhang)).await, "1 hang ended");

    // The lock holds the lists here, while the runtime behind answers them.
    done(Command::Lock(web_1(Some("app")))).await;
    let listed = impatient.list_containers(&ListFilter::All, |_| {}).await;
    assert!(listed.unwrap_err().kind.is_deadline());
    assert!(impatient.call(status_of(&app)).await.unwrap_err().kind.is_deadline());
    rig.client.call(status_of(&sidecar)).await.unwrap();
    rig.client.list_sandboxes(&ListFilter::All, |_| {}).await.unwrap();
    assert_eq!(done(Command::Unlock(web_1(None))).await, "1 lock ended");
    rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();

    let slow = Duration::from_millis(120);
    let set = Set {
        latency: Some(slow.into()),
        rpc: Some(RpcName(Rpc::Status)),
        ..Default::default()
    };
    assert_eq!(done(Command::Set(set)).await, "Status takes 120ms");
    let started = Instant::now();
    rig.client.call(v1::StatusRequest::default()).await.unwrap();
    assert!(started.elapsed() >= slow);

    let fail = Fail {
        rpc: RpcName(Rpc::ListPodSandbox),
        code: "UNAVAILABLE".parse().unwrap(),
        rate: 1.0,
    };
    done(Command::Fail(fail)).await;
    let listed = rig.client.list_sandboxes(&ListFilter::All, |_| {}).await;
    assert!(listed.unwrap_err().kind.is_unreachable());
    done(Command::Clear {}).await;
    rig.client.list_sandboxes(&ListFilter::All, |_| {}).await.unwrap();

    assert_eq!(rig.proxy.stats().of(Rpc::ContainerStatus).abandoned, 3);
    let Reply::Pods(pods) = rig.control.send(&Command::Pods {}).await.unwrap() else {
        unreachable!("pods answer pods")
    };
    assert_eq!(pods.len(), 3);
    assert_eq!(pods[1].pod.to_string(), "default/web-1");
    assert_eq!(pods[1].containers[0], ("app".to_owned(), "running".to_owned()));
}

#[tokio::test]
async fn what_needs_a_world_is_refused() {
    let rig = proxied(pods(2)).await;
    for command in [
        Command::Storm(Storm::default()),
        Command::Add(Add { pods: 1 }),
        Command::Set(Set {
            churn: Some(1.0),
            latency: Some(Duration::from_secs(1).into()),
            ..Default::default()
        }),
    ] {
        let error = rig.proxy.execute(command).await.unwrap_err();
        assert!(matches!(error, CommandError::NeedsWorld(_)), "{error}");
    }
    // Nothing of it was done.
    assert_eq!(rig.behind.sim.world().counts().pods, 2);
    let started = Instant::now();
    rig.client.version().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(1));
    let unknown = web_1(Some("db"));
    let error = rig.proxy.execute(Command::Lock(unknown)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "pod default/web-1 has no container db; it has app, sidecar"
    );
}

/// While the runtime itself hangs its lists, what was seen before can still be named.
#[tokio::test(start_paused = true)]
async fn names_outlive_a_runtime_that_does_not_list() {
    let rig = proxied(pods(2)).await;
    rig.proxy.execute(Command::Lock(web_1(Some("app")))).await.unwrap();
    rig.proxy.faults().clear();
    rig.behind.sim.hang(Rpc::ListContainers, None).unwrap();
    rig.proxy.execute(Command::Lock(web_1(Some("app")))).await.unwrap();
    let unseen = Object {
        pod: Some("default/web-9".parse().unwrap()),
        ..Default::default()
    };
    let error = rig.proxy.execute(Command::Lock(unseen)).await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot find the ids of pod default/web-9: ListContainers on unix://")
            && error.ends_with("no answer within 5s; name the object with --id"),
        "{error}"
    );
}

#[tokio::test]
async fn the_runtime_goes_and_comes_back() {
    let rig = proxied(pods(1)).await;
    let mut events = rig.client.container_events().await.unwrap();
    rig.behind.sim.down(Duration::from_millis(200)).await;
    let ended = timeout(PATIENCE, events.next()).await.unwrap().unwrap_err();
    assert!(ended.kind.is_unreachable(), "{ended}");
    let error = rig.client.version().await.unwrap_err();
    let ErrorKind::Status { code, message } = &error.kind else {
        unreachable!("the proxy itself answers: {error}")
    };
    assert_eq!(*code, "UNAVAILABLE");
    assert!(message.contains("behind the proxy, unix://"), "{message}");
    rig.behind.sim.wait_up().await;
    rig.client.version().await.unwrap();

    // And the proxy's own socket, while the runtime stays.
    rig.proxy.down(Duration::from_millis(20)).await;
    rig.behind.client.version().await.unwrap();
    assert!(!rig.proxy.endpoint().path().exists());
    rig.proxy.wait_up().await;
    rig.client.version().await.unwrap();
    let socket = rig.proxy.endpoint().path().to_owned();
    rig.proxy.shutdown().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn without_a_runtime_there_is_no_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let listen = Endpoint::unix(dir.path().join("proxy.sock"));
    let started = Proxy::start(ProxyConfig {
        upstream: Endpoint::unix(dir.path().join("none.sock")),
        listen: listen.clone(),
        control: None,
        seed: 1,
    });
    assert!(matches!(started.await, Err(ProxyError::Upstream(_))));
    assert!(!listen.path().exists());
}
