//! What a node agent does to a runtime: create, start, stop, remove, and the events of it.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    clippy::large_futures,
    reason = "tests: a failure is a panic, a table is long, and futures live on the test's stack"
)]

mod common;

use std::time::Duration;

use common::{PATIENCE, Rig, pods, rig};
use pleg_cri::EventStream;
use pleg_cri::v1::{self, ContainerEventType as Event, ContainerState as State};
use pleg_cri::{Client, ErrorKind};
use pleg_sim::{ContainerSpec, Ending, PodSpec, Script, SimConfig};
use tokio::time::timeout;

const IMAGE: &str = "registry.example/app:1";

fn sandbox_config(name: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        ..Default::default()
    }
}

async fn run_pod(client: &Client, name: &str) -> String {
    let config = Some(sandbox_config(name));
    let request = v1::RunPodSandboxRequest {
        config,
        runtime_handler: String::new(),
    };
    client.call(request).await.unwrap().pod_sandbox_id
}

async fn create(client: &Client, sandbox: &str, name: &str, command: &[&str]) -> String {
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: name.into(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: IMAGE.into(),
                ..Default::default()
            }),
            command: command.iter().map(|&word| word.into()).collect(),
            ..Default::default()
        }),
        sandbox_config: Some(sandbox_config("unused")),
    };
    client.call(request).await.unwrap().container_id
}

async fn start(client: &Client, id: &str) {
    client
        .call(v1::StartContainerRequest {
            container_id: id.into(),
        })
        .await
        .unwrap();
}

async fn status(client: &Client, id: &str) -> v1::ContainerStatus {
    let request = v1::ContainerStatusRequest {
        container_id: id.into(),
        verbose: false,
    };
    client.call(request).await.unwrap().status.unwrap()
}

async fn pull(client: &Client) {
    let image = Some(v1::ImageSpec {
        image: IMAGE.into(),
        ..Default::default()
    });
    client
        .call(v1::PullImageRequest {
            image,
            ..Default::default()
        })
        .await
        .unwrap();
}

async fn next(events: &mut EventStream) -> (String, Event, v1::ContainerEventResponse) {
    let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    (event.container_id.clone(), event.container_event_type(), event)
}

#[tokio::test]
async fn a_pod_lives_and_tells_of_it() {
    let Rig { sim, client, dir: _dir } = rig(SimConfig::default()).await;
    let mut events = client.container_events().await.unwrap();
    let mut other = client.container_events().await.unwrap();
    pull(&client).await;
    let sandbox = run_pod(&client, "web").await;
    let id = create(&client, &sandbox, "app", &["serve"]).await;
    assert_eq!(status(&client, &id).await.state(), State::ContainerCreated);
    start(&client, &id).await;
    let running = status(&client, &id).await;
    assert_eq!(running.state(), State::ContainerRunning);
    assert!(running.started_at > running.created_at);

    client
        .call(v1::StopContainerRequest {
            container_id: id.clone(),
            timeout: 10,
        })
        .await
        .unwrap();
    let exited = status(&client, &id).await;
    assert_eq!(
        (exited.state(), exited.exit_code, &*exited.reason),
        (State::ContainerExited, 143, "Error")
    );
    assert!(exited.finished_at > exited.started_at);
    client
        .call(v1::RemoveContainerRequest {
            container_id: id.clone(),
        })
        .await
        .unwrap();
    client
        .call(v1::StopPodSandboxRequest {
            pod_sandbox_id: sandbox.clone(),
        })
        .await
        .unwrap();
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.clone(),
        verbose: true,
    };
    let stopped = client.call(request).await.unwrap();
    assert_eq!(stopped.status.unwrap().state(), v1::PodSandboxState::SandboxNotready);
    assert!(stopped.info["info"].contains("processStatus"));
    client
        .call(v1::RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.clone(),
        })
        .await
        .unwrap();
    assert_eq!(sim.world().counts().pods, 0);

    let expected = [
        (&sandbox, Event::ContainerCreatedEvent),
        (&sandbox, Event::ContainerStartedEvent),
        (&id, Event::ContainerCreatedEvent),
        (&id, Event::ContainerStartedEvent),
        (&id, Event::ContainerStoppedEvent),
        (&id, Event::ContainerDeletedEvent),
        (&sandbox, Event::ContainerStoppedEvent),
        (&sandbox, Event::ContainerDeletedEvent),
    ];
    let mut last = 0;
    for (about, kind) in expected {
        let (seen, seen_kind, event) = next(&mut events).await;
        assert_eq!((&seen, seen_kind), (about, kind));
        assert_eq!(event.pod_sandbox_status.as_ref().unwrap().id, sandbox);
        assert!(event.created_at > last);
        last = event.created_at;
        let listed = event.containers_statuses.iter().any(|status| status.id == id);
        assert_eq!(listed, about == &id && kind != Event::ContainerDeletedEvent, "{kind:?}");
        // Every subscriber gets every event.
        assert_eq!(next(&mut other).await.2, event);
    }
    sim.shutdown().await;
    assert!(timeout(PATIENCE, events.next()).await.unwrap().is_err());
}

#[tokio::test]
async fn scripts_end_by_themselves() {
    let Rig { sim, client, dir: _dir } = rig(SimConfig::default()).await;
    let mut events = client.container_events().await.unwrap();
    pull(&client).await;
    let sandbox = run_pod(&client, "jobs").await;
    for (command, code, reason) in [
        (&["sleep-exit", "20ms", "3"][..], 3, "Error"),
        (&["sleep", "0.02"], 0, "Completed"),
        (&["oom", "1ms"], 137, "OOMKilled"),
    ] {
        let id = create(&client, &sandbox, command[0], command).await;
        start(&client, &id).await;
        while next(&mut events).await.1 != Event::ContainerStoppedEvent {}
        let status = status(&client, &id).await;
        assert_eq!((status.exit_code, &*status.reason), (code, reason));
    }
    // A failed start: exited, and no event.
    let id = create(&client, &sandbox, "broken", &["start-error"]).await;
    let started = client
        .call(v1::StartContainerRequest {
            container_id: id.clone(),
        })
        .await;
    assert!(matches!(
        started.unwrap_err().kind,
        ErrorKind::Status { code: "UNKNOWN", .. }
    ));
    let broken = status(&client, &id).await;
    assert_eq!((broken.exit_code, &*broken.reason), (128, "StartError"));
    sim.shutdown().await;
}

#[tokio::test]
async fn a_stop_takes_its_grace_and_kills() {
    let Rig {
        sim: _sim,
        client,
        dir: _dir,
    } = rig(SimConfig::default()).await;
    pull(&client).await;
    let sandbox = run_pod(&client, "stubborn").await;
    let stubborn = create(&client, &sandbox, "a", &["ignore-term"]).await;
    let polite = create(&client, &sandbox, "b", &["term-exit", "0"]).await;
    for (id, timeout, code) in [(&stubborn, 1, 137), (&polite, 30, 0)] {
        start(&client, id).await;
        client
            .call(v1::StopContainerRequest {
                container_id: id.clone(),
                timeout,
            })
            .await
            .unwrap();
        assert_eq!(status(&client, id).await.exit_code, code);
    }
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        ..Default::default()
    };
    assert!(matches!(
        client.call(request).await.unwrap_err().kind,
        ErrorKind::Status {
            code: "INVALID_ARGUMENT",
            ..
        }
    ));
    // The same name and attempt again is refused, as long as the first is there.
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config("stubborn")),
        ..Default::default()
    };
    assert!(client.call(request).await.is_err());
}

#[tokio::test]
async fn commands_run_in_running_containers() {
    let Rig { sim, client, dir: _dir } = rig(pods(1)).await;
    let id = sim.truth().containers[0].id.to_string();
    let exec = |cmd: &[&str]| v1::ExecSyncRequest {
        container_id: id.clone(),
        cmd: cmd.iter().map(|&word| word.into()).collect(),
        timeout: 1,
    };
    let echoed = client.call(exec(&["echo", "a", "b"])).await.unwrap();
    assert_eq!((echoed.stdout.as_slice(), echoed.exit_code), (&b"a b\n"[..], 0));
    assert_eq!(client.call(exec(&["false"])).await.unwrap().exit_code, 1);
    assert!(client.call(exec(&["sleep", "60"])).await.is_err());
    let linux = Some(v1::LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    });
    let update = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux,
        ..Default::default()
    };
    client.call(update).await.unwrap();
    let resources = status(&client, &id).await.resources.unwrap().linux.unwrap();
    assert_eq!(resources.cpu_shares, 512);
    sim.world().storm(Ending::Exit(0));
    assert!(client.call(exec(&["true"])).await.is_err());
}

#[tokio::test]
async fn images_are_pulled_and_removed() {
    let Rig {
        sim: _sim,
        client,
        dir: _dir,
    } = rig(SimConfig::default()).await;
    let spec = |name: &str| {
        Some(v1::ImageSpec {
            image: name.into(),
            ..Default::default()
        })
    };
    let status = |name: &str| v1::ImageStatusRequest {
        image: spec(name),
        verbose: false,
    };
    assert_eq!(client.call(status("busybox")).await.unwrap().image, None);
    let pulled = client
        .call(v1::PullImageRequest {
            image: spec("busybox"),
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(
        client.call(status("busybox")).await.unwrap().image.unwrap().id,
        pulled.image_ref
    );
    let missing = v1::PullImageRequest {
        image: spec("example.com/missing:1"),
        ..Default::default()
    };
    assert!(client.call(missing).await.unwrap_err().kind.is_not_found());
    client
        .call(v1::RemoveImageRequest { image: spec("busybox") })
        .await
        .unwrap();
    assert_eq!(client.call(status("busybox")).await.unwrap().image, None);
}

#[tokio::test]
async fn a_crash_loop_comes_back_as_the_next_attempt() {
    let Rig { sim, client, dir: _dir } = rig(SimConfig::default()).await;
    let mut events = client.container_events().await.unwrap();
    sim.world()
        .add_pod(PodSpec {
            namespace: "default".into(),
            name: "crash".into(),
            containers: vec![ContainerSpec {
                name: "app".into(),
                image: IMAGE.into(),
                script: Script::ends(Duration::from_millis(5), Ending::Exit(2)),
                restart: Some(Duration::from_millis(5)),
            }],
        })
        .unwrap();
    loop {
        let (_, _, event) = next(&mut events).await;
        let attempts = event
            .containers_statuses
            .iter()
            .filter_map(|status| status.metadata.as_ref());
        if attempts.map(|metadata| metadata.attempt).max() >= Some(4) {
            break;
        }
    }
    // One dead attempt is kept beside the newest.
    assert!(sim.truth().containers.len() <= 3);
    sim.shutdown().await;
}
