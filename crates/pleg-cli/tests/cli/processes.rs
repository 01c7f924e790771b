//! Containers with real processes: what the kernel knows and the runtime does not, and that nothing is left behind.

use std::path::Path;
use std::time::Duration;

use pleg_sim::control::{Exit, Shim};
use pleg_sim::{Command, Ending, Flavour, PodRef};
use serde_json::Value;

use crate::manifests;
use crate::node::{Daemon, Node, Running, bare, block_on, wait_for};

fn web(number: usize) -> PodRef {
    format!("default/web-{number}").parse().unwrap()
}

/// The process of a container.
fn pid(node: &Node, pod: usize, name: &str) -> u32 {
    let world = node.sim.world();
    let ids = world.select(&web(pod), Some(name)).unwrap();
    world.pid(&ids[0]).unwrap()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn doctor(node: &Node, code: i32) -> Value {
    let output = node
        .pleg(&["doctor", "-o", "json"])
        .assert()
        .code(code)
        .get_output()
        .clone();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn finding<'a>(report: &'a Value, trouble: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["trouble"] == trouble);
    found.unwrap_or_else(|| panic!("no {trouble} in {findings:?}"))
}

/// All events so far.
fn events(daemon: &Daemon) -> Vec<Value> {
    let (code, body) = daemon.get("/api/v1/events?since=0");
    assert_eq!(code, 200, "{body}");
    let lines = body.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn doctor_finds_a_process_that_outlives_its_container() {
    let Some(node) = Node::with_processes(3) else { return };
    let well = doctor(&node, 0);
    assert_eq!(well["findings"], Value::Array(Vec::new()), "{well}");
    assert_eq!(well["witness"]["watched"], 6, "{well}");

    let left = pid(&node, 1, "app");
    let exit = Exit {
        pod: web(1),
        container: Some("app".to_owned()),
        exit_code: 255,
        oom: false,
        leave_process: true,
    };
    block_on(node.sim.execute(Command::Exit(exit))).unwrap();
    // One that ends with its process is nobody's trouble.
    node.sim.world().exit(&web(2), Some("app"), Ending::Exit(1)).unwrap();
    let report = doctor(&node, 1);
    let finding = finding(&report, "leftover-process");
    let places = finding["objects"].as_array().unwrap();
    assert_eq!(places.len(), 1, "{finding}");
    assert_eq!(places[0]["pod"], "default/web-1");
    assert_eq!(places[0]["container"], "app");
    assert_eq!(places[0]["detail"], format!("process {left} is alive"));
    assert!(
        finding["next"].as_str().is_some_and(|next| !next.is_empty()),
        "{finding}"
    );
}

#[test]
fn doctor_finds_an_exit_that_a_hung_shim_has_missed() {
    let Some(node) = Node::with_processes(2) else { return };
    let exited = pid(&node, 0, "sidecar");
    block_on(node.sim.execute(Command::HangShim(Shim { pod: web(0) }))).unwrap();
    kill(exited);
    let report = doctor(&node, 1);
    let finding = finding(&report, "missed-exit");
    assert_eq!(finding["objects"][0]["container"], "sidecar", "{finding}");
    assert_eq!(finding["objects"][0]["detail"], format!("process {exited} has exited"));
}

/// The daemon announces a death by the kernel, before a poll can, and names what outlives its container.
#[test]
fn the_daemon_follows_processes() {
    let Some(node) = Node::with_processes(3) else { return };
    let daemon = node.daemon(&["--mode", "generic", "--period", "60s"]);
    wait_for("every container is watched", || {
        daemon.json("/api/v1/health")["mode"]["witness"]["complete"] == true
    });
    kill(pid(&node, 0, "app"));
    wait_for("its death, found through the kernel", || {
        let events = events(&daemon);
        let died = events.iter().find(|event| event["type"] == "ContainerDied");
        died.is_some_and(|event| event["pod"]["name"] == "web-0" && event["source"] == "kernel")
    });
}

/// A simulator that is killed cannot clean up: its processes end by themselves.
#[test]
fn no_process_outlives_a_killed_simulator() {
    let Some(node) = Node::with_processes(1) else { return };
    drop(node);
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix://{}/cri.sock", dir.path().display());
    let mut command = bare();
    command.args(["sim", "--processes", "--pods", "2", "--listen", &listen]);
    let mut sim = Running::start(command);
    assert!(sim.stderr_line().contains("2 pods, 4 containers"));
    let parent = sim.child.id().to_string();
    let children = || {
        let processes = Path::new("/proc").read_dir().unwrap().flatten();
        let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let mut groups = stats.filter_map(|stat| {
            let fields: Vec<String> = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect();
            (fields[1] == parent).then(|| fields[2].clone())
        });
        groups.next()
    };
    let group = children().unwrap();
    sim.signal(rustix::process::Signal::KILL);
    sim.end();
    wait_for("the processes have ended", || {
        let processes = Path::new("/proc").read_dir().unwrap().flatten();
        let mut stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        !stats.any(|stat| {
            let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = rest.split(' ').collect();
            fields.first() != Some(&"Z") && fields.get(2) == Some(&group.as_str())
        })
    });
}

/// On a runtime without events a crash is found by the kernel: the restart waits for the runtime alone, and not for a poll.
#[test]
fn a_node_restarts_what_crashed_without_waiting_for_a_poll() {
    let Some(node) = Node::with_processes_like(Flavour::Containerd1_6, 0) else {
        return;
    };
    let (daemon, directory) = manifests::start(&node, &["--cgroups-per-qos", "false"]);
    std::fs::write(directory.join("web.yaml"), manifests::manifest("web", "img:1")).unwrap();
    let mode = || daemon.json("/api/v1/health")["mode"].clone();
    wait_for("full relists are rare", || {
        let mode = mode();
        assert_eq!(mode["mode"], "generic", "{mode}");
        mode["witness"]["complete"] == true && mode["full_look_period_seconds"].as_f64() >= Some(8.0)
    });
    let first = node.sim.truth().containers[0].id.clone();
    let process = node.sim.world().pid(&first).unwrap();
    kill(process);
    wait_for("its restart", || {
        node.sim.world().processes() == 1 && node.sim.truth().containers.len() == 2
    });
    let died = events(&daemon)
        .into_iter()
        .find(|event| event["type"] == "ContainerDied");
    assert_eq!(died.map(|event| event["source"].clone()), Some("kernel".into()));
    let truth = node.sim.truth().containers;
    let (ended, next) = truth.iter().partition::<Vec<_>, _>(|container| container.id == first);
    let gap = Duration::from_nanos(next[0].started_at.abs_diff(ended[0].finished_at));
    let period = mode()["full_look_period_seconds"].as_f64().unwrap();
    assert!(gap < Duration::from_secs_f64(period), "{gap:?}");
}

#[test]
fn a_node_without_a_witness_says_so() {
    let node = Node::with_pods(0);
    let (daemon, _directory) = manifests::start(&node, &["--witness", "off"]);
    wait_for("the reason", || {
        let witness = daemon.json("/api/v1/health")["mode"]["witness"].clone();
        witness["on"] == false && witness["reason"] == "as configured"
    });
}
