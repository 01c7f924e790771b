//! `pleg pods -w`: rows of pods that change and go, also while the daemon is gone.

use pleg_sim::Ending;
use rustix::process::Signal;
use serde_json::Value;

use crate::manifests::{manifest, start};
use crate::node::{Daemon, Node, Running, bare, wait_for};

/// Pods that are inspected and watched, with their first rows read.
fn watched(node: &Node) -> (Daemon, Running) {
    let daemon = node.daemon(&[]);
    let pods = node.sim.truth().sandboxes.len();
    wait_for("every pod to be inspected", || {
        daemon.get("/api/v1/pods").1.matches("\"inspected_at\"").count() == pods
    });
    let mut watch = watch(&daemon, &[]);
    assert!(watch.line().starts_with("NAMESPACE "));
    for n in 0..pods {
        let row = watch.line();
        assert!(row.contains(&format!("web-{n}")), "{row}");
    }
    (daemon, watch)
}

fn watch(daemon: &Daemon, args: &[&str]) -> Running {
    let mut command = bare();
    command.args(["pods", "-w", "--daemon", &daemon.endpoint()]).args(args);
    Running::start(command)
}

fn kill_app(node: &Node, pod: &str) {
    let pod = pod.parse().unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
}

fn remove(node: &Node, pod: &str) {
    node.sim.world().remove(&pod.parse().unwrap(), None).unwrap();
}

/// The columns of a row up to STATE.
fn columns(row: &str) -> Vec<&str> {
    row.split_whitespace().take(4).collect()
}

fn json(watch: &mut Running) -> Value {
    serde_json::from_str(&watch.line()).unwrap()
}

/// The row with this state. Containers may go one by one, with a row each.
fn row_with(watch: &mut Running, state: &str) -> String {
    loop {
        let row = watch.line();
        assert!(!row.is_empty(), "it ended without {state}");
        if row.contains(state) {
            return row;
        }
    }
}

#[test]
fn a_row_for_each_pod_that_changes_or_goes() {
    let node = Node::with_pods(2);
    let (_daemon, mut watch) = watched(&node);
    kill_app(&node, "default/web-1");
    assert_eq!(columns(&watch.line()), ["default", "web-1", "1/2", "Error"]);
    remove(&node, "default/web-1");
    let row = row_with(&mut watch, "Removed");
    assert_eq!(columns(&row)[..2], ["default", "web-1"], "{row}");
    assert!(columns(&row)[2].starts_with("0/"), "{row}");
    // The last row is the last.
    kill_app(&node, "default/web-0");
    assert_eq!(columns(&watch.line()), ["default", "web-0", "1/2", "Error"]);
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn a_runtime_without_a_daemon_is_watched_too() {
    let node = Node::with_pods(2);
    let mut watch = node.spawn(&["pods", "-w", "-o", "json"]);
    assert_eq!(json(&mut watch)["pod"]["name"], "web-0");
    assert_eq!(json(&mut watch)["pod"]["name"], "web-1");
    remove(&node, "default/web-0");
    let pod: Value = serde_json::from_str(&row_with(&mut watch, "\"Removed\"")).unwrap();
    assert_eq!(
        (&pod["pod"]["name"], &pod["state"], &pod["running"]),
        (&"web-0".into(), &"Removed".into(), &0.into())
    );
    // A reader that has read enough ends it, also while there is nothing to print.
    drop(watch.stdout.take());
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn a_restart_of_the_daemon_is_survived() {
    let node = Node::with_pods(3);
    let (mut daemon, mut watch) = watched(&node);
    let endpoint = daemon.endpoint();
    daemon.running.signal(Signal::TERM);
    assert_eq!(daemon.running.end().0, Some(0));
    assert_eq!(
        watch.stderr_line(),
        format!("the daemon at {endpoint} stopped; reconnecting\n")
    );
    kill_app(&node, "default/web-1");
    remove(&node, "default/web-0");
    let _daemon = node.daemon(&[]);
    let back = watch.stderr_line();
    assert!(
        back.starts_with(&format!("connected to the daemon at {endpoint} again, after ")),
        "{back}"
    );
    // What is as it was has no row.
    assert_eq!(columns(&watch.line()), ["default", "web-1", "1/2", "Error"]);
    assert_eq!(columns(&watch.line()), ["default", "web-0", "0/2", "Removed"]);
    kill_app(&node, "default/web-2");
    assert_eq!(columns(&watch.line()), ["default", "web-2", "1/2", "Error"]);
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), (Some(0), String::new()));
}

/// A pod whose manifest is refused has no events at all.
#[test]
fn pods_of_a_node_come_and_go() {
    let node = Node::with_pods(0);
    let (daemon, directory) = start(&node, &[]);
    let mut watch = watch(&daemon, &["-n", "default"]);
    assert!(watch.line().starts_with("NAME "));
    let refused = manifest("bad", "img:1").replace("image", "imag");
    std::fs::write(directory.join("bad.yaml"), refused).unwrap();
    let row = row_with(&mut watch, "ManifestRefused");
    assert!(row.starts_with("bad-n1 "), "{row}");
    std::fs::remove_file(directory.join("bad.yaml")).unwrap();
    let row = row_with(&mut watch, "Removed");
    assert!(row.starts_with("bad-n1 "), "{row}");
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:1")).unwrap();
    let row = row_with(&mut watch, "Running");
    assert!(row.starts_with("web-n1 "), "{row}");
    std::fs::remove_file(directory.join("web.yaml")).unwrap();
    let row = row_with(&mut watch, "Removed");
    assert!(row.starts_with("web-n1 "), "{row}");
}
