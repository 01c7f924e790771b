//! The server over a real socket, seen by the client that the product uses.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    clippy::large_futures,
    reason = "tests: a failure is a panic, a table is long, and futures live on the test's stack"
)]

mod common;

use std::collections::HashMap;

use common::{containers, pods, rig, sandboxes};
use pleg_cri::list::POD_UID_LABEL;
use pleg_cri::{ErrorKind, ListFilter, v1};
use pleg_sim::{Ending, SimConfig};

#[tokio::test]
async fn lists_are_the_truth() {
    let rig = rig(pods(30)).await;
    let truth = rig.sim.truth();
    assert_eq!((truth.sandboxes.len(), truth.containers.len()), (30, 60));

    let expected: Vec<_> = (truth.containers.iter())
        .map(|c| (c.id.to_string(), c.name.clone(), c.state as i32))
        .collect();
    assert_eq!(containers(&rig.client, &ListFilter::All).await, expected);
    let expected: Vec<_> = (truth.sandboxes.iter())
        .map(|s| (s.id.to_string(), s.uid.clone(), i32::from(!s.ready)))
        .collect();
    assert_eq!(sandboxes(&rig.client, &ListFilter::All).await, expected);

    let uid = &truth.sandboxes[0].uid;
    let of_pod = containers(&rig.client, &ListFilter::PodUid(uid.clone())).await;
    assert_eq!(of_pod.len(), 2);
    assert!(
        of_pod
            .iter()
            .all(|(id, ..)| truth.containers.iter().any(|c| *c.id == **id && *c.uid == **uid))
    );
    rig.sim.shutdown().await;
}

#[tokio::test]
async fn every_filter_selects() {
    let rig = rig(pods(5)).await;
    rig.sim
        .world()
        .exit(&"default/web-1".parse().unwrap(), Some("app"), Ending::Exit(1))
        .unwrap();
    let truth = rig.sim.truth();
    let one = &truth.containers[0];
    let state = |state: v1::ContainerState| Some(v1::ContainerStateValue { state: state.into() });
    let label = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
    for (filter, count) in [
        (v1::ContainerFilter::default(), 10),
        (
            v1::ContainerFilter {
                id: one.id.to_string(),
                ..Default::default()
            },
            1,
        ),
        (
            v1::ContainerFilter {
                id: "nope".into(),
                ..Default::default()
            },
            0,
        ),
        (
            v1::ContainerFilter {
                pod_sandbox_id: one.sandbox.to_string(),
                ..Default::default()
            },
            2,
        ),
        (
            v1::ContainerFilter {
                pod_sandbox_id: "nope".into(),
                ..Default::default()
            },
            0,
        ),
        (
            v1::ContainerFilter {
                state: state(v1::ContainerState::ContainerExited),
                ..Default::default()
            },
            1,
        ),
        (
            v1::ContainerFilter {
                state: state(v1::ContainerState::ContainerRunning),
                ..Default::default()
            },
            9,
        ),
        (
            v1::ContainerFilter {
                label_selector: label("io.kubernetes.container.name", "app"),
                ..Default::default()
            },
            5,
        ),
        (
            v1::ContainerFilter {
                label_selector: label(POD_UID_LABEL, &one.uid),
                ..Default::default()
            },
            2,
        ),
        (
            v1::ContainerFilter {
                label_selector: label(POD_UID_LABEL, "nope"),
                ..Default::default()
            },
            0,
        ),
        (
            v1::ContainerFilter {
                id: one.id.to_string(),
                label_selector: label(POD_UID_LABEL, "nope"),
                ..Default::default()
            },
            0,
        ),
    ] {
        let request = v1::ListContainersRequest {
            filter: Some(filter.clone()),
        };
        let listed = rig.client.call(request).await.unwrap().containers;
        assert_eq!(listed.len(), count, "{filter:?}");
    }
    let sandbox = &truth.sandboxes[0];
    rig.sim.world().stop_sandbox(&sandbox.id);
    let not_ready = v1::PodSandboxState::SandboxNotready.into();
    for (filter, count) in [
        (
            v1::PodSandboxFilter {
                id: sandbox.id.to_string(),
                ..Default::default()
            },
            1,
        ),
        (
            v1::PodSandboxFilter {
                state: Some(v1::PodSandboxStateValue { state: not_ready }),
                ..Default::default()
            },
            1,
        ),
        (
            v1::PodSandboxFilter {
                label_selector: label(POD_UID_LABEL, &sandbox.uid),
                ..Default::default()
            },
            1,
        ),
        (
            v1::PodSandboxFilter {
                label_selector: label("app.kubernetes.io/name", "web"),
                ..Default::default()
            },
            5,
        ),
    ] {
        let request = v1::ListPodSandboxRequest {
            filter: Some(filter.clone()),
        };
        let listed = rig.client.call(request).await.unwrap().items;
        assert_eq!(listed.len(), count, "{filter:?}");
    }
}

#[tokio::test]
async fn answers_are_shuffled_but_the_same() {
    let rig = rig(pods(20)).await;
    let list = || async {
        rig.client
            .call(v1::ListContainersRequest { filter: None })
            .await
            .unwrap()
            .containers
    };
    let (mut first, mut second) = (list().await, list().await);
    let ids = |list: &[v1::Container]| list.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
    assert_ne!(ids(&first), ids(&second));
    first.sort_by(|a, b| a.id.cmp(&b.id));
    second.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(first, second);
    // The list and the status say the same, field by field.
    for listed in first {
        let request = v1::ContainerStatusRequest {
            container_id: listed.id.clone(),
            verbose: false,
        };
        let status = rig.client.call(request).await.unwrap().status.unwrap();
        assert_eq!(listed.metadata, status.metadata);
        assert_eq!(listed.state, status.state);
        assert_eq!(listed.created_at, status.created_at);
        assert_eq!(listed.labels, status.labels);
        assert_eq!(listed.annotations, status.annotations);
        assert_eq!(listed.image_ref, status.image_ref);
        assert_eq!(listed.image, status.image);
        assert_eq!(listed.image_id, status.image_id);
    }
}

#[tokio::test]
async fn a_thousand_pods_are_two_megabytes() {
    let rig = rig(pods(1000)).await;
    let sandboxes = rig.client.list_sandboxes(&ListFilter::All, |_| {}).await.unwrap();
    let containers = rig.client.list_containers(&ListFilter::All, |_| {}).await.unwrap();
    let bytes = sandboxes.bytes + containers.bytes;
    assert!((2_000_000..2_300_000).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let rig = rig(SimConfig::default()).await;
    let id = "0".repeat(64);
    let container = v1::ContainerStatusRequest {
        container_id: id.clone(),
        verbose: false,
    };
    assert!(rig.client.call(container).await.unwrap_err().kind.is_not_found());
    let sandbox = v1::PodSandboxStatusRequest {
        pod_sandbox_id: id.clone(),
        verbose: true,
    };
    assert!(rig.client.call(sandbox).await.unwrap_err().kind.is_not_found());
    let start = v1::StartContainerRequest {
        container_id: id.clone(),
    };
    assert!(rig.client.call(start).await.unwrap_err().kind.is_not_found());
    // Stopping and removing what is gone succeeds, as CRI says.
    rig.client
        .call(v1::StopContainerRequest {
            container_id: id.clone(),
            timeout: 1,
        })
        .await
        .unwrap();
    rig.client
        .call(v1::RemoveContainerRequest {
            container_id: id.clone(),
        })
        .await
        .unwrap();
    rig.client
        .call(v1::StopPodSandboxRequest {
            pod_sandbox_id: id.clone(),
        })
        .await
        .unwrap();
    rig.client
        .call(v1::RemovePodSandboxRequest { pod_sandbox_id: id })
        .await
        .unwrap();
    let run = v1::RunPodSandboxRequest::default();
    assert!(matches!(
        rig.client.call(run).await.unwrap_err().kind,
        ErrorKind::Status {
            code: "INVALID_ARGUMENT",
            ..
        }
    ));
}

#[tokio::test]
async fn the_runtime_introduces_itself() {
    let rig = rig(pods(1)).await;
    assert_eq!(rig.client.version().await.unwrap().runtime_name, "pleg-sim");
    let status = rig.client.call(v1::StatusRequest { verbose: true }).await.unwrap();
    let conditions = status.status.unwrap().conditions;
    assert!(conditions.iter().all(|condition| condition.status));
    assert_eq!(conditions.len(), 2);
    let config = rig.client.call(v1::RuntimeConfigRequest {}).await.unwrap();
    assert!(config.linux.is_some());
    let images = rig
        .client
        .call(v1::ListImagesRequest { filter: None })
        .await
        .unwrap()
        .images;
    assert_eq!(images.len(), 3);
    let usage = rig.client.call(v1::ImageFsInfoRequest {}).await.unwrap();
    assert!(usage.image_filesystems[0].used_bytes.unwrap().value > 0);
}
