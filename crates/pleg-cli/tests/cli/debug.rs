//! What a bug report needs: collected from a daemon, read by somebody else.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::read::GzDecoder;
use pleg_cri::Rpc;
use pleg_sim::SimConfig;
use serde_json::Value;

use crate::node::{Node, pleg, settings, wait_for};

/// The files of a bundle: names without their directory, and texts.
fn unpack(path: &Path) -> Vec<(String, String)> {
    let mut tar = tar::Archive::new(GzDecoder::new(std::fs::File::open(path).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    };
    tar.entries().unwrap().map(read).collect()
}

fn kinds(recorder: &str) -> Vec<String> {
    let kind = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["kind"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    recorder.lines().map(kind).collect()
}

#[test]
fn a_bundle_of_a_lively_node_gives_the_same_events_again() {
    let node = Node::start(SimConfig {
        pods: 20,
        churn: 100.0,
        ..SimConfig::default()
    });
    let daemon = node.daemon(&[]);
    wait_for("some events", || {
        let metrics = daemon.get("/metrics").1;
        let deaths = metrics
            .lines()
            .find_map(|line| line.strip_prefix("pleg_events_total{type=\"ContainerDied\"} "));
        deaths.is_some_and(|deaths| deaths.parse::<u64>().unwrap() >= 30)
    });
    let path = node.dir.path().join("bundle.tar.gz");
    let file = path.to_str().unwrap();
    let bundle = |more: &[&str]| pleg(&[&["debug", "bundle", "--daemon", &daemon.endpoint()], more].concat());
    let output = bundle(&["-o", file]).assert().success().get_output().clone();
    let told = String::from_utf8(output.stdout).unwrap().replace(file, "[file]");
    let mut settings = settings();
    settings.add_filter(r"\d+ kB", "[n] kB");
    settings.add_filter(r"\d+ lines", "[n] lines");
    settings.bind(|| insta::assert_snapshot!("bundle", told));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let parts = unpack(&path);
    let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "about.json",
            "health.json",
            "conditions.json",
            "metrics.txt",
            "recorder.jsonl"
        ]
    );
    let about: Value = serde_json::from_str(&parts[0].1).unwrap();
    assert_eq!(about["runtime"]["name"], "pleg-sim");
    assert_eq!(about["settings"]["period"], "50ms");
    let recorder = kinds(&parts[4].1);
    assert_eq!(recorder[0], "recording");
    for kind in ["pod", "look", "seen", "inspect", "commit", "calls"] {
        assert!(recorder.iter().any(|other| other == kind), "{kind}");
    }
    // Labels and annotations are in every list that was read, and nowhere in here.
    for (name, text) in &parts {
        assert!(!text.contains("io.kubernetes."), "{name}");
    }

    // Nothing is replaced unless told so.
    let there = format!("Error: {file} already exists: choose another name with -o, or add --force\n");
    bundle(&["-o", file]).assert().code(1).stderr(there);
    bundle(&["-o", file, "--force"]).assert().success();
    let piped = bundle(&["-o", "-"]).assert().success().get_output().clone();
    assert!(piped.stdout.starts_with(&[0x1f, 0x8b]) && piped.stderr.is_empty());

    // Somebody else, somewhere else.
    let replay = pleg(&["debug", "replay", file]).assert().success().get_output().clone();
    let text = String::from_utf8(replay.stdout).unwrap();
    assert!(text.starts_with("same "), "{text}");
    let json = pleg(&["debug", "replay", file, "-o", "json"])
        .assert()
        .success()
        .get_output()
        .clone();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["same"], &json["not_compared"]), (&true.into(), &0.into()));
    assert!(json["events"].as_u64().unwrap() > 80, "{json}");
}

#[test]
fn a_replay_shows_the_first_difference() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    wait_for("the first events", || {
        daemon
            .get("/metrics")
            .1
            .contains("pleg_events_total{type=\"ContainerStarted\"} 4")
    });
    let recorder = daemon.get("/api/v1/debug/recorder").1;
    let path = node.dir.path().join("recorder.jsonl");
    let file = path.to_str().unwrap();
    std::fs::write(&path, &recorder).unwrap();
    pleg(&["debug", "replay", file]).assert().success();
    // As if another version had recorded it.
    let other = recorder.replacen(r#""type":"ContainerStarted""#, r#""type":"ContainerCreated""#, 1);
    std::fs::write(&path, other).unwrap();
    let output = pleg(&["debug", "replay", file]).assert().code(1).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("different: event 2 about pod default/web-"), "{text}");
    assert!(text.contains("\n  recorded: ContainerCreated of ") && text.contains("\n  replayed: ContainerStarted of "));

    std::fs::write(&path, "{}\n").unwrap();
    let said = format!("Error: {file} is neither a bundle nor a recording: line 1 cannot be parsed: ");
    let output = pleg(&["debug", "replay", file]).assert().code(1).get_output().clone();
    assert!(String::from_utf8(output.stderr).unwrap().starts_with(&said));
    pleg(&["debug", "replay", "/nonexistent"])
        .assert()
        .code(1)
        .stderr("Error: cannot read /nonexistent: No such file or directory (os error 2)\n");
}

/// A bundle is wanted most of all while something is stuck.
#[test]
fn a_bundle_comes_also_from_a_runtime_that_hangs() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&["--list-timeout", "1s"]);
    node.sim.hang(Rpc::ListContainers, None).unwrap();
    node.sim.hang(Rpc::Version, None).unwrap();
    wait_for("a relist that fails", || {
        daemon.json("/api/v1/health")["level"] == "Degraded"
    });
    let path = node.dir.path().join("bundle.tar.gz");
    pleg(&[
        "debug",
        "bundle",
        "--daemon",
        &daemon.endpoint(),
        "-o",
        path.to_str().unwrap(),
    ])
    .assert()
    .success();
    let parts = unpack(&path);
    let about: Value = serde_json::from_str(&parts[0].1).unwrap();
    assert_eq!(about["runtime_error"], "Version: no answer within 2s");
    let kinds = kinds(&parts[4].1);
    assert!(kinds.iter().any(|kind| kind == "look-failed") && kinds.iter().any(|kind| kind == "transition"));
}

#[test]
fn without_a_daemon_there_is_the_present() {
    let node = Node::with_pods(2);
    let path = node.dir.path().join("bundle.tar.gz");
    let output = node
        .pleg(&["debug", "bundle", "-o", path.to_str().unwrap()])
        .assert()
        .success()
        .get_output()
        .clone();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("No daemon is running")
    );
    assert_eq!(unpack(&path).len(), 5);
    let replay = pleg(&["debug", "replay", path.to_str().unwrap()])
        .assert()
        .success()
        .get_output()
        .clone();
    assert!(String::from_utf8(replay.stdout).unwrap().starts_with("same 6 events"));
}
