//! What `pleg pods`, `inspect` and `containers` show, also of a node that is not well.

use pleg_cri::Rpc;
use pleg_sim::control::Shim;
use pleg_sim::{Command, Ending, Selector, SimConfig};
use serde_json::Value;

use crate::node::{Daemon, Node, block_on, pleg, settings, wait_for};

fn selector(pod: &str, container: &str) -> Selector {
    Selector {
        pod: pod.parse().unwrap(),
        container: Some(container.to_owned()),
    }
}

fn stdout(mut command: assert_cmd::Command) -> String {
    let output = command.assert().success().get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing on stderr");
    String::from_utf8(output.stdout).unwrap()
}

/// What a command prints that asks the daemon.
fn ask(daemon: &Daemon, args: &[&str]) -> String {
    stdout(pleg(&[args, &["--daemon", &daemon.endpoint()]].concat()))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn inspected(daemon: &Daemon, pods: usize) {
    wait_for("every pod to be inspected", || {
        daemon.get("/api/v1/pods").1.matches("\"inspected_at\"").count() == pods
    });
}

/// A runtime that is gone leaves nothing that looks fine behind.
#[test]
fn a_runtime_that_is_gone_makes_every_pod_stale() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    inspected(&daemon, 2);
    assert_eq!(daemon.json("/api/v1/pods")[0].get("status_stale"), None);
    let Node { dir: _dir, sim } = node;
    block_on(sim.shutdown());
    wait_for("the failed list", || {
        daemon.json("/api/v1/pods")[0].get("status_stale").is_some()
    });
    // Which of the two lists fails, and how, differs from run to run.
    let without_why = |text: String| -> String {
        let line = |line: &str| match line.split_once(": Stream").or(line.split_once(": List")) {
            Some((seen, _)) => format!("{seen}: [why]\n"),
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    };
    settings().bind(|| {
        insta::assert_snapshot!("pods_stale", without_why(ask(&daemon, &["pods"])));
        let text = ask(&daemon, &["inspect", "web-0"]);
        let top: Vec<_> = text.lines().take(2).collect();
        insta::assert_snapshot!("inspect_stale", without_why(top.join("\n")));
    });
    let pods = json(&ask(&daemon, &["pods", "-o", "json"]));
    let stale = &pods[0]["status_stale"];
    assert!(
        stale["as_of"].is_string() && stale["why"].as_str().unwrap().contains("unreachable"),
        "{stale}"
    );
    assert_eq!(pods[0]["state"], "Running", "what it was: {pods}");
    assert!(ask(&daemon, &["ps"]).contains("StatusStale"));
}

/// A trouble that is known of a pod stands in its row and before everything else about it.
#[test]
fn a_hung_shim_stands_in_the_row_of_its_pod() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&["--probe-round", "1s"]);
    inspected(&daemon, 3);
    let shim = Shim {
        pod: "default/web-1".parse().unwrap(),
    };
    block_on(node.sim.execute(Command::HangShim(shim))).unwrap();
    wait_for("the hung shim", || {
        let report = daemon.json("/api/v1/health");
        report["causes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|cause| cause["trouble"] == "hung-shim")
    });
    let table = ask(&daemon, &["pods"]);
    let row = |pod: &str| table.lines().find(|line| line.contains(pod)).unwrap().to_owned();
    assert!(
        row("web-1").contains("HungShim") && row("web-0").contains("Running"),
        "{table}"
    );
    assert!(
        table.contains("\ndefault/web-1: the shim of pod default/web-1 hangs"),
        "{table}"
    );
    let text = ask(&daemon, &["inspect", "web-1"]);
    assert!(
        text.starts_with("Trouble: the shim of pod default/web-1 hangs"),
        "{text}"
    );
    let pods = json(&ask(&daemon, &["pods", "web-1", "-o", "json"]));
    assert_eq!(pods[0]["causes"][0]["trouble"], "hung-shim");
    let not_ready = ask(&daemon, &["pods", "--not-ready", "-o", "name"]);
    assert_eq!(not_ready, "default/web-1\n");
}

#[test]
fn the_state_is_what_the_containers_do() {
    let node = Node::with_pods(4);
    let exit = |pod: &str, container: Option<&str>, ending: Ending| {
        let pod = pod.parse().unwrap();
        node.sim.world().exit(&pod, container, ending).unwrap();
    };
    exit("default/web-1", None, Ending::Exit(0));
    exit("default/web-2", Some("app"), Ending::Oom);
    exit("default/web-3", None, Ending::Exit(3));
    let pods = json(&stdout(node.pleg(&["pods", "-o", "json"])));
    let states: Vec<_> = pods
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["Running", "Completed", "OOMKilled", "Error"]);
    assert_eq!((&pods[2]["running"], &pods[2]["total"]), (&1.into(), &2.into()));
    let names = |args: &[&str]| stdout(node.pleg(&[&["pods", "-o", "name"], args].concat()));
    assert_eq!(names(&["--not-ready"]), "default/web-2\ndefault/web-3\n");
    assert_eq!(
        names(&["--sort-by", "state"]),
        "default/web-1\ndefault/web-3\ndefault/web-2\ndefault/web-0\n"
    );
}

/// A node on which nothing runs is not well, however well the runtime answers.
#[test]
fn doctor_sees_that_nothing_runs() {
    let node = Node::with_pods(1);
    node.sim
        .world()
        .exit(&"default/web-0".parse().unwrap(), None, Ending::Exit(1))
        .unwrap();
    let text = stdout(node.pleg(&["doctor"]));
    let head = text.lines().next().unwrap();
    assert!(
        head.contains(": the runtime answers, but none of 2 containers runs"),
        "{head}"
    );
}

#[test]
fn pods_are_chosen_as_kubectl_does() {
    let node = Node::with_pods(12);
    let names = |args: &[&str]| stdout(node.pleg(&[&["pods", "-o", "name"], args].concat()));
    let pods = json(&stdout(node.pleg(&["pods", "web-3", "-o", "json"])));
    let labels = pods[0]["sandboxes"][0]["labels"].as_object().unwrap();
    assert_eq!(labels["io.kubernetes.pod.name"], "web-3", "{labels:?}");
    assert!(pods[0]["sandboxes"][0]["annotations"].is_object(), "{pods}");
    assert_eq!(
        names(&["-A", "web-3", "default/web-11"]),
        "default/web-11\ndefault/web-3\n"
    );
    assert_eq!(
        names(&["-l", "io.kubernetes.pod.name in (web-1, web-2),!nobody"]),
        "default/web-1\ndefault/web-2\n"
    );
    assert_eq!(names(&["-l", "io.kubernetes.pod.name==web-1"]), "default/web-1\n");
    assert_eq!(names(&["-l", "nobody"]), "");
    let table = stdout(node.pleg(&["pods", "web-3", "--no-headers"]));
    assert!(table.starts_with("default   web-3   2/2   Running   0 "), "{table}");
    node.pleg(&["pods", "web-3", "nobody", "-o", "name"])
        .assert()
        .code(1)
        .stdout("default/web-3\n")
        .stderr("Error: no pod nobody\n");
    node.pleg(&["pods", "-l", "a in b"]).assert().code(2).stdout("");
    node.pleg(&["pods", "-A", "-n", "default"]).assert().code(2).stdout("");
}

/// Both containers are in the lists, so both are in the table, whatever hangs.
#[test]
fn a_container_that_hangs_is_counted() {
    let node = Node::with_pods(2);
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-1", "app")))
        .unwrap();
    let pods = json(&stdout(node.pleg(&["pods", "-t", "1s", "-o", "json"])));
    assert_eq!(pods[1]["total"], 2, "{pods}");
    assert_eq!(pods[1]["containers"].as_array().unwrap().len(), 2);
    let table = stdout(node.pleg(&["pods", "-t", "1s"]));
    let row = table.lines().find(|line| line.contains("web-1")).unwrap();
    assert!(row.contains("2/2") && row.contains("Quarantined"), "{table}");
    let pod = json(&stdout(node.pleg(&["inspect", "web-1", "-t", "1s", "-o", "json"])));
    assert_eq!(pod["containers"].as_array().unwrap().len(), 2, "{pod}");
    assert_eq!(pod["stale"][0]["name"], "app");
}

#[test]
fn a_pod_is_found_by_an_id() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&[]);
    inspected(&daemon, 3);
    let pods = daemon.json("/api/v1/pods");
    let id = |path: &str| pods.pointer(path).unwrap().as_str().unwrap().to_owned();
    for id in [
        id("/1/containers/0/id"),
        id("/1/containers/1/id")[..20].to_owned(),
        id("/1/sandboxes/0/id")[..20].to_owned(),
        id("/1/pod/uid"),
        id("/1/pod/uid")[..18].to_owned(),
    ] {
        let asked = ask(&daemon, &["inspect", &id]);
        assert!(asked.contains("Name:            web-1\n"), "{id}: {asked}");
        assert!(asked.contains("\nEvents (the last 3 of 3 held):\n  TIME "), "{asked}");
        let direct = stdout(node.pleg(&["inspect", &id]));
        assert!(
            direct.contains("Name:            web-1\n") && !direct.contains("Events"),
            "{id}: {direct}"
        );
    }
}

#[test]
fn containers_as_crictl_lists_them() {
    let node = Node::with_pods(2);
    node.sim
        .world()
        .exit(&"default/web-1".parse().unwrap(), Some("app"), Ending::Oom)
        .unwrap();
    settings().bind(|| {
        insta::assert_snapshot!("containers", stdout(node.pleg(&["containers", "-a"])));
    });
    assert_eq!(stdout(node.pleg(&["ps", "--no-headers"])).lines().count(), 3);
    assert_eq!(
        stdout(node.pleg(&["ps", "-a", "web-1", "-o", "name"])).lines().count(),
        2
    );
    let all = json(&stdout(node.pleg(&["ps", "-a", "-o", "json"])));
    let dead = all
        .as_array()
        .unwrap()
        .iter()
        .find(|container| container["state"] == "Exited")
        .unwrap();
    assert_eq!(
        (&dead["exit_code"], &dead["pod"]["name"]),
        (&137.into(), &"web-1".into())
    );
    node.pleg(&["ps", "-n", "nobody"])
        .assert()
        .success()
        .stdout("")
        .stderr("No running containers found; -a shows all.\n");
}

/// The daemon chooses by the time of the event.
#[test]
fn events_from_a_time_on() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    inspected(&daemon, 1);
    let count = |since: &str| daemon.get(&format!("/api/v1/events?since={since}")).1.lines().count();
    assert_eq!(
        (
            count("10m"),
            count("2000-01-01T00:00:00Z"),
            count("2100-01-01T00:00:00Z")
        ),
        (3, 3, 0)
    );
    let events = ask(&daemon, &["watch", "--since", "10m", "--count", "3", "-o", "json"]);
    assert_eq!(events.lines().count(), 3);
    let clock = |args: &[&str]| {
        let text = ask(&daemon, &[&["watch", "--since", "0", "--count", "1"], args].concat());
        text.lines().nth(1).unwrap().split(' ').next().unwrap().len()
    };
    // The local zone is UTC here, so that there is nothing to add.
    assert_eq!((clock(&[]), clock(&["--utc"])), (8, 8));
    pleg(&["watch", "--since", "soon"]).assert().code(2);
}

/// What is printed under "Next" can be pasted: our own commands run as they are, and crictl's name the runtime.
#[test]
fn printed_commands_work_as_they_are() {
    let node = Node::start(SimConfig {
        pods: 3,
        ..SimConfig::default()
    });
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-1", "app")))
        .unwrap();
    let health = json(&stdout(node.pleg(&["health", "-t", "1s", "-o", "json"])));
    let doctor = node
        .pleg(&["doctor", "-t", "1s", "-o", "json"])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let steps = |of: &Value, list: &str| -> Vec<String> {
        let list = of[list].as_array().unwrap().iter();
        list.map(|one| one["next"].as_str().unwrap().to_owned()).collect()
    };
    let mut ran = 0;
    for step in [steps(&health, "causes"), steps(&doctor, "findings")].concat() {
        for command in step.split('`').skip(1).step_by(2) {
            let words: Vec<&str> = command.split(' ').collect();
            match words[0] {
                "pleg" => {
                    stdout(pleg(&[&words[1..], &["-t", "1s"]].concat()));
                    ran += 1;
                }
                "crictl" => assert_eq!(words[1..3].join(" "), format!("-r {}", node.sim.endpoint())),
                _ => {}
            }
        }
    }
    assert!(ran >= 2, "{health}\n{doctor}");
}
