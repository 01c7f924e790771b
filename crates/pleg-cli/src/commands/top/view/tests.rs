//! Screens, as snapshots.

use jiff::SignedDuration;
use ratatui_core::backend::TestBackend;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;

use super::super::input::{Input, Key, Link, Update};
use super::super::state::{Detail, State};
use super::super::testing::{died, event, now, pod, pods_at, report, second, state, trouble, wire_pod};
use super::*;
use crate::wire::Line;

fn draw(state: &State) -> Terminal<TestBackend> {
    let (columns, lines) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| super::draw(state, frame.buffer_mut())).unwrap();
    terminal
}

fn screen(state: &State) -> String {
    draw(state).backend().to_string()
}

fn press(state: &mut State, keys: &[Key]) {
    for key in keys {
        state.apply(Input::Key(*key));
    }
}

fn typed(state: &mut State, text: &str) {
    for c in text.chars() {
        state.apply(Input::Key(Key::Char(c)));
    }
}

fn tell(state: &mut State, update: Update) {
    state.apply(Input::Update(update));
}

/// A node with pods, events and health.
fn node(size: (u16, u16)) -> State {
    let mut state = pods_at(size);
    tell(&mut state, Update::Health(Box::new(report("Healthy"))));
    let yesterday = now() - SignedDuration::from_hours(24);
    let lines = [
        Line::Event(Box::new(event("ContainerStarted", "crash", 1, 16, yesterday))),
        Line::Event(Box::new(event("ContainerCreated", "crash", 2, 17, second(1)))),
        Line::Event(Box::new(event("ContainerStarted", "crash", 3, 17, second(2)))),
        died("crash", 4, 17, second(30)),
    ];
    tell(&mut state, Update::Events(lines.to_vec()));
    state
}

/// With a container that does not answer.
fn troubled(size: (u16, u16)) -> State {
    let mut state = node(size);
    tell(&mut state, Update::Health(Box::new(trouble())));
    state
}

fn container(name: &str, attempt: u32, state: &str, times: [Option<i64>; 3]) -> serde_json::Value {
    let [created, started, finished] = times.map(|at| at.map(second));
    let ended = state == "Exited";
    serde_json::json!({
        "id": format!("{name}-{attempt}"), "name": name, "attempt": attempt, "state": state, "image": "busybox",
        "created_at": created, "started_at": started, "finished_at": finished,
        "exit_code": ended.then_some(if name == "init" { 0 } else { 137 }),
        "reason": if ended { if name == "init" { "Completed" } else { "OOMKilled" } } else { "" },
    })
}

/// The page of a pod that restarted a few times.
fn pod_page(size: (u16, u16)) -> State {
    let mut state = node(size);
    typed(&mut state, "/crash");
    press(&mut state, &[Key::Enter, Key::Enter]);
    let mut pod = wire_pod("default", "crash", "CrashLoopBackOff", 17, 150);
    pod.containers = serde_json::from_value(serde_json::json!([
        container("init", 0, "Exited", [Some(-600), Some(-599), Some(-540)]),
        container("app", 14, "Exited", [Some(-530), Some(-529), Some(-380)]),
        container("app", 15, "Exited", [Some(-300), Some(-298), Some(-150)]),
        container("app", 16, "Running", [Some(-100), Some(-99), None]),
        container("sidecar", 0, "Created", [Some(-30), None, None]),
    ]))
    .unwrap();
    let detail = Detail {
        uid: "uid-crash".to_owned(),
        pod: Some(pod),
        events: Some(vec![event("ContainerStarted", "crash", 1, 3, second(-450))]),
    };
    tell(&mut state, Update::Detail(Box::new(detail)));
    tell(&mut state, Update::Events(vec![died("crash", 9, 3, second(-420))]));
    state
}

#[test]
fn a_healthy_node_at_80x24() {
    insta::assert_snapshot!(screen(&node((80, 24))));
}

#[test]
fn a_healthy_node_at_120x40() {
    insta::assert_snapshot!(screen(&node((120, 40))));
}

#[test]
fn the_smallest_terminal() {
    insta::assert_snapshot!(screen(&troubled(SMALLEST)));
}

#[test]
fn a_terminal_that_is_too_small() {
    insta::assert_snapshot!(screen(&node((39, 7))));
}

#[test]
fn troubles_stand_at_the_top() {
    let screen = screen(&troubled((80, 24)));
    let lines = screen.lines().map(|line| line.trim_matches('"').trim_end());
    let shown = format!("```text\n{}\n```", lines.collect::<Vec<_>>().join("\n"));
    assert!(
        include_str!("../../../../../../docs/top.md").contains(&shown),
        "docs/top.md shows this screen, but not as it is:\n{shown}"
    );
    insta::assert_snapshot!(screen);
}

#[test]
fn troubles_in_full() {
    let mut state = troubled((80, 24));
    typed(&mut state, "t");
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn a_filter_while_it_is_typed() {
    let mut state = node((80, 24));
    typed(&mut state, "/web");
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn the_page_of_a_pod() {
    insta::assert_snapshot!(screen(&pod_page((80, 30))));
}

#[test]
fn the_page_of_a_pod_zoomed() {
    let mut state = pod_page((80, 14));
    typed(&mut state, "++++");
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn help() {
    let mut state = node((80, 24));
    typed(&mut state, "?");
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn a_daemon_that_is_gone() {
    let mut state = node((80, 24));
    let lost = Link::Lost {
        since: second(48),
        why: "the daemon at unix:///run/pleg/pleg.sock stopped".to_owned(),
    };
    tell(&mut state, Update::Link(lost));
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn before_the_first_answer() {
    insta::assert_snapshot!(screen(&state((80, 10))));
}

#[test]
fn hostile_and_wide_names_keep_their_columns() {
    let mut state = state((80, 12));
    let rows = [
        "web",
        "\u{1b}[31mred\u{1b}[0m\u{7}",
        "日本語の名前はとても長いので短くなるかもしれないし",
        "cafe\u{301}",
        "\u{202e}gnp.exe",
        "a-very-long-name-of-a-pod-that-does-not-fit-into-its-column-7d4b9c6f5-abcde",
    ];
    let rows = rows.iter().map(|name| pod("default", name, "Running", 1, 5));
    tell(&mut state, Update::Pods(rows.collect()));
    insta::assert_snapshot!(screen(&state));
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let mut state = pod_page((80, 30));
    state.theme.unicode = false;
    tell(&mut state, Update::Pods(vec![pod("default", "日本", "Running", 1, 5)]));
    let page = screen(&state);
    // The quotes are of the test backend.
    assert!(page.is_ascii(), "{page}");
    press(&mut state, &[Key::Esc, Key::Esc]);
    let node = screen(&state);
    assert!(node.is_ascii() && node.contains("\\u{65e5}\\u{672c}"), "{node}");
}

#[test]
fn colours_are_only_on_a_terminal_that_has_them() {
    let mut state = troubled((80, 24));
    let is_coloured = |state: &State| {
        let terminal = draw(state);
        let cells = &terminal.backend().buffer().content;
        cells
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(is_coloured(&state));
    state.theme.colour = false;
    assert!(!is_coloured(&state));
    // The selection is seen all the same.
    let terminal = draw(&state);
    let cells = &terminal.backend().buffer().content;
    assert!(cells.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
}

#[test]
fn the_help_of_the_command_line_names_every_key() {
    let command = crate::args::command();
    let top = command.find_subcommand("top").unwrap();
    let help = top.get_after_help().unwrap().to_string();
    for (keys, _) in KEYS {
        for key in keys
            .split(' ')
            .filter(|key| !matches!(*key, "" | "g" | "G" | "Space" | "Ctrl-L" | "Ctrl-Z"))
        {
            assert!(help.contains(key), "{key}");
        }
    }
}

/// What is drawn depends on the screen, not on the node: rows that are not visible are not formatted.
#[test]
fn five_thousand_pods_cost_what_a_screenful_costs() {
    let mut state = state((80, 24));
    let rows = (0..5000).map(|n| pod("default", &format!("web-{n:04}"), "Running", n % 7, 5));
    tell(&mut state, Update::Pods(rows.collect()));
    press(&mut state, &[Key::End]);
    let screen = screen(&state);
    assert!(
        screen.contains("default/web-4999") && screen.contains("Pods 5000"),
        "{screen}"
    );
    assert_eq!(state.pods.window(13).count(), 13);
}
