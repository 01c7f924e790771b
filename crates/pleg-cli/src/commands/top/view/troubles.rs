//! What is wrong: in a few lines above the pods, and in full on a page of its own.

use super::canvas::Piece;
use crate::commands::top::input::Link;
use crate::commands::top::state::State;
use crate::commands::top::tone::Tone;
use crate::text::{age, clean, clock, columns, count, short_ids};
use crate::wire::Report;

/// The health and who says so, for the first line of the screen.
pub(super) fn header(state: &State) -> Vec<Piece> {
    if let Link::Lost { since, .. } = &state.link {
        let lost = format!("Disconnected for {}, reconnecting", age(Some(*since), state.now));
        return vec![Piece::bold(lost, Tone::Bad)];
    }
    match &state.report {
        Some(report) => vec![
            Piece::bold(report.level.clone(), Tone::of_level(&report.level)),
            Piece::plain(format!(": {}", short_ids(&report.headline))),
        ],
        None => vec![Piece::new("Waiting for the health report", Tone::Dim)],
    }
}

/// Each trouble in a line, and what to type next in another.
pub(crate) fn lines(state: &State) -> Vec<Vec<Piece>> {
    let mut lines = lost(state);
    let Some(report) = &state.report else {
        return lines;
    };
    let tone = Tone::of_level(&report.level);
    for cause in &report.causes {
        lines.push(vec![Piece::new(short_ids(&cause.text), tone)]);
        lines.push(vec![
            Piece::bold("  Next: ", Tone::Plain),
            Piece::plain(cause.next.clone()),
        ]);
    }
    if report.more_causes > 0 {
        let more = format!("and {} more: press t", report.more_causes);
        lines.push(vec![Piece::new(more, tone)]);
    }
    for condition in not_ready(report) {
        lines.push(vec![Piece::new(condition, Tone::Bad)]);
    }
    for problem in &report.refused_manifests {
        lines.push(vec![Piece::new(format!("Manifest refused: {problem}"), Tone::Wait)]);
    }
    lines
}

/// That the daemon is gone, and how old is what is shown.
fn lost(state: &State) -> Vec<Vec<Piece>> {
    let Link::Lost { since, why } = &state.link else {
        return Vec::new();
    };
    let [zone, local] = &state.zones;
    let since = clock(*since, state.now, zone, local);
    let text = format!("{why}. This is what was seen until {since}.");
    vec![vec![Piece::new(text, Tone::Bad)]]
}

/// Conditions of the node that say more than the headline.
fn not_ready(report: &Report) -> impl Iterator<Item = String> {
    let untold = report
        .conditions
        .iter()
        .filter(|condition| condition.kind == "Ready" && !condition.status)
        .filter(|condition| !condition.message.starts_with(&report.headline));
    untold.map(|condition| format!("Node: Ready=False ({}: {})", condition.reason, condition.message))
}

/// All of it, with what each usually means.
pub(super) fn page(state: &State) -> Vec<Vec<Piece>> {
    let width = usize::from(state.size.0);
    let mut page = lost(state);
    let Some(report) = &state.report else {
        page.push(vec![Piece::new("No health report yet.", Tone::Dim)]);
        return page;
    };
    let mut advice = |tone: Tone, [seen, means, next]: [&str; 3]| {
        wrap(&mut page, width, 0, &Piece::new(short_ids(seen), tone));
        wrap(&mut page, width, 2, &Piece::plain(format!("Usually: {means}")));
        wrap(&mut page, width, 2, &Piece::bold(format!("Next: {next}"), Tone::Plain));
        page.push(Vec::new());
    };
    let tone = Tone::of_level(&report.level);
    for cause in &report.causes {
        advice(tone, [&cause.text, &cause.means, &cause.next]);
    }
    for warning in &report.warnings {
        let seen = format!("Harmless to pleg, but not to a kubelet: {}", warning.text);
        advice(Tone::Wait, [&seen, &warning.means, &warning.next]);
    }
    if report.more_causes > 0 {
        let more = count(report.more_causes, "more cause");
        wrap(
            &mut page,
            width,
            0,
            &Piece::new(format!("And {more}: see pleg pods --not-ready"), tone),
        );
    }
    for condition in not_ready(report) {
        wrap(&mut page, width, 0, &Piece::new(condition, Tone::Bad));
    }
    for problem in &report.refused_manifests {
        wrap(
            &mut page,
            width,
            0,
            &Piece::new(format!("Manifest refused: {problem}"), Tone::Wait),
        );
    }
    if page.is_empty() {
        page.push(vec![Piece::new("No troubles.", Tone::Good)]);
    }
    page
}

/// Breaks a text into lines of up to `width` columns, between words where it can be.
pub(super) fn wrap(into: &mut Vec<Vec<Piece>>, width: usize, indent: usize, piece: &Piece) {
    let room = width.saturating_sub(indent).max(8);
    let mut line = String::new();
    let mut push = |line: &mut String| {
        let text = format!("{:indent$}{line}", "");
        into.push(vec![Piece { text, ..piece.clone() }]);
        line.clear();
    };
    for word in clean(&piece.text).split_whitespace() {
        if !line.is_empty() && columns(&line) + 1 + columns(word) > room {
            push(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        // A word that is longer than a line, such as a path, is broken.
        for c in word.chars() {
            if columns(&line) >= room {
                push(&mut line);
            }
            line.push(c);
        }
    }
    if !line.is_empty() {
        push(&mut line);
    }
}
