//! How the daemons are started, ended and reached: signals, sockets, addresses, the environment.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;

use pleg_sim::Ending;
use rustix::process::Signal;

use crate::node::{Daemon, Node, Running, bare, pleg, wait_for};

/// `nohup` and `systemd-run` start a program with SIGHUP ignored: it has to stay ignored.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let node = Node::with_pods(1);
    let mut command = std::process::Command::new("sh");
    command
        .arg("-c")
        .arg("trap '' HUP; exec \"$0\" watch --no-initial -o json -r \"$1\"")
        .arg(env!("CARGO_BIN_EXE_pleg"))
        .arg(node.sim.endpoint().to_string());
    let mut watch = Running::start(command);
    wait_for("the first relist", || {
        node.sim.stats().of(pleg_cri::Rpc::ContainerStatus).calls >= 2
    });
    watch.signal(Signal::HUP);
    let pod = "default/web-0".parse().unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
    assert!(watch.line().contains("ContainerDied"), "it goes on");
    watch.signal(Signal::TERM);
    assert_eq!(watch.end().0, Some(0));

    // A hang-up that is not ignored still ends it. Whoever runs this test may ignore it, so it is reset first.
    let mut command = std::process::Command::new("env");
    command
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_pleg"), "watch", "-r"])
        .arg(node.sim.endpoint().to_string());
    let mut watch = Running::start(command);
    watch.line();
    watch.signal(Signal::HUP);
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn a_typed_runtime_wins_over_the_environment() {
    let node = Node::with_pods(2);
    node.pleg(&["pods", "-v"])
        .env("PLEG_DAEMON", "unix:///nowhere/pleg.sock")
        .assert()
        .success()
        .stderr(format!(
            "asking the runtime at {} (--runtime-endpoint)\n",
            node.sim.endpoint()
        ));
    let bad = pleg(&["pods"])
        .env("PLEG_DAEMON", "ftp://x")
        .assert()
        .code(2)
        .get_output()
        .clone();
    let stderr = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(stderr.starts_with("Error: $PLEG_DAEMON: "), "{stderr}");
}

/// A process that was killed may hold its socket for a moment.
#[test]
fn a_socket_that_is_about_to_be_free_is_waited_for() {
    let node = Node::with_pods(1);
    let path = node.dir.path().join("busy.sock");
    let old = UnixListener::bind(&path).unwrap();
    let mut running = node.spawn(&["run", "--listen", path.to_str().unwrap()]);
    // It has found out that somebody listens.
    let probe = old.accept().unwrap();
    drop((probe, old));
    let ready = running.stderr_line();
    assert!(ready.contains("watching unix://"), "{ready}");
}

#[test]
fn the_socket_has_the_group_and_mode_that_are_asked_for() {
    let node = Node::with_pods(1);
    let own = rustix::process::getegid().as_raw();
    let group = if rustix::process::geteuid().is_root() {
        65534
    } else {
        own
    };
    for (args, mode, gid) in [
        (&[][..], 0o600, own),
        (&["--listen-mode", "0640"], 0o640, own),
        (&["--listen-group", &group.to_string()], 0o660, group),
        (
            &["--listen-group", &group.to_string(), "--listen-mode", "666"],
            0o666,
            group,
        ),
    ] {
        let daemon = node.daemon(args);
        let meta = std::fs::metadata(&daemon.socket).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), (mode, gid), "{args:?}");
    }
    for args in [
        ["--listen-mode", "999"],
        ["--listen-mode", "07777"],
        ["--listen-group", "no-such-group-here"],
    ] {
        node.pleg(&["run", "--listen", "/tmp/never-made.sock"])
            .args(args)
            .assert()
            .code(2);
    }
}

fn tcp_daemon(node: &Node, address: &str) -> (Running, String) {
    let socket = node.dir.path().join("t.sock");
    let mut running = node.spawn(&["run", "--listen", socket.to_str().unwrap(), "--listen-tcp", address]);
    let ready = running.stderr_line();
    let at = ready.trim().rsplit("http://").next().unwrap().to_owned();
    assert!(at.contains(':'), "{ready}");
    (running, at)
}

#[test]
fn a_daemon_is_asked_over_tcp_too() {
    let node = Node::with_pods(1);
    let (_running, at) = tcp_daemon(&node, "localhost:0");
    let url = format!("http://{at}");
    wait_for("the pod", || {
        let output = pleg(&["pods", "--daemon", &url]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("web-0")
    });
    let by_name = format!("http://localhost:{}/", at.rsplit(':').next().unwrap());
    pleg(&["pods", "-v"])
        .env("PLEG_DAEMON", &by_name)
        .assert()
        .success()
        .stderr(format!("asking the daemon at {}\n", by_name.trim_end_matches('/')));
    pleg(&["pods", "--daemon", "http://127.0.0.1:1"])
        .assert()
        .code(1)
        .stderr("Error: no daemon at http://127.0.0.1:1: nothing listens on the socket. Start one with: pleg run\n");
    for bad in [
        "https://127.0.0.1:1",
        "http://127.0.0.1",
        "http://127.0.0.1:1/path",
        "127.0.0.1:1",
    ] {
        pleg(&["pods", "--daemon", bad]).assert().code(2);
    }
    for bad in ["localhost", "example.org:1", "127.0.0.1", "localhost:99999"] {
        pleg(&["run", "--listen-tcp", bad]).assert().code(2);
    }
}

/// A page of another site must not read the API through a name that it points to this machine.
#[test]
fn tcp_answers_to_its_own_names_only() {
    let node = Node::with_pods(1);
    let (_running, at) = tcp_daemon(&node, "127.0.0.1:0");
    let port = at.rsplit(':').next().unwrap().to_owned();
    let ask = |host: &str| {
        let mut stream = std::net::TcpStream::connect(&at).unwrap();
        write!(
            stream,
            "GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for host in [
        "localhost",
        "LOCALHOST",
        &format!("localhost:{port}"),
        &at,
        "127.0.0.1",
        "127.9.9.9",
        "[::1]:80",
    ] {
        let answer = ask(host);
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    for host in [
        "evil.example",
        "evil.example:10255",
        "localhost.evil.example",
        "10.0.0.1",
        "a b",
    ] {
        let answer = ask(host);
        assert!(
            answer.starts_with("HTTP/1.1 421") || answer.starts_with("HTTP/1.1 400"),
            "{host}: {answer}"
        );
        assert!(answer.contains("{\"error\":"), "{host}: {answer}");
    }
}

/// A copy of the binary that another user can run, and a command that runs it as that user: root finds its daemon in /run.
fn as_somebody(node: &Node, args: &[&str]) -> std::process::Command {
    let dir = node.dir.path();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = node.sim.endpoint().path().to_owned();
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut command = bare();
    if rustix::process::geteuid().is_root() {
        let binary = dir.join("pleg");
        std::fs::copy(env!("CARGO_BIN_EXE_pleg"), &binary).unwrap();
        let mut other = std::process::Command::new(binary);
        other.uid(65534).gid(65534).current_dir("/");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => other.env(name, value),
                None => other.env_remove(name),
            };
        }
        command = other;
    }
    command
        .args(args)
        .env("XDG_RUNTIME_DIR", dir)
        .env("CONTAINER_RUNTIME_ENDPOINT", node.sim.endpoint().to_string());
    command
}

#[test]
fn a_default_daemon_that_does_not_answer_is_told() {
    let node = Node::with_pods(1);
    let path = node.dir.path().join("pleg.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let output = as_somebody(&node, &["pods"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("web-0"));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!(
            "no answer from the daemon at unix://{} within 1s; asking the runtime instead\n",
            path.display()
        )
    );
}

#[test]
fn a_stopped_daemon_is_not_a_quiet_one() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    daemon.running.signal(Signal::STOP);
    pleg(&["watch", "--for", "300ms", "--daemon", &daemon.endpoint()])
        .assert()
        .code(1)
        .stdout("")
        .stderr(format!(
            "Error: no answer from the daemon at {} within 300ms\n",
            daemon.endpoint()
        ));
    daemon.running.signal(Signal::CONT);
    pleg(&["watch", "--for", "300ms", "-o", "json", "--daemon", &daemon.endpoint()])
        .assert()
        .success()
        .stderr("");
}

/// Events are not the answer if not even the first relist is.
#[test]
fn a_runtime_that_hangs_is_not_a_quiet_one() {
    let node = Node::with_pods(1);
    node.sim.hang(pleg_cri::Rpc::ListContainers, None).unwrap();
    let output = node
        .pleg(&["watch", "--for", "500ms", "-o", "json"])
        .assert()
        .code(1)
        .stdout("")
        .get_output()
        .clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("Error: the runtime has not answered ListContainers within 500ms"),
        "{stderr}"
    );
}

#[test]
fn a_version_says_what_it_could_not_reach() {
    let dir = tempfile::tempdir().unwrap();
    let none = format!("unix://{}", dir.path().join("none.sock").display());
    let mut command = pleg(&["version"]);
    command.env("CONTAINER_RUNTIME_ENDPOINT", &none);
    let output = command.assert().success().get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!(
            "The runtime's version is unknown: no runtime at {none}: the socket does not exist. Is the runtime running? \
             Name another socket with --runtime-endpoint\n"
        )
    );
}

fn node_args(node: &Node, n: usize) -> Vec<String> {
    let path = |name: &str| node.dir.path().join(name).display().to_string();
    std::fs::create_dir_all(path("manifests")).unwrap();
    let flags = [
        ("--manifests", path("manifests")),
        ("--log-dir", path("logs")),
        ("--log-link-dir", path("containers")),
        ("--pod-dir", path("pods")),
        // Nothing of what a node keeps is shared, only its name and its runtime.
        ("--state-file", path(&format!("node-{n}.redb"))),
        ("--listen", format!("unix://{}", path(&format!("node-{n}.sock")))),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    ["node".to_owned()].into_iter().chain(flags).collect()
}

/// Two nodes of one name would each remove the other's pods.
#[test]
fn one_node_of_a_name_on_a_runtime() {
    let node = Node::with_pods(0);
    let spawn = |n: usize, name: &str| {
        let args = node_args(&node, n);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(["--node-name", name]);
        node.spawn(&args)
    };
    let mut first = spawn(1, "n1");
    assert!(first.stderr_line().contains("running the pods of "));
    let mut second = spawn(2, "n1");
    let (code, stderr) = second.end();
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(
        stderr,
        format!(
            "Error: another pleg node (pid {}) already runs node n1 on {}; two would remove each other's pods. \
             Stop it, or choose another --node-name\n",
            first.child.id(),
            node.sim.endpoint()
        )
    );
    // Another name is another node, and one that was killed is no obstacle.
    let mut other = spawn(3, "n2");
    assert!(other.stderr_line().contains("running the pods of "));
    first.signal(Signal::KILL);
    let mut next = spawn(1, "n1");
    let line = next.stderr_line();
    assert!(line.contains("running the pods of "), "{line}");
    drop(Daemon {
        running: next,
        socket: node.dir.path().join("node-1.sock"),
    });
}
