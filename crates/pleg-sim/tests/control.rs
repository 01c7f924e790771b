//! Commands: over the control socket, and from scenario files.
#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{PATIENCE, pods};
use pleg_cri::{Client, Config, Endpoint, ListFilter, Rpc};
use pleg_sim::control::{Add, ControlError, Down, Exit, Hang, Object, Reply, RpcName, Set, Storm, Unhang};
use pleg_sim::{Command, ControlClient, Scenario, Selector, Sim, SimConfig};
use tokio::time::timeout;

async fn controlled(config: SimConfig) -> (Sim, ControlClient, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let control = Endpoint::unix(dir.path().join("ctl.sock"));
    let config = SimConfig {
        control: Some(control.clone()),
        ..config
    };
    let sim = Sim::start(config, Endpoint::unix(dir.path().join("cri.sock")))
        .await
        .unwrap();
    (sim, ControlClient::new(control), dir)
}

#[tokio::test]
async fn commands_change_the_world() {
    let (sim, control, dir) = controlled(pods(3)).await;
    let mode = std::fs::metadata(dir.path().join("ctl.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let done = |words: &str| Reply::Done(words.to_owned());
    let pod = || "default/web-1".parse().unwrap();
    for (command, reply) in [
        (
            Command::Exit(Exit {
                pod: pod(),
                container: Some("app".into()),
                exit_code: 3,
                oom: false,
                leave_process: false,
            }),
            "1 container of pod default/web-1 exited with 3",
        ),
        (
            Command::Restart(Selector {
                pod: pod(),
                container: None,
            }),
            "2 containers of pod default/web-1 restarted",
        ),
        (Command::Add(Add { pods: 2 }), "2 pods added"),
        (
            Command::Hang(Hang {
                rpc: RpcName(Rpc::ContainerStatus),
                pod: Some(pod()),
                container: None,
                id: None,
            }),
            "ContainerStatus about pod default/web-1 hangs until unhang",
        ),
        (Command::Unhang(Unhang::default()), "1 hang ended"),
        (
            Command::Remove(Selector {
                pod: pod(),
                container: None,
            }),
            "pod default/web-1 removed",
        ),
        (
            Command::Set(Set {
                churn: Some(0.0),
                ..Default::default()
            }),
            "0 changes per second",
        ),
        (Command::Storm(Storm { exit_code: 9 }), "8 containers exited with 9"),
    ] {
        assert_eq!(control.send(&command).await.unwrap(), done(reply));
    }
    let Reply::Pods(pods) = control.send(&Command::Pods {}).await.unwrap() else {
        unreachable!("pods answer pods")
    };
    let names: Vec<String> = pods.iter().map(|pod| pod.pod.to_string()).collect();
    assert_eq!(
        names,
        ["default/web-0", "default/web-2", "default/web-3", "default/web-4"]
    );
    assert_eq!(pods[0].containers[0], ("app".to_owned(), "exited".to_owned()));
    assert!(matches!(
        control.send(&Command::Stats {}).await.unwrap(),
        Reply::Stats(_)
    ));

    control
        .send(&Command::Down(Down {
            length: Duration::from_millis(10).into(),
        }))
        .await
        .unwrap();
    sim.wait_up().await;
    sim.shutdown().await;
    assert!(!dir.path().join("ctl.sock").exists());
    assert!(matches!(
        control.send(&Command::Pods {}).await,
        Err(ControlError::NoSimulator { .. })
    ));
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let (_sim, control, _dir) = controlled(pods(1)).await;
    for (command, words) in [
        (
            Command::Exit(Exit {
                pod: "default/webx".parse().unwrap(),
                container: None,
                exit_code: 0,
                oom: false,
                leave_process: false,
            }),
            "no pod default/webx; `pleg sim ctl pods` lists them",
        ),
        (
            Command::Lock(Object {
                pod: Some("default/web-0".parse().unwrap()),
                container: Some("db".into()),
                id: None,
            }),
            "pod default/web-0 has no container db; it has app, sidecar",
        ),
        (
            Command::Lock(Object {
                container: Some("app".into()),
                ..Default::default()
            }),
            "--container needs --pod NAMESPACE/NAME",
        ),
        (
            Command::Lock(Object::default()),
            "lock needs a container: use --pod and --container, or --id",
        ),
        (
            Command::Set(Set {
                churn: Some(1.0),
                pod: Some("default/web-0".parse().unwrap()),
                ..Default::default()
            }),
            "--pod, --container and --id need --latency",
        ),
        (
            Command::Add(Add { pods: 1_000_000 }),
            "at most 20000 pods can be added at once",
        ),
        (
            Command::Set(Set::default()),
            "nothing to set: use --latency, --churn or the Status flags",
        ),
    ] {
        assert_eq!(control.send(&command).await.unwrap_err().to_string(), words);
    }
}

#[tokio::test]
async fn a_scenario_runs_its_steps() {
    let yaml = r"
pods: 4
containers: 3
seed: 7
latency: 1ms
steps:
  - at: 30ms
    fail: {rpc: Status, code: UNAVAILABLE}
  - {at: 10ms, storm: {exit_code: 2}}
  - {at: 20ms, remove: {pod: default/web-0}}
  - {at: 20ms, odd: {kind: orphan-container}}
";
    let mut config = SimConfig::default();
    Scenario::parse(yaml).unwrap().apply(&mut config);
    assert_eq!(
        (config.pods, config.containers, config.latency),
        (4, 3, Duration::from_millis(1))
    );
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(config, Endpoint::unix(dir.path().join("cri.sock")))
        .await
        .unwrap();
    let client = Client::connect(sim.endpoint().clone(), Config::default())
        .await
        .unwrap();
    // The last step is done when Status fails.
    let last = async {
        while client
            .call(pleg_cri::v1::StatusRequest { verbose: false })
            .await
            .is_ok()
        {}
    };
    timeout(PATIENCE, last).await.unwrap();
    let truth = sim.truth();
    assert_eq!(truth.sandboxes.len(), 3);
    assert_eq!(truth.containers.iter().filter(|c| c.exit_code == 2).count(), 9);
    assert_eq!(
        client.list_containers(&ListFilter::All, |_| {}).await.unwrap().items,
        10
    );
    sim.shutdown().await;
}

#[test]
fn scenario_errors_name_the_line() {
    for (yaml, line, words) in [
        ("pods: 1\npots: 2\n", "line 2", "pots"),
        ("pods: 1\nsteps:\n  - at: 1s\n    stormm: {}\n", "line 4", "stormm"),
        ("steps:\n  - {at: 1s, storm: {exitcode: 1}}\n", "line 2", "exitcode"),
        ("steps:\n  - {at: 1s, storm: {}}\n  - {at: 2s}\n", "line 3", "verb"),
        ("steps:\n  - {at: 1s, storm: {}, clear: {}}\n", "line 2", "two steps"),
        ("latency: 5\n", "line 1", "duration"),
        ("steps:\n  - {at: 1s, hang: {rpc: Nope}}\n", "line 2", "Nope"),
        (
            "steps:\n  - {at: 1s, fail: {rpc: Status, code: OK}}\n",
            "line 2",
            "gRPC code",
        ),
        ("steps:\n  - {at: 1s, exit: {pod: web-0}}\n", "line 2", "NAMESPACE/NAME"),
    ] {
        let error = Scenario::parse(yaml).unwrap_err().to_string();
        assert!(error.contains(line) && error.contains(words), "{yaml}: {error}");
    }
    assert!(Scenario::parse("").unwrap().steps().is_empty());
}
