//! Whatever is typed and whatever happens: nothing panics, the selection is a row that is shown, and only safe text is drawn.

use proptest::prelude::*;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::super::input::{Input, Key, Link, Update};
use super::super::testing::{self, pod, report, second, trouble, wire_pod};
use super::super::view::{self, Theme};
use super::events::EVENTS;
use super::*;

/// Names that a runtime could make up.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z]{1,6}",
        1 => any::<String>(),
        1 => Just("\u{1b}[2J\u{1b}]0;title\u{7}\r\n".to_owned()),
        1 => Just("日本語の長い名前\u{202e}\u{200d}e\u{301}\u{1f1e9}\u{1f1ea}".to_owned()),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let states = prop_oneof![Just("Running"), Just("Created"), Just("OOMKilled"), Just("")];
    (name(), name(), states, any::<u64>(), -5_i64..100_000)
        .prop_map(|(namespace, name, state, restarts, age)| pod(&namespace, &name, state, restarts, age))
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        3 => prop::sample::select("qnysrajkgGte/?+-= h".chars().collect::<Vec<_>>()).prop_map(Key::Char),
        1 => any::<char>().prop_map(Key::Char),
        4 => prop::sample::select(vec![
            Key::Enter, Key::Esc, Key::Backspace, Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Home, Key::End,
            Key::Interrupt, Key::Redraw, Key::Suspend, Key::DeleteLine, Key::DeleteWord,
        ]),
    ]
}

fn line() -> impl Strategy<Value = Line> {
    (name(), any::<u64>(), 0..4_u32, -100_000_i64..100_000, any::<bool>()).prop_map(
        |(name, seq, attempt, at, initial)| {
            let kinds = [
                "ContainerCreated",
                "ContainerStarted",
                "ContainerDied",
                "ContainerRemoved",
                "PodRemoved",
            ];
            let kind = kinds.get(usize::try_from(seq % 6).unwrap_or_default());
            let Some(kind) = kind else {
                return serde_json::from_str(r#"{"type":"Gap","from":3,"to":9}"#).unwrap();
            };
            let mut event = testing::event(kind, &name, seq, attempt, second(at));
            event.initial = initial;
            if seq % 7 == 0 {
                (event.trouble, event.lasted) = (Some(name), Some(f64::NAN));
            }
            Line::Event(Box::new(event))
        },
    )
}

fn update() -> impl Strategy<Value = Update> {
    prop_oneof![
        prop::collection::vec(row(), 0..40).prop_map(Update::Pods),
        (prop::collection::vec(row(), 0..5), prop::collection::vec(name(), 0..3)).prop_map(|(rows, gone)| {
            let gone = gone.iter().map(|name| format!("uid-{name}")).collect();
            Update::Changed { rows, gone }
        }),
        prop::collection::vec(line(), 0..20).prop_map(Update::Events),
        Just(()).prop_map(|()| Update::Health(Box::new(trouble()))),
        name().prop_map(|headline| Update::Health(Box::new(Report {
            headline,
            ..report("Unhealthy")
        }))),
        name().prop_map(|why| Update::Link(Link::Lost { since: second(0), why })),
        Just(()).prop_map(|()| Update::Link(Link::Connected)),
        (name(), prop::collection::vec(line(), 0..20)).prop_map(|(name, lines)| {
            let events = lines.into_iter().filter_map(|line| match line {
                Line::Event(event) => Some(*event),
                _ => None,
            });
            Update::Detail(Box::new(Detail {
                uid: format!("uid-{name}"),
                pod: Some(wire_pod("default", &name, "Running", 3, 9)),
                events: Some(events.collect()),
            }))
        }),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        6 => key().prop_map(Input::Key),
        4 => update().prop_map(Input::Update),
        1 => name().prop_map(Input::Paste),
        1 => (0..200_u16, 0..60_u16).prop_map(|(columns, lines)| Input::Resize(columns, lines)),
        1 => (-200_000_i64..200_000).prop_map(|at| Input::Tick(second(at))),
    ]
}

/// What reaches the terminal has no control characters, and what has a width has a width that is certain.
fn check_screen(state: &State) {
    let (columns, lines) = state.size;
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, lines));
    view::draw(state, &mut buffer);
    for cell in &buffer.content {
        let symbol = cell.symbol();
        assert!(symbol.chars().count() <= 1, "{symbol:?}");
        assert!(!symbol.chars().any(char::is_control), "{symbol:?}");
        assert!(state.theme.unicode || symbol.is_ascii(), "{symbol:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_leaves_a_state_that_can_be_drawn(inputs in prop::collection::vec(input(), 1..60), unicode in any::<bool>()) {
        let mut state = testing::state((80, 24));
        state.theme = Theme { colour: true, unicode };
        for input in inputs {
            state.apply(input);
            state.pods.check(usize::from(Layout::of(&state).pod_rows));
            check_screen(&state);
        }
        prop_assert!(state.events.len() <= EVENTS);

    }
}
