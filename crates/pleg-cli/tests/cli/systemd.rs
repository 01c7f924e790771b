//! What systemd is told by a unit of `Type=notify` with a watchdog, on sockets like its own.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use pleg_cri::Rpc;
use rustix::process::Signal;

use crate::node::{LONG, Node, Running, bare, pleg};

/// systemd's patience, in microseconds.
const PATIENCE: &str = "300000";

/// The socket on which systemd would listen.
struct Listener {
    socket: UnixDatagram,
    name: String,
}

impl Listener {
    fn at_path(node: &Node) -> Self {
        let path = node.dir.path().join("notify");
        Self {
            socket: timed(UnixDatagram::bind(&path).unwrap()),
            name: path.display().to_string(),
        }
    }

    fn abstract_name(node: &Node) -> Self {
        let name = node.dir.path().join("notify").display().to_string();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self {
            socket: timed(UnixDatagram::bind_addr(&address).unwrap()),
            name: format!("@{name}"),
        }
    }

    /// Runs a daemon as a unit.
    fn unit(&self, node: &Node, args: &[&str]) -> Running {
        let mut command = bare();
        command.args(args).arg("-r").arg(node.sim.endpoint().to_string());
        let socket = node.dir.path().join("pleg.sock");
        command.arg("--listen").arg(socket);
        command
            .env("NOTIFY_SOCKET", &self.name)
            .env("WATCHDOG_USEC", PATIENCE)
            .env_remove("WATCHDOG_PID");
        Running::start(command)
    }

    /// Reads until a line begins like this; returns all lines up to it.
    fn until(&self, start: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let mut buffer = [0; 4096];
        // A sign of life comes ten times a second, for as long as it takes.
        for _ in 0..600 {
            let n = match self.socket.recv(&mut buffer) {
                Ok(n) => n,
                // A socket with a timeout is interrupted by signals, as when a process of another test ends.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("no {start} after {lines:?}: {error}"),
            };
            let message = std::str::from_utf8(&buffer[..n]).unwrap();
            assert!(message.ends_with('\n'), "{message:?}");
            lines.extend(message.lines().map(str::to_owned));
            if lines.iter().any(|line| line.starts_with(start)) {
                return lines;
            }
        }
        panic!("no {start} within a minute");
    }
}

fn timed(socket: UnixDatagram) -> UnixDatagram {
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

#[test]
fn systemd_is_told_of_a_whole_life() {
    let node = Node::with_pods(2);
    for systemd in [Listener::at_path(&node), Listener::abstract_name(&node)] {
        let mut daemon = systemd.unit(
            &node,
            &["run", "--period", "50ms", "--mode", "generic", "--witness", "off"],
        );
        let said = systemd.until("READY=1");
        assert!(said.contains(&"STATUS=Healthy: PLEG is healthy".to_owned()), "{said:?}");
        for _ in 0..3 {
            systemd.until("WATCHDOG=1");
        }

        // The runtime hangs: it is named, and the watchdog has no reason to restart the daemon.
        node.sim.hang(Rpc::ListContainers, None).unwrap();
        let said = systemd.until("STATUS=Degraded: ListContainers");
        assert!(!said.contains(&"READY=1".to_owned()), "ready is said once: {said:?}");
        for _ in 0..3 {
            systemd.until("WATCHDOG=1");
        }
        node.sim.faults().unhang(None, None);

        daemon.signal(Signal::TERM);
        systemd.until("STOPPING=1");
        assert_eq!(daemon.end().0, Some(0));
    }
}

#[test]
fn a_runtime_that_hangs_does_not_keep_the_unit_from_starting() {
    let node = Node::with_pods(1);
    node.sim.hang(Rpc::ListContainers, None).unwrap();
    let systemd = Listener::at_path(&node);
    let _daemon = systemd.unit(&node, &["run"]);
    let said = systemd.until("READY=1").join("\n");
    assert!(said.contains("STATUS=Waiting for the first relist"), "{said}");
    assert!(said.contains("STATUS=Unhealthy: ListContainers"), "{said}");
}

#[test]
fn a_node_tells_systemd_too() {
    let node = Node::with_pods(0);
    let path = |name: &str| node.dir.path().join(name).display().to_string();
    std::fs::create_dir(path("manifests")).unwrap();
    let systemd = Listener::at_path(&node);
    let flags = ["manifests", "log-dir", "log-link-dir", "pod-dir", "state-file"];
    let flags = flags.map(|flag| format!("--{flag}={}", path(flag)));
    let mut args = vec![
        "node",
        "--node-name=n1",
        "--eviction-hard=",
        "--image-gc-high-threshold=100",
    ];
    args.extend(flags.iter().map(String::as_str));
    let mut daemon = systemd.unit(&node, &args);
    systemd.until("READY=1");
    systemd.until("WATCHDOG=1");
    daemon.signal(Signal::TERM);
    systemd.until("STOPPING=1");
    assert_eq!(daemon.end().0, Some(0));
}

#[test]
fn a_socket_that_cannot_be_used_is_no_reason_to_stop() {
    let node = Node::with_pods(1);
    let mut command = bare();
    let socket = node.dir.path().join("pleg.sock");
    command.args(["run", "-r", &node.sim.endpoint().to_string()]);
    command.arg("--listen").arg(&socket).env("NOTIFY_SOCKET", "vsock:2:1");
    let mut daemon = Running::start(command);
    assert!(daemon.stderr_line().contains("watching unix://"));
    let warned = daemon.stderr_line();
    assert!(
        warned.contains(
            "systemd is not told anything: $NOTIFY_SOCKET is \"vsock:2:1\": neither a path nor an abstract name"
        ),
        "{warned}"
    );
    pleg(&["health", "--daemon", socket.to_str().unwrap()])
        .assert()
        .success();
}

/// One page for each command; packages install them.
#[test]
fn manual_pages_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("man");
    pleg(&["man", dir.to_str().unwrap()]).assert().success();
    for (page, words) in [
        ("pleg.1", "Shows every lifecycle event"),
        ("pleg-run.1", "listen\\-tcp"),
        ("pleg-node.1", "manifests"),
        ("pleg-node-check.1", "Check manifests"),
    ] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(words), "{page}: {text}");
    }
    assert!(!dir.join("pleg-man.1").exists(), "it is for packages, not for people");
}
