//! What keys and news do, as tables.

use jiff::Timestamp;

use super::super::input::{Input, Key, Link, Update};
use super::super::testing::{died, pod, report, second, state, with_pods};
use super::events::EVENTS;
use super::pods::ROWS;
use super::*;

fn press(state: &mut State, keys: &str) -> Effect {
    let mut effect = Effect::None;
    for c in keys.chars() {
        effect = state.apply(Input::Key(match c {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Esc,
            '\u{8}' => Key::Backspace,
            '\u{15}' => Key::DeleteLine,
            '\u{17}' => Key::DeleteWord,
            c => Key::Char(c),
        }));
    }
    effect
}

fn names(state: &State) -> Vec<String> {
    state.pods.window(100).map(|(row, _)| row.name.to_string()).collect()
}

fn selected(state: &State) -> String {
    state
        .pods
        .selected()
        .map(|row| row.name.to_string())
        .unwrap_or_default()
}

#[test]
fn pods_are_sorted_by_the_column_of_a_key() {
    for (keys, sorted) in [
        ("", ["crash", "start", "web-0", "web-1", "api"]),
        ("s", ["web-0", "web-1", "api", "start", "crash"]),
        ("n", ["crash", "start", "web-0", "web-1", "api"]),
        ("nn", ["api", "web-1", "web-0", "start", "crash"]),
        ("nnn", ["crash", "start", "web-0", "web-1", "api"]),
        ("r", ["crash", "web-1", "start", "web-0", "api"]),
        ("rr", ["start", "web-0", "api", "web-1", "crash"]),
        ("y", ["crash", "start", "web-0", "web-1", "api"]),
        ("a", ["start", "web-0", "web-1", "api", "crash"]),
        ("aa", ["crash", "api", "web-1", "web-0", "start"]),
    ] {
        let mut state = with_pods();
        press(&mut state, keys);
        assert_eq!(names(&state), sorted, "{keys}");
    }
}

#[test]
fn a_filter_is_words_that_all_have_to_occur() {
    for (filter, shown) in [
        ("web", vec!["web-0", "web-1"]),
        ("WEB -1", vec!["web-1"]),
        ("!web", vec!["crash", "start", "api"]),
        ("!web !running", vec!["crash", "start"]),
        ("crashloop", vec!["crash"]),
        ("kube-system/", vec!["api"]),
        ("10.0.0.1", vec!["api"]),
        ("!", vec!["crash", "start", "web-0", "web-1", "api"]),
        ("nothing", vec![]),
    ] {
        let mut state = with_pods();
        press(&mut state, &format!("/{filter}"));
        assert_eq!(names(&state), shown, "{filter}");
    }
}

#[test]
fn a_filter_applies_while_it_is_typed_and_can_be_taken_back() {
    let mut state = with_pods();
    press(&mut state, "/web\n");
    assert!(state.typing.is_none() && state.pods.shown() == 2);
    press(&mut state, "/-0");
    assert_eq!(names(&state), ["web-0"]);
    press(&mut state, "\u{1b}");
    assert_eq!(state.pods.shown(), 2, "Esc: as it was before");
    press(&mut state, "\u{1b}");
    assert_eq!(state.pods.shown(), 5, "Esc again takes it off");
    press(&mut state, "/web x\u{17}");
    assert_eq!(state.pods.filter().text(), "web ");
    press(&mut state, "\u{15}");
    assert_eq!(state.pods.filter().text(), "");
    press(&mut state, "\u{8}");
    assert!(state.typing.is_none(), "nothing is left to delete");
    // What is typed is text, and not a command.
    assert_eq!(press(&mut state, "/q?"), Effect::None);
    assert!(!state.help);
}

#[test]
fn pasted_text_is_never_a_command() {
    let mut state = with_pods();
    assert_eq!(state.apply(Input::Paste("q".to_owned())), Effect::None);
    press(&mut state, "/");
    state.apply(Input::Paste("we\nb\u{1b}[2J".to_owned()));
    assert_eq!(state.pods.filter().text(), "web[2J");
    state.apply(Input::Paste("x".repeat(10_000)));
    assert_eq!(state.pods.filter().text().chars().count(), Filter::LIMIT);
}

#[test]
fn the_selection_stays_with_its_pod() {
    let mut state = with_pods();
    press(&mut state, "nj");
    assert_eq!(selected(&state), "start");
    press(&mut state, "r");
    assert_eq!(selected(&state), "start", "another order");
    state.apply(Input::Update(Update::Changed {
        rows: vec![pod("default", "a-new-one", "Running", 9, 3)],
        gone: Vec::new(),
    }));
    assert_eq!(selected(&state), "start", "another pod");
    let place = state.pods.cursor();
    state.apply(Input::Update(Update::Changed {
        rows: Vec::new(),
        gone: vec!["uid-start".to_owned()],
    }));
    assert_eq!(state.pods.cursor(), place, "its neighbour");
    state.apply(Input::Update(Update::Pods(Vec::new())));
    assert!(state.pods.selected().is_none());
    assert_eq!(press(&mut state, "\nGg"), Effect::None);
    assert!(matches!(state.page, Page::Node), "there is nothing to open");
}

#[test]
fn movement_stays_inside() {
    let mut state = state((80, 24));
    let rows = (0..100).map(|n| pod("default", &format!("web-{n:02}"), "Running", 0, 9));
    state.apply(Input::Update(Update::Pods(rows.collect())));
    for (key, name) in [
        (Key::Up, "web-00"),
        (Key::Down, "web-01"),
        (Key::PageDown, "web-14"),
        (Key::End, "web-99"),
        (Key::Down, "web-99"),
        (Key::PageUp, "web-86"),
        (Key::Home, "web-00"),
        (Key::PageUp, "web-00"),
    ] {
        state.apply(Input::Key(key));
        assert_eq!(selected(&state), name, "{key:?}");
    }
}

#[test]
fn keys_lead_to_pages_and_back() {
    let mut state = with_pods();
    for (key, is_page) in [
        ("t", (|page| matches!(page, Page::Troubles(_))) as fn(&Page) -> bool),
        ("e", |page| matches!(page, Page::Events)),
        ("\n", |page| matches!(page, Page::Pod(_))),
    ] {
        press(&mut state, key);
        assert!(is_page(&state.page), "{key:?}");
        assert_eq!(press(&mut state, "q"), Effect::None);
        assert!(matches!(state.page, Page::Node), "{key:?}");
    }
    press(&mut state, "?");
    assert!(state.help);
    assert_eq!(press(&mut state, "q"), Effect::None, "closes the help");
    assert_eq!(press(&mut state, "q"), Effect::Quit);
    for (key, effect) in [
        (Key::Interrupt, Effect::Quit),
        (Key::Redraw, Effect::Redraw),
        (Key::Suspend, Effect::Suspend),
    ] {
        let mut state = with_pods();
        press(&mut state, "/");
        assert_eq!(state.apply(Input::Key(key)), effect, "also while typing");
    }
}

#[test]
fn an_opened_pod_is_asked_for_and_learns() {
    let mut state = with_pods();
    press(&mut state, "/crash\n\n");
    assert_eq!(state.opened().map(|pod| &*pod.name), Some("crash"));
    // Of another pod: an answer that comes late.
    let late = Detail {
        uid: "uid-api".to_owned(),
        pod: None,
        events: None,
    };
    state.apply(Input::Update(Update::Detail(Box::new(late))));
    let Page::Pod(page) = &state.page else { panic!() };
    assert!(!page.answered);
    // An event that comes while the held ones are asked for is shown once.
    state.apply(Input::Update(Update::Events(vec![died("crash", 7, 3, second(50))])));
    let Line::Event(held) = died("crash", 6, 2, second(40)) else {
        panic!()
    };
    let Line::Event(both) = died("crash", 7, 3, second(50)) else {
        panic!()
    };
    let detail = Detail {
        uid: "uid-crash".to_owned(),
        pod: None,
        events: Some(vec![*held, *both]),
    };
    state.apply(Input::Update(Update::Detail(Box::new(detail))));
    let Page::Pod(page) = &state.page else { panic!() };
    assert_eq!(page.events().map(|event| event.seq).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(page.lives().len(), 2);
    press(&mut state, "q");
    assert!(state.opened().is_none());
}

#[test]
fn the_buffers_are_bounded() {
    let mut state = with_pods();
    press(&mut state, "/crash\n\n");
    let many = (0..5000).map(|n| died("crash", n, 0, second(0)));
    state.apply(Input::Update(Update::Events(many.collect())));
    assert_eq!(state.events.len(), EVENTS);
    let Page::Pod(page) = &state.page else { panic!() };
    assert_eq!(page.events().len(), POD_EVENTS);
    let rows = (0..ROWS + 7).map(|n| pod("default", &format!("web-{n}"), "Running", 0, 9));
    state.apply(Input::Update(Update::Pods(rows.collect())));
    assert_eq!((state.pods.total(), state.pods.left_out()), (ROWS + 7, 7));
}

#[test]
fn events_that_were_scrolled_to_stay_where_they_are() {
    let mut state = with_pods();
    let some = |from: u64| (from..from + 50).map(|n| died("crash", n, 0, second(0))).collect();
    state.apply(Input::Update(Update::Events(some(0))));
    press(&mut state, "e");
    let newest = |state: &State| {
        let window = state.events.window(state.pods.filter(), 10, false);
        match window.last() {
            Some(Line::Event(event)) => event.seq,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(newest(&state), 49);
    press(&mut state, "kkk");
    assert_eq!(newest(&state), 46);
    state.apply(Input::Update(Update::Events(some(50))));
    assert_eq!(newest(&state), 46, "new ones come below");
    press(&mut state, "G");
    assert_eq!(newest(&state), 99);
    state.apply(Input::Update(Update::Events(some(100))));
    assert_eq!(newest(&state), 149, "the newest are followed");
    press(&mut state, "g");
    assert!(state.events.back() > 100);
}

#[test]
fn what_was_there_before_is_no_event() {
    let mut state = with_pods();
    let Line::Event(mut event) = died("crash", 1, 0, second(0)) else {
        panic!()
    };
    event.initial = true;
    state.apply(Input::Update(Update::Events(vec![Line::Event(event)])));
    assert_eq!(state.events.len(), 0);
}

#[test]
fn a_lost_daemon_changes_nothing_but_the_header() {
    let mut state = with_pods();
    state.apply(Input::Update(Update::Health(Box::new(report("Healthy")))));
    let lost = Link::Lost {
        since: Timestamp::UNIX_EPOCH,
        why: "gone".to_owned(),
    };
    state.apply(Input::Update(Update::Link(lost)));
    assert_eq!(state.pods.shown(), 5);
    state.apply(Input::Update(Update::Link(Link::Connected)));
    assert_eq!(state.link, Link::Connected);
}
