//! `pleg node`: manifests in, pods out.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::node::{Daemon, Node, pleg, wait_for};

pub(crate) fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: app\n    image: {image}\n"
    )
}

/// A node with an empty directory of manifests.
pub(crate) fn start(node: &Node, more: &[&str]) -> (Daemon, PathBuf) {
    let directory = node.dir.path().join("manifests");
    std::fs::create_dir_all(&directory).unwrap();
    let socket = node.dir.path().join("node.sock");
    let path = |name: &str| node.dir.path().join(name).display().to_string();
    let args = [
        "node",
        "--manifests",
        &path("manifests"),
        "--node-name",
        "n1",
        "--log-dir",
        &path("logs"),
        "--log-link-dir",
        &path("containers"),
        "--pod-dir",
        &path("pods"),
        "--state-file",
        &path("node.redb"),
        "--listen",
        &format!("unix://{}", socket.display()),
        // How full this machine is must not decide about pods.
        "--eviction-hard",
        "",
        "--image-gc-high-threshold",
        "100",
    ];
    let mut running = node.spawn(&[&args[..], more].concat());
    let line = running.stderr_line();
    assert!(line.contains("running the pods of "), "{line}");
    (Daemon { running, socket }, directory)
}

fn get(daemon: &Daemon, path: &str) -> Value {
    let (code, body) = daemon.get(path);
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The pods, as Kubernetes writes them.
fn items(daemon: &Daemon) -> Vec<Value> {
    let list = get(daemon, "/api/v1/pods");
    assert_eq!((&list["apiVersion"], &list["kind"]), (&"v1".into(), &"PodList".into()));
    list["items"].as_array().unwrap().clone()
}

/// Names and phases of the pods.
fn pods(daemon: &Daemon) -> Vec<String> {
    let pods = items(daemon);
    let word = |pod: &Value| format!("{} {}", pod["metadata"]["name"], pod["status"]["phase"]).replace('"', "");
    pods.iter().map(word).collect()
}

#[test]
fn manifests_become_pods() {
    let node = Node::with_pods(0);
    let (mut daemon, directory) = start(&node, &[]);
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:1")).unwrap();
    std::fs::write(
        directory.join("bad.yaml"),
        manifest("bad", "img:1").replace("image", "imag"),
    )
    .unwrap();
    wait_for("the pod, and one that is refused", || {
        pods(&daemon) == ["bad-n1 Failed", "web-n1 Running"]
    });
    let bad = get(&daemon, "/api/v1/namespaces/default/pods/bad-n1")["status"].clone();
    assert_eq!(bad["reason"], "ManifestRefused");
    let message = bad["message"].as_str().unwrap();
    assert!(
        message.contains("/bad.yaml: document 1 (pod default/bad): spec.containers[0].imag: unknown field")
            && message.ends_with("spec.containers[0].image: required field is missing"),
        "{message}"
    );
    wait_for("the complaint", || {
        let complaints = get(&daemon, "/api/v1/node/complaints").to_string();
        complaints.contains("bad.yaml")
            && complaints.contains("spec.containers[0].imag: unknown field; did you mean image?")
    });
    let pod = &items(&daemon)[1];
    assert_eq!(
        (&pod["kind"], &pod["spec"]["containers"][0]["image"]),
        (&"Pod".into(), &"img:1".into())
    );
    assert_eq!(node.sim.truth().sandboxes.len(), 1);

    // Edited: another pod of the same name.
    let uid = pod["metadata"]["uid"].clone();
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:2")).unwrap();
    wait_for("the new pod", || {
        let pods = items(&daemon);
        pods.last()
            .is_some_and(|pod| pod["metadata"]["uid"] != uid && pod["status"]["phase"] == "Running")
    });

    // Another one of us takes over what runs, and removes what went meanwhile.
    let before = node.sim.truth();
    daemon.running.signal(Signal::KILL);
    daemon.running.end();
    let (mut daemon, directory) = start(&node, &[]);
    wait_for("adoption", || pods(&daemon) == ["bad-n1 Failed", "web-n1 Running"]);
    assert_eq!(node.sim.truth(), before);
    // Nobody takes the place of one that runs because its manifest is broken.
    std::fs::write(
        directory.join("web.yaml"),
        manifest("web", "img:2").replace("image", "imag"),
    )
    .unwrap();
    wait_for("the second complaint", || {
        get(&daemon, "/api/v1/node/complaints").as_array().unwrap().len() == 2
    });
    assert_eq!(pods(&daemon), ["bad-n1 Failed", "web-n1 Running"]);
    std::fs::remove_file(directory.join("bad.yaml")).unwrap();
    std::fs::remove_file(directory.join("web.yaml")).unwrap();
    wait_for("the end", || {
        pods(&daemon).is_empty() && node.sim.truth().sandboxes.is_empty()
    });
    daemon.running.signal(Signal::TERM);
    let (code, rest) = daemon.running.end();
    assert_eq!(code, Some(0));
    assert!(rest.ends_with("stopped; pods keep running\n"), "{rest}");
}

fn stdout(daemon: &Daemon, args: &[&str]) -> String {
    let output = pleg(&[args, &["--daemon", &daemon.endpoint()]].concat())
        .assert()
        .success()
        .get_output()
        .clone();
    String::from_utf8(output.stdout).unwrap()
}

/// What kubectl shows of a pod, `pleg pods` and `pleg inspect` show of a node's.
#[test]
fn pods_are_shown_as_kubectl_does() {
    let node = Node::with_pods(0);
    let (daemon, directory) = start(&node, &[]);
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:1")).unwrap();
    let crash = manifest("crash", "img:1")
        .replace("metadata:\n", "metadata:\n  namespace: jobs\n  labels: {tier: back}\n")
        + "    command: [sleep-exit, 1ms, '3']\n";
    std::fs::write(directory.join("crash.yaml"), crash).unwrap();
    wait_for("the crash loop", || {
        pods(&daemon) == ["web-n1 Running", "crash-n1 Running"]
            && stdout(&daemon, &["pods"]).contains("CrashLoopBackOff")
    });
    node_settings().bind(|| {
        insta::assert_snapshot!("node_pods", stdout(&daemon, &["pods"]));
        insta::assert_snapshot!(
            "node_pods_wide",
            stdout(&daemon, &["pods", "-n", "default", "-o", "wide"])
        );
        // How many events there are by now differs from run to run.
        let text = stdout(&daemon, &["inspect", "crash-n1"]);
        let (pod, events) = text.split_once("Events (the last ").unwrap();
        assert!(events.contains("ContainerDied"), "{events}");
        insta::assert_snapshot!("node_inspect", pod);
        insta::assert_snapshot!(
            "node_inspect_yaml",
            stdout(&daemon, &["inspect", "default/web-n1", "-o", "yaml"])
        );
    });
    let json: Value = serde_json::from_str(&stdout(&daemon, &["pods", "-n", "jobs", "-o", "json"])).unwrap();
    assert_eq!(
        (&json["kind"], json["items"].as_array().unwrap().len()),
        (&"PodList".into(), 1)
    );
    let web = get(&daemon, "/api/v1/namespaces/default/pods/web-n1");
    assert_eq!(web, get(&daemon, "/api/v1/pods/default/web-n1"));
    assert_eq!(web["spec"]["containers"][0]["image"], "img:1");
    assert_eq!(
        get(&daemon, "/api/v1/namespaces/jobs/pods")["items"][0]["metadata"]["labels"]["tier"],
        "back"
    );
    assert_eq!(
        get(&daemon, "/api/v1/pods?pod=web-n1")["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(daemon.get("/api/v1/namespaces/default/pods/none").0, 404);
    // What the runtime has is there too, for `pleg doctor`.
    assert_eq!(get(&daemon, "/api/v1/runtime/pods")[0]["pod"]["name"], "web-n1");
    pleg(&["inspect", "web", "--daemon", &daemon.endpoint()])
        .assert()
        .code(1)
        .stderr("Error: no pod, container or sandbox web. Did you mean default/web-n1?\n");

    // A runtime that is frozen: what is shown is old, and says so.
    node.sim
        .faults()
        .set_latency(None, std::time::Duration::from_hours(1), std::time::Duration::ZERO);
    wait_for("the word that it is old", || {
        stdout(&daemon, &["pods"]).contains("StatusStale")
    });
    let shown = stdout(&daemon, &["pods", "-n", "default"]);
    let (row, note) = (shown.lines().nth(1).unwrap(), shown.lines().nth(2).unwrap());
    assert!(row.starts_with("web-n1   1/1     StatusStale   0"), "{shown}");
    assert!(
        note.starts_with("default/web-n1 has not been seen for ") && note.contains("Last observed at "),
        "{shown}"
    );
    // An age in a sentence that is written once would be wrong a second later.
    let (_, why) = note.split_once("since then: ").unwrap();
    assert!(!why.contains("attempt") && !why.contains(" for "), "{why}");
    assert!(
        stdout(&daemon, &["inspect", "web-n1"]).contains("Ready=Unknown"),
        "{shown}"
    );
    let (code, health) = daemon.get("/api/v1/health");
    assert!(code == 200 && health.contains("Degraded"), "{health}");
}

/// Snapshots of pods from manifests: their UIDs are hashes, and the same everywhere.
fn node_settings() -> insta::Settings {
    let mut settings = crate::node::settings();
    for (pattern, to) in [
        (r"sim://[0-9a-f]+", "sim://[id]"),
        (r"pleg-sim://[0-9a-f]+", "pleg-sim://[id]"),
        (r"\(\d+m?s ago\)", "([age] ago)"),
        (r"for \d+s", "for [age]"),
        (r"RESTARTS +", "RESTARTS "),
        (r"AGE +IP +UID", "AGE IP UID"),
        (r"Running +0 +", "Running 0 "),
        (r" +\d+s +", " [age] "),
        (r"\d+ \(\[age\] ago\) +", "[n] ([age] ago) "),
        (r"Restart Count: +\d+", "Restart Count: [n]"),
        (r"restartCount: \d+", "restartCount: [n]"),
        (r"back-off \d+s", "back-off [time]"),
        (r"(?m)(hostIP|Node IP|- ip|podIP): .*$", "$1: [ip]"),
        (r"(?m)^( *)(ip): .*$", "$1$2: [ip]"),
    ] {
        settings.add_filter(pattern, to);
    }
    settings
}

/// A file that breaks unnoticed: its pod keeps running and is still managed.
#[test]
fn a_manifest_broken_meanwhile_costs_no_pod() {
    let node = Node::with_pods(0);
    let (mut daemon, directory) = start(&node, &[]);
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:1")).unwrap();
    wait_for("the pod", || pods(&daemon) == ["web-n1 Running"]);
    let before = node.sim.truth();
    daemon.running.signal(Signal::KILL);
    daemon.running.end();
    std::fs::write(directory.join("web.yaml"), "apiVersion: [").unwrap();
    let (daemon, directory) = start(&node, &[]);
    wait_for("the pod and the complaint", || {
        let complaints = get(&daemon, "/api/v1/node/complaints").to_string();
        pods(&daemon) == ["web-n1 Running"] && complaints.contains("Pod default/web-n1 is kept as it was")
    });
    assert_eq!(node.sim.truth(), before, "nothing was touched");
    let id = before.containers[0].id.to_string();
    node.sim.world().kill_container(&id);
    wait_for("a restart", || {
        let pods = items(&daemon);
        pods[0]["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    std::fs::write(directory.join("web.yaml"), manifest("web", "img:2")).unwrap();
    wait_for("the mended one", || {
        let pods = items(&daemon);
        pods.first()
            .is_some_and(|pod| pod["spec"]["containers"][0]["image"] == "img:2" && pod["status"]["phase"] == "Running")
    });
}

/// Every bad manifest is told once in the log, by the API and by a metric; the good one runs.
#[test]
fn bad_manifests_are_told_and_stop_nobody() {
    let node = Node::with_pods(0);
    let (mut daemon, directory) = start(&node, &[]);
    let good = manifest("good", "img");
    std::fs::write(directory.join("a-good.yaml"), &good).unwrap();
    wait_for("the good one", || pods(&daemon) == ["good-n1 Running"]);
    let bad = |name: &str| manifest(name, "img");
    let volume = "  volumes:\n  - name: v\n    hostPath: {path: /srv/../etc}\n";
    let giant = format!("# {}\n{}", "x".repeat(10 << 20), bad("giant"));
    for (file, text) in [
        ("syntax.yaml", "apiVersion: [".to_owned()),
        ("type.yaml", bad("type").replace("image: img", "image: [img]")),
        ("kind.yaml", "apiVersion: apps/v1\nkind: Deployment\n".to_owned()),
        ("field.yaml", bad("field").replace("image:", "imag:")),
        ("twice.yaml", good.replace("img", "other")),
        ("giant.yaml", giant),
        ("up.yaml", bad("../../up")),
        ("volume.yaml", bad("volume") + volume),
        ("container.yaml", bad("container").replace("name: app", "name: ../app")),
    ] {
        std::fs::write(directory.join(file), text).unwrap();
    }
    let elsewhere = node.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("x.yaml"), bad("elsewhere")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, directory.join("linked")).unwrap();
    let wanted = [
        ("syntax.yaml", "is neither YAML nor JSON"),
        ("type.yaml", "spec.containers[0].image: expected a string, found a list"),
        ("kind.yaml", "expected Pod (apiVersion v1)"),
        ("field.yaml", "did you mean image?"),
        ("twice.yaml", "a-good.yaml already defines a pod of this name"),
        ("giant.yaml", "is larger than 4 MiB"),
        ("up.yaml", "metadata.name: \\\"../../up"),
        ("volume.yaml", "must not contain .."),
        ("container.yaml", "spec.containers[0].name: \\\"../app"),
        ("linked", "is a directory"),
    ];
    let complaints = || get(&daemon, "/api/v1/node/complaints");
    wait_for("all complaints", || {
        complaints().as_array().unwrap().len() == wanted.len()
    });
    for (file, words) in wanted {
        let all = complaints();
        let about = all
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["origin"].as_str().unwrap().ends_with(file));
        let text = about.unwrap_or_else(|| panic!("nothing about {file}")).to_string();
        assert!(text.contains(words), "{file}: {text}");
    }
    let metrics = daemon.get("/metrics").1;
    for metric in ["pleg_node_manifests_refused", "pleg_node_manifest_refusals_total"] {
        assert!(
            metrics.contains(&format!("\n{metric} {}\n", wanted.len())),
            "{metric}: {metrics}"
        );
    }
    let (code, ready) = daemon.get("/readyz?verbose");
    assert!(
        code == 200 && ready.contains("[-]manifests failed: ") && ready.contains("kind.yaml"),
        "{ready}"
    );

    // One that is being written is nobody's business until its writer is done: half of it would be another pod.
    let refused = [
        "container-n1 Failed",
        "field-n1 Failed",
        "type-n1 Failed",
        "volume-n1 Failed",
    ];
    let running = || {
        let (bad, good): (Vec<String>, Vec<String>) = pods(&daemon)
            .into_iter()
            .partition(|pod| refused.contains(&pod.as_str()));
        assert_eq!(bad, refused);
        good
    };
    let whole = bad("slow") + "    command: [serve]\n";
    let mut file = std::fs::File::create(directory.join("slow.yaml")).unwrap();
    for part in whole.as_bytes().chunks(40) {
        std::io::Write::write_all(&mut file, part).unwrap();
        assert_eq!(running(), ["good-n1 Running"]);
    }
    drop(file);
    wait_for("the slow one", || running() == ["good-n1 Running", "slow-n1 Running"]);
    assert_eq!(complaints().as_array().unwrap().len(), wanted.len());
    daemon.running.signal(Signal::TERM);
    let (code, log) = daemon.running.end();
    assert_eq!(code, Some(0));
    for (file, _) in wanted {
        let times = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(&format!("/{file}")))
            .count();
        assert_eq!(times, 1, "{file}: {log}");
    }
}

/// A runtime with a kubelet's pods is a kubelet's.
#[test]
fn a_runtime_of_somebody_else_is_refused() {
    let node = Node::with_pods(5);
    let output = node
        .pleg(&["node", "--manifests", "/nowhere"])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("5 pods of another owner (default/web-"), "{stderr}");
    assert!(stderr.contains("--share-runtime"), "{stderr}");
    let before = node.sim.truth();
    let (daemon, directory) = start(&node, &["--share-runtime"]);
    std::fs::write(directory.join("own.yaml"), manifest("own", "img")).unwrap();
    wait_for("the pod", || pods(&daemon) == ["own-n1 Running"]);
    std::fs::remove_file(directory.join("own.yaml")).unwrap();
    wait_for("the end", || pods(&daemon).is_empty() && node.sim.truth() == before);
}

#[test]
fn what_makes_no_node_is_said() {
    for (args, words) in [
        (&["node"][..], "required"),
        (
            &["node", "--manifests", "x", "--node-name", "a/b"],
            "Set one with --node-name",
        ),
        (&["node", "--manifest-url", "ftp://x/"], "has an unsupported scheme"),
        (&["node", "--manifest-url", "/x"], "is not a URL"),
    ] {
        let output = pleg(args).assert().code(2).get_output().clone();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

/// In small: every figure is there, and nothing is left. What the figures are is a matter of a quiet machine and a real runtime.
#[test]
fn a_bench_measures_every_promise_and_leaves_nothing() {
    let node = Node::start(pleg_sim::SimConfig {
        pods: 0,
        latency: std::time::Duration::from_millis(2),
        ..pleg_sim::SimConfig::default()
    });
    let args = [
        "bench", "node", "--pods", "4", "--rounds", "2", "--idle", "300ms", "-o", "json",
    ];
    let output = node.pleg(&args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["pods"], &report["rounds"]), (&4.into(), &2.into()), "{report}");
    let figures = report["figures"].as_array().unwrap();
    let names: Vec<&str> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    insta::assert_snapshot!(names.join("\n"), @r"
    4 manifests at once: all running
      the median pod
    crash, from the runtime's report to a new container
    manifest edited: running again
    manifest removed: from its end to no sandbox
    2 running pods adopted after kill -9
    idle at 4 pods
      resident memory
    ");
    for figure in figures {
        assert!(
            figure["node"].as_f64().unwrap() >= 0.0 && figure["ok"].is_boolean(),
            "{figure}"
        );
        let limits = ["ratio", "above", "value"].map(|kind| figure["limit"][kind].is_number());
        assert_eq!(limits.iter().filter(|is| **is).count(), 1, "{figure}");
    }
    assert!(node.sim.truth().sandboxes.is_empty() && node.sim.truth().containers.is_empty());
    // Others are not to be disturbed.
    let busy = Node::with_pods(3);
    let before = busy.sim.truth();
    let output = busy.pleg(&["bench", "node"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("has 3 pods (default/"), "{said}");
    assert_eq!(busy.sim.truth(), before);
}
