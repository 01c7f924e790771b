//! Containers with real processes, as the kernel and a client see them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use common::{PATIENCE, Rig, rig};
use pleg_cri::{Endpoint, v1};
use pleg_sim::{Ending, PodRef, Script, Sim, SimConfig, SimError};
use tokio::time::Instant;

/// A simulator whose containers have processes. None on a machine where no cgroup can be made, if that is what it says.
async fn with_processes(pods: usize, exit_lag: Duration) -> Option<Rig> {
    let config = SimConfig {
        pods,
        processes: true,
        exit_lag,
        ..Default::default()
    };
    let dir = tempfile::tempdir().unwrap();
    match Sim::start(config.clone(), Endpoint::unix(dir.path().join("try.sock"))).await {
        Ok(sim) => sim.shutdown().await,
        Err(SimError::World(error)) => {
            assert!(error.to_string().contains("delegated cgroup"), "{error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    Some(rig(config).await)
}

fn web(number: usize) -> PodRef {
    format!("default/web-{number}").parse().unwrap()
}

/// Waits until it is so.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The process of a container, by its verbose status.
async fn pid(rig: &Rig, id: &str) -> Option<u32> {
    let request = v1::ContainerStatusRequest {
        container_id: id.into(),
        verbose: true,
    };
    let answer = rig.client.call(request).await.unwrap();
    let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).unwrap();
    info["pid"].as_u64().map(|pid| u32::try_from(pid).unwrap())
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

/// Where the cgroup of a process is mounted.
fn cgroup_dir(pid: u32, id: &str) -> PathBuf {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let line = text.lines().find(|line| line.ends_with(id)).unwrap();
    let path = line.splitn(3, ':').nth(2).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().map(|line| line.split(' ').nth(4).unwrap());
    let mut dirs = points.map(|point| Path::new(point).join(path.trim_start_matches('/')));
    dirs.find(|dir| dir.is_dir()).unwrap()
}

fn kill(pid: u32, signal: &str) {
    let done = Program::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

fn status(rig: &Rig, id: &str) -> v1::ContainerStatus {
    rig.sim.world().container_status(id).unwrap()
}

#[tokio::test]
async fn a_container_ends_with_its_process_and_after_it() {
    let lag = Duration::from_millis(80);
    let Some(rig) = with_processes(2, lag).await else {
        return;
    };
    let containers = rig.sim.truth().containers;
    assert_eq!(rig.sim.world().processes(), containers.len());
    for (container, (signal, code)) in containers.iter().zip([("-KILL", 137), ("-TERM", 143)]) {
        let pid = pid(&rig, &container.id).await.unwrap();
        assert!(lives(pid));
        let dir = cgroup_dir(pid, &container.id);
        let pod = dir.parent().unwrap().file_name().unwrap().to_str().unwrap();
        assert!(pod.starts_with("pod") && pod.len() == 39, "{pod}");

        let began = Instant::now();
        kill(pid, signal);
        until("exited", || status(&rig, &container.id).state == 2).await;
        assert!(began.elapsed() >= lag);
        let status = status(&rig, &container.id);
        assert_eq!((status.exit_code, status.reason.as_str()), (code, "Error"));
        until("removed", || !dir.exists()).await;
        assert_eq!(self::pid(&rig, &container.id).await, None);
    }
    rig.sim.shutdown().await;
}

#[tokio::test]
async fn what_ends_a_container_ends_its_process() {
    let Some(rig) = with_processes(4, Duration::from_millis(1)).await else {
        return;
    };
    let mut pids = Vec::new();
    for container in rig.sim.truth().containers {
        pids.push(pid(&rig, &container.id).await.unwrap());
    }
    // By itself: the process first, then the container, with the code that was asked for.
    assert_eq!(rig.sim.world().exit(&web(0), None, Ending::Exit(3)).unwrap(), 2);
    assert_eq!(
        rig.sim.world().exit(&web(0), None, Ending::Exit(4)).unwrap(),
        0,
        "they are ending"
    );
    until("exited", || {
        let containers = rig.sim.truth().containers;
        containers.iter().filter(|container| container.exit_code == 3).count() == 2
    })
    .await;
    // By a call: it has ended when the call returns.
    let ids = rig.sim.world().select(&web(1), Some("app")).unwrap();
    let request = v1::StopContainerRequest {
        container_id: ids[0].to_string(),
        timeout: 1,
    };
    rig.client.call(request).await.unwrap();
    assert_eq!(status(&rig, &ids[0]).exit_code, 143);
    assert_eq!(rig.sim.world().restart(&web(2), None).unwrap(), 2);
    rig.sim.world().remove(&web(3), None).unwrap();
    // Of pod 1 the other container is left, of pod 2 the new attempts.
    until("collected", || rig.sim.world().processes() == 3).await;
    assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 1);
    rig.sim.shutdown().await;
    until("dead", || !pids.iter().any(|pid| lives(*pid))).await;
}

#[tokio::test]
async fn a_process_may_be_left_over() {
    let Some(rig) = with_processes(1, Duration::from_millis(1)).await else {
        return;
    };
    let id = rig.sim.truth().containers[0].id.clone();
    let pid = pid(&rig, &id).await.unwrap();
    let name = rig.sim.truth().containers[0].name.clone();
    rig.sim
        .world()
        .exit_leaving_process(&web(0), Some(&name), Ending::Exit(255))
        .unwrap();
    assert_eq!(status(&rig, &id).exit_code, 255);
    assert!(lives(pid) && cgroup_dir(pid, &id).exists());
    rig.sim.world().remove(&web(0), Some(&name)).unwrap();
    until("dead", || !lives(pid)).await;
    rig.sim.shutdown().await;
}

#[tokio::test]
async fn a_hung_shim_does_not_see_that_a_process_died() {
    let Some(rig) = with_processes(1, Duration::from_millis(1)).await else {
        return;
    };
    let id = rig.sim.truth().containers[0].id.clone();
    let pid = pid(&rig, &id).await.unwrap();
    rig.sim.world().hang_shim(&web(0)).unwrap();
    kill(pid, "-KILL");
    until("collected", || rig.sim.world().processes() == 1).await;
    until("nothing left to notice", || rig.sim.world().next_due().is_none()).await;
    assert_eq!(status(&rig, &id).state, 1, "RUNNING");
    rig.sim.world().unhang_shim(None).unwrap();
    assert_eq!(status(&rig, &id).exit_code, 137);
    rig.sim.shutdown().await;
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let Some(rig) = with_processes(3, Duration::from_millis(1)).await else {
        return;
    };
    let container = rig.sim.truth().containers[0].clone();
    let pid = pid(&rig, &container.id).await.unwrap();
    let top = cgroup_dir(pid, &container.id).ancestors().nth(2).unwrap().to_owned();
    assert!(top.file_name().unwrap().to_str().unwrap().starts_with("pleg-sim-"));
    // Changes until the last moment.
    rig.sim.world().set_churn(500.0);
    until("changed", || rig.sim.world().pid(&container.id) != Some(pid)).await;
    rig.sim.shutdown().await;
    assert!(!top.exists());

    // A simulator that is dropped, not ended in order.
    let rig = with_processes(2, Duration::from_millis(1)).await.unwrap();
    let container = rig.sim.truth().containers[0].clone();
    let pid = self::pid(&rig, &container.id).await.unwrap();
    let top = cgroup_dir(pid, &container.id).ancestors().nth(2).unwrap().to_owned();
    drop(rig);
    until("removed", || !top.exists()).await;
    assert!(!lives(pid));

    // One that cannot start.
    let config = SimConfig {
        pods: 1,
        processes: true,
        script: Script::default(),
        ..Default::default()
    };
    let nowhere = Endpoint::unix(PathBuf::from("/nonexistent/cri.sock"));
    Sim::start(config, nowhere).await.unwrap_err();
}
