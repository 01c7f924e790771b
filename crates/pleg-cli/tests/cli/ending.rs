//! Commands end at once and cleanly, and go on when the runtime was away.

use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use pleg_sim::{Ending, SimConfig};
use rustix::process::Signal;

use crate::node::{Node, block_on, wait_for};

#[test]
fn a_reader_who_leaves_ends_a_quiet_watch() {
    let node = Node::with_pods(1);
    let mut watch = node.spawn(&["watch"]);
    assert!(watch.line().starts_with("TIME"));
    assert!(watch.line().contains("PodSandboxChanged"));
    // Nothing more will happen; still it has to notice.
    drop(watch.stdout.take());
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn a_reader_who_leaves_ends_a_busy_watch() {
    let node = Node::start(SimConfig {
        pods: 50,
        churn: 200.0,
        ..SimConfig::default()
    });
    let mut watch = node.spawn(&["watch", "-o", "json"]);
    assert!(watch.line().starts_with('{'));
    drop(watch.stdout.take());
    assert_eq!(watch.end(), (Some(0), String::new()));
}

#[test]
fn signals_end_what_stays_with_success() {
    let node = Node::with_pods(1);
    for signal in [Signal::INT, Signal::TERM] {
        let mut watch = node.spawn(&["watch"]);
        watch.line();
        watch.signal(signal);
        assert_eq!(watch.end(), (Some(0), String::new()));
    }
}

#[test]
fn a_reader_who_does_not_read_does_not_hold_up_a_signal() {
    let node = Node::with_pods(200);
    // Nobody reads the pipe. It is full somewhere below 64 kB: each write begins a page of its own.
    let mut watch = node.spawn(&["watch", "-o", "json"]);
    let held = || rustix::io::ioctl_fionread(watch.stdout.as_ref().unwrap().get_ref()).unwrap();
    wait_for("a full pipe", || held() >= 40 * 1024);
    watch.signal(Signal::INT);
    assert_eq!(watch.end().0, Some(0));
}

#[test]
fn a_signal_ends_connecting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    for (command, code) in [
        (&["pods"][..], 130),
        (&["watch"], 0),
        (&["run", "--listen", "/tmp/never.sock"], 0),
    ] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_pleg"))
            .args(command)
            .args(["-t", "30s", "-r", path.to_str().unwrap()])
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The first connection only finds out that somebody listens; by the second the handlers are long in place.
        let mut first = [0; 1];
        let _probe = listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut first).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
        let mut status = None;
        wait_for("the end", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(code), "{command:?}");
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(stderr, "", "{command:?}");
    }
}

#[test]
fn a_watch_goes_on_when_the_runtime_was_away() {
    let node = Node::with_pods(1);
    let mut watch = node.spawn(&["watch", "--no-initial", "-o", "json", "--type", "ContainerDied"]);
    wait_for("the first relist", || {
        node.sim.stats().of(pleg_cri::Rpc::ContainerStatus).calls >= 2
    });
    block_on(node.sim.down(Duration::from_millis(1200)));
    let lost = watch.stderr_line();
    assert!(lost.contains("relist failed: "), "{lost}");
    let back = watch.stderr_line();
    assert!(back.contains("the runtime answers again after "), "{back}");
    node.sim
        .world()
        .exit(&"default/web-0".parse().unwrap(), Some("app"), Ending::Exit(3))
        .unwrap();
    let event: serde_json::Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(event["exit_code"], 3);
    watch.signal(Signal::TERM);
    assert_eq!(
        watch.end(),
        (Some(0), String::new()),
        "one line when lost, one when back"
    );
}

#[test]
fn a_closed_stdout_is_no_error() {
    let node = Node::with_pods(1);
    for command in ["pods", "health", "version"] {
        let mut running = node.spawn(&[command]);
        drop(running.stdout.take());
        assert_eq!(running.end(), (Some(0), String::new()), "{command}");
    }
}
