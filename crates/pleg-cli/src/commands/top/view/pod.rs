//! The page of one pod: what it is, what is wrong with it, the lives of its containers, and its events.

use pleg::ContainerState;

use super::canvas::{Piece, fit};
use super::events::{self, Columns};
use super::troubles::wrap;
use crate::commands::top::lives::{Life, Mark, lane};
use crate::commands::top::state::{PodPage, Row, State};
use crate::commands::top::tone::Tone;
use crate::node_pod::REMOVED;
use crate::output::pod::{stale_line, trouble_lines};
use crate::text::{age, clean, clock, columns, count, short_ids};

/// Columns of a container's name.
const NAME: usize = 16;
/// Events of the pod that are shown.
const EVENTS: usize = 200;

/// The lines of the page.
pub(super) fn page(state: &State, page: &PodPage) -> Vec<Vec<Piece>> {
    let mut lines = Vec::new();
    about(&mut lines, state, page);
    troubles(&mut lines, state, page);
    timeline(&mut lines, state, page);
    containers(&mut lines, state, page);
    pod_events(&mut lines, state, page);
    lines
}

/// Its name, state and addresses.
fn about(lines: &mut Vec<Vec<Piece>>, state: &State, page: &PodPage) {
    let of_runtime = || page.pod.as_ref().map(Row::of_runtime);
    let row = match state.pods.get(page.named.uid.as_str()) {
        Some(row) => Some(row.clone()),
        // The last that was seen of it.
        None => of_runtime().map(|mut row| {
            (row.state, row.tone) = (REMOVED.into(), Tone::Dim);
            row
        }),
    };
    let name = crate::text::pod_name(&page.named);
    let Some(row) = row else {
        lines.push(vec![Piece::bold(name, Tone::Plain)]);
        let what = if page.answered { REMOVED } else { "Asking for it" };
        lines.push(vec![Piece::new(what, Tone::Dim)]);
        return;
    };
    lines.push(vec![
        Piece::bold(name, Tone::Plain),
        Piece::plain("  "),
        Piece::bold(row.state.to_string(), row.tone),
    ]);
    let mut facts = vec![
        format!("Ready {}", row.ready),
        count(row.restarts, "restart"),
        format!("age {}", age(row.created, state.now)),
    ];
    if !row.ip.is_empty() {
        facts.push(row.ip.to_string());
    }
    facts.push(format!("UID {}", row.uid));
    lines.push(vec![Piece::plain(facts.join(", "))]);
}

fn troubles(lines: &mut Vec<Vec<Piece>>, state: &State, page: &PodPage) {
    let Some(pod) = &page.pod else {
        return;
    };
    let width = usize::from(state.size.0);
    if let Some(stale) = &pod.status_stale {
        wrap(lines, width, 0, &Piece::new(stale_line(stale, state.now), Tone::Bad));
    }
    for trouble in trouble_lines(pod) {
        wrap(lines, width, 0, &Piece::new(short_ids(&clean(&trouble)), Tone::Bad));
    }
    let mut told: Vec<&str> = Vec::new();
    for cause in &pod.causes {
        if !told.contains(&cause.next.as_str()) {
            told.push(&cause.next);
            wrap(
                lines,
                width,
                2,
                &Piece::plain(format!("Usually: {}", clean(&cause.means))),
            );
            wrap(
                lines,
                width,
                2,
                &Piece::bold(format!("Next: {}", clean(&cause.next)), Tone::Plain),
            );
        }
    }
}

/// A line for each container name, with all its lives.
fn timeline(lines: &mut Vec<Vec<Piece>>, state: &State, page: &PodPage) {
    if page.lives().is_empty() {
        return;
    }
    let window = page.window(state.now);
    let span = age(Some(window.from), window.to);
    let what = if page.shows_all() {
        format!("  all that is known, {span}")
    } else {
        format!("  the last {span}")
    };
    lines.push(Vec::new());
    lines.push(vec![
        Piece::bold("Timeline", Tone::Plain),
        Piece::plain(what),
        Piece::new("  (+ and - zoom)", Tone::Dim),
    ]);
    let mut names: Vec<&str> = Vec::new();
    for life in page.lives() {
        if !names.contains(&life.name.as_str()) {
            names.push(&life.name);
        }
    }
    let room = usize::from(state.size.0).saturating_sub(NAME + 1);
    for name in names {
        let of_name = page.lives().iter().filter(|life| life.name == name);
        let mut pieces = vec![Piece::plain(fit(name, NAME, state.theme) + " ")];
        bar(&mut pieces, &lane(of_name, window, room), state);
        lines.push(pieces);
    }
    let [zone, local] = &state.zones;
    let from = clock(window.from, state.now, zone, local);
    let gap = room.saturating_sub(columns(&from) + 3).max(1);
    lines.push(vec![Piece::new(
        format!("{:NAME$} {from}{:gap$}now", "", ""),
        Tone::Dim,
    )]);
}

/// Marks of one kind beside each other become one piece.
fn bar(pieces: &mut Vec<Piece>, marks: &[Mark], state: &State) {
    for group in marks.chunk_by(|a, b| a == b) {
        let Some(mark) = group.first() else { continue };
        let (glyph, tone) = match mark {
            Mark::Nothing => (' ', Tone::Plain),
            Mark::Created => (state.theme.glyph('░', '.'), Tone::Note),
            Mark::Running => (state.theme.glyph('█', '#'), Tone::Good),
            Mark::Ended => ('o', Tone::Plain),
            Mark::Failed => ('x', Tone::Bad),
        };
        pieces.push(Piece::new(glyph.to_string().repeat(group.len()), tone));
    }
}

/// Each life in a line, the newest first.
fn containers(lines: &mut Vec<Vec<Piece>>, state: &State, page: &PodPage) {
    if page.lives().is_empty() {
        return;
    }
    lines.push(Vec::new());
    lines.push(vec![Piece::bold(
        format!(
            "{} {:<10} {:<8} {:>6} {:>4} REASON",
            fit("CONTAINER", NAME, state.theme),
            "STATE",
            "STARTED",
            "LIVED",
            "EXIT"
        ),
        Tone::Plain,
    )]);
    for life in page.lives().iter().rev() {
        lines.push(container(state, life));
    }
}

fn container(state: &State, life: &Life) -> Vec<Piece> {
    let name = match life.attempt {
        0 => life.name.clone(),
        attempt => format!("{}#{attempt}", life.name),
    };
    let tone = match life.state {
        ContainerState::Running => Tone::Good,
        ContainerState::Created | ContainerState::Unknown => Tone::Wait,
        ContainerState::Exited if life.failed() => Tone::Bad,
        ContainerState::Exited => Tone::Plain,
    };
    let word = match (life.removed, life.state) {
        (true, _) => REMOVED.to_owned(),
        (false, state) => state.to_string(),
    };
    let [zone, local] = &state.zones;
    let started = life
        .started
        .map_or("-".to_owned(), |at| clock(at, state.now, zone, local));
    let until = match life.state {
        ContainerState::Exited => life.ended,
        _ => Some(state.now),
    };
    let lived = until
        .filter(|_| life.started.is_some())
        .map_or("-".to_owned(), |until| age(life.started, until));
    let exit = life.exit_code.map_or("-".to_owned(), |code| code.to_string());
    vec![
        Piece::plain(format!("{} ", fit(&name, NAME, state.theme))),
        Piece::new(format!("{word:<10} "), tone),
        Piece::plain(format!("{started:<8} {lived:>6} {exit:>4} {}", clean(&life.reason))),
    ]
}

/// The newest first, as the page is read from its top.
fn pod_events(lines: &mut Vec<Vec<Piece>>, state: &State, page: &PodPage) {
    lines.push(Vec::new());
    let held = page.events().len();
    let title = match held {
        0 if page.answered => "No events of this pod are held".to_owned(),
        0 => return,
        EVENTS.. => format!("Events, the newest {EVENTS} first"),
        _ => "Events, the newest first".to_owned(),
    };
    lines.push(vec![Piece::bold(title, Tone::Plain)]);
    let newest = || page.events().rev().take(EVENTS);
    let widths = Columns::new(usize::from(state.size.0), events::time_width(state, newest()), false);
    lines.extend(newest().map(|event| events::event(state, event, widths)));
}
