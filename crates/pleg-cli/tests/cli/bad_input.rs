//! What goes wrong is one clear line.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use pleg_cri::discovery::{CRICTL_CONFIG, USUAL_SOCKETS};
use tempfile::tempdir;

use crate::node::{Node, pleg};

/// One line on stderr, nothing on stdout, exit code 1, for every command that needs the runtime.
fn fails(socket: &Path, expected: &str) {
    let endpoint = format!("unix://{}", socket.display());
    for command in [
        &["pods"][..],
        &["watch"],
        &["health"],
        &["inspect", "x"],
        &["bench"],
        &["run", "--listen", "/tmp/never-made.sock"],
    ] {
        let mut pleg = pleg(command);
        pleg.args(["-t", "200ms", "-r", &endpoint]);
        let output = pleg.assert().code(1).stdout("").get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            stderr,
            format!("Error: {}\n", expected.replace("{}", &endpoint)),
            "{command:?}"
        );
    }
    assert!(!Path::new("/tmp/never-made.sock").exists());
}

#[test]
fn no_socket() {
    let dir = tempdir().unwrap();
    fails(
        &dir.path().join("none.sock"),
        "no runtime at {}: the socket does not exist. Is the runtime running? Name another socket with --runtime-endpoint",
    );
}

#[test]
fn a_plain_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "hello").unwrap();
    fails(
        &path,
        "{} is not a socket. Name the runtime's socket with --runtime-endpoint",
    );
}

#[test]
fn a_socket_nobody_listens_on() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("old.sock");
    drop(UnixListener::bind(&path).unwrap());
    fails(
        &path,
        "no process listens on {}: the socket was left behind by a stopped runtime. Start the runtime",
    );
}

#[test]
fn no_permission() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("closed.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let expected = "no access to {}: permission denied. Run as root, or as a member of the group that owns the socket";
    if !rustix::process::geteuid().is_root() {
        return fails(&path, expected);
    }
    // Root may open everything, so it is somebody else who asks: with a copy of the binary, for the way to ours may be closed.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("pleg");
    std::fs::copy(env!("CARGO_BIN_EXE_pleg"), &binary).unwrap();
    let endpoint = format!("unix://{}", path.display());
    let output = std::process::Command::new(&binary)
        .args(["pods", "-t", "200ms", "-r", &endpoint])
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("Error: {}\n", expected.replace("{}", &endpoint)));
}

#[test]
fn a_listener_that_says_nothing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("silent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    fails(
        &path,
        "{} accepted the connection but did not answer Version within 200ms. The runtime may be stuck",
    );
}

#[test]
fn a_web_server() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let endpoint = format!("unix://{}", path.display());
    let output = pleg(&["pods", "-t", "2s", "-r", &endpoint])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with(&format!("Error: {endpoint} does not speak gRPC (")),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn grpc_without_cri() {
    let node = Node::with_pods(0);
    let code = "UNIMPLEMENTED".parse().unwrap();
    node.sim.faults().fail(pleg_cri::Rpc::Version, code, 1.0).unwrap();
    let endpoint = node.sim.endpoint().to_string();
    let output = node.pleg(&["pods"]).assert().code(1).get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with(&format!(
            "Error: {endpoint} speaks gRPC but serves neither CRI v1 nor v1alpha2."
        )),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn no_runtime_anywhere() {
    // On a machine with a runtime this is another story.
    if USUAL_SOCKETS
        .iter()
        .chain([&CRICTL_CONFIG, &"/run/pleg/pleg.sock"])
        .any(|path| Path::new(path).exists())
    {
        return;
    }
    let output = pleg(&["pods"]).assert().code(1).get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("Error: no container runtime found: tried $CONTAINER_RUNTIME_ENDPOINT"),
        "{stderr}"
    );
    assert!(
        stderr.contains("/run/containerd/containerd.sock") && stderr.contains("pleg demo"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn wrong_usage_is_two() {
    for args in [
        &["--nope"][..],
        &["pods", "--nope"],
        &["pods", "-o", "xml"],
        &["watch", "--type", "Nope"],
        &["watch", "--for", "5"],
        &["watch", "--count", "0"],
        &["watch", "-o", "kubelet", "--no-initial"],
        &["watch", "--pod", "a/b/c"],
        &["watch", "--daemon", "/none.sock", "--since", "5f0c2a9be1d34c77"],
        // Not on a terminal.
        &["top"],
        &["top", "--sort-by", "cpu"],
        &["top", "-r", "/a.sock", "--daemon", "/b.sock"],
        &["pods", "-r", "tcp://127.0.0.1:1"],
        &["pods", "-r", "relative.sock"],
        &["pods", "-r", "/a.sock", "--daemon", "/b.sock"],
        &["run", "--feed-capacity", "0"],
        &["run", "--period", "0s"],
        &["run", "--history-size", "1MiB"],
        &["run", "--history-size", "lots"],
        &["run", "--history-age", "-1d"],
        &["run", "-r", "/none.sock", "--listen-tcp", "0.0.0.0:0"],
        &["run", "--insecure-listen-any"],
        &["run", "--kubeconfig", "x"],
        &["run", "--report-pod-condition"],
        &["run", "--report-to-cluster", "--kubeconfig", "x", "--node-name", "a/b"],
        // Not in a pod of a cluster.
        &["run", "--report-to-cluster", "--node-name", "n1"],
        &["cluster"],
        &["cluster", "forget", "--node", "n1"],
        &["cluster", "forget", "--node", "n1", "--all"],
        &["cluster", "forget", "--kubeconfig", "x", "-r", "/a.sock"],
        &["demo", "--pods", "0"],
        &["inspect"],
        &["node", "--manifests", "x", "--allowed-unsafe-sysctls", "vm.swappiness"],
        &["node", "--manifests", "x", "--runtime-class", "kata"],
        &["node", "--manifests", "x", "--cluster-dns", "dns.example.com"],
        &[
            "node",
            "--kubeconfig",
            "x",
            "--node-labels",
            "node-role.kubernetes.io/worker=",
        ],
        &["node", "--kubeconfig", "x", "--register-with-taints", "dedicated=gpu"],
        &["node", "--kubeconfig", "x", "--reserved", "pods=3"],
        &["node", "--manifests", "x", "--node-labels", "a=b"],
        &[
            "node",
            "--manifests",
            "x",
            "--shutdown-grace-period-critical-pods",
            "1s",
        ],
        &[
            "node",
            "--manifests",
            "x",
            "--shutdown-grace-period-by-priority",
            "high=10s",
        ],
        &[
            "node",
            "--manifests",
            "x",
            "--shutdown-grace-period-by-priority",
            "1000",
        ],
        &[],
    ] {
        let output = pleg(args).assert().code(2).stdout("").get_output().clone();
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    let types = pleg(&["watch", "--type", "Nope"]).assert().get_output().clone();
    assert!(String::from_utf8_lossy(&types.stderr).contains("ContainerDied"));
}

/// Settings that contradict each other would flap for ever; both are named, before anything is asked of the runtime.
#[test]
fn settings_that_contradict_each_other() {
    for (args, says) in [
        (
            &["--period", "8s", "--threshold", "5s"][..],
            "--period 8s must be at most half of --threshold 5s: one late relist would make the node NotReady",
        ),
        (
            &["--threshold", "1s"],
            "--period 1s must be at most half of --threshold 1s: one late relist would make the node NotReady",
        ),
        (
            &["--threshold", "4s"],
            "--list-patience 5s must be shorter than --threshold 4s: \
             the node would be NotReady before the container that blocks a list is looked for",
        ),
        (
            &["--period", "5s", "--max-period", "2s"],
            "--max-period 2s must be at least --period 5s: \
             the longest pause between relists cannot be shorter than the shortest",
        ),
        (
            &["--probe-round", "100ms"],
            "the least pause between probes 250ms must be at most --probe-round 100ms: \
             not even one pod would be probed in a round",
        ),
    ] {
        let mut command = pleg(&["run", "-r", "/none.sock", "--listen", "/tmp/never-made.sock"]);
        let output = command.args(args).assert().code(2).stdout("").get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, format!("Error: {says}\n"), "{args:?}");
    }
}

#[test]
fn thresholds_of_a_node_are_checked() {
    for (args, says) in [
        (
            &["--image-gc-high-threshold", "50"][..],
            "--image-gc-low-threshold 80 must be less than --image-gc-high-threshold 50",
        ),
        (
            &["--eviction-hard", "memory.available<0"],
            "--eviction-hard: memory.available<0: expected more than 0, and at most 100%",
        ),
        (
            &["--eviction-hard", "disk<1Gi"],
            "--eviction-hard: \"disk\" is not a signal; expected memory.available, nodefs.available, nodefs.inodesFree, \
             imagefs.available, imagefs.inodesFree or pid.available",
        ),
        (
            &[
                "--shutdown-grace-period",
                "5s",
                "--shutdown-grace-period-critical-pods",
                "6s",
            ],
            "--shutdown-grace-period-critical-pods must not be more than --shutdown-grace-period, of which it is a part",
        ),
        (
            &["--eviction-soft", "memory.available<1Gi"],
            "--eviction-soft: the soft threshold of memory.available has no grace period; set one with \
             --eviction-soft-grace-period memory.available=DURATION",
        ),
    ] {
        let mut command = pleg(&[
            "node",
            "-r",
            "/none.sock",
            "--manifests",
            "/tmp",
            "--listen",
            "/tmp/never-made.sock",
        ]);
        let output = command.args(args).assert().code(2).stdout("").get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, format!("Error: {says}\n"), "{args:?}");
    }
}

#[test]
fn the_server_of_a_node_needs_a_cluster() {
    for (args, missing) in [
        (&["--port", "10250"][..], "--kubeconfig <FILE>"),
        (&["--client-ca-file", "ca.crt"], "--kubeconfig <FILE>"),
        (
            &["--kubeconfig", "k", "--tls-cert-file", "a.crt"],
            "--tls-private-key-file <FILE>",
        ),
        (
            &["--kubeconfig", "k", "--tls-private-key-file", "a.key"],
            "--tls-cert-file <FILE>",
        ),
    ] {
        let mut command = pleg(&["node", "-r", "/none.sock", "--manifests", "/tmp"]);
        let output = command.args(args).assert().code(2).stdout("").get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(missing), "{args:?}: {stderr}");
    }
}

#[test]
fn a_bad_variable_is_named() {
    let mut command = pleg(&["version", "-o", "json"]);
    command.env("CONTAINER_RUNTIME_ENDPOINT", "tcp://1");
    let output = command.assert().success().get_output().clone();
    assert!(String::from_utf8_lossy(&output.stdout).contains("$CONTAINER_RUNTIME_ENDPOINT"));
    let mut command = pleg(&["bench"]);
    command.env("CONTAINER_RUNTIME_ENDPOINT", "tcp://1");
    let output = command.assert().code(2).get_output().clone();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("$CONTAINER_RUNTIME_ENDPOINT: \"tcp://1\": only unix sockets"),
        "{stderr}"
    );
}

#[test]
fn no_daemon() {
    let dir = tempdir().unwrap();
    let endpoint = format!("unix://{}", dir.path().join("none.sock").display());
    pleg(&["pods", "--daemon", &endpoint]).assert().code(1).stderr(format!(
        "Error: no daemon at {endpoint}: the socket does not exist. Start one with: pleg run\n"
    ));
    let node = Node::with_pods(0);
    let endpoint = node.sim.endpoint().to_string();
    let output = pleg(&["pods", "--daemon", &endpoint])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.starts_with(&format!("Error: {endpoint} does not answer as a pleg daemon does")),
        "{stderr}"
    );
}
