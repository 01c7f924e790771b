//! `pleg top` on a real terminal.

use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector, SimConfig};
use rustix::process::{Pid, Signal, kill_process};

use crate::node::{Node, pleg, wait_for};
use crate::tmux::Terminal;

fn pid(file: &std::path::Path) -> Pid {
    let mut pid = None;
    wait_for("a process id", || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        pid = text.trim().parse().ok().and_then(Pid::from_raw);
        pid.is_some()
    });
    pid.unwrap()
}

fn kill_app(node: &Node, pod: &str) {
    node.sim
        .world()
        .exit(&pod.parse().unwrap(), Some("app"), Ending::Exit(3))
        .unwrap();
}

#[test]
fn pods_are_filtered_opened_and_resized() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let node = Node::with_pods(12);
    let daemon = node.daemon(&[]);
    terminal.pleg(&format!("top --daemon {} --sort-by name", daemon.endpoint()));
    terminal.wait_for("Pods 12");
    terminal.wait_for("Healthy: ");
    terminal.wait_for("default/web-0 ");
    // A death is an event, and another state.
    kill_app(&node, "default/web-3");
    terminal.wait_until("an event of web-3", |screen| {
        let event = screen
            .lines()
            .any(|line| line.contains("ContainerDied") && line.contains("web-3"));
        let row = screen
            .lines()
            .any(|line| line.starts_with("default/web-3 ") && !line.contains("Running"));
        event && row
    });
    terminal.type_text("/web-3");
    terminal.wait_until("only web-3", |screen| {
        screen.contains("/web-3: 1") && !screen.contains("default/web-0 ")
    });
    terminal.press(&["Enter", "Enter"]);
    terminal.wait_until("its page", |screen| {
        screen.contains("Timeline") && screen.contains("CONTAINER") && screen.contains("app")
    });
    terminal.press(&["q", "Escape"]);
    terminal.wait_for("default/web-0 ");
    terminal.resize(120, 40);
    terminal.wait_until("the column of a wide screen", |screen| screen.contains(" IP "));
    terminal.resize(38, 6);
    terminal.wait_for("38x6 is too small");
    terminal.resize(80, 24);
    terminal.wait_until("the screen again", |screen| {
        screen.contains("READY") && !screen.contains(" IP ")
    });
    terminal.press(&["?"]);
    terminal.wait_for("any key closes this help");
    terminal.press(&["x", "q"]);
    terminal.is_clean();
}

#[test]
fn the_terminal_is_clean_however_it_ends() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let node = Node::with_pods(3);
    for end in ["C-c", "q", "TERM", "HUP", "INT"] {
        let file = terminal.pleg(&format!("top -r {}", node.sim.endpoint()));
        terminal.wait_for("Pods 3");
        match end {
            "TERM" => kill_process(pid(&file), Signal::TERM).unwrap(),
            "HUP" => kill_process(pid(&file), Signal::HUP).unwrap(),
            "INT" => kill_process(pid(&file), Signal::INT).unwrap(),
            key => terminal.press(&[key]),
        }
        terminal.is_clean();
    }
}

#[test]
fn it_can_be_suspended() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let node = Node::with_pods(3);
    terminal.run(&format!(
        "{} top -r {}",
        env!("CARGO_BIN_EXE_pleg"),
        node.sim.endpoint()
    ));
    terminal.wait_for("Pods 3");
    terminal.press(&["C-z"]);
    terminal.wait_until("the shell", |screen| {
        !screen.contains("READY") && screen.contains("ready$")
    });
    terminal.run("fg; echo ended with $?");
    terminal.wait_for("Pods 3");
    terminal.press(&["q"]);
    terminal.is_clean();
}

#[test]
fn a_trouble_stands_at_the_top_with_what_to_type_next() {
    let Some(terminal) = Terminal::open(100, 30) else {
        return;
    };
    let node = Node::with_pods(3);
    let selector = Selector {
        pod: "default/web-1".parse().unwrap(),
        container: Some("app".to_owned()),
    };
    node.sim.hang(Rpc::ContainerStatus, Some(selector)).unwrap();
    terminal.pleg(&format!("top -r {} -t 300ms", node.sim.endpoint()));
    terminal.wait_until("the trouble", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        let above = lines
            .iter()
            .position(|line| line.contains("Pods 3"))
            .unwrap_or_default();
        let troubles = lines.get(1..above.max(1)).unwrap_or_default();
        screen.starts_with("Degraded")
            && troubles.iter().any(|line| line.contains("default/web-1"))
            && troubles.iter().any(|line| line.starts_with("  Next: "))
    });
    terminal.wait_for("Quarantined");
    terminal.press(&["t"]);
    terminal.wait_for("Usually: ");
    terminal.press(&["q", "q"]);
    terminal.is_clean();
}

#[test]
fn a_daemon_that_stops_is_waited_for() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let node = Node::with_pods(3);
    let daemon = node.daemon(&[]);
    terminal.pleg(&format!("top --daemon {}", daemon.endpoint()));
    terminal.wait_for("Pods 3");
    drop(daemon);
    terminal.wait_for("Disconnected for ");
    terminal.wait_for(", reconnecting");
    terminal.wait_for("default/web-2 ");
    let _daemon = node.daemon(&[]);
    terminal.wait_for("Healthy: ");
    kill_app(&node, "default/web-2");
    terminal.wait_until("news", |screen| screen.contains("ContainerDied"));
    terminal.press(&["q"]);
    terminal.is_clean();
}

#[test]
fn five_thousand_pods_are_shown_and_filtered() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let node = Node::start(SimConfig {
        pods: 5000,
        ..SimConfig::default()
    });
    terminal.pleg(&format!("top -r {}", node.sim.endpoint()));
    terminal.wait_for("Pods 5000");
    terminal.press(&["G"]);
    // The last one by name.
    terminal.wait_for("default/web-999 ");
    terminal.type_text("/web-1234");
    terminal.wait_for("/web-1234: 1");
    terminal.press(&["Enter", "Enter"]);
    terminal.wait_for("Timeline");
    terminal.press(&["C-c"]);
    terminal.is_clean();
}

#[test]
fn without_a_terminal_it_names_what_to_use() {
    let output = pleg(&["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("pleg pods -w") && stderr.contains("pleg watch"),
        "{stderr}"
    );
    assert!(output.stdout.is_empty());
}
