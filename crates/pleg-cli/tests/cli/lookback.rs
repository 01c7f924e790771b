//! The commands that look back, on a daemon with a history of its own, also after it was killed.

use std::path::PathBuf;

use pleg_sim::Ending;
use rustix::process::Signal;
use serde_json::Value;

use crate::node::{Daemon, Node, pleg, wait_for};

struct Past {
    node: Node,
    file: PathBuf,
}

impl Past {
    fn start(pods: usize) -> Self {
        let node = Node::with_pods(pods);
        let file = node.dir.path().join("history");
        Self { node, file }
    }

    fn file(&self) -> &str {
        self.file.to_str().unwrap()
    }

    fn daemon(&self) -> Daemon {
        self.node
            .daemon(&["--history-size", "8MiB", "--history-file", self.file()])
    }

    /// Ends a container, and waits until its death is in the history.
    fn exit(&self, daemon: &Daemon, pod: &str, ending: Ending) {
        let name = format!("default/{pod}").parse().unwrap();
        self.node.sim.world().exit(&name, Some("app"), ending).unwrap();
        let code = format!("\"exit_code\":{}", ending.code());
        let path = format!("/api/v1/history?type=ContainerDied&pod={pod}");
        wait_for("the death in the history", || daemon.get(&path).1.contains(&code));
    }
}

fn ask(daemon: &Daemon, args: &[&str]) -> String {
    let mut command = pleg(args);
    let output = command
        .args(["--daemon", &daemon.endpoint(), "--utc"])
        .assert()
        .success();
    String::from_utf8(output.get_output().stdout.clone()).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fails(args: &[&str], code: i32) -> String {
    let output = pleg(args).assert().code(code).stdout("").get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

/// Whoever asks after a kill gets what was before it, and what comes after it.
#[test]
fn history_goes_on_across_a_kill() {
    let past = Past::start(2);
    let mut daemon = past.daemon();
    past.exit(&daemon, "web-0", Ending::Exit(3));
    let before = lines(&ask(&daemon, &["history", "-o", "json"]));
    daemon.running.signal(Signal::KILL);
    daemon.running.end();

    // Without a daemon, from the file, with the same names and flags.
    let args = [
        "history",
        "web-0",
        "--type",
        "ContainerDied",
        "--history-file",
        past.file(),
        "-o",
        "json",
    ];
    let output = pleg(&args).assert().success().get_output().clone();
    let deaths = lines(&String::from_utf8(output.stdout).unwrap());
    assert_eq!((deaths.len(), &deaths[0]["exit_code"]), (1, &Value::from(3)));

    let daemon = past.daemon();
    past.exit(&daemon, "web-1", Ending::Oom);
    let after = lines(&ask(&daemon, &["history", "--since", "1h", "-o", "json"]));
    assert_eq!(after[..before.len()], before[..], "nothing is lost or changed");
    let ids: Vec<u64> = after.iter().map(|entry| entry["id"].as_u64().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let instances: std::collections::BTreeSet<&str> =
        after.iter().filter_map(|entry| entry["instance"].as_str()).collect();
    assert_eq!(instances.len(), 2);
    let starts: Vec<_> = after.iter().filter(|entry| entry["type"] == "DaemonStarted").collect();
    assert_eq!(
        (starts.len(), &starts[1]["previous"]["clean"]),
        (2, &Value::from(false))
    );

    let table = ask(
        &daemon,
        &[
            "history",
            "--type",
            "ContainerDied,DaemonStarted",
            "--reason",
            "OOMKilled",
        ],
    );
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("TIME (UTC)     TYPE"), "{table}");
    assert!(
        rows.len() == 2 && rows[1].contains("default/web-1") && rows[1].ends_with("137  OOMKilled"),
        "{table}"
    );
}

#[test]
fn entries_are_chosen_by_what_is_typed() {
    let past = Past::start(3);
    let daemon = past.daemon();
    past.exit(&daemon, "web-1", Ending::Exit(7));
    let json = |args: &[&str]| lines(&ask(&daemon, &[&["history", "-o", "json"], args].concat()));
    let of_pod = json(&["web-1"]);
    assert!(of_pod.iter().all(|entry| entry["pod"]["name"] == "web-1") && !of_pod.is_empty());
    let uid = of_pod[0]["pod"]["uid"].as_str().unwrap();
    let death = of_pod.iter().find(|entry| entry["type"] == "ContainerDied").unwrap();
    let id = death["subject"]["id"].as_str().unwrap();
    assert_eq!(json(&["default/web-1"]), of_pod);
    assert_eq!(json(&["web-1", "-n", "default"]), of_pod);
    assert_eq!(json(&[uid]), of_pod);
    assert_eq!(json(&[&uid[..13]]), of_pod);
    // One container is less than its pod.
    let of_container = json(&[&id[..16]]);
    assert!(of_container.iter().all(|entry| entry["subject"]["id"] == id) && of_container.len() < of_pod.len());
    assert!(json(&["web-*"]).len() > of_pod.len());
    assert_eq!(json(&["web-1", "--limit", "1"]), of_pod[of_pod.len() - 1..]);
    assert_eq!(json(&["web-1", "--until", "1h"]), Vec::<Value>::new());
    assert_eq!(json(&["web-1", "--since", "1h"]), of_pod);
    assert_eq!(json(&["--type", "containerdied"]).len(), 1);
    assert_eq!(json(&["-n", "nobody"]), Vec::<Value>::new());

    let endpoint = daemon.endpoint();
    let error = |args: &[&str]| fails(&[&["history", "--daemon", &endpoint], args].concat(), 1);
    let text = error(&["wbe-1"]);
    assert!(
        text.starts_with("Error: no pod or container wbe-1 in the history of the daemon at unix:///"),
        "{text}"
    );
    assert!(text.contains("Did you mean default/web-1"), "{text}");
    assert_eq!(
        error(&["web"]),
        "Error: web matches 3 pods: default/web-0, default/web-1, default/web-2. Type more of it\n"
    );
    // Nothing is an answer too.
    let none = pleg(&["history", "--daemon", &endpoint, "-n", "nobody"])
        .assert()
        .success();
    let stderr = String::from_utf8(none.get_output().stderr.clone()).unwrap();
    assert!(
        stderr.starts_with("No such entries; the history of the daemon at"),
        "{stderr}"
    );
}

#[test]
fn why_names_what_killed_a_pod() {
    let past = Past::start(2);
    let daemon = past.daemon();
    past.exit(&daemon, "web-1", Ending::Oom);
    let text = ask(&daemon, &["why", "web-1"]);
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "default/web-1: container app ran out of memory (OOMKilled, exit code 137); 1 death in this window"
    );
    assert!(
        text.contains("\nContainer app: 1 death, 0 restarts; 1× OOMKilled (137)"),
        "{text}"
    );
    assert!(
        text.contains("\nNext: kubectl describe pod -n default web-1\n"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&ask(&daemon, &["why", "web-1", "-o", "json"])).unwrap();
    assert_eq!((&json["verdict"], &json["deaths"]), (&"oom-killed".into(), &1.into()));
    // The evidence can be looked up.
    let event = json["last_death"]["event"].as_str().unwrap().to_owned();
    let (instance, seq) = event.split_once('-').unwrap();
    let seq: u64 = seq.parse().unwrap();
    let history = lines(&ask(&daemon, &["history", "web-1", "-o", "json"]));
    let found = history
        .iter()
        .find(|entry| entry["instance"] == instance && entry["seq"] == seq);
    assert_eq!(found.unwrap()["reason"], "OOMKilled");
    let quiet: Value = serde_json::from_str(&ask(&daemon, &["why", "default/web-0", "-o", "json"])).unwrap();
    assert_eq!((&quiet["verdict"], quiet.get("last_death")), (&"quiet".into(), None));
    let endpoint = daemon.endpoint();
    let text = fails(&["why", "web-*", "--daemon", &endpoint], 2);
    assert_eq!(text, "Error: pleg why explains one pod: omit the *\n");
}

#[test]
fn a_report_is_text_json_and_one_page() {
    let past = Past::start(3);
    let daemon = past.daemon();
    past.exit(&daemon, "web-1", Ending::Exit(3));
    let text = ask(&daemon, &["report", "--node-name", "n1", "--since", "24h"]);
    assert!(text.starts_with("n1: "), "{text}");
    assert!(
        text.contains("Events by hour:") && text.contains("Worst pods:"),
        "{text}"
    );
    assert!(text.contains("Next: pleg why default/web-1\n"), "{text}");
    let short = ask(&daemon, &["report", "--since", "30m"]);
    assert!(short.contains("Events by 1 minute:"), "{short}");
    for since in ["30m", "24h"] {
        let json: Value = serde_json::from_str(&ask(&daemon, &["report", "--since", since, "-o", "json"])).unwrap();
        let totals = &json["totals"];
        assert_eq!(
            (&totals["deaths"], &totals["failures"]),
            (&1.into(), &1.into()),
            "{since}: {totals}"
        );
        assert_eq!(json["worst_pods"][0]["pod"]["name"], "web-1");
        assert_eq!(json["worst_pods"][0]["verdict"], "failed");
        assert_eq!(json["events_by_type"]["ContainerDied"], 1);
    }
    let html = past.node.dir.path().join("day.html");
    let wrote = ask(&daemon, &["report", "--html", html.to_str().unwrap()]);
    assert_eq!(wrote, format!("wrote {}\n", html.display()));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("default/web-1") && page.contains("<svg"));
    assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"));
    assert_eq!(
        ask(&daemon, &["report", "-o", "html"]).lines().next(),
        Some("<!doctype html>")
    );
}

#[test]
fn following_goes_on_with_the_next_daemon() {
    let past = Past::start(2);
    let mut daemon = past.daemon();
    past.exit(&daemon, "web-0", Ending::Exit(3));
    let mut command = crate::node::bare();
    command.args([
        "history",
        "--follow",
        "--type",
        "ContainerDied,DaemonStarted",
        "-o",
        "json",
        "--limit",
        "1",
    ]);
    command.args(["--daemon", &daemon.endpoint()]);
    let mut follow = crate::node::Running::start(command);
    let next = |follow: &mut crate::node::Running| -> Value { serde_json::from_str(&follow.line()).unwrap() };
    assert_eq!(next(&mut follow)["exit_code"], 3);
    past.exit(&daemon, "web-1", Ending::Exit(5));
    assert_eq!(next(&mut follow)["exit_code"], 5);
    daemon.running.signal(Signal::KILL);
    daemon.running.end();
    let daemon = past.daemon();
    assert_eq!(next(&mut follow)["type"], "DaemonStarted");
    drop(daemon);
    follow.signal(Signal::TERM);
    assert_eq!(follow.end().0, Some(0));
}

#[test]
fn what_cannot_be_read_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("none");
    let file = file.to_str().unwrap();
    for command in [&["history"][..], &["why", "web-0"], &["report"]] {
        let text = fails(&[command, &["--history-file", file]].concat(), 1);
        assert!(
            text.contains("cannot read the history") && text.contains(file),
            "{text}"
        );
        let text = fails(&[command, &["-r", "/x.sock"]].concat(), 2);
        assert!(text.contains("a runtime keeps no history"), "{text}");
        let text = fails(&[command, &["--daemon", "/none.sock"]].concat(), 1);
        assert!(text.contains("no daemon at") && text.contains("pleg run"), "{text}");
        let text = fails(
            &[command, &["--since", "1h", "--until", "2h", "--history-file", file]].concat(),
            2,
        );
        assert_eq!(text, "Error: --until is not after --since\n");
    }
    std::fs::write(file, "this is no history, but it is long enough to have been one").unwrap();
    let text = fails(&["report", "--history-file", file], 1);
    assert!(text.contains(file), "{text}");
}

#[test]
fn a_daemon_without_history_says_so() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&["--history-size", "0"]);
    for command in [&["history"][..], &["why", "web-0"], &["report"]] {
        let text = fails(&[command, &["--daemon", &daemon.endpoint()]].concat(), 1);
        assert!(text.contains("--history-size"), "{text}");
    }
}

#[test]
fn a_file_cannot_be_followed() {
    let past = Past::start(1);
    let mut daemon = past.daemon();
    past.exit(&daemon, "web-0", Ending::Exit(3));
    daemon.running.signal(Signal::TERM);
    daemon.running.end();
    let text = fails(&["history", "--follow", "--history-file", past.file()], 2);
    assert!(text.contains("--follow needs a daemon"), "{text}");
    // The rest works from the file, and says when the daemon ran.
    let output = pleg(&["report", "--history-file", past.file(), "-o", "json"])
        .assert()
        .success();
    let report: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(report["runs"][0]["crashed"], Value::Null, "{report}");
    assert!(report["runs"][0]["to"].is_string() && report["health"]["unknown_seconds"].as_f64() > Some(0.0));
}
