//! The restart matrix: three policies, and what may happen to a container.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};
use pleg::PodUid;
use pleg_node::status::Phase;

use crate::machine::{Machine, Running, is_ready, spec};

/// What happens to the container of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// It runs this, which exits by itself.
    Command(&'static str),
    LivenessFails,
    HookFails,
    /// Its init container fails.
    InitFails,
    /// Its sidecar exits.
    SidecarExits,
    SandboxKilled,
    RuntimeRestarted,
    NodeRestarted,
    ImageMissing,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is restarted with back-off, after an exit with this code and reason.
    Again(i32, &'static str),
    /// It is restarted in a new sandbox.
    InNewSandbox,
    /// The pod has finished, in this phase.
    Ended(Phase, i32, &'static str),
    /// It keeps running.
    Untouched,
    /// It is not started, and the pod waits for its image.
    Waits,
    /// It is not started, and its init container is restarted with back-off.
    InitAgain,
    /// It is not started, and the pod has failed.
    NeverBegan,
}

use Outcome::{Again, Ended, InNewSandbox, InitAgain, NeverBegan, Untouched, Waits};

/// With `Always`, `OnFailure` and `Never`.
const MATRIX: [(Event, [Outcome; 3]); 12] = [
    (
        Event::Command("exit, '0'"),
        [
            Again(0, "Completed"),
            Ended(Phase::Succeeded, 0, "Completed"),
            Ended(Phase::Succeeded, 0, "Completed"),
        ],
    ),
    (
        Event::Command("exit, '3'"),
        [Again(3, "Error"), Again(3, "Error"), Ended(Phase::Failed, 3, "Error")],
    ),
    (
        Event::Command("oom, 1s"),
        [
            Again(137, "OOMKilled"),
            Again(137, "OOMKilled"),
            Ended(Phase::Failed, 137, "OOMKilled"),
        ],
    ),
    (
        Event::Command("start-error"),
        [
            Again(128, "StartError"),
            Again(128, "StartError"),
            Ended(Phase::Failed, 128, "StartError"),
        ],
    ),
    (
        Event::LivenessFails,
        [
            Again(143, "Error"),
            Again(143, "Error"),
            Ended(Phase::Failed, 143, "Error"),
        ],
    ),
    (
        Event::HookFails,
        [
            Again(143, "Error"),
            Again(143, "Error"),
            Ended(Phase::Failed, 143, "Error"),
        ],
    ),
    (Event::InitFails, [InitAgain, InitAgain, NeverBegan]),
    (Event::SidecarExits, [Untouched, Untouched, Untouched]),
    (
        Event::SandboxKilled,
        [InNewSandbox, InNewSandbox, Ended(Phase::Failed, 137, "Error")],
    ),
    (Event::RuntimeRestarted, [Untouched, Untouched, Untouched]),
    (Event::NodeRestarted, [Untouched, Untouched, Untouched]),
    (Event::ImageMissing, [Waits, Waits, Waits]),
];

#[tokio::test(start_paused = true)]
async fn the_restart_matrix() {
    for (event, outcomes) in MATRIX {
        for (policy, outcome) in ["Always", "OnFailure", "Never"].into_iter().zip(outcomes) {
            cell(event, policy, outcome).await;
        }
    }
}

async fn cell(event: Event, policy: &str, outcome: Outcome) {
    let what = format!("{event:?} with {policy}: {outcome:?}");
    let machine = Machine::start().await;
    let mut node = machine.node().await;
    let (command, image, probe) = match event {
        Event::Command(command) => (command, "img", ""),
        Event::LivenessFails => (
            "serve",
            "img",
            ", livenessProbe: {exec: {command: [exit, '1']}, periodSeconds: 5}",
        ),
        Event::HookFails => (
            "serve",
            "img",
            ", lifecycle: {postStart: {exec: {command: [exit, '1']}}}",
        ),
        Event::ImageMissing => ("serve", "missing", ""),
        _ => ("serve", "img", ""),
    };
    let init = match event {
        Event::InitFails => "initContainers: [{name: i, image: img, command: [exit, '1']}], ",
        Event::SidecarExits => {
            "initContainers: [{name: s, image: img, restartPolicy: Always, command: [sleep-exit, 20s, '1']}], "
        }
        _ => "",
    };
    let manifest = spec(
        "p",
        &format!(
            "terminationGracePeriodSeconds: 2, restartPolicy: {policy}, {init}\
             containers: [{{name: app, image: {image}, command: [{command}]{probe}}}]"
        ),
    );
    let uid = node.want(std::slice::from_ref(&manifest)).await.remove(0);
    if matches!(
        event,
        Event::SandboxKilled | Event::RuntimeRestarted | Event::NodeRestarted
    ) {
        node.until_ready(&uid).await;
    }
    match event {
        Event::SandboxKilled => {
            let id = machine.sandboxes().remove(0).id;
            machine.sim.world().stop_sandbox(&id);
        }
        Event::RuntimeRestarted => {
            machine.sim.down(Duration::from_secs(20)).await;
            machine.sim.wait_up().await;
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        Event::NodeRestarted => {
            node.stop().await;
            node = machine.node().await;
            node.want(&[manifest]).await;
        }
        _ => {}
    }
    check(&machine, &node, &uid, outcome, &what).await;
    node.stop().await;
    machine.check();
}

fn app(node: &Running, uid: &PodUid) -> Option<ContainerStatus> {
    Some(node.reports.get(uid)?.containers()[0].clone())
}

fn ended_so(state: Option<&ContainerState>, code: i32, why: &str) -> bool {
    let exit = state.and_then(|state| state.terminated.as_ref());
    exit.is_some_and(|exit| exit.exit_code == code && exit.reason.as_deref() == Some(why))
}

async fn check(machine: &Machine, node: &Running, uid: &PodUid, outcome: Outcome, what: &str) {
    let phase = || node.reports.get(uid).unwrap().phase();
    match outcome {
        Again(code, reason) => {
            node.until(what, |_| node.state(uid, "app") == "CrashLoopBackOff").await;
            let is = |app: ContainerStatus| app.restart_count >= 3 && ended_so(app.last_state.as_ref(), code, reason);
            node.until(what, |_| app(node, uid).is_some_and(is)).await;
            assert_eq!(phase(), Phase::Running, "{what}");
        }
        InNewSandbox => {
            let is = |app: ContainerStatus| app.ready && app.restart_count == 1;
            node.until(what, |_| app(node, uid).is_some_and(is)).await;
            let ready: Vec<_> = machine
                .sandboxes()
                .into_iter()
                .filter(|sandbox| sandbox.ready)
                .collect();
            assert_eq!((ready.len(), ready[0].attempt), (1, 1), "{what}");
        }
        Ended(in_phase, code, reason) => {
            node.until_phase(uid, in_phase).await;
            tokio::time::sleep(Duration::from_mins(6)).await;
            let status = app(node, uid).unwrap();
            assert!(ended_so(status.state.as_ref(), code, reason), "{what}: {status:?}");
            assert_eq!((machine.attempts(uid).len(), phase()), (1, in_phase), "{what}");
            let ready = machine.sandboxes().iter().any(|sandbox| sandbox.ready);
            assert!(!ready, "{what}: the sandbox is of no use any more");
        }
        Untouched => {
            node.until(what, |reports| is_ready(reports, uid)).await;
            tokio::time::sleep(Duration::from_mins(2)).await;
            let status = app(node, uid).unwrap();
            assert!(status.ready && status.restart_count == 0, "{what}: {status:?}");
            let attempts = machine
                .attempts(uid)
                .into_iter()
                .filter(|container| container.name == "app");
            assert_eq!((attempts.count(), machine.sandboxes().len()), (1, 1), "{what}");
            assert_eq!(phase(), Phase::Running, "{what}");
        }
        InitAgain => {
            let restarts = || node.reports.get(uid).map(|pod| pod.init_containers()[0].restart_count);
            node.until(what, |_| restarts() >= Some(3)).await;
            assert_eq!(
                (phase(), node.state(uid, "app").as_str()),
                (Phase::Pending, "PodInitializing"),
                "{what}"
            );
        }
        NeverBegan => {
            node.until_phase(uid, Phase::Failed).await;
            tokio::time::sleep(Duration::from_mins(6)).await;
            let states = (node.state(uid, "i"), node.state(uid, "app"));
            assert_eq!(
                states,
                ("Terminated 1".to_owned(), "PodInitializing".to_owned()),
                "{what}"
            );
            assert_eq!((machine.attempts(uid).len(), phase()), (1, Phase::Failed), "{what}");
        }
        Waits => {
            node.until(what, |_| node.state(uid, "app") == "ErrImagePull").await;
            node.until(what, |_| node.state(uid, "app") == "ImagePullBackOff").await;
            tokio::time::sleep(Duration::from_mins(6)).await;
            assert_eq!((machine.attempts(uid).len(), phase()), (0, Phase::Pending), "{what}");
        }
    }
}
