//! A hung shim as a client sees it: as containerd with a shim that was stopped (measured on 1.6, 1.7 and 2.1).

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

mod common;

use std::time::Duration;

use common::{containers, impatient, pods, rig};
use pleg_cri::{ListFilter, Rpc, v1};
use pleg_sim::control::{Reply, Shim, Shims};
use pleg_sim::{Command, Ending, PodRef};
use tokio::time::{Instant, timeout};

fn pod() -> PodRef {
    "default/web-1".parse().unwrap()
}

/// The time is paused: four seconds are over as soon as no task has anything else to do.
#[tokio::test(start_paused = true)]
async fn only_a_verbose_status_tells() {
    let rig = rig(pods(3)).await;
    let status = async |id: &str, verbose| {
        let started = Instant::now();
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose,
        };
        let answer = rig.client.call(request).await.unwrap();
        let info = answer.info.get("info").map(|info| serde_json::from_str(info).unwrap());
        let info: serde_json::Value = info.unwrap_or_default();
        let process = info["processStatus"].as_str().unwrap_or_default().to_owned();
        assert_eq!(info["pid"].is_u64(), verbose);
        assert_eq!(answer.status.unwrap().state, 0, "READY");
        (started.elapsed(), process)
    };
    let sandboxes = rig.sim.truth().sandboxes;
    let reply = rig.sim.execute(Command::HangShim(Shim { pod: pod() })).await.unwrap();
    assert_eq!(
        reply,
        Reply::Done("the shim of pod default/web-1 hangs until unhang-shim".into())
    );
    let before = containers(&rig.client, &ListFilter::All).await;
    rig.sim.world().exit(&pod(), None, Ending::Exit(3)).unwrap();
    assert_eq!(
        containers(&rig.client, &ListFilter::All).await,
        before,
        "the lists stay green"
    );
    for sandbox in &sandboxes {
        let hung = sandbox.name == "web-1";
        let (took, process) = status(&sandbox.id, true).await;
        let long = if hung { Duration::from_secs(4) } else { Duration::ZERO };
        assert!(took >= long && took < long + Duration::from_millis(100), "{took:?}");
        assert_eq!(process, if hung { "unknown" } else { "running" });
        let (took, _) = status(&sandbox.id, false).await;
        assert!(took < Duration::from_millis(100), "{took:?}");
    }
    let reply = rig.sim.execute(Command::UnhangShim(Shims::default())).await.unwrap();
    assert_eq!(reply, Reply::Done("1 shim released".into()));
    assert_ne!(containers(&rig.client, &ListFilter::All).await, before);
    let of_pod = sandboxes.iter().find(|sandbox| sandbox.name == "web-1").unwrap();
    assert_eq!(status(&of_pod.id, true).await.1, "running");
}

#[tokio::test]
async fn what_needs_the_shim_hangs_with_it() {
    let rig = rig(pods(2)).await;
    rig.sim.world().hang_shim(&pod()).unwrap();
    let impatient = impatient(&rig);
    let app = rig.sim.world().select(&pod(), Some("app")).unwrap()[0].to_string();
    let sandbox = rig.sim.world().select(&pod(), None).unwrap()[0].to_string();
    macro_rules! hangs {
        ($($request:expr),* $(,)?) => {$(
            let error = impatient.call($request).await.unwrap_err();
            assert!(error.kind.is_deadline(), "{error}");
        )*};
    }
    hangs!(
        v1::StopContainerRequest {
            container_id: app.clone(),
            timeout: 0
        },
        v1::RemoveContainerRequest {
            container_id: app.clone()
        },
        v1::ExecSyncRequest {
            container_id: app.clone(),
            cmd: vec!["true".into()],
            timeout: 0
        },
        v1::StopPodSandboxRequest {
            pod_sandbox_id: sandbox.clone()
        },
        v1::RemovePodSandboxRequest {
            pod_sandbox_id: sandbox
        },
    );
    assert_eq!(rig.sim.world().counts().containers, 4, "nothing was done");
    // Other pods live on.
    let other = rig
        .sim
        .world()
        .select(&"default/web-0".parse().unwrap(), Some("app"))
        .unwrap();
    let stop = v1::StopContainerRequest {
        container_id: other[0].to_string(),
        timeout: 0,
    };
    rig.client.call(stop).await.unwrap();
}

/// The CPU manager's update holds the container's lock while it waits for the shim: then every list hangs.
#[tokio::test]
async fn an_update_under_a_hung_shim_locks_the_container() {
    let rig = rig(pods(2)).await;
    rig.sim.world().hang_shim(&pod()).unwrap();
    let app = rig.sim.world().select(&pod(), Some("app")).unwrap()[0].to_string();
    let update = |id: &str| v1::UpdateContainerResourcesRequest {
        container_id: id.into(),
        ..Default::default()
    };
    let held = tokio::spawn({
        let (client, request) = (rig.client.clone(), update(&app));
        async move { client.call(request).await }
    });
    let short = impatient(&rig);
    let until_locked = async { while short.list_containers(&ListFilter::All, |_| {}).await.is_ok() {} };
    timeout(common::PATIENCE, until_locked).await.unwrap();
    let status = v1::ContainerStatusRequest {
        container_id: app,
        verbose: false,
    };
    assert!(short.call(status).await.unwrap_err().kind.is_deadline());
    // It ends with its holder.
    held.abort();
    assert!(held.await.unwrap_err().is_cancelled());
    rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    assert_eq!(rig.sim.stats().of(Rpc::UpdateContainerResources).abandoned, 1);
}
